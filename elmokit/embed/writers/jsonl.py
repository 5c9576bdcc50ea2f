"""JSON lines: one object a sentence, for programs that read nothing else.

`{"index": 0, "sentence": ..., "tokens": [...], "shape": [3, 2, 256], "vectors": [[[...]]]}`. Numbers have nine
significant digits, which give the same float32 when read; text is ASCII with JSON's escapes, so that lone surrogates
and odd line separators come back as they were.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError


class JSONLinesFile:
    """A file while it is written; nothing is kept in memory."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="ascii", newline="\n")

    def add(self, index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        """Append a line; errors as for `json_line`."""
        self._file.write(json_line(index, sentence, tokens, vectors))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def json_line(index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> str:
    """One record as a line of ASCII with its end.

    Raises:
        InputError: a number is not finite, for which JSON has no word.
    """
    if not np.isfinite(vectors).all():
        raise InputError(f"a vector of sentence {index} is not finite, which JSON cannot say; write another format")
    record = {"index": index, "sentence": sentence, "tokens": list(tokens), "shape": vectors.shape}
    return f'{json.dumps(record)[:-1]}, "vectors": {_nested(vectors)}}}\n'


def _nested(values: npt.NDArray[np.float32]) -> str:
    """An array as nested lists of numbers in their shortest safe form."""
    if values.ndim == 1:
        return f"[{', '.join([f'{value:.9}' for value in values.tolist()])}]"
    return f"[{', '.join([_nested(row) for row in values])}]"
