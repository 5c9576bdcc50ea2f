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

_X86 = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
_OPERATOR = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if _X86 else None
STEPS = ((64, 8), (256, 32), (1024, 128), (math.inf, 1))  # up to so many rows, a multiple of so many


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(M, K) times the transposed (N, K), plus (N,), as `torch.nn.functional.linear`, with its gradient."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    known = (torch.float32, torch.bfloat16)
    if (
        not all(tensor.device.type == "cpu" and tensor.dtype in known for tensor in tensors)
        or x.numel() == 0
        or wants_gradient(*tensors)
        or torch.is_autocast_enabled("cpu")
        or not torch._C._get_mkldnn_enabled()
    ):
        return nn.functional.linear(x, weight, bias)
    rows = len(x)
    spare = -rows % next(step for limit, step in STEPS if rows <= limit)
    if spare:
        x = nn.functional.pad(x, (0, 0, 0, spare))
    if _OPERATOR is None or x.dtype != torch.float32:
        return nn.functional.linear(x, weight, bias)[:rows]
    product: Tensor = _OPERATOR(x, weight, bias, "none", [], "")
    return product[:rows]
