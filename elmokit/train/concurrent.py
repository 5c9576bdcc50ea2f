"""Independent losses, computed and differentiated side by side.

Forward and backward direction share nothing but their inputs and the softmax, yet autograd would walk back through
them one after the other. Here each is a task of its own (`elmokit.model.concurrent`).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elmokit.model.concurrent import side_by_side

Loss = Callable[[Tensor], tuple[Tensor, Any]]


def losses(functions: Sequence[Loss], x: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], list[Any]]:
    """Call each function on `x`, on a CPU in its own thread and gradients included.

    Args:
        functions: from `x` to a scalar loss and anything else that needs no gradient.
        x: the input that all share.
        parameters: everything else that gradients should reach; others get none.

    Returns:
        the losses, differentiable once; the other results.
    """
    if x.device.type != "cpu":  # a GPU's kernels run beside the program as it is
        results = [function(x) for function in functions]
        return [loss for loss, _ in results], [extra for _, extra in results]
    extras: list[Any] = []
    found = _Concurrent.apply(functions, extras, x, *parameters)  # type: ignore[no-untyped-call]
    return list(found), extras


class _Concurrent(torch.autograd.Function):
    """The gradients of scalars are known up to a factor: they are made in the forward pass and scaled later."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch hands over an object of its own
        functions: Sequence[Loss],
        extras: list[Any],
        x: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run all functions."""

        def work(function: Loss) -> tuple[Tensor, Any, tuple[Tensor | None, ...]]:
            with torch.enable_grad():
                own = x.detach().requires_grad_()
                loss, extra = function(own)
                return loss.detach(), extra, torch.autograd.grad(loss, [own, *parameters], allow_unused=True)

        results = side_by_side([partial(work, function) for function in functions], workers=len(functions))
        extras.extend(extra for _, extra, _ in results)
        ctx.gradients = [gradients for _, _, gradients in results]
        return tuple(loss for loss, _, _ in results)

    @staticmethod
    def backward(ctx: Any, *grad_losses: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Scale and add up."""
        sums: list[Tensor | None] = []
        for each in zip(*ctx.gradients, strict=True):
            parts = [g * scale for g, scale in zip(each, grad_losses, strict=True) if g is not None]
            sums.append(torch.stack(parts).sum(0) if len(parts) > 1 else (parts[0] if parts else None))
        return None, None, *sums
