"""`elmokit models`: which models there are."""

import json
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Show the models that came with this installation.")


@app.callback()
def _group() -> None:
    """Keeps `list` a command of its own while there is no other."""


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """Print the names of the built-in models."""
    from elmokit.weights import available_models

    names = available_models()
    typer.echo(json.dumps(names) if as_json else "\n".join(names))
