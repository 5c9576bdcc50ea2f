"""The package's own format: a directory with `config.json` and `model.safetensors`.

Tensors carry the names of `BiLM`'s parameters, in float32 or float16 (half the size, for the models in the box); they
load as float32. Names that begin with `lm_head.` belong to the language-model head of `elmokit.train`.
"""

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from elmokit.config import BiLMConfig
from elmokit.model.bilm import BiLM
from elmokit.weights.files import SAFETENSORS, read_json, reading, replacing
from elmokit.weights.layouts import Entry, StoredTensor, assemble, check_depth, check_finite, disassemble, skeleton

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
LANGUAGE_MODEL_HEAD = "lm_head."

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
    with reading(weights, SAFETENSORS):
        file: Any = safe_open(weights, framework="pt")  # no mapping, and without types
    with file:
        with reading(weights, SAFETENSORS):
            names = [name for name in file.keys() if not name.startswith(LANGUAGE_MODEL_HEAD)]  # noqa: SIM118
            stored = {name: _stored_tensor(file, name, weights) for name in names}
        check_depth(config, len(stored), source=str(weights))
        return assemble(config, _table(config, source=str(weights)), stored, source=str(weights))


def write(bilm: BiLM, folder: Path, *, dtype: Dtype = "float32") -> None:
    """Save a biLM; each file appears whole, the configuration last.

    Args:
        bilm: the model.
        folder: where; it is made, and files of these two names in it are replaced.
        dtype: float16 halves the size and rounds to 11 bits.

    Raises:
        WeightsError: a weight is not finite or too large for the type, or a file cannot be written.
    """
    tensors = {}
    for name, tensor in disassemble(bilm, _table(bilm.config, source=str(folder)), source=str(folder)):
        tensors[name] = tensor.to(getattr(torch, dtype))
        check_finite(name, tensors[name], source=f"{folder} as {dtype}")
    with replacing(folder / WEIGHTS_NAME) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    with replacing(folder / CONFIG_NAME) as temporary:
        temporary.write_text(bilm.config.to_json(), "utf-8")


def _table(config: BiLMConfig, *, source: str) -> tuple[Entry, ...]:
    """Everything under its own name."""
    return tuple(Entry(name, (name,)) for name in skeleton(config, source=source).state_dict())


def _stored_tensor(file: Any, name: str, path: Path) -> StoredTensor:  # noqa: ANN401 - safetensors has no types
    header = file.get_slice(name)
    dtype = header.get_dtype()

    def read() -> Tensor:
        with reading(path, SAFETENSORS):
            tensor: Tensor = file.get_tensor(name)
            return tensor.to(torch.float32)

    return StoredTensor(tuple(header.get_shape()), dtype, dtype.startswith(("F", "BF")), read)
