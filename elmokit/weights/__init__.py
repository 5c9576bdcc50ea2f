"""Weight files of every format: `load_bilm` and `save_bilm` are the only verbs.

`load_bilm` finds out what it was given, by name, by the files present and by their first bytes, and hands them to the
format's own file (`native`, `hdf5`). A format file offers `find(folder)`, `read(config, weights)` and `write`.
"""

import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Protocol

from elmokit.errors import ConfigError, InputError, WeightsError
from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import Softmax
from elmokit.text.lexicon import Lexicon
from elmokit.weights import hdf5, native
from elmokit.weights.download import cached_path, forget
from elmokit.weights.files import HDF5, JSON, SAFETENSORS, UNKNOWN, ZIP, check_expansion, describe, reading

__all__ = ["available_models", "convert", "load_bilm", "load_language_model", "save_bilm"]


class _Layout(Protocol):
    """A module that recognises a directory in its format, and reads it."""

    def find(self, folder: Path, /) -> tuple[Path, Path] | None: ...
    def read(self, config: Path, weights: Path, /) -> BiLM: ...


_LAYOUTS: tuple[_Layout, ...] = (native, hdf5)
# Formats that are known by sight alone.
_FOREIGN = {
    "encoder.pkl": "an ELMoForManyLangs model",
    "*.ckpt*.index": "a TensorFlow training checkpoint of bilm-tf",
    "weights.th": "an AllenNLP task archive",
}


def available_models() -> list[str]:
    """Names of the models that came with this installation."""
    return sorted(folder.name for folder in _built_in())


def load_bilm(name_or_path: str | Path | tuple[str | Path, str | Path]) -> BiLM:
    """Load a biLM of any format that this package knows.

    Args:
        name_or_path: the name of a built-in model; or a directory, a zip archive, a weight file with its options or
            configuration beside it; or a pair (options, weights). In place of a path, an http(s) address of a zip or of
            each of a pair is fetched into the cache (`elmokit.weights.download`). A string that is a built-in name is
            that model: write `./name` for a directory so called.

    Returns:
        The model in eval mode, float32, on the CPU.

    Raises:
        ConfigError: the options or configuration describe no biLM.
        WeightsError: there is no such model, or its files are damaged, swapped, unknown or do not belong together.
        DownloadError: an address could not be fetched.
    """
    parts = name_or_path if isinstance(name_or_path, tuple) else (name_or_path,)
    if len(parts) != 1 + isinstance(name_or_path, tuple) or not all(
        isinstance(part, (str, Path)) and str(part) for part in parts
    ):
        raise InputError(f"{name_or_path!r} is no model; expected a name, a path, or a pair (options, weights)")
    try:
        if len(parts) == 2:
            return _load_pair(*(cached_path(part) for part in parts))
        with _resolved(parts[0]) as path:
            return _load_directory(path) if path.is_dir() else _load_file(path)
    except (WeightsError, ConfigError) as error:
        # A page where a model was to be, such as a login, would otherwise stay in the cache for good.
        pages = [part for part in parts if "://" in str(part) and describe(cached_path(part)) == UNKNOWN]
        if not pages:
            raise
        for page in pages:
            forget(page)
        raise type(error)(
            f"{error}; it came from {' and '.join(map(str, pages))}, call again to fetch it anew"
        ) from error


def load_language_model(name_or_path: str | Path) -> tuple[BiLM, Softmax, Lexicon]:
    """Load a biLM with its softmax and the words that it predicts.

    Args:
        name_or_path: the name of a built-in model, or a directory that `elmokit train` left.

    Returns:
        All in eval mode, float32, on the CPU.

    Raises:
        ConfigError: the configuration describes no biLM.
        InputError: the vocabulary is none.
        WeightsError: there is no such model, it has no softmax, or its files are damaged.
    """
    with _resolved(name_or_path) as path:
        if not path.is_dir():
            raise WeightsError(f"{path} is a file, expected the directory of a language model")
        return native.load_language_model(path)


@contextmanager
def _resolved(name_or_path: str | Path) -> Iterator[Path]:
    """The path of a model that has a name, an address or a path; perhaps for this time only."""
    for folder in _built_in():
        if folder.name == name_or_path:
            with resources.as_file(folder) as path:
                yield path
            return
    path = cached_path(name_or_path)
    if not path.exists():
        raise WeightsError(
            f"there is no file, directory or built-in model {str(name_or_path)!r}; "
            f"built-in models: {', '.join(available_models()) or 'none'}"
        )
    yield path


