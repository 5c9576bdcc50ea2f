r"""Apache Parquet by pyarrow (the extra `parquet`): one row a sentence, for data frames and query engines.

Columns: `index`, `sentence`, `tokens`, `shape` and `vectors`, the numbers of an array of this shape in row-major order:
`np.reshape(row["vectors"], row["shape"])`. Parquet's text is strict UTF-8, so a lone surrogate is written out
as its escape (`\ud800`).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from elmokit.errors import require

NUMBERS_AT_ONCE: Final = 4 * 2**20  # 16 MiB in a row group bounds the memory here and in readers
ROWS_AT_ONCE: Final = 10_000


class ParquetFile:
    """A file while it is written; one row group waits in memory."""

    def __init__(self, path: Path) -> None:
        self._arrow = require("pyarrow", extra="parquet")
        arrow = self._arrow
        self._schema = arrow.schema(
            {
                "index": arrow.int64(),
                "sentence": arrow.string(),
                "tokens": arrow.list_(arrow.string()),
                "shape": arrow.list_(arrow.int32()),
                "vectors": arrow.list_(arrow.float32()),
            }
        )
        # Vectors hold no repetitions and no order: dictionaries and statistics would cost time and say nothing.
        self._file = require("pyarrow.parquet", extra="parquet").ParquetWriter(
            path, self._schema, use_dictionary=False, write_statistics=["index"]
        )
        self._rows: list[dict[str, Any]] = []
        self._numbers = 0

    def add(self, index: int, sentence: str, tokens: Sequence[str], vectors: npt.NDArray[np.float32]) -> None:
        """Append a row."""
        self._rows.append(
            {
                "index": index,
                "sentence": _strict(sentence),
                "tokens": [_strict(token) for token in tokens],
                "shape": vectors.shape,
                "vectors": vectors.flatten(),  # a copy: the caller's array may be a view of a whole batch
            }
        )
        self._numbers += vectors.size
        if self._numbers >= NUMBERS_AT_ONCE or len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        """Write the waiting rows as one row group."""
        self._file.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows = []
        self._numbers = 0

    def close(self) -> None:
        """Write what is waiting and the footer."""
        try:
            if self._rows:
                self._flush()
        finally:
            self._file.close()


def _strict(text: str) -> str:
    """Text that UTF-8 can hold."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
