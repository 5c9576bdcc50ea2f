"""`elmokit score`: what a language model thinks of each token, from the left, from the right, and from both sides."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from elmokit.train.scoring import Blank, FilledSentence, SentenceScore


def score(
    model: Annotated[str, typer.Argument(help="Name, directory of a language model, or a checkpoint of bilm-tf.")],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A sentence of tokens a line, UTF-8; - for standard input.")
    ] = "-",
    blank: Annotated[
        str | None, typer.Option(metavar="TOKEN", help='Give the best words for this token, such as "___".')
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Words for a blank.")] = 10,
    threads: Annotated[int | None, typer.Option(min=1, help="Processors to use.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON a sentence.")] = False,
) -> None:
    """Print log-probabilities (natural, by the full softmax) of each token given its left, its right and both sides.

    With --blank, the best words for each blank instead. Words outside the vocabulary are scored as <UNK> and marked.
    """
    from elmokit.model.concurrent import use_threads
    from elmokit.text.sentences import read_token_lines
    from elmokit.train.scoring import Scorer
    from elmokit.weights import load_language_model

    use_threads(threads)
    scorer = Scorer(*load_language_model(model))
    lines = read_token_lines(source)
    for number, text in enumerate(
        _scores(scorer.score(lines), as_json) if blank is None else _blanks(scorer.fill(lines, blank, top=top), as_json)
    ):
        if number and not as_json:
            typer.echo()
        typer.echo(text.encode("utf-8", "backslashreplace"))  # UTF-8 whatever the locale


def _scores(sentences: "Iterator[SentenceScore]", as_json: bool) -> Iterator[str]:
    for sentence in sentences:
        if as_json:
            sums = {"forward": sentence.forward, "backward": sentence.backward, "combined": sentence.combined}
            yield json.dumps(asdict(sentence) | sums)
            continue
        names = [f"{token.token} <UNK>" if token.unknown else token.token for token in sentence.tokens]
        width = max(len("(sentence)"), *map(_cells, names), 0)
        lines = [f"{'':{width}}  {'forward':>9}  {'backward':>9}  {'combined':>9}"]
        for name, token in zip(names, sentence.tokens, strict=True):
            lines.append(f"{_pad(name, width)}  {token.forward:9.3f}  {token.backward:9.3f}  {token.combined:9.3f}")
        lines.append(f"{'(start)':{width}}  {'':9}  {sentence.start:9.3f}")
        lines.append(f"{'(end)':{width}}  {sentence.end:9.3f}")
        total = f"{sentence.forward:9.3f}  {sentence.backward:9.3f}  {sentence.combined:9.3f}"
        yield "\n".join([*lines, f"{'(sentence)':{width}}  {total}"])


def _blanks(sentences: "Iterator[FilledSentence]", as_json: bool) -> Iterator[str]:
    for number, sentence in enumerate(sentences, start=1):
        if as_json:
            yield json.dumps(asdict(sentence))
        elif not sentence.blanks:
            yield f"sentence {number} has no blank"
        else:
            yield "\n\n".join(_blank(number, blank) for blank in sentence.blanks)


def _blank(number: int, blank: "Blank") -> str:
    lines = [f"sentence {number}, token {blank.position + 1}"]
    lines.append("  ".join(f"{name:28}" for name in ("forward", "backward", "combined")).rstrip())
    for row in zip(blank.forward, blank.backward, blank.combined, strict=True):
        lines.append("  ".join(f"{_pad(word.word, 18)} {word.log_prob:9.3f}" for word in row))
    return "\n".join(lines)


def _cells(text: str) -> int:
    """Columns of a terminal, of which a Chinese character takes two."""
    from rich.cells import cell_len

    return cell_len(text)


def _pad(text: str, width: int) -> str:
    return text + " " * (width - _cells(text))
