"""The ELMo inside an AllenNLP task model: `model.tar.gz`, or its `config.json` and `weights.th` in a directory.

The biLM is read with all that the task did to it, and so are the scalar mixes it learned. Its options are looked for
where AllenNLP puts them (`fta/` in the archive), beside the weights, and where the configuration says. Where that is an
address, which is not asked, the tensors give the shape, and what they do not show is taken to be as in the published
models.
"""

import json
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import torch
from pydantic import ValidationError

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, describe_validation
from elmokit.errors import ConfigError, WeightsError
from elmokit.weights.files import read_json
from elmokit.weights.layouts import Entry, Mix, StoredModel, StoredTensor, assemble, check_depth, check_finite
from elmokit.weights.options import Options
from elmokit.weights.pickles import read_tensors
from elmokit.weights.transforms import HIGHWAY_GATE, ZERO_ROW

CONFIG_NAME: Final = "config.json"
WEIGHTS_NAMES: Final = ("weights.th", "best.th")  # in an archive, and where a training left its files
ELMO: Final = "_elmo_lstm."
# What some versions keep beside the parameters, and is made of them.
_CACHES: Final = re.compile(r"_word_embedding\.|_token_embedder\._(beginning|end)_of_sentence|_(bos|eos)_embedding")
_MIX: Final = re.compile(r"scalar_mix_(\d{1,4})\.(?:gamma|scalar_parameters\.\d{1,4})")


def find(folder: Path) -> tuple[Path, Path] | None:
    """The configuration, which may be absent, and the weights of a task model's folder; None if it is no such."""
    found = [folder / name for name in WEIGHTS_NAMES if (folder / name).is_file()]
    return (folder / CONFIG_NAME, found[0]) if found else None


def read(config_file: Path, weights: Path, *, words: bool = False, head: bool = False) -> StoredModel:
    """Load the biLM and the mixes of a task model.

    Args:
        config_file: the task's configuration, JSON; it may be absent.
        weights: the state dictionary.
        words: a task model has none.
        head: a task model has none.

    Raises:
        ConfigError: the configuration is none, or the options describe no biLM.
        WeightsError: the weights are damaged, hold no ELMo or several, or do not belong to the options.
    """
    source = str(weights)
    everything = read_tensors(weights)
    prefix = _prefix(everything, source=source)
    body = _below(everything, prefix + ELMO)
    stored = {name: tensor for name, tensor in body.items() if not _CACHES.match(name)}
    task = _task(config_file)
    config = _config(task, stored, config_file.parent, source=source)
    check_depth(config, len(stored), source=source)
    bilm = assemble(config, tuple(_table(config)), stored, source=source)
    mixes = _mixes(_below(everything, prefix), config.num_layers, source=source)
    if mixes and any(options.get("do_layer_norm") is True for _, options in _elmos(task)):
        warnings.warn(
            f"{weights.name}: the task's mix normalises the layers of a batch first; it is left out", stacklevel=2
        )
        mixes = ()
    return StoredModel(bilm, mixes=mixes)


