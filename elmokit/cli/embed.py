"""`elmokit embed`: a text file of any length to a file of vectors, or to JSON lines on standard output."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from elmokit.embed.embedder import EmbeddedSentence, Layers
    from elmokit.embed.pooling import Vectors

    Write = Callable[[str, list[str], Vectors], None]

STANDARD_STREAM = "-"


def embed(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="UTF-8 file, .gz and .xz unpacked on the fly; - for standard input.")
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="File: .hdf5, .h5, .parquet, .npz or .jsonl; - for JSON lines here.")
    ] = STANDARD_STREAM,
    model: Annotated[
        str | None,
        typer.Option(help="Name, directory, archive or weight file.", show_default="built-in English"),
    ] = None,
    layers: Annotated[str, typer.Option(help="all, mix, average, top, or a number: 0 tokens, -1 top.")] = "all",
    pooling: Annotated[Literal["mean"] | None, typer.Option(help="One vector a sentence.")] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Raw text: split and tokenise it. Else a line is a sentence of tokens.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Of raw text, such as en or zh.", show_default="the model's")
    ] = None,
    vocabulary: Annotated[Path | None, typer.Option(help="Words of a word-level model.")] = None,
    max_tokens_per_batch: Annotated[
        int | None, typer.Option(min=1, help="More needs more memory.", show_default="2048")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Such as cuda.", show_default="cpu")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "int8"], typer.Option(help="What matrix products are rounded to.")
    ] = "float32",
    threads: Annotated[int | None, typer.Option(min=1, help="Processors to use.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON on standard output.")] = False,
) -> None:
    """Turn text into contextual vectors.

    A record a line, or a sentence with --text, in the order of the input; an empty line is an empty record.
    """
    if language and not text:
        raise typer.BadParameter("is for raw text; add --text", param_hint="--language")
    if as_json and output == STANDARD_STREAM:
        raise typer.BadParameter("standard output has the vectors; give a file with -o", param_hint="--json")
    from elmokit.embed.embedder import DEFAULT_BUDGET, load
    from elmokit.embed.writers import check_suffix
    from elmokit.errors import InputError
    from elmokit.model.concurrent import use_threads

    if output != STANDARD_STREAM:
        check_suffix(output)
        if Path(output).exists() and Path(source).exists() and Path(output).samefile(source):
            raise InputError(f"{output} is the input itself; name another file for the vectors")
    use_threads(threads)
    embedder = load(
        model,
        device=device,
        dtype=dtype,
        vocabulary=vocabulary,
        max_tokens_per_batch=max_tokens_per_batch or DEFAULT_BUDGET,
    )
    split = embedder.tokenizer(language).sentences if text else None
    start = time.monotonic()
    num_sentences, num_tokens = _write_all(
        partial(embedder.stream, layers=_layers(layers), pooling=pooling), source, split, output
    )
    seconds = time.monotonic() - start
    summary = {"sentences": num_sentences, "tokens": num_tokens, "seconds": round(seconds, 3), "output": output}
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        rate = num_tokens / max(seconds, 1e-9)
        typer.echo(
            f"{num_sentences:,} sentences, {num_tokens:,} tokens, {rate:,.0f} tokens/s"
            + (f", written to {output}" if output != STANDARD_STREAM else ""),
            err=True,
        )


def _write_all(
    stream: Callable[[Iterator[list[str]]], Iterator["EmbeddedSentence"]],
    source: str,
    split: Callable[[str], list[list[str]]] | None,
    output: str,
) -> tuple[int, int]:
    """Read, embed and write; the sentences and tokens that were written."""
    from elmokit.text.sentences import read_lines, split_tokens

    # The bytes read and the text of each sentence whose vectors are still to come.
    pending: deque[tuple[int, str]] = deque()
    position = [0]

    def sentences() -> Iterator[list[str]]:
        for line in read_lines(source, on_read=partial(position.__setitem__, 0)):
            for tokens in split(line) if split else [split_tokens(line)]:
                pending.append((position[0], " ".join(tokens) if split else line))
                yield tokens

    num_sentences = num_tokens = 0
    records = stream(sentences())
    with _destination(output) as write, _progress(source) as advance:
        for record in records:
            place, sentence = pending.popleft()
            write(sentence, record.tokens, record.vectors)
            num_sentences += 1
            num_tokens += len(record.tokens)
            advance(place, num_tokens)
    return num_sentences, num_tokens


def _layers(value: str) -> "Layers":
    """A name or a number; the library names what is neither."""
    try:
        return int(value)
    except ValueError:
        return value  # type: ignore[return-value]


@contextmanager
def _destination(output: str) -> Iterator["Write"]:
    """Where records go."""
    from elmokit.embed.writers import open_writer
    from elmokit.embed.writers.jsonl import json_line

    if output == STANDARD_STREAM:
        numbers = count()
        yield lambda sentence, tokens, vectors: print(  # noqa: T201
            json_line(next(numbers), sentence, tokens, vectors), end=""
        )
        sys.stdout.flush()  # a reader that has gone away is noticed here, not when Python ends
    else:
        with open_writer(output) as writer:
            yield writer.write


@contextmanager
def _progress(source: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error where that is a terminal; told the bytes of the input and the tokens that are done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True)
    path = Path(source)
    size = path.stat().st_size if source != STANDARD_STREAM and path.is_file() else None
    rate = TextColumn("{task.fields[tokens]:,} tokens, {task.fields[rate]:,.0f} tokens/s")
    columns = (BarColumn(), rate, TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("embed", total=size, tokens=0, rate=0.0)
        start = time.monotonic()

        def advance(place: int, tokens: int) -> None:
            rate = tokens / max(time.monotonic() - start, 1e-9)
            progress.update(task, completed=place, tokens=tokens, rate=rate)

        yield advance
