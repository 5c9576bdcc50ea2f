"""The files of a corpus: found by path or pattern, read as one stream of paragraphs with documents parted.

Text files, JSON lines and Parquet look alike from here on: `corpus` sees paragraphs, and an empty one where a document
ends. Everything is streamed; a packed file is unpacked on the fly. A mistake in a file is named by its line or record.
"""

import glob
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from elmokit.errors import ConfigError, InputError, require
from elmokit.text.sentences import read_lines
from elmokit.train.recipe import Source

PACKED: Final = (".gz", ".xz", ".zst")
_ROWS_AT_ONCE: Final = 256

Kind = Literal["text", "jsonl", "parquet"]


@dataclass(frozen=True)
class SourceFile:
    """One file of a source.

    Attributes:
        path: where it is.
        name: its path below the folder in which its pattern begins to vary; what its documents are called.
        kind: how it is read.
        field: of a record, what holds the text.
    """

    path: Path
    name: str
    kind: Kind
    field: str

    def paragraphs(self, on_read: Callable[[int], None]) -> Iterator[str]:
        """Paragraphs, and an empty one between documents.

        In text a line is a paragraph, an empty line parts documents. A record is a document whose lines are paragraphs.

        Args:
            on_read: told now and then how many bytes of the file have been read.

        Raises:
            InputError: the file or a part of it cannot be read as what its name says.
            MissingExtraError: what unpacks or reads it is not installed.
        """
        if self.kind == "text":
            yield from (line if line.strip() else "" for line in read_lines(self.path, on_read=on_read))
            return
        records = self._json_lines(on_read) if self.kind == "jsonl" else self._parquet(on_read)
        for text in records:
            yield from (line for line in text.split("\n") if line.strip())
            yield ""

    def _json_lines(self, on_read: Callable[[int], None]) -> Iterator[str]:
        """The text of each record; empty lines are none."""
        for number, line in enumerate(read_lines(self.path, on_read=on_read), start=1):
            if not line.strip():
                continue
            place = f"{self.path}, line {number}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{place} is not JSON ({error}); expected an object a line") from error
            if not isinstance(record, dict):
                raise InputError(f"{place} holds a {type(record).__name__}, expected an object with {self.field!r}")
            if self.field not in record:
                raise InputError(self._lacks(place, list(record)))
            yield self._text(record[self.field], place)

    def _parquet(self, on_read: Callable[[int], None]) -> Iterator[str]:
        """The text of each row, read some rows at a time."""
        parquet: Any = require("pyarrow.parquet", extra="parquet")
        arrow: Any = require("pyarrow", extra="parquet")
        size, number = self.path.stat().st_size, 0
        try:
            with parquet.ParquetFile(self.path, buffer_size=1 << 20, pre_buffer=False) as file:
                columns, num_rows = file.schema_arrow.names, file.metadata.num_rows
                if self.field not in columns:
                    raise InputError(self._lacks(str(self.path), columns))
                for batch in file.iter_batches(_ROWS_AT_ONCE, columns=[self.field]):
                    for value in batch.column(0):
                        number += 1
                        yield self._text(value.as_py(), f"{self.path}, record {number}")
                    on_read(size * number // num_rows)
        except UnicodeDecodeError as error:
            raise InputError(f"{self.path}, record {number} is not UTF-8: {error.reason}") from error
        except (arrow.ArrowException, OSError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{self.path} cannot be read as Parquet after record {number} ({reason}); "
                "it is damaged, cut short or of another format"
            ) from error

    def _text(self, value: object, place: str) -> str:
        """The text of a record; without any it is an empty document."""
        if value is not None and not isinstance(value, str):
            raise InputError(f"{place}: {self.field!r} is of type {type(value).__name__}, expected text")
        return value or ""

    def _lacks(self, place: str, names: list[str]) -> str:
        listed = ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")
        return f"{place} has no {self.field!r}, but {listed or 'nothing'}; name the source's text with field = "


def find(source: Source, root: Path) -> list[SourceFile]:
    """The files of a source, in name order.

    Args:
        source: a path, or a pattern in which `**` stands for any folders. Hidden files match no `*`.
        root: where relative ones start.

    Raises:
        ConfigError: there is none.
    """
    pattern = source.files
    path = root / pattern
    if path.is_file():
        paths = [path]
    else:
        # Not Path.glob, for which the root's own name would be a pattern too, and `**` at the end only folders.
        names = glob.glob(pattern, root_dir=root, recursive=True)  # noqa: PTH207
        paths = sorted(found for name in names if (found := root / name).is_file())
    if not paths:
        hint = f"; it is a folder: write {pattern.rstrip('/')}/*" if path.is_dir() else ""
        raise ConfigError(f"no file matches {pattern!r} (looked from {root}){hint}")
    base = path.parent if path.is_file() else root / _fixed(pattern)
    return [SourceFile(path, path.relative_to(base).as_posix(), _kind(path), source.field) for path in paths]


def _fixed(pattern: str) -> Path:
    """The folder in which a pattern begins to vary."""
    parts = Path(pattern).parts
    varying = next(index for index, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:varying])


def _kind(path: Path) -> Kind:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return "parquet"
    if suffix in PACKED:
        suffix = Path(path.stem).suffix.lower()
    return "jsonl" if suffix == ".jsonl" else "text"
