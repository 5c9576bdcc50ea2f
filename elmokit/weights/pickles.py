"""State dictionaries that `torch.save` wrote, old and new: AllenNLP's `weights.th`, ELMoForManyLangs' `*.pkl`.

Both are pickles, which can run anything: torch's restricted reader (`weights_only=True`) takes tensors and plain values
alone, and nothing else ever opens them here. Sizes are checked before memory is taken, and before anyone copies a
tensor whose strides make much of little.
"""

import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from elmokit.errors import WeightsError
from elmokit.weights.files import PICKLE, check_expansion, reading
from elmokit.weights.layouts import StoredTensor


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a state dictionary by name, as many as it has.

    Raises:
        WeightsError: it is none, damaged, or asks for more than tensors.
    """
    with reading(path, PICKLE):
        size = path.stat().st_size
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                check_expansion(sum(member.file_size for member in archive.infolist()), size, source=path)
        content = _load(path)
    tensors = {
        name: tensor
        for name, tensor in (content.items() if isinstance(content, Mapping) else ())
        if isinstance(name, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
    }
    if not tensors:
        raise WeightsError(f"{path} holds no tensors by name, expected {PICKLE}")
    check_expansion(sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()), size, source=path)
    return {name: _stored_tensor(tensor) for name, tensor in tensors.items()}


def _load(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols that it may not know: it says so again where it does not
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's advice is to trust the file
        raise ValueError("it holds more than tensors, or is damaged") from error
    except (AssertionError, AttributeError, ImportError, IndexError, struct.error) as error:
        raise ValueError(f"{type(error).__name__} while it was read") from error


def _stored_tensor(tensor: Tensor) -> StoredTensor:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(shape, dtype, tensor.is_floating_point(), lambda: tensor.detach().to(torch.float32))
