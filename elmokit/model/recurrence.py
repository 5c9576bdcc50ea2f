"""The recurrence of one LSTM layer over packed rows, for inference: what is left once the input products are made.

Packed as in torch's `PackedSequence`: tokens step after step, rows sorted by falling length, so that a step takes its
first rows and a finished row costs nothing. The native kernel (`elmokit.kernel`) does it on a CPU where there is one,
torch elsewhere; both are tested against the plain loop of `lstm`.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from elmokit import kernel
from elmokit.model.linear import linear
from elmokit.model.stamp import Stamp

Rounding = Literal["int8"] | None


class Recurrence:
    """The steps of a layer, with its weights laid out for the kernel: made at first use and when they have changed.

    Attributes:
        rounding: "int8" to have the kernel round the weights further than their dtype does.
    """

    def __init__(self, rounding: Rounding = None) -> None:
        self.rounding = rounding
        self._packed: tuple[Stamp, kernel.Format, kernel.Packed] | None = None

    def __reduce__(self) -> tuple[type["Recurrence"], tuple[Rounding]]:
        """A copy lays out its own weights: what is laid out is a place in this process's memory."""
        return Recurrence, (self.rounding,)

    def __call__(
        self,
        gates: Tensor,
        batch_sizes: Sequence[int],
        weights: tuple[Tensor, Tensor | None],
        *,
        dtype: torch.dtype,
        cell_clip: float | None,
        proj_clip: float | None,
        hidden: Tensor,
        cell: Tensor,
    ) -> Tensor:
        """Run the steps, all in the dtype of the gates but the matrix products. Records no gradient.

        Args:
            gates: (N, 4 D) input products with their bias, gates in the order i, f, g, o; they are used up.
            batch_sizes: rows of each step, falling, N in all.
            weights: (4 D, P) of the hidden vectors; (P, D) of the projection, None for a cell as wide as its output,
                which nothing projects or clips.
            dtype: of the matrix products.
            cell_clip: bound on the absolute value of the cell; None for no bound.
            proj_clip: bound on the absolute value of the projected output; None for no bound.
            hidden: (B, P) at the start, B at least the rows of the first step; at each row's end afterwards.
            cell: (B, D), likewise.

        Returns:
            outputs (N, P), projected and clipped.
        """
        found = kernel.available() if gates.device.type == "cpu" and gates.dtype == torch.float32 else None
        if found is None:
            hh, hr = (None if weight is None else weight.to(dtype) for weight in weights)
            assert hh is not None
            return run_in_torch(
                gates, batch_sizes, hh, hr, cell_clip=cell_clip, proj_clip=proj_clip, hidden=hidden, cell=cell
            )
        outputs = gates.new_empty(len(gates), hidden.shape[1])
        found.run(
            self._laid_out(found, weights, self.rounding or ("float32" if dtype == gates.dtype else "bfloat16")),
            gates.numpy(),
            batch_sizes=batch_sizes,
            cell_clip=cell_clip,
            proj_clip=proj_clip,
            hidden=hidden.numpy(),
            cell=cell.numpy(),
            out=outputs.numpy(),
        )
        return outputs

    def _laid_out(
        self, found: kernel.Kernel, weights: tuple[Tensor, Tensor | None], dtype: kernel.Format
    ) -> kernel.Packed:
        tensors = [weight for weight in weights if weight is not None]
        kept = self._packed
        if kept is None or kept[1] != dtype or not kept[0].holds(tensors):
            hh, hr = (None if weight is None else weight.detach().float().contiguous().numpy() for weight in weights)
            assert hh is not None
            kept = self._packed = Stamp(tensors), dtype, found.pack(hh, hr, dtype=dtype)
        return kept[2]


def run_in_torch(
    gates: Tensor,
    batch_sizes: Sequence[int],
    weight_hh: Tensor,
    weight_hr: Tensor | None,
    *,
    cell_clip: float | None,
    proj_clip: float | None,
    hidden: Tensor,
    cell: Tensor,
) -> Tensor:
    """The same on any device, matrix products in the dtype of the weights; arguments and result as above."""
    dim, dtype = cell.shape[1], weight_hh.dtype
    outputs = gates.new_empty(len(gates), hidden.shape[1])
    start = 0
    for size in batch_sizes:
        step, h, c = gates[start : start + size], hidden[:size], cell[:size]
        step.add_(linear(h.to(dtype), weight_hh))
        step[:, : 2 * dim].sigmoid_()
        step[:, 2 * dim : 3 * dim].tanh_()
        step[:, 3 * dim :].sigmoid_()
        i, f, g, o = step.view(size, 4, dim).unbind(1)
        c.mul_(f).addcmul_(i, g)
        if cell_clip is not None:
            c.clamp_(-cell_clip, cell_clip)
        squashed = torch.tanh(c, out=g).mul_(o)
        h.copy_(squashed if weight_hr is None else linear(squashed.to(dtype), weight_hr))
        if weight_hr is not None and proj_clip is not None:
            h.clamp_(-proj_clip, proj_clip)
        outputs[start : start + size] = h
        start += size
    return outputs
