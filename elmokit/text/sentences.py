"""Text files to lines and token lists, one at a time, so that a file of any length takes the same memory.

Files are UTF-8 whatever the locale, plain or packed (`.gz`, `.xz`, `.zst`); `-` is standard input. Only a line feed,
with or without a carriage return before it, ends a line and only spaces and tabs part tokens: every other kind of white
space belongs to the token that it stands in. An empty line is an empty sentence, so N lines give N sentences.
"""

import gzip
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from elmokit.errors import InputError
from elmokit.text.zst import ZstStream

STANDARD_INPUT: Final = "-"
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_PACKED: Final = {b"\x1f\x8b": ".gz", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}


def read_token_lines(path: str | Path, *, on_read: Callable[[int], None] | None = None) -> Iterator[list[str]]:
    """The tokens of each line; arguments and errors as in `read_lines`."""
    return map(split_tokens, read_lines(path, on_read=on_read))


def split_tokens(line: str) -> list[str]:
    """Split at spaces and tabs alone; a no-break space, a line separator or a form feed stays inside its token."""
    return [token for token in line.replace("\t", " ").split(" ") if token]


def read_lines(path: str | Path, *, on_read: Callable[[int], None] | None = None) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends, nothing else stripped but a byte order mark at the start.

    Args:
        path: a file, unpacked on the fly where its name ends in `.gz`, `.xz` or `.zst`; `-` for standard input.
        on_read: told before each line how many bytes of the file, as stored, have been read up to its end or a little
            beyond; never called for a stream that has no positions, such as a pipe.

    Raises:
        InputError: the file cannot be read or unpacked, or a line is not UTF-8 text; it is named by its number.
    """
    name = "standard input" if str(path) == STANDARD_INPUT else str(path)
    try:
        with _opened(path) as (stored, lines):
            tell = on_read if on_read and stored.seekable() else None
            for number, line in enumerate(lines, start=1):
                if tell:
                    tell(stored.tell())
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                    _check_beginning(line, name)
                    if not line:  # a file of a byte order mark and nothing else
                        return
                yield _decode(line, f"{name}, line {number}")
    except OSError as error:  # gzip's own error is one too
        raise InputError(f"{name} cannot be read: {error.strerror or error}") from error
    except (EOFError, lzma.LZMAError, zlib.error) as error:
        raise InputError(f"{name} is damaged or cut short: {error}") from error


@contextmanager
def _opened(path: str | Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A file as it is stored, and the bytes of its text; both are one where nothing is packed."""
    if str(path) == STANDARD_INPUT:
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    suffix = Path(path).suffix.lower()
    with Path(path).open("rb") as stored:
        if suffix == ".gz":
            with gzip.open(stored) as unpacked_gzip:
                yield stored, cast(IO[bytes], unpacked_gzip)  # typeshed knows no common type
        elif suffix == ".xz":
            with lzma.open(stored) as unpacked_xz:
                yield stored, unpacked_xz
        elif suffix == ".zst":
            with ZstStream.buffered(stored) as unpacked_zst:
                yield stored, unpacked_zst
        else:
            yield stored, stored


def _check_beginning(line: bytes, name: str) -> None:
    """Name the mistakes that the first bytes give away."""
    for magic, suffix in _PACKED.items():
        if line.startswith(magic):
            raise InputError(f"{name} is packed, expected UTF-8 text; give the file a name that ends in {suffix}")
    if line.startswith(_UTF_16):
        raise InputError(f"{name} is UTF-16 text, expected UTF-8; convert it with: iconv -f UTF-16 -t UTF-8")


def _decode(line: bytes, place: str) -> str:
    """One line as text."""
    if b"\0" in line:
        raise InputError(
            f"{place}: a NUL byte at byte {line.index(0) + 1}, so this is a binary file; expected UTF-8 text"
        )
    try:
        return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{place}: byte {error.start + 1} is 0x{line[error.start]:02x}, which is no UTF-8 here; "
            "expected UTF-8 text, convert the file with iconv or correct the line"
        ) from error
