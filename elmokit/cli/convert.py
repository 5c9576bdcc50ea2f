"""`elmokit convert`: a model from one format to another."""

from pathlib import Path
from typing import Annotated, Literal

import typer


def convert(
    model: Annotated[str, typer.Argument(help="Name, directory, archive, weight file or checkpoint.")],
    output: Annotated[Path, typer.Argument(help="A file .hdf5 or .h5, with options.json beside it; else a directory.")],
    format: Annotated[
        Literal["native", "hdf5", "manylangs"] | None,
        typer.Option(help="Of the output; without it, HDF5 for such a file, native for a directory."),
    ] = None,
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="Of a directory's numbers.")] = "float32",
) -> None:
    """Save a model in another format: elmokit's own, AllenNLP's HDF5 or ELMoForManyLangs'."""
    from elmokit.errors import InputError
    from elmokit.weights import convert

    if output.exists():
        raise InputError(f"{output} exists; name a place that does not, or remove it first")
    convert(model, output, format=format, dtype=dtype)
    typer.echo(str(output))
