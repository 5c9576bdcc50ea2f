"""The package's own format: a directory with `config.json` and `model.safetensors`.

Tensors carry the names of `BiLM`'s parameters, in float32 or float16 (half the size, for the models in the box); they
load as float32. The same two files hold what else a model may have: the softmax as `lm_head.*`, learned mixes as
`mixes.k.*`; `vocab.txt` has the words of the softmax, or of a word-level model's rows.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import AdaptiveHead, Softmax
from elmokit.model.mix import ScalarMix
from elmokit.text.lexicon import Lexicon
from elmokit.weights.files import SAFETENSORS, read_json, reading, replacing
from elmokit.weights.layouts import (
    Entry,
    Mix,
    StoredModel,
    StoredTensor,
    assemble,
    check_depth,
    check_finite,
    fill,
    plain_tensors,
    skeleton,
)
from elmokit.weights.vocabulary import VOCABULARY_NAME, empty_softmax, with_words

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
HEAD = "lm_head."
MIXES = "mixes."

Dtype = Literal["float32", "float16"]


def find(folder: Path) -> tuple[Path, Path] | None:
    """The configuration and weights of a folder in this format; None if it is in another."""
    files = folder / CONFIG_NAME, folder / WEIGHTS_NAME
    return files if all(path.is_file() for path in files) else None


def read(config_file: Path, weights: Path, *, words: bool = False, head: bool = False) -> StoredModel:
    """Load a biLM and what lies with it.

    Args:
        config_file: what `BiLMConfig.to_json` wrote.
        weights: the safetensors file.
        words: read the vocabulary of a word-level model.
        head: read the softmax and its words.

    Raises:
        ConfigError: the configuration is none.
        InputError: the vocabulary is none.
        WeightsError: the weights are damaged, or belong to another configuration or vocabulary.
    """
    config = BiLMConfig.from_json(read_json(config_file), source=config_file)
    source = str(weights)
    with _opened(weights) as stored:
        extras = {name: tensor for name, tensor in stored.items() if name.startswith((HEAD, MIXES))}
        body = {name: tensor for name, tensor in stored.items() if name not in extras}
        check_depth(config, len(body), source=source)
        names = skeleton(config, source=source).state_dict()
        bilm = assemble(config, [Entry(name, (name,)) for name in names], body, source=source)
        softmax = _read_head(extras, config, source=source) if head else None
        mixes = _read_mixes(extras, config, source=source)
    return with_words(StoredModel(bilm, head=softmax, mixes=mixes), weights, words=words)


def _read_head(stored: Mapping[str, StoredTensor], config: BiLMConfig, *, source: str) -> Softmax | None:
    ours = {name: tensor for name, tensor in stored.items() if name.startswith(HEAD)}
    if not ours:
        return None
    # The rows of the one matrix of words, or of those of the rare words' clusters.
    adaptive = any(name.startswith(f"{HEAD}softmax.") for name in ours)
    rows = sum(
        tensor.shape[0]
        for name, tensor in ours.items()
        if name.endswith(".1.weight" if adaptive else ".bias") and tensor.shape
    )
    head = empty_softmax(
        rows + adaptive * AdaptiveHead.SHORTLIST, config.encoder.projection_dim, adaptive=adaptive, source=source
    )
    fill(head, [Entry(HEAD + name, (name,)) for name in head.state_dict()], ours, source=source)
    return head.eval()


def _read_mixes(stored: Mapping[str, StoredTensor], config: BiLMConfig, *, source: str) -> tuple[Mix, ...]:
    """All mixes, numbered from 0 without a gap."""
    count = len({name.split(".")[1] for name in stored if name.startswith(MIXES)})
    mixes = [ScalarMix(config.num_layers) for _ in range(count)]
    module = nn.ModuleList(mixes)
    table = [Entry(MIXES + name, (name,)) for name in module.state_dict()]
    fill(module, table, {name: stored[name] for name in stored if name.startswith(MIXES)}, source=source)
    return tuple(Mix(tuple(mix.weights.tolist()), mix.gamma.item()) for mix in mixes)


def write(stored: StoredModel, folder: Path, *, dtype: Dtype = "float32") -> None:
    """Save a model; its files appear whole, or none.

    Args:
        stored: the biLM and what there is beside it; a softmax needs its words.
        folder: where; it is made, and files of these names in it are replaced.
        dtype: float16 halves the size and rounds to 11 bits.

    Raises:
        WeightsError: a weight is not finite or too large for the type, or a file cannot be written.
    """
    head, lexicon, source = stored.head, stored.lexicon, str(folder)
    assert head is None or (lexicon is not None and head.num_words == len(lexicon)), "a softmax and no words of its own"
    tensors = plain_tensors(stored.bilm, source=source)
    if head is not None:
        tensors |= {HEAD + name: tensor for name, tensor in plain_tensors(head, source=source).items()}
    for index, mix in enumerate(stored.mixes):
        tensors |= {
            f"{MIXES}{index}.weights": torch.tensor(mix.weights),
            f"{MIXES}{index}.gamma": torch.tensor(mix.gamma),
        }
    if lexicon is not None:
        with replacing(folder / VOCABULARY_NAME) as temporary:
            lexicon.write(temporary)
    _write(stored.bilm.config, tensors, folder, dtype)


def save_language_model(bilm: BiLM, folder: Path, *, head: Softmax, lexicon: Lexicon, dtype: Dtype = "float32") -> None:
    """Save a biLM with its softmax and the words that it predicts: `write`, with the same arguments and errors."""
    write(StoredModel(bilm, lexicon, head), folder, dtype=dtype)


def _write(config: BiLMConfig, tensors: Mapping[str, Tensor], folder: Path, dtype: Dtype) -> None:
    stored = {name: tensor.to(getattr(torch, dtype)).contiguous() for name, tensor in tensors.items()}
    for name, tensor in stored.items():
        check_finite(name, tensor, source=f"{folder} as {dtype}")
    with replacing(folder / CONFIG_NAME) as new_config, replacing(folder / WEIGHTS_NAME) as new_weights:
        new_config.write_text(config.to_json(), "utf-8")
        save_file(stored, new_weights, metadata={"format": "pt"})


@contextmanager
def _opened(weights: Path) -> Iterator[dict[str, StoredTensor]]:
    """All tensors of a file, unread."""
    with reading(weights, SAFETENSORS):
        file: Any = safe_open(weights, framework="pt")  # without types

    def stored_tensor(name: str) -> StoredTensor:
        header = file.get_slice(name)
        dtype = header.get_dtype()
        return StoredTensor(tuple(header.get_shape()), dtype, dtype.startswith(("F", "BF")), lambda: values(name))

    def values(name: str) -> Tensor:
        with reading(weights, SAFETENSORS):
            tensor: Tensor = file.get_tensor(name)
            return tensor.to(torch.float32)

    with file:
        with reading(weights, SAFETENSORS):
            stored = {name: stored_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        yield stored
