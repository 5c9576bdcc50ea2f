"""AllenNLP's and bilm-tf's format: `options.json` and an HDF5 file of TensorFlow's variables, read and written.

One table serves both directions, and all steps but one only move numbers. The forget bias differs by 1 between file
and network, and float32 cannot undo every sum. What is exact: elmokit -> file -> elmokit for every model that came from
such a file, and for any other whose forget biases are 0.5 or more. What is not: a forget bias below 0.5 that was
trained here, and a file's own forget bias in file -> elmokit -> file, may come back changed by one rounding (6e-8
within -1..1).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Self

import h5py
import numpy as np
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig, describe_validation
from elmokit.errors import ConfigError, WeightsError
from elmokit.model.bilm import BiLM
from elmokit.weights.files import HDF5, check_expansion, read_json, reading, replacing
from elmokit.weights.layouts import Entry, StoredTensor, assemble, check_depth, disassemble
from elmokit.weights.transforms import CONVOLUTION, FORGET_BIAS, GATE_ORDER, TRANSPOSE

SUFFIXES = (".hdf5", ".h5")
WORD_TABLE = "embedding"
LANGUAGE_MODEL_HEAD = ("softmax/W", "softmax/b")  # some dumps hold it too; the biLM does without


class _Embedding(BaseModel):
    dim: int


class _CharCNNOptions(BaseModel):
    embedding: _Embedding
    filters: tuple[tuple[int, int], ...]
    activation: Literal["relu", "tanh"]
    n_highway: int | None = 0
    max_characters_per_token: int = 50
    # 261 in training, 262 at use, or missing: the file's table has 261 rows in each case, and that is what counts.
    n_characters: Any = 262


class _LSTMOptions(BaseModel):
    dim: int
    projection_dim: int
    n_layers: int = 1
    cell_clip: float | None = None
    proj_clip: float | None = None
    use_skip_connections: bool = False


class _Options(BaseModel):
    """The part of an options file that shapes the network, with bilm-tf's defaults; other keys are ignored."""

    lstm: _LSTMOptions
    char_cnn: _CharCNNOptions | None = None
    n_tokens_vocab: Any = None
    language: str | None = None  # ours: other programs ignore it

    @classmethod
    def of(cls, config: BiLMConfig) -> Self:
        """The options of a biLM."""
        encoder, tokens = config.encoder, config.tokens
        return cls(
            lstm=_LSTMOptions(
                dim=encoder.cell_dim,
                projection_dim=encoder.projection_dim,
                n_layers=encoder.num_layers,
                cell_clip=encoder.cell_clip,
                proj_clip=encoder.proj_clip,
                use_skip_connections=encoder.skip_connections,
            ),
            char_cnn=_CharCNNOptions(
                embedding=_Embedding(dim=tokens.embedding_dim),
                filters=tokens.filters,
                activation=tokens.activation,
                n_highway=tokens.num_highways,
                max_characters_per_token=tokens.max_characters_per_token,
            )
            if isinstance(tokens, CharCNNConfig)
            else None,
            n_tokens_vocab=tokens.num_words if isinstance(tokens, WordEmbeddingConfig) else None,
            language=config.language,
        )

    def config(self, num_words: int) -> BiLMConfig:
        """The biLM of these options; a word-level one has `num_words` words."""
        lstm, characters = self.lstm, self.char_cnn
        return BiLMConfig(
            tokens=CharCNNConfig(
                embedding_dim=characters.embedding.dim,
                filters=characters.filters,
                num_highways=characters.n_highway or 0,
                activation=characters.activation,
                max_characters_per_token=characters.max_characters_per_token,
            )
            if characters is not None
            else WordEmbeddingConfig(num_words=num_words),
            encoder=EncoderConfig(
                projection_dim=lstm.projection_dim,
                cell_dim=lstm.dim,
                num_layers=lstm.n_layers,
                cell_clip=lstm.cell_clip or None,
                proj_clip=lstm.proj_clip or None,
                skip_connections=lstm.use_skip_connections,
            ),
            language=self.language,
        )


def table(config: BiLMConfig, *, bare_cell: bool = False) -> tuple[Entry, ...]:
    """Every dataset of a biLM's HDF5 file.

    Args:
        config: the biLM's shape.
        bare_cell: a one-layer model as bilm-tf's training dumps it, without the level of `MultiRNNCell`.
    """
    return (*_token_entries(config), *_encoder_entries(config.encoder, bare_cell=bare_cell))


def _token_entries(config: BiLMConfig) -> Iterator[Entry]:
    tokens = config.tokens
    if isinstance(tokens, WordEmbeddingConfig):
        yield Entry(WORD_TABLE, ("token_encoder.embedding.weight",))
        return
    yield Entry("char_embed", ("token_encoder.embedding",))
    for i in range(len(tokens.filters)):
        yield Entry(f"CNN/W_cnn_{i}", (f"token_encoder.convolutions.{i}.weight",), (CONVOLUTION,))
        yield Entry(f"CNN/b_cnn_{i}", (f"token_encoder.convolutions.{i}.bias",))
    for k in range(tokens.num_highways):
        for gate in ("carry", "transform"):
            ours = f"token_encoder.highways.{k}.{gate}"
            yield Entry(f"CNN_high_{k}/W_{gate}", (f"{ours}.weight",), (TRANSPOSE,))
            yield Entry(f"CNN_high_{k}/b_{gate}", (f"{ours}.bias",))
    if tokens.num_filters != config.encoder.projection_dim:
        yield Entry("CNN_proj/W_proj", ("token_encoder.projection.weight",), (TRANSPOSE,))
        yield Entry("CNN_proj/b_proj", ("token_encoder.projection.bias",))


