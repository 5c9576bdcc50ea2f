"""NumPy's own format: a zip archive with one uncompressed array a sentence, streamed member by member.

Members are called by line number ("0", "1", ...) and lie in input order, which is the order of `np.load(path).files`.
There is no text in it, as NumPy has no text of varying length. The archive's directory, which comes last in a zip,
takes about half a kilobyte of memory a sentence until then: for millions of sentences take another format.
"""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt


class NPZFile:
    """A file while it is written."""

    def __init__(self, path: Path) -> None:
        self._archive = zipfile.ZipFile(path, "w")

    def add(self, index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        """Append a member; the text is not stored."""
        # A member of unknown size needs the wide header; its date is zip's first, so that equal runs give equal files.
        with self._archive.open(zipfile.ZipInfo(f"{index}.npy"), "w", force_zip64=True) as member:
            np.lib.format.write_array(member, vectors, allow_pickle=False)

    def close(self) -> None:
        """Write the directory of the archive and close it."""
        self._archive.close()