def save_bilm(
    bilm: BiLM,
    path: str | Path,
    *,
    dtype: native.Dtype = "float32",
    options_file: str | Path | None = None,
) -> None:
    """Save a biLM; files appear under their names only when they are whole.

    Args:
        bilm: the model.
        path: ending in `.hdf5` or `.h5`, the weights in the format of AllenNLP and bilm-tf; else a directory in native
            format.
        dtype: of the native format's numbers.
        options_file: of the HDF5 format; by default `options.json` beside the weights.

    Raises:
        InputError: an argument that the format has no use for.
        WeightsError: a weight is not finite, or a file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() in hdf5.SUFFIXES:
        if dtype != "float32":
            raise InputError(f"{path}: the HDF5 format is float32 only, not {dtype}; save to a directory instead")
        hdf5.write(bilm, path, options_file=Path(options_file or path.with_name("options.json")))
    else:
        if options_file is not None:
            raise InputError(f"{path} is a directory in native format, which has no options file, but one was given")
        native.write(bilm, path, dtype=dtype)


def convert(name_or_path: str | Path, path: str | Path, *, dtype: native.Dtype = "float32") -> None:
    """Load a model and save it in another format; a native model's softmax and words stay with it in a native one.

    Args:
        name_or_path: as for `load_bilm`, but for the pair.
        path: as for `save_bilm`.
        dtype: as for `save_bilm`.

    Raises:
        ElmokitError: as `load_bilm` and `save_bilm` do.
    """
    path = Path(path)
    with _resolved(name_or_path) as source:
        if native.holds_language_model(source) and path.suffix.lower() not in hdf5.SUFFIXES:
            bilm, head, lexicon = native.load_language_model(source)
            native.save_language_model(bilm, path, head=head, lexicon=lexicon, dtype=dtype)
            return
    save_bilm(load_bilm(name_or_path), path, dtype=dtype)


def _built_in() -> list[Traversable]:
    assets = resources.files("elmokit") / "assets"
    return [folder for folder in assets.iterdir() if (folder / native.CONFIG_NAME).is_file()] if assets.is_dir() else []


def _load_pair(options: Path, weights: Path) -> BiLM:
    kinds = describe(options), describe(weights)
    if kinds[1] == JSON and kinds[0] in (HDF5, SAFETENSORS):
        raise WeightsError(
            f"the two files are swapped: {options} is {kinds[0]} and {weights} is {kinds[1]}; "
            "expected (options, weights)"
        )
    if kinds[0] != JSON:
        raise WeightsError(f"{options} is {kinds[0]}, expected options or configuration as {JSON}")
    if kinds[1] == HDF5:
        return hdf5.read(options, weights)
    if kinds[1] == SAFETENSORS:
        return native.read(options, weights)
    raise WeightsError(f"{weights} is {kinds[1]}, expected weights as {HDF5} or {SAFETENSORS}")


def _load_file(path: Path) -> BiLM:
    kind = describe(path)
    if kind == HDF5:
        return hdf5.read(hdf5.options_beside(path), path)
    if kind == SAFETENSORS:
        return native.read(path.with_name(native.CONFIG_NAME), path)
    if kind == ZIP:
        return _load_zip(path)
    hint = "; give its directory, or the pair (options, weights)" if kind == JSON else ""
    raise WeightsError(f"{path} is {kind}, expected weights as {HDF5}, {SAFETENSORS} or {ZIP}{hint}")


def _load_directory(folder: Path) -> BiLM:
    with reading(folder, "a directory"):
        names = sorted(path.name for path in folder.iterdir())
    for layout in _LAYOUTS:
        found = layout.find(folder)
        if found is not None:
            return layout.read(*found)
    for sign, kind in _FOREIGN.items():
        if any(fnmatch(name, sign) for name in names):
            raise WeightsError(f"{folder} holds {kind} ({sign}), a format that this version does not read")
    listed = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
    raise WeightsError(
        f"{folder} holds no model that is known here, but: {listed or 'nothing'}; expected "
        f"{native.CONFIG_NAME} and {native.WEIGHTS_NAME}, or options.json and one .hdf5 file"
    )


def _load_zip(path: Path) -> BiLM:
    """A directory in a zip archive, at its root (NLPL) or in one folder."""
    with tempfile.TemporaryDirectory(prefix="elmokit-") as name:
        folder = Path(name)
        with reading(path, ZIP), zipfile.ZipFile(path) as archive:
            _check_members(archive, path)
            archive.extractall(folder)
        inside = [item for item in folder.iterdir() if item.name != "__MACOSX"]
        try:
            return _load_directory(inside[0] if len(inside) == 1 and inside[0].is_dir() else folder)
        except (WeightsError, ConfigError) as error:  # the folder is gone when this is read
            raise type(error)(str(error).replace(str(folder), str(path))) from error


def _check_members(archive: zipfile.ZipFile, path: Path) -> None:
    """Refuse members that would leave the folder or fill the disk; zipfile never unpacks more than a member claims."""
    for member in archive.infolist():
        target = PurePosixPath(member.filename.replace("\\", "/"))
        if target.is_absolute() or ".." in target.parts or ":" in target.parts[0]:
            raise WeightsError(f"{path} has a member {member.filename!r}, which would be written outside its folder")
    check_expansion(sum(member.file_size for member in archive.infolist()), path.stat().st_size, source=path)
