"""Token vectors computed ahead for a list of words (`vocab_to_cache`): a biLM that runs its character CNN on the rest.

Words are found by their characters, not by the word ids that AllenNLP's callers pass along: a word that is not in the
list, or stands there under another number, gets its own vector from the CNN instead of another word's or none.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from elmokit.config import CharCNNConfig
from elmokit.model.bilm import BiLM
from elmokit.model.outputs import BiLMOutput, BiLMState
from elmokit.text.characters import SENTENCE_END, SENTENCE_START, tokens_to_ids


class CachingBiLM(BiLM):
    """The same parts under the same names as the given biLM, and a table of token vectors beside them."""

    cached_ids: Tensor  # (V, C) int16, sorted by `cached_keys`
    cached_keys: Tensor  # (V,) int64
    cached_vectors: Tensor  # (V, P)
    multipliers: Tensor  # (C,) int64

    def __init__(self, bilm: BiLM, words: Sequence[str]) -> None:
        """Args:
        bilm: a character-level biLM, whose parts are shared.
        words: V words; sentence boundaries are added.
        """
        super().__init__(
            bilm.config,
            token_encoder=bilm.token_encoder,
            forward_encoder=bilm.forward_encoder,
            backward_encoder=bilm.backward_encoder,
        )
        assert isinstance(bilm.config.tokens, CharCNNConfig)
        width = bilm.config.tokens.max_characters_per_token
        ids = torch.from_numpy(tokens_to_ids([SENTENCE_START, SENTENCE_END, *words], width))
        generator = torch.Generator().manual_seed(0)
        multipliers = torch.randint(-(2**62), 2**62, (width,), generator=generator)
        keys, order = _keys(ids, multipliers).sort()
        # Buffers, to follow the model to its device, but outside its state_dict: they are made of its weights.
        self.register_buffer("multipliers", multipliers, persistent=False)
        self.register_buffer("cached_keys", keys, persistent=False)
        self.register_buffer("cached_ids", ids[order].to(torch.int16), persistent=False)
        self.register_buffer("cached_vectors", torch.empty(0), persistent=False)
        self.refresh()
        self.register_load_state_dict_post_hook(_refresh)  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def refresh(self) -> None:
        """Compute the vectors again, after a change of weights; `load_state_dict` does so by itself."""
        device = next(self.token_encoder.parameters()).device
        self.cached_vectors = self.token_encoder(self.cached_ids.to(device).long().unsqueeze(0)).squeeze(0)

    def forward(self, ids: Tensor, lengths: Tensor, state: BiLMState | None = None) -> BiLMOutput:
        """As `BiLM.forward`."""
        if any(parameter.requires_grad for parameter in self.token_encoder.parameters()):
            return super().forward(ids, lengths, state)
        return self.contextualize(self.look_up(ids), lengths, state)

    def look_up(self, ids: Tensor) -> Tensor:
        """(B, T, C) character ids to (B, T, P) token vectors, from the table where it has them."""
        places = torch.searchsorted(self.cached_keys, _keys(ids, self.multipliers)).clamp(max=len(self.cached_keys) - 1)
        found = (self.cached_ids[places] == ids).all(dim=-1)  # equal keys may still be of different words
        present = ids[..., 0] > 0
        vectors = torch.where(found.unsqueeze(-1), self.cached_vectors[places], 0.0)
        missing = present & ~found
        if missing.any():
            vectors[missing] = self.token_encoder(ids[missing].unsqueeze(0)).squeeze(0).to(vectors.dtype)
        return vectors


def _refresh(module: BiLM, _: object) -> None:
    """A hook of `load_state_dict`; a function of the module's level, so that the model can be pickled."""
    assert isinstance(module, CachingBiLM)
    module.refresh()


def _keys(ids: Tensor, multipliers: Tensor) -> Tensor:
    """(..., C) ids to one 64-bit number a token, by arithmetic that wraps around."""
    return (ids.long() * multipliers).sum(dim=-1)
