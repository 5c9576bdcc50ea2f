"""The bidirectional language model: one token encoder and two encoders that never see each other (Peters et al. 2018).

`BiLM` is given its parts; `build` makes the published ones from a configuration. The backward encoder reads each
sentence from its end-of-sentence boundary to its beginning, within the sentence's own length.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.model.concurrent import side_by_side, workers_for
from elmokit.model.outputs import BiLMOutput, BiLMState, LSTMState

ROWS_A_SHARD = 8  # fewer rows to a matrix product gain nothing from another processor

Encoded = tuple[tuple[Tensor, ...], LSTMState]


class BiLM(nn.Module):
    """Ids with sentence boundaries in place to all layers of both directions."""

    def __init__(
        self, config: BiLMConfig, *, token_encoder: nn.Module, forward_encoder: nn.Module, backward_encoder: nn.Module
    ) -> None:
        """Args:
        config: what the parts were built from.
        token_encoder: (B, T, ...) ids to (B, T, P).
        forward_encoder: (B, T, P), mask, state to L of (B, T, P), state; reads left to right.
        backward_encoder: the same, given reversed sentences.
        """
        super().__init__()
        self.config = config
        self.token_encoder = token_encoder
        self.forward_encoder = forward_encoder
        self.backward_encoder = backward_encoder

    def forward(self, ids: Tensor, lengths: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """Run the model.

        Args:
            ids: (B, T, C) character ids, or (B, T) word ids, boundaries included, 0 is padding.
            lengths: (B,) tokens of each sentence, boundaries included.
            state: an earlier output's `state`, to go on from there; None starts anew, so that a sentence's vectors
                depend on nothing but the sentence.
        """
        return self.contextualize(self.token_encoder(ids), lengths, state)

    def contextualize(self, token_layer: Tensor, lengths: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """Run both directions over token vectors (B, T, P) that are already there, e.g. from a cache."""
        mask = torch.arange(token_layer.shape[1], device=token_layer.device) < lengths.unsqueeze(1)  # (B, T)
        token_layer = token_layer * mask.unsqueeze(-1)

        # Random numbers, of a dropout, must not depend on which direction is first.
        workers = 1 if self.training else workers_for(token_layer, *self.parameters())
        parts = [None] if state else shards(lengths, workers // 2)  # an encoder's state is its own affair
        tasks = [
            partial(self._direction, backward, token_layer, mask, lengths, start, rows)
            for backward, start in (
                (False, state.forward if state else None),
                (True, state.backward if state else None),
            )
            for rows in parts
        ]
        found = side_by_side(tasks, workers=workers)
        forward_layers, forward_state = _joined(found[: len(parts)], parts)
        backward_layers, backward_state = _joined(found[len(parts) :], parts)
        return BiLMOutput(
            token_layer=token_layer,
            forward_layers=forward_layers,
            backward_layers=backward_layers,
            mask=mask,
            state=BiLMState(forward_state, backward_state),
        )

    def _direction(
        self,
        backward: bool,
        x: Tensor,
        mask: Tensor,
        lengths: Tensor,
        state: LSTMState | None,
        rows: Tensor | None,
    ) -> Encoded:
        """One encoder on some rows, None for all: its layers in the order of the sentence, and its state."""
        if rows is not None:
            x, mask, lengths = x[rows], mask[rows], lengths[rows]
        if not backward:
            found: Encoded = self.forward_encoder(x, mask, state)
            return found
        layers, end = self.backward_encoder(reverse_within(x, lengths), mask, state)
        return tuple(reverse_within(layer, lengths) for layer in layers), end


def shards(lengths: Tensor, number: int) -> list[Tensor | None]:
    """The rows of a batch, shared out into at most so many parts of like lengths; None for all rows in one part."""
    number = min(number, len(lengths) // ROWS_A_SHARD)
    if number < 2:
        return [None]
    order = lengths.argsort(descending=True, stable=True)
    return [order[first::number] for first in range(number)]


def _joined(found: Sequence[Encoded], parts: Sequence[Tensor | None]) -> Encoded:
    """What the parts gave, in the order of the rows."""
    order = [rows for rows in parts if rows is not None]
    if not order:
        return found[0]
    places = torch.cat(order).argsort()
    layers = zip(*(layers for layers, _ in found), strict=True)
    hidden, cell = (
        torch.cat(some, dim=1)[:, places] for some in zip(*((s.hidden, s.cell) for _, s in found), strict=True)
    )
    return tuple(torch.cat(layer)[places] for layer in layers), LSTMState(hidden, cell)


def reverse_within(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row of (B, T, ...) within its length; what lies beyond stays where it is. Its own inverse."""
    positions = torch.arange(x.shape[1], device=x.device)
    source = lengths.unsqueeze(1) - 1 - positions  # (B, T)
    source = torch.where(source >= 0, source, positions)
    return x.gather(1, source.view(*source.shape, *[1] * (x.dim() - 2)).expand_as(x))
