"""The package's own format: a directory with `config.json` and `model.safetensors`.

Tensors carry the names of `BiLM`'s parameters, in float32 or float16 (half the size, for the models in the box); they
load as float32. `elmokit.train` leaves the softmax there too, as `lm_head.*`, and its words in `vocab.txt`; `read` does
without them, `load_language_model` gives all three.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.errors import WeightsError
from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import Softmax, build_softmax
from elmokit.text.lexicon import Lexicon
from elmokit.weights.files import SAFETENSORS, read_json, reading, replacing
from elmokit.weights.layouts import (
    Entry,
    StoredTensor,
    assemble,
    check_depth,
    check_finite,
    fill,
    plain_tensors,
    skeleton,
)

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
VOCABULARY_NAME = "vocab.txt"
HEAD = "lm_head."

Dtype = Literal["float32", "float16"]


def find(folder: Path) -> tuple[Path, Path] | None:
    """The configuration and weights of a folder in this format; None if it is in another."""
    files = folder / CONFIG_NAME, folder / WEIGHTS_NAME
    return files if all(path.is_file() for path in files) else None


def read(config_file: Path, weights: Path) -> BiLM:
    """Load a biLM.

    Args:
        config_file: what `BiLMConfig.to_json` wrote.
        weights: the safetensors file.

    Raises:
        ConfigError: the configuration is none.
        WeightsError: the weights are damaged, or belong to another configuration.
    """
    config = BiLMConfig.from_json(read_json(config_file), source=config_file)
    with _opened(weights) as stored:
        body = {name: tensor for name, tensor in stored.items() if not name.startswith(HEAD)}
        check_depth(config, len(body), source=str(weights))
        names = skeleton(config, source=str(weights)).state_dict()
        return assemble(config, [Entry(name, (name,)) for name in names], body, source=str(weights))


def write(bilm: BiLM, folder: Path, *, dtype: Dtype = "float32") -> None:
    """Save a biLM; both files appear whole, or neither.

    Args:
        bilm: the model.
        folder: where; it is made, and files of these two names in it are replaced.
        dtype: float16 halves the size and rounds to 11 bits.

    Raises:
        WeightsError: a weight is not finite or too large for the type, or a file cannot be written.
    """
    _write(bilm.config, plain_tensors(bilm, source=str(folder)), folder, dtype)


def save_language_model(bilm: BiLM, folder: Path, *, head: Softmax, lexicon: Lexicon, dtype: Dtype = "float32") -> None:
    """Save a biLM with its softmax and the words that it predicts; `load_bilm` reads the biLM of it.

    Args:
        bilm: the model.
        folder: as in `write`; `vocab.txt` is replaced too.
        head: the softmax over the lexicon's words.
        lexicon: V words.
        dtype: as in `write`.

    Raises:
        WeightsError: as in `write`.
    """
    assert head.num_words == len(lexicon), "a softmax and the words of another"
    tensors = plain_tensors(bilm, source=str(folder))
    tensors |= {HEAD + name: tensor for name, tensor in plain_tensors(head, source=str(folder)).items()}
    with replacing(folder / VOCABULARY_NAME) as temporary:
        lexicon.write(temporary)
    _write(bilm.config, tensors, folder, dtype)


def holds_language_model(folder: Path) -> bool:
    """Whether a folder in this format has the words of a softmax too."""
    return find(folder) is not None and (folder / VOCABULARY_NAME).is_file()


def load_language_model(folder: Path) -> tuple[BiLM, Softmax, Lexicon]:
    """What `save_language_model` wrote, in eval mode, float32.

    Raises:
        ConfigError: the configuration is none.
        InputError: the vocabulary is none.
        WeightsError: a file is missing or damaged, or they do not belong together.
    """
    weights = folder / WEIGHTS_NAME
    bilm = read(folder / CONFIG_NAME, weights)
    with reading(folder / VOCABULARY_NAME, "the vocabulary of a language model"):
        lexicon = Lexicon.read(folder / VOCABULARY_NAME)
    with _opened(weights) as stored:
        ours = {name: tensor for name, tensor in stored.items() if name.startswith(HEAD)}
        if not ours:
            raise WeightsError(f"{weights} holds a biLM without its softmax ({HEAD}*), expected a language model")
        adaptive = any(name.startswith(f"{HEAD}softmax.") for name in ours)
        with torch.device("meta"):
            head = build_softmax(len(lexicon), bilm.config.encoder.projection_dim, adaptive=adaptive)
        fill(head, [Entry(HEAD + name, (name,)) for name in head.state_dict()], ours, source=str(weights))
    return bilm, head.eval(), lexicon


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
