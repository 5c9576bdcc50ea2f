"""HDF5 in the layout of AllenNLP's `elmo` command, which many scripts read.

One float32 dataset a sentence, keyed by its line number ("0", "1", ...), and `sentence_to_index`, a dataset of shape
(1,) with a JSON object from sentence to key. Like AllenNLP's, this object names the last line of a repeated sentence;
each line has its own record all the same. Groups remember the order of their keys, so that iteration gives input order
instead of "0", "1", "10"; `read_hdf5` gives it for files without that, too.
"""

import json
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import h5py
import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError

SENTENCE_TO_INDEX: Final = "sentence_to_index"


class HDF5File:
    """A file while it is written; the sentences wait on disk for the end, where the layout wants them as one string."""

    def __init__(self, path: Path, *, keep_sentences: bool = True, sentence_keys: bool = False) -> None:
        """Args:
        path: where to write.
        keep_sentences: add `sentence_to_index`.
        sentence_keys: use the sentence itself as key, once for repeated ones; `sentence_to_index` stays empty. A `/`
            in it makes groups, which a lookup by the same sentence follows.
        """
        self._sentence_keys = sentence_keys
        self._keep_sentences = keep_sentences
        self._file = h5py.File(path, "w", track_order=True)
        # A temporary file without a name; JSON's escapes keep it ASCII and let lone surrogates through.
        self._sentences = tempfile.TemporaryFile("w+b", dir=path.parent)  # noqa: SIM115 - close() does it
        self._sentences.write(b"{")

    def add(self, index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        """Append a record.

        Raises:
            InputError: the sentence cannot be a key.
        """
        if self._sentence_keys:
            self._add_under_sentence(index, sentence, vectors)
            return
        self._store(str(index), vectors)
        if self._keep_sentences:
            self._sentences.write(f'{", " if index else ""}{json.dumps(sentence)}: "{index}"'.encode("ascii"))

    def _add_under_sentence(self, index: int, sentence: str, vectors: npt.NDArray[np.float32]) -> None:
        try:
            if sentence.strip("/.") == "" or sentence == SENTENCE_TO_INDEX or "\0" in sentence:
                raise ValueError("it has another meaning there")
            if isinstance(self._file.get(sentence), h5py.Dataset):
                warnings.warn(f"sentence {index}, {sentence[:80]!r}, came before; its first vectors stay", stacklevel=2)
            else:
                self._store(sentence, vectors)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"sentence {index}, {sentence[:80]!r}, cannot be a key of an HDF5 file ({error}); "
                "use line numbers as keys"
            ) from error

    def _store(self, key: str, vectors: npt.NDArray[np.float32]) -> None:
        # Without the flush, HDF5 writes when the object dies: an error is lost there, and many of them end the process.
        self._file.create_dataset(key, data=vectors).flush()

    def close(self) -> None:
        """Write `sentence_to_index` and close the file."""
        with self._sentences, self._file:
            if self._keep_sentences:
                self._sentences.write(b"}")
                self._sentences.seek(0)
                dataset = self._file.create_dataset(SENTENCE_TO_INDEX, (1,), dtype=h5py.string_dtype())
                dataset[0] = self._sentences.read()  # the layout wants one string: all sentences are in memory once


def read_hdf5(path: str | Path) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Read a file in this layout, whichever program wrote it, one record at a time.

    Args:
        path: the file.

    Yields:
        Each record's key and vectors, in input order: by number where all keys are numbers, else in the file's order.

    Raises:
        InputError: there is no such file, or it is no HDF5.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path} cannot be read as HDF5: {error}") from error
    with file:
        keys = [key for key in file if key != SENTENCE_TO_INDEX]
        if all(key.isdecimal() for key in keys):
            keys.sort(key=int)
        else:
            keys = [key for key in _keys(file) if key != SENTENCE_TO_INDEX]
        for key in keys:
            yield key, file[key][...]


def _keys(group: h5py.Group) -> Iterator[str]:
    """The paths of all datasets; a sentence with a `/` in it lies in groups."""
    for name in group:
        if group.get(name, getclass=True) is h5py.Group:
            yield from (f"{name}/{key}" for key in _keys(group[name]))
        else:
            yield name
