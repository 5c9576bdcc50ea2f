"""`elmokit models`: which models there are."""

import json
from typing import Annotated

import typer

app = typer.Typer(help="Show the models that came with this installation.")


@app.callback(invoke_without_command=True)
def _group(context: typer.Context) -> None:
    """Show the models that came with this installation."""
    if context.invoked_subcommand is None:
        list_models()


@app.command("list")
def list_models(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """Print the names of the built-in models."""
    from elmokit.weights import available_models

    names = available_models()
    typer.echo(json.dumps(names) if as_json else "\n".join(names))