def _below(tensors: Mapping[str, StoredTensor], prefix: str) -> dict[str, StoredTensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _prefix(tensors: Mapping[str, StoredTensor], *, source: str) -> str:
    """What the names of the one ELMo's tensors begin with; a module that is there under two names is one."""
    prefixes = sorted({name[: name.index(ELMO)] for name in tensors if ELMO in name})
    if not prefixes:
        listed = ", ".join(list(tensors)[:5])
        raise WeightsError(f"{source} holds no ELMo, expected tensors named ...{ELMO}*; it has {listed} ...")
    first, *others = (_below(tensors, prefix + ELMO) for prefix in prefixes)
    if not all(_equal(first, other) for other in others):
        raise WeightsError(f"{source} holds several ELMos that differ ({', '.join(prefixes)}), expected one")
    return prefixes[0]


def _equal(a: Mapping[str, StoredTensor], b: Mapping[str, StoredTensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and torch.equal(a[name].read(), b[name].read()) for name in a
    )


def _table(config: BiLMConfig) -> Iterator[Entry]:
    tokens, ours = config.tokens, "token_encoder"
    assert isinstance(tokens, CharCNNConfig), "AllenNLP's ELMo reads characters"
    yield Entry("_token_embedder._char_embedding_weights", (f"{ours}.embedding",), (ZERO_ROW,))
    for kind in ("weight", "bias"):
        for i in range(len(tokens.filters)):
            yield Entry(f"_token_embedder.char_conv_{i}.{kind}", (f"{ours}.convolutions.{i}.{kind}",))
        for k in range(tokens.num_highways):
            gates = tuple(f"{ours}.highways.{k}.{gate}.{kind}" for gate in ("transform", "carry"))
            yield Entry(f"_token_embedder._highways._layers.{k}.{kind}", gates, (HIGHWAY_GATE,), dim=0)
        if tokens.num_filters != config.encoder.projection_dim:
            yield Entry(f"_token_embedder._projection.{kind}", (f"{ours}.projection.{kind}",))
    for direction in ("forward", "backward"):
        for layer in range(config.encoder.num_layers):
            theirs, ours = f"_elmo_lstm.{direction}_layer_{layer}", f"{direction}_encoder.layers.{layer}"
            # Gates are in PyTorch's order, and the forget bias has its 1 in it.
            yield Entry(f"{theirs}.input_linearity.weight", (f"{ours}.weight_ih",))
            yield Entry(f"{theirs}.state_linearity.weight", (f"{ours}.weight_hh",))
            yield Entry(f"{theirs}.state_linearity.bias", (f"{ours}.bias",))
            if config.encoder.has_projection:
                yield Entry(f"{theirs}.state_projection.weight", (f"{ours}.weight_hr",))


def _task(config_file: Path) -> object:
    """The configuration of the task as it is; nothing where there is none."""
    if not config_file.is_file():
        return {}
    try:
        return json.loads(read_json(config_file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{config_file} is no JSON, expected the configuration of an AllenNLP task") from error


def _elmos(task: object) -> Iterator[tuple[str, dict[str, object]]]:
    """The path and the content of each part of a task's configuration that names an options file."""
    parts: list[tuple[str, object]] = [("", task)]
    while parts:
        path, part = parts.pop()
        if isinstance(part, dict):
            if isinstance(part.get("options_file"), str):
                yield path, part
            parts += [(f"{path}{key}.", value) for key, value in part.items()]


def _config(task: object, stored: Mapping[str, StoredTensor], folder: Path, *, source: str) -> BiLMConfig:
    for path, part in _elmos(task):
        named = str(part["options_file"])
        beside = folder / PurePosixPath(named.replace("\\", "/")).name
        for file in (folder / "fta" / f"{path}options_file", beside, Path(named)):
            if _is_file(file):
                return Options.read(file).config(None, source=file)
    warnings.warn(
        f"no options file lies with the ELMo in {Path(source).name}: clips of 3, relu and 50 characters a token are "
        "taken from the published models; if it is another one, put its options file beside the weights",
        stacklevel=2,
    )
    return _published(stored, source=source)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no name that there could be
        return False


def _published(stored: Mapping[str, StoredTensor], *, source: str) -> BiLMConfig:
    """The shape that the tensors show, and for the rest the published models' values."""

    def shape(name: str, *, dims: int) -> tuple[int, ...]:
        found = stored[name].shape if name in stored else None
        if found is None or len(found) != dims:
            raise WeightsError(f"{source}: the ELMo's tensor {name!r} has the shape {found}, expected {dims} numbers")
        return found

    def count(pattern: str) -> int:
        return sum(re.fullmatch(pattern, name) is not None for name in stored)

    convolutions = [
        shape(f"_token_embedder.char_conv_{i}.weight", dims=3)
        for i in range(count(r"_token_embedder\.char_conv_\d+\.weight"))
    ]
    try:
        return BiLMConfig(
            tokens=CharCNNConfig(
                embedding_dim=shape("_token_embedder._char_embedding_weights", dims=2)[1],
                filters=tuple((width, filters) for filters, _, width in convolutions),
                num_highways=count(r"_token_embedder\._highways\._layers\.\d+\.weight"),
            ),
            encoder=EncoderConfig(
                projection_dim=shape("_elmo_lstm.forward_layer_0.input_linearity.weight", dims=2)[1],
                cell_dim=shape("_elmo_lstm.forward_layer_0.input_linearity.weight", dims=2)[0] // 4,
                num_layers=count(r"_elmo_lstm\.forward_layer_\d+\.input_linearity\.weight"),
            ),
        )
    except ValidationError as error:
        raise WeightsError(f"the tensors of {source} are of no ELMo: {describe_validation(error)}") from error


def _mixes(stored: Mapping[str, StoredTensor], num_layers: int, *, source: str) -> tuple[Mix, ...]:
    """The mixes of the ELMo in their order, each of numbers that are tensors of their own."""
    numbers = sorted({int(found[1]) for found in map(_MIX.fullmatch, stored) if found})
    return tuple(_mix(stored, f"scalar_mix_{number}.", num_layers, source=source) for number in numbers)


def _mix(stored: Mapping[str, StoredTensor], prefix: str, num_layers: int, *, source: str) -> Mix:
    names = [f"{prefix}scalar_parameters.{layer}" for layer in range(num_layers)] + [f"{prefix}gamma"]
    values = []
    for name in names:
        tensor = stored.get(name)
        if tensor is None or tensor.shape != (1,) or not tensor.is_float:
            found = "nothing" if tensor is None else f"{tensor.shape} of {tensor.dtype}"
            raise WeightsError(f"{source}: the mix's tensor {name!r} is {found}, expected (1,) of floating point")
        check_finite(name, tensor.read(), source=source)
        values.append(tensor.read().item())
    return Mix(tuple(values[:-1]), values[-1])
