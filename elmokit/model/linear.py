"""Matrix products by the fastest library that torch has for the processor.

torch gives float32 products to MKL, which on processors that are not Intel's reaches less than half of what oneDNN, in
the same torch, does (92 and 223 GFLOP/s on one core of a Zen 5). oneDNN also gives a row the same bits whatever rows
come along, from two rows on. It makes code for each number of rows, which takes longer than a small product itself:
numbers are rounded up, so that the same code is soon met again. torch reaches it for float32 by an operator of its
compiler alone, so it is taken where it is there and `torch.nn.functional.linear` elsewhere.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from elmokit.model.concurrent import wants_gradient

_OPERATOR = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
STEPS = ((64, 8), (256, 32), (1024, 128), (math.inf, 1))  # up to so many rows, a multiple of so many
ROUNDED = (torch.float32, torch.bfloat16)
_HERE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, K) times the transposed (N, K), plus (N,), as `torch.nn.functional.linear`, with its gradient."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    plain = torch.is_autocast_enabled("cpu") or not torch._C._get_mkldnn_enabled() or x.numel() == 0
    if plain or any(tensor.device.type != "cpu" or tensor.dtype not in ROUNDED for tensor in tensors):
        return nn.functional.linear(x, weight, bias)
    by_operator = _HERE and _OPERATOR is not None and all(tensor.dtype == torch.float32 for tensor in tensors)
    if wants_gradient(*tensors):
        if not by_operator:
            return nn.functional.linear(x, weight, bias)
        recorded: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return recorded
    rows = len(x)
    spare = -rows % next(step for limit, step in STEPS if rows <= limit)
    if spare:
        x = nn.functional.pad(x, (0, 0, 0, spare))
    if not by_operator:
        return nn.functional.linear(x, weight, bias)[:rows]
    assert _OPERATOR is not None
    product: Tensor = _OPERATOR(x, weight, bias, "none", [], "")
    return product[:rows]


class _Linear(torch.autograd.Function):
    """The same, recorded: the operator has no gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: ANN401  torch's own
        """(M, K), (N, K), (N,) to (M, N)."""
        ctx.save_for_backward(x, weight)
        return linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """(M, N) to the gradients that are asked for."""
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            linear(grad, weight.t()) if for_x else None,
            linear(grad.t(), x.t()) if for_weight else None,
            grad.sum(0) if for_bias else None,
        )
