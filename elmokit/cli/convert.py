"""`elmokit convert`: a model from one format to another."""

from typing import Annotated, Literal

import typer


def convert(
    model: Annotated[str, typer.Argument(help="Built-in name, directory, zip or weight file.")],
    output: Annotated[str, typer.Argument(help="A file .hdf5 or .h5, with options.json beside it; else a directory.")],
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Of a directory's numbers.")] = "float32",
) -> None:
    """Save a model as AllenNLP's HDF5 or as a directory in elmokit's own format."""
    from elmokit.weights import convert

    convert(model, output, dtype=dtype)
    typer.echo(output)
