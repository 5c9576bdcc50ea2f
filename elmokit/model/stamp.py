"""Whether weights are still the same: what a cache of things made from them has to ask.

Tensors are told apart by identity, place, type and the version that torch counts up with every change in place. Writing
through `.data` leaves the version alone, hence some values are looked at too: updates of that kind reach all of them.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

VALUES = 64  # of each tensor


class Stamp:
    """What some tensors are like now; keeps them alive."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._tensors = tuple(tensors)
        self._marks = [_mark(tensor) for tensor in self._tensors]
        self._samples = [_sample(tensor) for tensor in self._tensors if tensor.device.type == "cpu"]
        self._values = [sample.clone() for sample in self._samples]

    def holds(self, tensors: Iterable[Tensor]) -> bool:
        """Whether these are the same tensors, unchanged."""
        now = tuple(tensors)
        return (
            len(now) == len(self._tensors)
            and all(a is b for a, b in zip(now, self._tensors, strict=True))
            and [_mark(tensor) for tensor in now] == self._marks
            and all(torch.equal(a, b) for a, b in zip(self._samples, self._values, strict=True))
        )


def _mark(tensor: Tensor) -> tuple[object, ...]:
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.dtype, tensor.device, tensor.shape


def _sample(tensor: Tensor) -> Tensor:
    """A view of values from all over the tensor; of all in a row or column of one that is not contiguous."""
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        while tensor.dim() > 1:
            tensor = tensor[0]
    return tensor.view(-1)[:: max(1, tensor.numel() // VALUES)]
