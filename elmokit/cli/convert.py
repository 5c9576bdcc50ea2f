"""`elmokit convert`: a model from one format to another."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def convert(
    model: Annotated[str, typer.Argument(help="Built-in name, directory, zip or weight file.")],
    output: Annotated[Path, typer.Argument(help="A file .hdf5 or .h5, with options.json beside it; else a directory.")],
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Of a directory's numbers.")] = "float32",
) -> None:
    """Save a model as AllenNLP's HDF5 or as a directory in elmokit's own format."""
    from elmokit.errors import InputError
    from elmokit.weights import convert

    if output.exists():
        raise InputError(f"{output} exists; name a place that does not, or remove it first")
    convert(model, output, dtype=dtype)
    typer.echo(str(output))
