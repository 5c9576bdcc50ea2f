"""A file behind an http(s) address as a file in the platform's cache, fetched once.

The old line `Elmo(options_url, weight_url, 1)`, `load_bilm` and the catalog come through here. A file under its
final name is always whole: it is fetched under another one, by one process at a time, goes on where a broken transfer
stopped, and is renamed when its length and, if known, its SHA-256 are right. `ELMOKIT_CACHE` names another folder,
`ELMOKIT_OFFLINE=1` forbids the network; the usual proxy variables are respected.
"""

import hashlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import platformdirs
from filelock import FileLock
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from elmokit.errors import DownloadError

ATTEMPTS: Final = 3  # transfers of one call; each goes on where the last one broke
TIMEOUT: Final = 30.0  # seconds without a byte
CHUNK: Final = 2**18
BIG: Final = 10 * 2**20  # bytes from which a progress bar is worth its lines


def cached_path(url_or_path: str | Path, *, sha256: str | None = None) -> Path:
    """The local file of an address or path.

    Args:
        url_or_path: an http(s) address, or a local path, which is returned as it is.
        sha256: what the file of an address must have, in hexadecimal.

    Raises:
        DownloadError: the file cannot be fetched, is not the one that `sha256` means, or is not in the cache while
            `ELMOKIT_OFFLINE` is set.
    """
    url = str(url_or_path)
    if isinstance(url_or_path, Path) or "://" not in url:
        return Path(url_or_path)
    with _reported(url, cache_folder()):
        target = cache_folder() / _name_in_cache(url)
    return fetch(url, target, sha256=sha256)


