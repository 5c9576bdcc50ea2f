"""The command `elmokit`: gathers the commands and turns errors into one line and an exit code.

Exit codes: 0; 1 for an error that a user can act on; 2 for wrong usage; 130 after an interrupt. Data goes to standard
output, all else to standard error. A command's file imports what is heavy inside its function, so that help is instant.
"""

import signal
import sys
import warnings
from importlib.metadata import version
from typing import Annotated, TextIO

import typer

from elmokit import __version__
from elmokit.cli import convert, embed, finetune, models, perplexity, score, train
from elmokit.errors import ElmokitError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("embed")(embed.embed)
app.command("convert")(convert.convert)
app.command("train")(train.train)
app.command("finetune")(finetune.finetune)
app.command("perplexity")(perplexity.perplexity)
app.command("score")(score.score)
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        from elmokit import kernel

        python = sys.version.split()[0]
        typer.echo(f"elmokit {__version__}, torch {version('torch')}, Python {python}, {kernel.describe()}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show versions and exit.")
    ] = False,
) -> None:
    """ELMo: contextual word vectors from bidirectional language models."""


def _say(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """One line a warning."""
    print(f"elmokit: warning: {message}", file=sys.stderr)  # noqa: T201


def main() -> None:
    """Run the command line; the only place that ends the process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that no half-written file stays
    warnings.showwarning = _say
    debug = "--debug" in sys.argv[1:]  # read here, since an error may come before the options are parsed
    try:
        app()
    except (ElmokitError, OSError) as error:  # the latter, for example, of a full disk
        if debug:
            raise
        print(f"elmokit: error: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
