"""Vectors to files, one record a sentence, in constant memory; the format follows the file's suffix.

`open_writer` gives a `VectorWriter`, which numbers the records and names the file in its errors; a format's own file
(`hdf5`, `parquet`, `npz`, `jsonl`) offers a class with the methods of `VectorFile`. Everything is written under a
temporary name beside the target and renamed at the end, so that a file with the target's name is always whole, and
one that was there before stays until then.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from elmokit.embed.writers.hdf5 import HDF5File, read_hdf5
from elmokit.embed.writers.jsonl import JSONLinesFile
from elmokit.embed.writers.npz import NPZFile
from elmokit.embed.writers.parquet import ParquetFile
from elmokit.errors import InputError

__all__ = ["SUFFIXES", "VectorFile", "VectorWriter", "check_suffix", "open_writer", "read_hdf5", "writing"]


class VectorFile(Protocol):
    """A file of one format while it is written."""

    def add(self, index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32], /) -> None:
        """Append a record; indices count from 0."""

    def close(self) -> None:
        """Complete the file; called once, also after an error, when the file is thrown away."""


_FORMATS: Final[dict[str, Callable[[Path], VectorFile]]] = {
    ".hdf5": HDF5File,
    ".h5": HDF5File,
    ".parquet": ParquetFile,
    ".npz": NPZFile,
    ".jsonl": JSONLinesFile,
}
SUFFIXES: Final = tuple(_FORMATS)


class VectorWriter:
    """What `open_writer` gives to a `with` block."""

    def __init__(self, file: VectorFile, path: Path) -> None:
        """Args:
        file: where records go.
        path: its final name, for messages.
        """
        self._file = file
        self._path = path
        self._count = 0

    def write(self, sentence: str, tokens: Sequence[str], vectors: npt.ArrayLike) -> None:
        """Append one record.

        Args:
            sentence: the sentence as it was read.
            tokens: its T tokens.
            vectors: (L + 1, T, X) all layers, (T, X) one of them, or (X,) pooled; stored as float32.

        Raises:
            InputError: the file cannot be written, e.g. because the disk is full.
        """
        with _failures_of(self._path):
            self._file.add(self._count, sentence, tokens, np.asarray(vectors, dtype=np.float32))
        self._count += 1


def check_suffix(path: str | Path) -> None:
    """Refuse a target whose suffix names no format, before any work is done.

    Raises:
        InputError: the suffix is none of `SUFFIXES`.
    """
    suffix = Path(path).suffix
    if suffix.lower() not in _FORMATS:
        raise InputError(f"{path} has the suffix {suffix!r}, expected one of {', '.join(SUFFIXES)}")


@contextmanager
def open_writer(path: str | Path) -> Iterator[VectorWriter]:
    """Write vectors to a file whose suffix names the format, in a `with` block.

    Args:
        path: the target; an older file there is replaced when the block ends without an exception.

    Raises:
        InputError: unknown suffix, missing folder, or a target that cannot be written.
        MissingExtraError: the format's package is not installed.
    """
    check_suffix(path)
    with writing(path, _FORMATS[Path(path).suffix.lower()]) as writer:
        yield writer


@contextmanager
def writing(path: str | Path, make: Callable[[Path], VectorFile]) -> Iterator[VectorWriter]:
    """As `open_writer`, in the format that `make` opens, whatever the suffix.

    Args:
        path: the target.
        make: opens a file of a format under a temporary path, e.g. `HDF5File`.
    """
    path = Path(path)
    target = path.resolve()  # a link stays a link, and the temporary file lies on the disk that it points to
    with _failures_of(path):
        temporary = _create_beside(target)
    try:
        with _failures_of(path):
            file = make(temporary)
        try:
            yield VectorWriter(file, path)
        finally:
            with _failures_of(path):
                file.close()
        with _failures_of(path):
            temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _create_beside(target: Path) -> Path:
    """An empty file with a name of its own in the target's folder."""
    if target.is_dir():
        raise IsADirectoryError("it is a directory, expected a file name")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}; make it first")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError("the file that is there is write-protected")
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}.tmp")
    temporary.touch(exist_ok=False)
    return temporary


@contextmanager
def _failures_of(path: Path) -> Iterator[None]:
    """Turn what a format's library raises for a full or broken disk into an error that names the target."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5 reports some failures as RuntimeError
        raise InputError(f"{path} cannot be written: {error}") from error