def fetch(url: str, target: Path, *, sha256: str | None = None) -> Path:
    """The file of an address under a name of one's own; not fetched if it is there.

    Args:
        url: http(s).
        target: what it is called here; its folder is made.
        sha256: as for `cached_path`.

    Raises:
        DownloadError: as in `cached_path`.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise DownloadError(f"{url} is no address to fetch from; expected http://, https:// or a local path")
    with _reported(url, target):
        if _is_there(target, sha256):
            return target
        if is_offline():
            state = f"has another SHA-256 than {sha256}" if target.exists() else "is not there"
            raise DownloadError(
                f"{url} was wanted from the cache, where its file {target} {state}, and ELMOKIT_OFFLINE forbids the "
                "network; unset it, or give a local path"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not _is_there(target, sha256):  # else another process has fetched it meanwhile
                _fetch(url, target, sha256)
    return target


def forget(url_or_path: str | Path) -> bool:
    """Take the file of an address out of the cache; false for a path."""
    if isinstance(url_or_path, Path) or "://" not in url_or_path:
        return False
    (cache_folder() / _name_in_cache(url_or_path)).unlink(missing_ok=True)
    return True


def is_offline() -> bool:
    """Whether `ELMOKIT_OFFLINE` forbids the network."""
    return os.environ.get("ELMOKIT_OFFLINE", "0") not in ("", "0")


def cache_folder() -> Path:
    """Where downloads are kept: `ELMOKIT_CACHE`, or the platform's usual place."""
    named = os.environ.get("ELMOKIT_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("elmokit")


def _name_in_cache(url: str) -> str:
    """A name of its own for each address that still says what the file is called."""
    return f"{hashlib.sha256(url.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}-{_readable_name(url)}"


def _readable_name(url: str) -> str:
    """What the file is called there, in characters that no file system and no terminal takes amiss."""
    base = urllib.parse.unquote(urllib.parse.urlsplit(url).path).rsplit("/", 1)[-1]
    return re.sub(r"[^A-Za-z0-9._-]", "_", base)[-80:]


def _is_there(target: Path, sha256: str | None) -> bool:
    return target.is_file() and (sha256 is None or _sha256(target) == sha256.lower())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _reported(url: str, target: Path) -> Iterator[None]:
    """Turn failures of network and disk into one DownloadError."""
    try:
        yield
    except urllib.error.HTTPError as error:
        raise DownloadError(f"{url}: the server answered {error.code} {error.reason}; check the address") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise DownloadError(
            f"{url} could not be fetched into {target.parent}: {reason}; check the address, the network and the disk"
        ) from error


@dataclass(frozen=True, slots=True)
class _Partial:
    """A transfer that is not finished.

    Attributes:
        data: the bytes so far.
        validator: holds the server's mark of that version of the file (ETag, or else its date).
    """

    data: Path
    validator: Path

    @property
    def size(self) -> int:
        """Bytes so far."""
        return self.data.stat().st_size if self.data.exists() else 0

    def delete(self) -> None:
        """Forget it."""
        self.data.unlink(missing_ok=True)
        self.validator.unlink(missing_ok=True)


def _fetch(url: str, target: Path, sha256: str | None) -> None:
    """Fetch to `target`; the caller holds the lock."""
    partial = _Partial(Path(f"{target}.partial"), Path(f"{target}.validator"))
    for attempt in range(1, ATTEMPTS + 1):
        try:
            done, total = _transfer(url, partial)
        except urllib.error.URLError:
            raise  # an answer, or no connection at all: asking again at once changes neither
        except (OSError, http.client.HTTPException):
            if attempt == ATTEMPTS:
                raise
            continue
        if total is None or done == total:
            break
    else:
        raise DownloadError(
            f"{url}: the transfer broke {ATTEMPTS} times, at last after {done} of {total} bytes; "
            "what has come is kept, and the next call goes on from there"
        )
    if sha256 is not None and (found := _sha256(partial.data)) != sha256.lower():
        partial.delete()
        raise DownloadError(
            f"{url} has SHA-256 {found}, expected {sha256.lower()}; what was fetched is deleted: try again, and if it "
            "comes out the same, the address holds another file"
        )
    partial.data.replace(target)
    partial.delete()


def _transfer(url: str, partial: _Partial) -> tuple[int, int | None]:
    """One request: the bytes that are there afterwards, and those that there should be, if the server says so."""
    start = partial.size if partial.validator.exists() else 0  # unmarked bytes may be of another version of the file
    request = urllib.request.Request(url, headers={"User-Agent": "elmokit", "Accept-Encoding": "identity"})
    if start:
        request.add_header("Range", f"bytes={start}-")
        request.add_header("If-Range", partial.validator.read_text("utf-8"))
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        partial.delete()  # as long as the file or longer, so not its beginning: once more from the first byte
        return _transfer(url, partial)
    with response:
        if response.status == HTTPStatus.PARTIAL_CONTENT:
            given = response.headers.get("Content-Range", "")
            if not start or not given.startswith(f"bytes {start}-"):
                partial.delete()
                raise http.client.HTTPException(f"the server sent {given or 'a part'}, asked for bytes {start}-")
        else:
            start = 0
            partial.delete()
            # A weak mark does not promise the same bytes, so such a transfer is not resumed.
            mark = response.headers.get("ETag") or response.headers.get("Last-Modified")
            if mark and not mark.startswith("W/"):
                partial.validator.write_text(mark, "utf-8")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length is not None else None
        _check_space(partial.data.parent, (total or start) - start)
        with partial.data.open("ab") as file, _progress(url, total, start) as advance:
            while chunk := response.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    return partial.size, total


def _check_space(folder: Path, needed: int) -> None:
    """Refuse at once what would fill the disk after an hour."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise DownloadError(
            f"{folder} has {free:,} bytes free, but {needed:,} are still to come; make room, or let ELMOKIT_CACHE name "
            "a folder on another disk"
        )


@contextmanager
def _progress(url: str, total: int | None, start: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr for a big file."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    hidden = not console.is_terminal or (total or 0) < BIG
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as progress:
        task = progress.add_task(_readable_name(url), total=total, completed=start)
        yield lambda count: progress.advance(task, count)
