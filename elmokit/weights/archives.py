"""A model in an archive: the zips of NLPL, the `model.tar.gz` of AllenNLP, unpacked for as long as it takes to read.

Names and sizes are checked before a member is written: none leaves the folder, is a link or a device, or is out of all
proportion to the bytes it is stored in.
"""

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from elmokit.errors import WeightsError
from elmokit.weights.files import TAR, ZIP, check_expansion, reading


@contextmanager
def unpacked(path: Path, kind: str) -> Iterator[Path]:
    """The files of an archive, at its root or in its one folder, for this time only.

    Args:
        path: the archive.
        kind: what `describe` says it is.

    Raises:
        WeightsError: it is damaged, or meant to do harm.
    """
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        folder = Path(name)
        (_unpack_zip if kind == ZIP else _unpack_tar)(path, folder)
        inside = [item for item in folder.iterdir() if item.name != "__MACOSX"]
        yield inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def _unpack_zip(path: Path, folder: Path) -> None:
    with reading(path, ZIP), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            _check_name(member.filename, path)
        # zipfile never unpacks more than a member claims.
        check_expansion(sum(member.file_size for member in archive.infolist()), path.stat().st_size, source=path)
        archive.extractall(folder)


def _unpack_tar(path: Path, folder: Path) -> None:
    """A stream from first to last: one pass, in little memory."""
    with reading(path, TAR), path.open("rb") as file:
        compressed = file.peek(2).startswith(b"\x1f\x8b")
        stream = _Bounded(gzip.GzipFile(fileobj=file) if compressed else file, path)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            claimed = 0
            for member in archive:
                _check_name(member.name, path)
                claimed += member.size
                check_expansion(claimed, path.stat().st_size, source=path)
                if member.isdir():
                    continue
                if not member.isreg():
                    raise WeightsError(f"{path} has a member {member.name!r}, which is a link or a device, not a file")
                target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                content: IO[bytes] | None = archive.extractfile(member)
                assert content is not None, "a regular file has content"
                with target.open("xb") as copy:
                    shutil.copyfileobj(content, copy)


class _Bounded(io.RawIOBase):
    """A stream that ends in an error where no honest one goes on: tarfile takes what a header claims into memory."""

    def __init__(self, stream: io.BufferedIOBase, path: Path) -> None:
        self._stream, self._path, self._size = stream, path, path.stat().st_size
        self._total = 0

    def read(self, count: int = -1) -> bytes:
        data = self._stream.read(count)
        self._total += len(data)
        check_expansion(self._total, self._size, source=self._path)
        return data


def _check_name(name: str, path: Path) -> None:
    target = PurePosixPath(name.replace("\\", "/"))
    if target.is_absolute() or ".." in target.parts or ":" in (target.parts or ("",))[0]:
        raise WeightsError(f"{path} has a member {name!r}, which would be written outside its folder")
