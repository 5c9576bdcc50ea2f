"""What the network returns: the layers of a biLM, its carried state, and mixed representations.

Shape letters, here and in every file of `model`: B sentences, T tokens with boundaries, C characters, E character
width, F filters, P projection, D cell, L LSTM layers, V vocabulary, K mixes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LSTMState:
    """The carried state of one direction.

    Attributes:
        hidden: (L, B, P) projected output of each layer, after the clip and before the skip connection.
        cell: (L, B, D).
    """

    hidden: Tensor
    cell: Tensor

    def detach(self) -> "LSTMState":
        """The same values, cut from the graph."""
        return LSTMState(self.hidden.detach(), self.cell.detach())


@dataclass(frozen=True, slots=True)
class BiLMState:
    """The carried state of both directions."""

    forward: LSTMState
    backward: LSTMState

    def detach(self) -> "BiLMState":
        """The same values, cut from the graph."""
        return BiLMState(self.forward.detach(), self.backward.detach())


@dataclass(frozen=True, slots=True)
class BiLMOutput:
    """All layers of a biLM for one batch; positions beyond a sentence are zero in every layer.

    Attributes:
        token_layer: (B, T, P) context-independent token vectors.
        forward_layers: L of (B, T, P).
        backward_layers: L of (B, T, P).
        mask: (B, T) bool, true at tokens and boundaries.
        state: what to pass to the next call to go on from here.
    """

    token_layer: Tensor
    forward_layers: tuple[Tensor, ...]
    backward_layers: tuple[Tensor, ...]
    mask: Tensor
    state: BiLMState

    @property
    def layers(self) -> tuple[Tensor, ...]:
        """L + 1 of (B, T, 2 P): the doubled token layer, then [forward; backward] of each LSTM layer."""
        doubled = torch.cat([self.token_layer, self.token_layer], dim=-1)
        pairs = zip(self.forward_layers, self.backward_layers, strict=True)
        return (doubled, *(torch.cat(pair, dim=-1) for pair in pairs))


@dataclass(frozen=True, slots=True)
class ElmoOutput:
    """Mixed representations of one batch.

    Attributes:
        representations: K of (B, T, 2 P).
        mask: (B, T) bool; like the representations without the boundaries unless they were asked for.
        bilm: the layers that were mixed, boundaries included.
    """

    representations: tuple[Tensor, ...]
    mask: Tensor
    bilm: BiLMOutput
