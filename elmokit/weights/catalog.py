"""The catalog of published models, and what a name stands for: a file or folder that is here.

`catalog.toml` says what is known of each model and where it was said to be. `locate` turns a name of the catalog or of
a Hugging Face repository into a local path for `load_bilm`; a model of several files becomes a folder in the cache.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from elmokit.errors import DownloadError, ElmokitError, WeightsError
from elmokit.weights import hub
from elmokit.weights.download import cache_folder, fetch

_MODELS: Final = "models"


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PublishedFile(_Frozen):
    """A file of a published model.

    Attributes:
        name: what it is called in the cache, so that a folder of them is recognised.
        urls: addresses of the same file, tried in order.
        size: bytes; None where no source states it.
        sha256: None where no source states it, and then nothing is compared.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    sha256: str | None = None


class PublishedModel(_Frozen):
    """What is known of a published model.

    Attributes:
        name: for `elmokit.load`.
        title: in a line what it is.
        language: ISO 639 code, or "protein".
        format: "hdf5", "manylangs", "tf-checkpoint" or "tf-hub".
        files: what to fetch; none where that takes a hand.
        page: where it is described.
        reason: where these facts come from, and why they are not verified.
        verified: whether the files were fetched and read to check these facts.
        licence: SPDX identifier in small letters; None where no source states it.
        paper: to be cited.
        note: what else there is to know.
    """

    name: str
    title: str
    language: str
    format: str
    files: tuple[PublishedFile, ...] = ()
    page: str
    reason: str
    verified: bool = False
    licence: str | None = None
    paper: str | None = None
    note: str | None = None

    @property
    def size(self) -> int | None:
        """Bytes of all files; None unless all are known."""
        sizes = [file.size for file in self.files]
        return sum(size for size in sizes if size is not None) if sizes and None not in sizes else None

    @property
    def path(self) -> Path:
        """Where it is in the cache, or would be: a file, or a folder of several."""
        folder = cache_folder() / _MODELS / self.name
        return folder / self.files[0].name if len(self.files) == 1 else folder

    @property
    def is_cached(self) -> bool:
        """Whether all of it has been fetched."""
        return bool(self.files) and all((cache_folder() / _MODELS / self.name / f.name).is_file() for f in self.files)


@cache
def published() -> Mapping[str, PublishedModel]:
    """All published models by name, in the catalog's order."""
    text = (resources.files("elmokit.weights") / "catalog.toml").read_text("utf-8")
    models = [
        _read(name, {**series, **facts})
        for series in tomllib.loads(text).values()
        for name, facts in series.pop("models").items()
    ]
    assert len({model.name for model in models}) == len(models), "a name is there twice"
    return MappingProxyType({model.name: model for model in models})


def _read(name: str, facts: dict[str, Any]) -> PublishedModel:
    """A model of the catalog; an address is one of `at` and a file's `path`."""
    folders = facts.pop("at", ())
    files = []
    for file in facts.pop("files", ()):
        path = file.pop("path")
        urls = [folder + path for folder in folders]
        files.append({"name": path.rsplit("/", 1)[-1], "urls": urls, **file})
    return PublishedModel.model_validate({"name": name, "files": files, **facts})


def fetch_published(model: PublishedModel) -> Path:
    """The files of a published model in the cache; what is there is not fetched again.

    Returns:
        The folder, or the file if it is only one.

    Raises:
        DownloadError: there is nothing to fetch, no address gives the file, or what it gives is a web page.
    """
    if not model.files:
        raise DownloadError(
            f"{model.name} cannot be fetched by a program: see {model.page} ({model.note}), then load it by its path"
        )
    for file in model.files:
        _fetch_any(file, cache_folder() / _MODELS / model.name / file.name)
    return model.path


def _fetch_any(file: PublishedFile, target: Path) -> None:
    """Fetch from the first address that has it."""
    failures = []
    for url in file.urls:
        try:
            fetch(url, target, sha256=file.sha256)
        except DownloadError as error:
            failures.append(str(error))
            continue
        with target.open("rb") as opened:
            start = opened.read(256).lstrip()
        if not start.startswith(b"<"):  # no format of a model begins so, but every web page
            return
        target.unlink()
        failures.append(f"{url} gave a web page in place of {file.name}")
    raise DownloadError("; ".join(failures))


def locate(name_or_path: str | Path) -> str | Path:
    """The local path of a model that has a name; anything else as it is.

    A path that exists is itself, whatever names there are. Then come the catalog, `hf://owner/name[@revision]`, and
    `owner/name` for a Hugging Face repository, unless there is a folder `owner` here.

    Args:
        name_or_path: a name, path or address.

    Raises:
        DownloadError: a name that cannot be fetched.
        WeightsError: `owner/name` is neither here nor there.
        MissingExtraError: a repository, and the extra `hub` is not installed.
    """
    if isinstance(name_or_path, Path) or Path(name_or_path).exists():
        return name_or_path
    if name_or_path in published():
        return fetch_published(published()[name_or_path])
    if name_or_path.startswith(hub.SCHEME):
        return hub.snapshot(name_or_path)
    if hub.may_be_repository(name_or_path):
        try:
            return hub.snapshot(name_or_path)
        except ElmokitError as error:
            raise WeightsError(
                f"there is no file or directory {name_or_path!r}, and as a repository: {error}"
            ) from error
    return name_or_path


def nearest(name: str, others: Iterable[str] = ()) -> list[str]:
    """Names of the catalog, or of `others`, that a misspelt one may have meant, the nearest first."""
    return difflib.get_close_matches(name.lower(), [*others, *published()], n=3)
