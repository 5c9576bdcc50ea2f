"""One LSTM layer over full rows, with a backward pass that makes each weight gradient in one matrix product.

Eager autograd adds up a weight gradient a time step; here the gate gradients of all steps are collected and multiplied
once, and the local derivatives of the gates are made for all steps together. Same values as the plain loop of `lstm`
(tests compare them); used by `ProjectedLSTMLayer` where no row has padding and gradients are wanted, that is in
training.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from elmokit.model.linear import linear


class LSTMLayerFunction(torch.autograd.Function):
    """(B, T, P) to (B, T, P) and the last hidden and cell; matrix products in `dtype`, cells in the input's dtype."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  torch hands over an object of its own
        x: Tensor,
        hidden: Tensor,
        cell: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor,
        weight_hr: Tensor | None,
        cell_clip: float | None,
        proj_clip: float | None,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run all steps and keep what the backward pass needs."""
        batch, steps, _ = x.shape
        dim = cell.shape[-1]
        inputs = x.transpose(0, 1).to(dtype).contiguous()  # (T, B, P)
        w_ih, w_hh = weight_ih.to(dtype), weight_hh.to(dtype)
        w_hr = None if weight_hr is None else weight_hr.to(dtype)
        # Gates are kept in the cell's precision: mixed operands would cost more than the copy.
        gates = linear(inputs.flatten(0, 1), w_ih, bias.to(dtype)).to(cell.dtype).view(steps, batch, 4 * dim)
        hiddens = inputs.new_empty(steps + 1, batch, weight_ih.shape[1])  # hiddens[t] goes into step t
        cells = cell.new_empty(steps + 1, batch, dim)
        squashed = cell.new_empty(steps, batch, dim)  # tanh of the cell
        hiddens[0], cells[0] = hidden, cell
        for t in range(steps):
            step = gates[t].add_(linear(hiddens[t], w_hh))
            step[:, : 2 * dim].sigmoid_()
            step[:, 2 * dim : 3 * dim].tanh_()
            step[:, 3 * dim :].sigmoid_()
            i, f, g, o = step.view(batch, 4, dim).unbind(1)
            new = torch.mul(f, cells[t], out=cells[t + 1]).addcmul_(i, g)
            if cell_clip is not None:
                new.clamp_(-cell_clip, cell_clip)
            output = (o * torch.tanh(new, out=squashed[t])).to(dtype)
            if w_hr is not None:
                output = linear(output, w_hr)
                if proj_clip is not None:
                    output.clamp_(-proj_clip, proj_clip)
            hiddens[t + 1] = output
        ctx.save_for_backward(inputs, hiddens, cells, squashed, gates, w_ih, w_hh, w_hr)
        ctx.clips = cell_clip, proj_clip
        return hiddens[1:].transpose(0, 1).to(x.dtype), hiddens[-1].to(x.dtype), cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, grad_hidden: Tensor, grad_cell: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Walk back over the steps, then make every weight gradient at once."""
        inputs, hiddens, cells, squashed, gates, w_ih, w_hh, w_hr = ctx.saved_tensors
        cell_clip, proj_clip = ctx.clips
        steps, batch, dim = squashed.shape
        dtype, full = inputs.dtype, gates.dtype
        local, through_tanh = _local_derivatives(gates, cells, squashed)
        if cell_clip is not None:
            inside_cell = (cells[1:].abs() < cell_clip).to(full)
        if w_hr is not None and proj_clip is not None:
            inside_hidden = (hiddens[1:].abs() < proj_clip).to(dtype)
        grads = inputs.new_empty(steps, batch, 4, dim)  # before the non-linearities
        # Becomes what reaches the projection, in place: a copy always, since others may read the same gradient.
        grad_outputs = grad_output.transpose(0, 1).to(dtype, copy=True, memory_format=torch.contiguous_format)
        grad_h, grad_c = grad_hidden.to(dtype), grad_cell
        for t in range(steps - 1, -1, -1):
            grad_h = grad_outputs[t].add_(grad_h)
            if w_hr is not None and proj_clip is not None:
                grad_h.mul_(inside_hidden[t])
            grad_m = (grad_h if w_hr is None else linear(grad_h, w_hr.t())).to(full)
            grad_c = torch.addcmul(grad_c, grad_m, through_tanh[t])
            if cell_clip is not None:
                grad_c.mul_(inside_cell[t])
            step = local[t]
            step[:, :3].mul_(grad_c.unsqueeze(1))
            step[:, 3].mul_(grad_m)
            grad_h = linear(grads[t].copy_(step).view(batch, -1), w_hh.t())
            grad_c.mul_(gates[t, :, dim : 2 * dim])
        flat = grads.view(steps * batch, 4 * dim)
        grad_w_hr = None
        if w_hr is not None:
            outputs = (gates[..., 3 * dim :] * squashed).to(dtype).view(steps * batch, dim)
            grad_w_hr = linear(grad_outputs.flatten(0, 1).t(), outputs.t()).to(full)
        return (
            linear(flat, w_ih.t()).view(steps, batch, -1).transpose(0, 1).to(full),
            grad_h.to(full),
            grad_c,
            linear(inputs.flatten(0, 1).t(), flat.t()).t().to(full),  # the wide side last is several times as fast
            linear(hiddens[:-1].flatten(0, 1).t(), flat.t()).t().to(full),
            (flat.new_ones(1, len(flat)) @ flat).squeeze(0).to(full),
            grad_w_hr,
            None,
            None,
            None,
        )


def _local_derivatives(gates: Tensor, cells: Tensor, squashed: Tensor) -> tuple[Tensor, Tensor]:
    """What a step multiplies its gradients with, for all steps.

    Returns:
        (T, B, 4, D): the cell's gradient into i, f and g, the output's into o, each before its non-linearity;
        (T, B, D): the output's gradient into the cell.
    """
    local = torch.empty_like(gates).unflatten(2, (4, cells.shape[-1]))
    i, f, g, o = gates.unflatten(2, (4, cells.shape[-1])).unbind(2)
    torch.sub(1, i, out=local[:, :, 0]).mul_(i).mul_(g)
    torch.sub(1, f, out=local[:, :, 1]).mul_(f).mul_(cells[:-1])
    torch.mul(g, g, out=local[:, :, 2]).neg_().add_(1).mul_(i)
    torch.sub(1, o, out=local[:, :, 3]).mul_(o).mul_(squashed)
    return local, (1 - squashed * squashed).mul_(o)


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where that is on, else the tensor's own."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
