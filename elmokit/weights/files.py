"""What a file is by its first bytes, and reading and replacing files with care.

Every format goes through here: a damaged, foreign or oversized file becomes one `WeightsError`, and a file is written
under a temporary name and renamed, so that one with the final name is always whole.
"""

import lzma
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from elmokit.errors import ConfigError, WeightsError

LARGEST_JSON = 2**20  # published options have under 1 KB
FREE_EXPANSION = 64 * 2**20
LARGEST_EXPANSION = 100  # trained weights hardly compress at all
_OLD_PICKLE = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")  # torch's magic number; since 1.6 it writes zip archives

HDF5 = "an HDF5 file"
SAFETENSORS = "a safetensors file"
ZIP = "a zip archive"
TAR = "a tar archive"
PICKLE = "a state dictionary of PyTorch"
JSON = "JSON text"
TENSOR_BUNDLE = "the index of a TensorFlow checkpoint"
TENSOR_BUNDLE_MAGIC = bytes.fromhex("57fb808b247547db")  # the last bytes of a table of LevelDB's kind
UNKNOWN = "a file of unknown format"


def describe(path: Path) -> str:
    """What a file is: one of the constants above, or words for anything else.

    Raises:
        WeightsError: it does not exist or cannot be read.
    """
    if path.is_dir():
        return "a directory"
    with reading(path, "a weight file"), path.open("rb") as file:
        start = file.read(512)
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8))
        end = file.read(8)
    if not start:
        return "an empty file"
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        return HDF5
    if start.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        name = start[30 : 30 + int.from_bytes(start[26:28], "little")]  # of the first member
        return PICKLE if name.endswith(b"data.pkl") else ZIP
    if start.startswith(_OLD_PICKLE):
        return PICKLE
    if start.startswith(b"\x1f\x8b") or start[257:262] == b"ustar":
        return TAR
    if end == TENSOR_BUNDLE_MAGIC:
        return TENSOR_BUNDLE
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 2**40:  # length of the header, then the header
        return SAFETENSORS
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return JSON
    return UNKNOWN


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn what a format's library raises about a file into a WeightsError; to be put around such calls alone."""
    try:
        yield
    except FileNotFoundError as error:
        raise WeightsError(f"there is no file {path}, expected {expected}") from error
    except (
        *(OSError, EOFError, KeyError, ValueError, TypeError, RuntimeError),
        *(
            OverflowError,
            MemoryError,
            SafetensorError,
            zipfile.BadZipFile,
            tarfile.TarError,
            zlib.error,
            lzma.LZMAError,
        ),
    ) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(
            f"{path} cannot be read as {expected} ({reason}); it is damaged, incomplete or of another format: "
            "fetch or write it again"
        ) from error


def read_json(path: Path) -> str:
    """The text of a configuration or options file.

    Raises:
        WeightsError: there is none, or it cannot be read.
        ConfigError: too large for one, or not UTF-8.
    """
    with reading(path, "a JSON file"):
        size = path.stat().st_size
        data = path.read_bytes() if size <= LARGEST_JSON else b""
    if size > LARGEST_JSON:
        raise ConfigError(f"{path} has {size} bytes, expected a small JSON file; are options and weights swapped?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text (byte {error.start}), expected JSON") from error


def check_expansion(claimed: int, stored: int, *, source: Path) -> None:
    """Refuse contents that claim to be out of all proportion to the bytes they are stored in.

    Raises:
        WeightsError: more than 64 MiB and a hundredfold.
    """
    if claimed > max(FREE_EXPANSION, LARGEST_EXPANSION * stored):
        raise WeightsError(
            f"{source} has {stored} bytes and claims to hold {claimed}, which no trained model does; "
            "it is damaged or meant to do harm"
        )


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it at the end, removed on an exception.

    Raises:
        WeightsError: the folder cannot be written to.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            temporary.chmod(0o666 & ~_umask())  # mkstemp, and safetensors, make files that only their owner can read
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path} cannot be written: {error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
