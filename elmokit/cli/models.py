"""`elmokit models`: which models there are, what each is, fetching and publishing them."""

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(help="Find, fetch and publish models.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_models(
    language: Annotated[str | None, typer.Option(help="Only of this language, by its code.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the models in the box and all published ones that are known."""
    from elmokit.weights.card import listed

    rows = [row for row in listed() if language in (None, row["language"])]
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False))
        return
    columns = [
        (row["name"], row["language"] or "?", _megabytes(row["size"]), row["place"], row["title"]) for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    for cells in columns:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip())


@app.command("show")
def show_model(
    model: Annotated[str, typer.Argument(help="Name, path, or repository that has been fetched.")],
    as_json: AsJson = False,
) -> None:
    """Print all that is known of a model, and what its files say where they are here."""
    from elmokit.weights.card import show

    known = show(model)
    typer.echo(json.dumps(known, ensure_ascii=False, default=str) if as_json else "\n".join(_lines(known)))


@app.command("fetch")
def fetch_model(
    model: Annotated[str, typer.Argument(help="Name, address, or hf://owner/name[@revision].")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Copy it into this new folder.")
    ] = None,
) -> None:
    """Fetch a model into the cache, and print where it is."""
    from elmokit.errors import InputError
    from elmokit.weights.card import fetched

    if output is not None and output.exists():
        raise InputError(f"{output} exists; name a folder that does not, or remove it first")
    with fetched(model) as path:
        if output is not None and path.is_dir():
            shutil.copytree(path, output, ignore=shutil.ignore_patterns("*.lock"))
        elif output is not None:
            output.mkdir(parents=True)
            shutil.copy(path, output)
        typer.echo(str(output or path))


@app.command("push")
def push_model(
    folder: Annotated[Path, typer.Argument(help="What elmokit train, finetune or convert wrote.")],
    repository: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Made if there is none.")],
    licence: Annotated[
        str | None, typer.Option("--licence", "--license", help="Write a card with this licence, such as apache-2.0.")
    ] = None,
    language: Annotated[str | None, typer.Option(help="For that card; by default the model's own.")] = None,
    private: Annotated[bool, typer.Option("--private", help="Hide a new repository from others.")] = False,
) -> None:
    """Publish a model with its card on the Hugging Face Hub; HF_TOKEN says who you are."""
    from elmokit.weights import push
    from elmokit.weights.card import write_card

    if licence is not None:
        write_card(folder, licence=licence, name=repository, language=language)
    typer.echo(push(folder, repository, private=private))


def _megabytes(size: int | None) -> str:
    return "?" if size is None else f"{size / 1e6:,.1f} MB"


def _lines(known: dict[str, Any], indent: str = "") -> list[str]:
    """`key: value`, what has parts indented below."""
    lines = []
    for key, value in known.items():
        label = f"{indent}{key.replace('_', ' ')}:"
        if isinstance(value, dict):
            lines += [label, *_lines(value, indent + "  ")]
        elif isinstance(value, (list, tuple)):
            lines.append(label)
            for item in value:
                lines += _lines(item, indent + "  ") if isinstance(item, dict) else [f"{indent}  {item}"]
        else:
            lines.append(f"{label} {'not known' if value is None else value}")
    return lines
