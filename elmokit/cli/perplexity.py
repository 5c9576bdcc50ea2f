"""`elmokit perplexity`: how well a language model predicts texts, in both directions, with the full softmax."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from elmokit.text.tokens import Tokenizer
    from elmokit.train.objective import Perplexity


def perplexity(
    model: Annotated[str, typer.Argument(help="Name, directory of a language model, or a checkpoint of bilm-tf.")],
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="UTF-8, .gz, .xz and .zst unpacked on the fly; - for stdin.")
    ],
    text: Annotated[
        bool, typer.Option("--text", help="Raw text: split and tokenise it. Else a line is a sentence of tokens.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Of raw text, such as en or zh.", show_default="the model's")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Processors to use.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Measure perplexity: each token and one boundary a sentence, scored once in each direction by the full softmax.

    Each sentence stands for itself; a line without tokens is none. Words outside the vocabulary are scored as <UNK>,
    so only models with the same vocabulary can be compared.
    """
    if language and not text:
        raise typer.BadParameter("is for raw text; add --text", param_hint="--language")
    from elmokit.model.concurrent import use_threads
    from elmokit.train.scoring import Scorer
    from elmokit.weights import load_language_model

    use_threads(threads)
    bilm, head, lexicon = load_language_model(model)
    scorer = Scorer(bilm, head, lexicon)
    tokenizer = None
    if text:
        from elmokit.text.tokens import Tokenizer

        tokenizer = Tokenizer(language or bilm.config.language)
    with _progress() as progress:
        found = [scorer.perplexity(_sentences(file, tokenizer, progress), source=file) for file in files]
    if as_json:
        records = [{"file": file, **_record(figures)} for file, figures in zip(files, found, strict=True)]
        summary = {"model": model, "softmax": "full", "vocabulary": len(lexicon), "files": records}
        typer.echo(json.dumps(summary | {"all": _record(_sum(found))}))
    else:
        rows = list(zip(files, found, strict=True))
        if len(rows) > 1:
            rows.append(("all", _sum(found)))
        typer.echo(_table(rows, len(lexicon)).encode("utf-8", "surrogateescape"))  # names of files as they are


def _sentences(file: str, tokenizer: "Tokenizer | None", progress: "Progress") -> Iterator[list[str]]:
    """The sentences of a file, while a bar shows how far it has been read."""
    from elmokit.text.sentences import read_lines, split_tokens

    path = Path(file)
    size = path.stat().st_size if path.is_file() else None
    task = progress.add_task(file, total=size)
    for line in read_lines(file, on_read=lambda read: progress.update(task, completed=read)):
        yield from tokenizer.sentences(line) if tokenizer else [split_tokens(line)]
    progress.remove_task(task)


@contextmanager
def _progress() -> "Iterator[Progress]":
    """A bar on standard error where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        yield progress


def _sum(found: Iterable["Perplexity"]) -> "Perplexity":
    from elmokit.train.objective import Perplexity

    return sum(found, Perplexity())


def _record(figures: "Perplexity") -> dict[str, Any]:
    return {
        "forward": figures.forward,
        "backward": figures.backward,
        "mean": figures.mean,
        "tokens": figures.tokens,
        "unknown": figures.unknown,
        "unknown_share": figures.unknown / figures.tokens,
    }


def _table(rows: list[tuple[str, "Perplexity"]], num_words: int) -> str:
    """Figures in columns."""
    width = max(len("file"), *(len(name) for name, _ in rows))
    lines = [
        f"perplexity by the full softmax over {num_words:,} words",
        f"{'file':{width}}  {'forward':>10}  {'backward':>10}  {'mean':>10}  {'tokens':>12}  unknown",
    ]
    for name, figures in rows:
        values = "  ".join(f"{value:10,.2f}" for value in (figures.forward, figures.backward, figures.mean))
        share = figures.unknown / figures.tokens
        lines.append(f"{name:{width}}  {values}  {figures.tokens:12,}  {share:7.2%}")
    return "\n".join(lines)
