"""LSTM state that goes on from call to call, row by row of the batch, as AllenNLP's encoder keeps it.

A bigger batch begins its new rows at zero; a smaller one leaves the other rows as they are, for a later big one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from elmokit.model.outputs import BiLMState, LSTMState


class CarriedState:
    """The rows of all batches so far: no part of the network, in no `state_dict`, never in a gradient."""

    def __init__(self) -> None:
        self._rows: BiLMState | None = None

    def reset(self) -> None:
        """Forget; every row starts anew."""
        self._rows = None

    def first(self, count: int, like: Tensor) -> BiLMState | None:
        """The state of the first rows.

        Args:
            count: rows of the coming batch (B).
            like: a tensor of the device and dtype to have it in.
        """

        def fit(rows: Tensor) -> Tensor:  # (L, rows, P or D)
            rows = rows[:, :count].to(like)
            missing = rows.new_zeros(rows.shape[0], count - rows.shape[1], rows.shape[2])
            return torch.cat([rows, missing], dim=1)

        return _each(fit, self._rows) if self._rows else None

    def update(self, state: BiLMState) -> None:
        """Take over what a batch ended with; rows beyond it stay."""

        def merge(new: Tensor, old: Tensor) -> Tensor:
            return torch.cat([new, old[:, new.shape[1] :].to(new)], dim=1)

        state = state.detach()
        self._rows = _each(merge, state, self._rows) if self._rows else state


def _each(function: Callable[..., Tensor], *states: BiLMState) -> BiLMState:
    """Apply a function to each of the four tensors of states."""

    def direction(parts: list[LSTMState]) -> LSTMState:
        return LSTMState(function(*(part.hidden for part in parts)), function(*(part.cell for part in parts)))

    return BiLMState(direction([state.forward for state in states]), direction([state.backward for state in states]))
