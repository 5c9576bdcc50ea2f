"""Weight files of every format: `load_bilm` and `save_bilm`, or `load_model` for what else a model's files hold.

Both find out what they were given, by name, by the files present and by their bytes, and hand it to the format's own
file (`native`, `hdf5`, ...). A format file offers `find(folder)`, `read(config, weights)`, and `write` where it can.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Literal, Protocol, get_args

from elmokit.errors import ConfigError, ElmokitError, InputError, WeightsError
from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import LMHead, Softmax
from elmokit.text.lexicon import Lexicon
from elmokit.weights import allennlp, hdf5, manylangs, native, tf_checkpoint
from elmokit.weights.archives import unpacked
from elmokit.weights.catalog import locate, nearest
from elmokit.weights.download import cached_path, forget
from elmokit.weights.files import (
    HDF5,
    JSON,
    PICKLE,
    SAFETENSORS,
    TAR,
    TENSOR_BUNDLE,
    UNKNOWN,
    ZIP,
    describe,
    reading,
)
from elmokit.weights.hub import push
from elmokit.weights.layouts import StoredModel
from elmokit.weights.options import options_beside
from elmokit.weights.vocabulary import VOCABULARY_NAME

__all__ = [
    "StoredModel",
    "available_models",
    "convert",
    "load_bilm",
    "load_language_model",
    "load_model",
    "push",
    "save_bilm",
]


Format = Literal["native", "hdf5", "manylangs"]


class _Layout(Protocol):
    """A module that recognises a directory in its format, and reads it."""

    def find(self, folder: Path, /) -> tuple[Path, Path] | None: ...
    def read(self, config: Path, weights: Path, /, *, words: bool, head: bool) -> StoredModel: ...


_LAYOUTS: tuple[_Layout, ...] = (native, tf_checkpoint, hdf5, allennlp, manylangs)


def available_models() -> list[str]:
    """Names of the models that came with this installation."""
    return sorted(folder.name for folder in _built_in())


def load_bilm(name_or_path: str | Path | tuple[str | Path, str | Path]) -> BiLM:
    """Load a biLM of any format that this package knows.

    Args:
        name_or_path: the name of a built-in model; or a directory, an archive, a weight file with its options or
            configuration beside it; or a pair (options, weights). In place of a path, an http(s) address of an archive
            or of each of a pair is fetched into the cache (`elmokit.weights.download`), and so is a model of the
            catalog by its name (`elmokit models list`) or a Hugging Face repository, `hf://owner/name[@revision]` or
            `owner/name`, unless a path is so called. A string that is a built-in name is that model: write `./name`
            for a directory so called.

    Returns:
        The model in eval mode, float32, on the CPU.

    Raises:
        ConfigError: the options or configuration describe no biLM.
        WeightsError: there is no such model, or its files are damaged, swapped, unknown or do not belong together.
        DownloadError: an address could not be fetched.
    """
    return load_model(name_or_path, words=False).bilm


def load_model(
    name_or_path: str | Path | tuple[str | Path, str | Path], *, words: bool = True, head: bool = False
) -> StoredModel:
    """Load a biLM with what else its files hold.

    Args:
        name_or_path: as for `load_bilm`.
        words: read the vocabulary that lies beside a word-level model.
        head: read the softmax and the words that it predicts; the published one takes 1.6 GB.

    Returns:
        The biLM, and of the rest what there is.

    Raises:
        InputError: the vocabulary is none.
        ElmokitError: as `load_bilm` does.
    """
    parts = name_or_path if isinstance(name_or_path, tuple) else (name_or_path,)
    if len(parts) != 1 + isinstance(name_or_path, tuple) or not all(
        isinstance(part, (str, Path)) and str(part) for part in parts
    ):
        raise InputError(f"{name_or_path!r} is no model; expected a name, a path, or a pair (options, weights)")
    try:
        if len(parts) == 2:
            options, weights = (cached_path(part) for part in parts)
            return _load_pair(options, weights, words=words, head=head)
        with _resolved(parts[0]) as path:
            load = _load_directory if path.is_dir() else _load_file
            return load(path, words=words, head=head)
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


def load_language_model(
    name_or_path: str | Path | tuple[str | Path, str | Path],
) -> tuple[BiLM, Softmax, Lexicon]:
    """Load a biLM with its softmax and the words that it predicts.

    Args:
        name_or_path: as for `load_bilm`, of a directory that `elmokit train` left, or a training checkpoint of bilm-tf.

    Returns:
        All in eval mode, float32, on the CPU.

    Raises:
        InputError: the vocabulary is none.
        WeightsError: there is no softmax, or no vocabulary.
        ElmokitError: as `load_bilm` does.
    """
    stored = load_model(name_or_path, head=True)
    if stored.head is None:
        raise WeightsError(f"{name_or_path} holds a biLM without its softmax, expected a language model")
    if stored.lexicon is None:
        raise WeightsError(
            f"{name_or_path} holds a language model without its words; expected one word a line in a file "
            f"{VOCABULARY_NAME} beside the weights"
        )
    return stored.bilm, stored.head, stored.lexicon


@contextmanager
def _resolved(name_or_path: str | Path) -> Iterator[Path]:
    """The path of a model that has a name, an address or a path; perhaps for this time only."""
    for folder in _built_in():
        if folder.name == name_or_path:
            with resources.as_file(folder) as path:
                yield path
            return
    index = Path(f"{name_or_path}{tf_checkpoint.INDEX}")  # TensorFlow names a checkpoint by what its files begin with
    named = index.is_file() and not Path(name_or_path).exists()
    path = index if named else cached_path(locate(name_or_path))
    if not path.exists():
        near = nearest(str(name_or_path), available_models())
        meant = f"did you mean {' or '.join(near)}? Built in" if near else "built-in models"
        raise WeightsError(
            f"there is no file, directory or built-in model {str(name_or_path)!r}; "
            f"{meant}: {', '.join(available_models()) or 'none'}; `elmokit models list` names all"
        )
    yield path


def save_bilm(
    bilm: BiLM,
    path: str | Path,
    *,
    format: Format | None = None,
    dtype: native.Dtype = "float32",
    options_file: str | Path | None = None,
) -> None:
    """Save a biLM; files appear under their names only when they are whole.

    Args:
        bilm: the model.
        path: a file for the weights in HDF5, with options beside it; else a directory.
        format: `native`; `hdf5`, that of AllenNLP and bilm-tf; or `manylangs`, that of ELMoForManyLangs, which holds
            models of code points. By default HDF5 where the path ends in `.hdf5` or `.h5`, else native.
        dtype: of the native format's numbers.
        options_file: of the HDF5 format; by default `options.json` beside the weights.

    Raises:
        InputError: an argument that the format has no use for.
        WeightsError: a weight is not finite, or a file cannot be written.
    """
    _save(StoredModel(bilm), Path(path), format=format, dtype=dtype, options_file=options_file)


def convert(
    name_or_path: str | Path | tuple[str | Path, str | Path],
    path: str | Path,
    *,
    format: Format | None = None,
    dtype: native.Dtype = "float32",
) -> None:
    """Load a model and save it in another format, with all that the format can hold.

    The native format holds all of a `StoredModel`. What another one has no place for, such as learned mixes, is left
    out with a warning.

    Args:
        name_or_path: as for `load_bilm`.
        path: as for `save_bilm`.
        format: as for `save_bilm`.
        dtype: as for `save_bilm`.

    Raises:
        ElmokitError: as `load_model` and `save_bilm` do.
    """
    stored = load_model(name_or_path, head=True)
    if stored.head is not None and stored.lexicon is None:
        stored = replace(stored, head=None)
        _left_out(path, f"its softmax, for the lack of its words (a file {VOCABULARY_NAME} beside it)")
    _save(stored, Path(path), format=format, dtype=dtype)


def _save(
    stored: StoredModel,
    path: Path,
    *,
    format: Format | None,
    dtype: native.Dtype,
    options_file: str | Path | None = None,
) -> None:
    format = format or ("hdf5" if path.suffix.lower() in hdf5.SUFFIXES else "native")
    if format not in get_args(Format):
        raise InputError(f"format is {format!r}, expected one of {', '.join(get_args(Format))}")
    if dtype != "float32" and format != "native":
        raise InputError(f"{path}: the {format} format is float32 only, not {dtype}; save in the native format instead")
    if options_file is not None and format != "hdf5":
        raise InputError(f"{path} is a directory in {format} format, which has no options file, but one was given")
    full = format == "hdf5" and isinstance(stored.head, LMHead)
    if format != "native" and (stored.mixes or (stored.head and not full)):
        parts = {"its learned mixes": stored.mixes, "its softmax": stored.head and not full}
        _left_out(path, f"{' and '.join(name for name, there in parts.items() if there)}: {format} has no such thing")
    if format == "hdf5":
        hdf5.write(stored, path, options_file=Path(options_file or path.with_name("options.json")))
    elif format == "manylangs":
        manylangs.write(stored, path)
    else:
        native.write(stored, path, dtype=dtype)


def _left_out(path: str | Path, what: str) -> None:
    warnings.warn(f"{path} is written without {what}", stacklevel=4)


def _built_in() -> list[Traversable]:
    assets = resources.files("elmokit") / "assets"
    return [folder for folder in assets.iterdir() if (folder / native.CONFIG_NAME).is_file()] if assets.is_dir() else []


def _load_pair(options: Path, weights: Path, *, words: bool, head: bool) -> StoredModel:
    kinds = describe(options), describe(weights)
    if kinds[1] == JSON and kinds[0] in (HDF5, SAFETENSORS):
        raise WeightsError(
            f"the two files are swapped: {options} is {kinds[0]} and {weights} is {kinds[1]}; "
            "expected (options, weights)"
        )
    if kinds[0] != JSON:
        raise WeightsError(f"{options} is {kinds[0]}, expected options or configuration as {JSON}")
    if kinds[1] == HDF5:
        return hdf5.read(options, weights, words=words, head=head)
    if kinds[1] == SAFETENSORS:
        return native.read(options, weights, words=words, head=head)
    if kinds[1] == TENSOR_BUNDLE:
        return tf_checkpoint.read(options, weights, words=words, head=head)
    raise WeightsError(f"{weights} is {kinds[1]}, expected weights as {HDF5} or {SAFETENSORS}")


def _load_file(path: Path, *, words: bool, head: bool) -> StoredModel:
    kind = describe(path)
    if kind == HDF5:
        return hdf5.read(options_beside(path), path, words=words, head=head)
    if kind == SAFETENSORS:
        return native.read(path.with_name(native.CONFIG_NAME), path, words=words, head=head)
    if kind == TENSOR_BUNDLE:
        return tf_checkpoint.read(options_beside(path), path, words=words, head=head)
    if kind == PICKLE:
        layout: _Layout = manylangs if path.name == manylangs.ENCODER_NAME else allennlp
        return layout.read(path.with_name("config.json"), path, words=words, head=head)
    if kind in (ZIP, TAR):
        return _load_archive(path, kind, words=words, head=head)
    hint = "; give its directory, or the pair (options, weights)" if kind == JSON else ""
    raise WeightsError(f"{path} is {kind}, expected weights as {HDF5}, {SAFETENSORS}, {PICKLE} or {ZIP}{hint}")


def _load_directory(folder: Path, *, words: bool, head: bool) -> StoredModel:
    with reading(folder, "a directory"):
        names = sorted(path.name for path in folder.iterdir())
    for layout in _LAYOUTS:
        found = layout.find(folder)
        if found is not None:
            return layout.read(*found, words=words, head=head)
    listed = ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")
    raise WeightsError(
        f"{folder} holds no model that is known here, but: {listed or 'nothing'}; expected "
        f"{native.CONFIG_NAME} and {native.WEIGHTS_NAME}, or options.json and one .hdf5 file"
    )


def _load_archive(path: Path, kind: str, *, words: bool, head: bool) -> StoredModel:
    with unpacked(path, kind) as folder:
        try:
            return _load_directory(folder, words=words, head=head)
        except ElmokitError as error:  # the folder is gone when this is read
            raise type(error)(str(error).replace(str(folder), str(path))) from error
