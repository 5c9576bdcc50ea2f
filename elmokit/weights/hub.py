"""Models in repositories of the Hugging Face Hub, fetched and published through `huggingface_hub`.

`snapshot` gives the folder of a repository in the cache of `elmokit.weights.download`, and obeys `ELMOKIT_OFFLINE` as
downloads do; `push` publishes a folder that `save_bilm` wrote. `HF_ENDPOINT` and `HF_TOKEN` mean what they always do.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Final

from elmokit.errors import DownloadError, InputError, require
from elmokit.weights import hdf5, native
from elmokit.weights.download import cache_folder, is_offline

SCHEME: Final = "hf://"
CARD_NAME: Final = "README.md"

_REPOSITORY = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*?)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_FRONT_MATTER = re.compile(r"---\r?\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)
_LICENCE = re.compile(r"""^license:[ \t]*["']?([\w.-]+)""", re.MULTILINE)
_BESIDE_THE_MODEL = (CARD_NAME, "LICENSE", "LICENSE.txt", "LICENSE.md")


def may_be_repository(name: str) -> bool:
    """Whether a string has the form `owner/name[@revision]` and no folder `owner` is here, which it may be about."""
    return _REPOSITORY.fullmatch(name) is not None and not Path(name).parent.exists()


def snapshot(name: str, *, local_only: bool = False) -> Path:
    """The files of a repository.

    Args:
        name: `owner/name` or `owner/name@revision`, with or without `hf://` before it.
        local_only: give what is in the cache, or fail.

    Returns:
        The folder; or its one file, where besides a card and a licence there is only one, such as an archive.

    Raises:
        DownloadError: no such repository or revision, no network, or not in the cache.
        InputError: not the name of a repository.
        MissingExtraError: the extra `hub` is not installed.
    """
    match = _REPOSITORY.fullmatch(name.removeprefix(SCHEME))
    if match is None:
        raise InputError(f"{name!r} is no repository; expected hf://owner/name or hf://owner/name@revision")
    library = _library()
    if local_only:
        absent = "`elmokit models fetch` fetches it"
    elif is_offline():
        absent = "ELMOKIT_OFFLINE forbids the network; unset it"
    else:
        absent = "it could not be fetched; check the network and HF_ENDPOINT"
    with _reported(name, library, absent):
        folder = Path(
            library.snapshot_download(
                match["name"],
                revision=match["revision"],
                cache_dir=cache_folder() / "huggingface",
                local_files_only=local_only or is_offline(),
                endpoint=_endpoint(),
            )
        )
    files = [p for p in folder.iterdir() if not p.name.startswith(".") and p.name not in _BESIDE_THE_MODEL]
    return files[0] if len(files) == 1 and files[0].is_file() else folder


def push(folder: str | Path, repository: str, *, private: bool = False) -> str:
    """Publish a folder with a model and its card.

    Args:
        folder: what `save_bilm` wrote, with a card `README.md` (`elmokit.weights.card` makes one).
        repository: `owner/name`; it is made if there is none.
        private: of a new repository, whether others may not see it.

    Returns:
        The address of the repository.

    Raises:
        InputError: no model or no card there, a card that names no licence, or not the name of a repository.
        DownloadError: no network, offline, or not allowed.
        MissingExtraError: the extra `hub` is not installed.
    """
    folder = Path(folder)
    match = _REPOSITORY.fullmatch(repository.removeprefix(SCHEME))
    if match is None or match["revision"]:
        raise InputError(f"{repository!r} is no repository to publish to; expected owner/name")
    if native.find(folder) is None and hdf5.find(folder) is None:
        raise InputError(f"{folder} is no folder that save_bilm or elmokit convert wrote")
    card = folder / CARD_NAME
    if licence_of(card) is None:
        raise InputError(
            f"{card} {'names no licence' if card.is_file() else 'is missing'}, and nothing is published without one; "
            "expected `license: ...` between two lines `---` at its beginning; elmokit.weights.card.write_card, or "
            "`elmokit models push --licence`, writes one"
        )
    library = _library()
    if is_offline():
        raise DownloadError(f"{repository} cannot be published to while ELMOKIT_OFFLINE forbids the network; unset it")
    api = library.HfApi(endpoint=_endpoint(), library_name="elmokit")
    with _reported(repository, library):
        address = api.create_repo(match["name"], private=private, exist_ok=True)
        api.upload_folder(
            repo_id=match["name"],
            folder_path=folder,
            commit_message="Upload an ELMo model with elmokit",
            ignore_patterns=[".*", "**/.*", "*.tmp", "*.lock"],
        )
    return str(address)


def licence_of(card: Path) -> str | None:
    """What the front matter of a card names as the licence; None if it names none, or there is no card."""
    text = card.read_text("utf-8-sig", errors="replace") if card.is_file() else ""
    front = _FRONT_MATTER.match(text)
    licence = _LICENCE.search(front[1]) if front else None
    return licence[1] if licence else None


def _library() -> ModuleType:
    return require("huggingface_hub", extra="hub")


def _endpoint() -> str | None:
    """Read at each call; `huggingface_hub` looks once, when it is imported."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _reported(name: str, library: ModuleType, absent: str = "") -> Iterator[None]:
    """Turn failures of the library, network and disk into one DownloadError."""
    try:
        yield
    except library.errors.RevisionNotFoundError as error:
        raise DownloadError(f"{name}: the repository has no such revision") from error
    except library.errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"{name}: there is no such repository, or it is private and HF_TOKEN does not open it"
        ) from error
    except library.errors.LocalEntryNotFoundError as error:
        raise DownloadError(f"{name} is not in the cache: {absent}") from error
    # The second is the base of all errors of the HTTP library, which is not the same in all versions.
    except (OSError, library.errors.HfHubHTTPError.__mro__[1], ValueError) as error:
        raise DownloadError(f"{name}: {str(error).splitlines()[0]}") from error
