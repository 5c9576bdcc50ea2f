"""The mean loss of a softmax and its gradients in one pass over the logits, some rows at a time.

Eager autograd writes all logits to memory and walks over them a dozen times. The gradient of a mean is known up to a
factor before anything asks for it, so here each block of rows is turned from logits into gradients while it is in the
processor's cache. Same values as `LMHead.sampled_loss` and `LMHead.full_loss` (tests compare them).
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.model.linear import linear

LOGITS_AT_ONCE = 2**20  # 4 MiB; on a GPU a small part of what fits, and still large products


class MeanLoss(torch.autograd.Function):
    """(N, P) hidden vectors to a scalar; matrix products in `dtype`, all else in the dtype of `hidden`."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch hands over an object of its own
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Tensor,
        words: Tensor | None,
        log_expected: Tensor | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """The loss, with its gradients made ready.

        Args:
            ctx: keeps them.
            hidden: (N, P).
            weight: (V, P).
            bias: (V,).
            targets: (N,) word ids.
            words: (S,) distinct negatives; None for all V.
            log_expected: (V,) what is taken off the logits; None for nothing.
            dtype: of matrix products.
        """
        correct = bias if log_expected is None else bias - log_expected
        own_weight = weight[targets]
        own = (hidden * own_weight).sum(-1) + correct[targets]  # the target's logit
        if words is None:
            w, b, place = weight.to(dtype), correct, targets
        else:
            w, b = weight[words].to(dtype), correct[words]
            place = torch.full_like(correct, -1, dtype=torch.long)
            place[words] = torch.arange(len(words), device=words.device)
            place = place[targets]
        grad_hidden, grad_own = torch.empty_like(hidden), torch.empty_like(own)
        grad_w, grad_b = torch.zeros_like(w, dtype=weight.dtype), torch.zeros_like(b)
        total = hidden.new_zeros(())
        size = max(1, LOGITS_AT_ONCE // len(w))
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, len(hidden), size):
                rows = slice(start, start + size)
                h, target = hidden[rows].to(dtype), own[rows]
                logits = linear(h, w).to(hidden.dtype).add_(b)
                same = (place[rows] >= 0).nonzero().squeeze(1)
                logits[same, place[rows][same]] = -math.inf  # a negative that is the target is none
                top = torch.maximum(logits.amax(1), target)
                logits.sub_(top.unsqueeze(1)).exp_()
                target = (target - top).exp_()
                sums = logits.sum(1) + target
                total += (sums.log() + top - own[rows]).sum()
                grad_own[rows] = (target / sums - 1) / len(hidden)
                logits.mul_((1 / (sums * len(hidden))).unsqueeze(1))
                grad_b += logits.sum(0)
                probabilities = logits.to(dtype)
                grad_hidden[rows] = linear(probabilities, w.t())
                grad_w += linear(probabilities.t(), h.t())
            grad_hidden.addcmul_(grad_own.unsqueeze(1), own_weight)
            if words is not None:
                grad_w = torch.zeros_like(weight).index_copy_(0, words, grad_w)
                grad_b = torch.zeros_like(bias).index_copy_(0, words, grad_b)
            grad_w.index_add_(0, targets, grad_own.unsqueeze(1) * hidden)
            grad_b.index_add_(0, targets, grad_own)
        ctx.gradients = grad_hidden, grad_w, grad_b
        return total / len(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Scale them."""
        return (*(gradient * grad_loss for gradient in ctx.gradients), None, None, None, None)