def _encoder_entries(encoder: EncoderConfig, *, bare_cell: bool) -> Iterator[Entry]:
    for number, direction in enumerate(("forward", "backward")):
        for layer in range(encoder.num_layers):
            theirs = f"RNN_{number}/RNN/{'' if bare_cell else f'MultiRNNCell/Cell{layer}/'}LSTMCell"
            ours = f"{direction}_encoder.layers.{layer}"
            # The first P rows of W_0 are input weights, the other P recurrent ones.
            yield Entry(f"{theirs}/W_0", (f"{ours}.weight_ih", f"{ours}.weight_hh"), (TRANSPOSE, GATE_ORDER))
            yield Entry(f"{theirs}/B", (f"{ours}.bias",), (GATE_ORDER, FORGET_BIAS))
            if encoder.has_projection:
                yield Entry(f"{theirs}/W_P_0", (f"{ours}.weight_hr",), (TRANSPOSE,))


def find(folder: Path) -> tuple[Path, Path] | None:
    """The options and weights of a folder with HDF5 files; None without any.

    Raises:
        WeightsError: several HDF5 files, or no options beside the one.
    """
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if len(found) > 1:
        raise WeightsError(
            f"{folder} holds several HDF5 files ({', '.join(path.name for path in found)}), expected one; "
            "name the options and the weights: (options, weights)"
        )
    return (options_beside(found[0]), found[0]) if found else None


def options_beside(weights: Path) -> Path:
    """The options of a weight file: of the same name with `options` for `weights`, `options.json`, or the only file.

    Raises:
        WeightsError: there is none, or there are several.
    """
    for name in (weights.stem.replace("weights", "options") + ".json", "options.json"):
        if (weights.parent / name).is_file() and "options" in name:
            return weights.parent / name
    found = sorted(weights.parent.glob("*options*.json"))
    if len(found) != 1:
        listed = f"several options files ({', '.join(path.name for path in found)})" if found else "no options file"
        raise WeightsError(
            f"there is {listed} beside {weights}, expected an options.json; name both files: (options, weights)"
        )
    return found[0]


def read(options_file: Path, weights: Path) -> BiLM:
    """Load a biLM.

    Args:
        options_file: the options, JSON.
        weights: the HDF5 file.

    Raises:
        ConfigError: the options describe no biLM.
        WeightsError: the weights are damaged, or belong to other options.
    """
    try:
        options = _Options.model_validate_json(read_json(options_file))
    except ValidationError as error:
        raise ConfigError(f"{options_file} holds no biLM options: {describe_validation(error)}") from error
    with reading(weights, HDF5):
        file = h5py.File(weights, "r")
    with file:
        stored = _stored(file, weights)
        if options.char_cnn is None and len(getattr(stored.get(WORD_TABLE), "shape", ())) != 2:
            raise WeightsError(
                f"{options_file} has no 'char_cnn' and so is for a model of whole words, but {weights} has no "
                f"table {WORD_TABLE!r} of (words, {options.lstm.projection_dim}); it holds: {', '.join(stored)}"
            )
        try:
            config = options.config(stored[WORD_TABLE].shape[0] if options.char_cnn is None else 0)
        except ValidationError as error:
            raise ConfigError(f"{options_file} describes no biLM: {describe_validation(error)}") from error
        check_depth(config, len(stored), source=str(weights))
        bare_cell = config.encoder.num_layers == 1 and any(name.startswith("RNN_0/RNN/LSTMCell/") for name in stored)
        return assemble(config, table(config, bare_cell=bare_cell), stored, source=str(weights))


def write(bilm: BiLM, weights: Path, *, options_file: Path) -> None:
    """Save a biLM; both files appear whole, or neither. Arguments as in `read`.

    Raises:
        WeightsError: a weight is not finite, a file cannot be written, or options of other weights are in the way.
    """
    options = _Options.of(bilm.config)
    if options_file.exists() and not weights.exists():
        raise WeightsError(
            f"{options_file} is there and belongs to other weights than {weights.name}, which are new; "
            "save into another folder, or name another options file"
        )
    # No `char_cnn` means a word-level model to bilm-tf, but AllenNLP wants the clips to be there, if only as null.
    absent = {name for name, value in options if value is None}
    with replacing(options_file) as new_options, replacing(weights) as new_weights:
        new_options.write_text(options.model_dump_json(indent=2, exclude=absent) + "\n", "utf-8")
        with h5py.File(new_weights, "w") as file:
            # One layer, too, goes below MultiRNNCell: that is the only place where AllenNLP and bilm-tf look.
            for name, tensor in disassemble(bilm, table(bilm.config), source=str(weights)):
                file.create_dataset(name, data=tensor.numpy())


def _stored(file: h5py.File, path: Path) -> dict[str, StoredTensor]:
    """All datasets of a file but the language model's head, unread."""
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and name not in LANGUAGE_MODEL_HEAD:
            datasets[name] = item

    with reading(path, HDF5):
        file.visititems(visit)
        stored = {name: _stored_tensor(dataset, path) for name, dataset in datasets.items()}
        claimed = sum(dataset.size * dataset.dtype.itemsize for dataset in datasets.values())
        size = path.stat().st_size
    check_expansion(claimed, size, source=path)
    return stored


def _stored_tensor(dataset: h5py.Dataset, path: Path) -> StoredTensor:
    if dataset.shape is None or dataset.external is not None or dataset.is_virtual:
        raise WeightsError(f"dataset {dataset.name!r} of {path} keeps its values in another file or has none")

    def read() -> Tensor:
        with reading(path, HDF5):
            values = np.asarray(dataset[...])
        with np.errstate(over="ignore"):  # becomes infinite, and is reported as such
            return torch.from_numpy(values.astype(np.float32))

    return StoredTensor(tuple(dataset.shape), str(dataset.dtype), dataset.dtype.kind == "f", read)
