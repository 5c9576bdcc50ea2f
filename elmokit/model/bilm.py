"""The bidirectional language model: one token encoder and two encoders that never see each other (Peters et al. 2018).

`BiLM` is given its parts; `build` makes the published ones from a configuration. The backward encoder reads each
sentence from its end-of-sentence boundary to its beginning, within the sentence's own length.
"""

import torch
from torch import Tensor, nn

from elmokit.config import BiLMConfig
from elmokit.model.outputs import BiLMOutput, BiLMState


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
        forward_layers, forward_state = self.forward_encoder(token_layer, mask, state.forward if state else None)
        reversed_layers, backward_state = self.backward_encoder(
            reverse_within(token_layer, lengths), mask, state.backward if state else None
        )
        return BiLMOutput(
            token_layer=token_layer,
            forward_layers=forward_layers,
            backward_layers=tuple(reverse_within(layer, lengths) for layer in reversed_layers),
            mask=mask,
            state=BiLMState(forward_state, backward_state),
        )


def reverse_within(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse each row of (B, T, ...) within its length; what lies beyond stays where it is. Its own inverse."""
    positions = torch.arange(x.shape[1], device=x.device)
    source = lengths.unsqueeze(1) - 1 - positions  # (B, T)
    source = torch.where(source >= 0, source, positions)
    return x.gather(1, source.view(*source.shape, *[1] * (x.dim() - 2)).expand_as(x))
