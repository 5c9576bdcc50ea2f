"""The steps between a tensor as another program stores it and as this package does, each with its inverse.

Formats list them in their tables (`variables`, `allennlp`); `layouts` runs them forwards on reading and backwards on
writing. They work on meta tensors too, which is how the shapes that a file must have are found without taking memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Step:
    """An invertible change of layout.

    Attributes:
        read: theirs to ours.
        write: ours to theirs.
    """

    read: Callable[[Tensor], Tensor]
    write: Callable[[Tensor], Tensor]


def _swap_middle_gates(x: Tensor) -> Tensor:
    """Exchange the second and the third of four gates, stacked on the first axis."""
    first, second, third, fourth = x.chunk(4)
    return torch.cat([first, third, second, fourth])


def _add_to_forget_gate(bias: Tensor, value: float) -> Tensor:
    """Add to the second of four gates, i.e. in PyTorch's order."""
    i, f, g, o = bias.chunk(4)
    return torch.cat([i, f + value, g, o])


def _negate_second_half(x: Tensor) -> Tensor:
    first, second = x.chunk(2)
    return torch.cat([first, -second])


TRANSPOSE = Step(lambda x: x.T, lambda x: x.T)

# TensorFlow: (1, width, channels in, channels out). PyTorch: (out, in, width).
CONVOLUTION = Step(lambda x: x[0].permute(2, 1, 0), lambda x: x.permute(2, 1, 0).unsqueeze(0))

# TensorFlow: i, j, f, o. PyTorch: i, f, g, o, where g is another name of j.
GATE_ORDER = Step(_swap_middle_gates, _swap_middle_gates)

# TensorFlow's cell adds 1 to the forget gate while it runs; ours has it in the bias. After GATE_ORDER.
FORGET_BIAS = Step(lambda x: _add_to_forget_gate(x, 1.0), lambda x: _add_to_forget_gate(x, -1.0))

# AllenNLP stacks a highway's two matrices; its gate is of the input, ours of what the layer makes of it.
HIGHWAY_GATE = Step(_negate_second_half, _negate_second_half)

# AllenNLP puts a row of zeros for "no token here" before the character vectors.
ZERO_ROW = Step(lambda x: x[1:], lambda x: torch.cat([torch.zeros_like(x[:1]), x]))
