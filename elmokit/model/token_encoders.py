"""Token encoders other than the character CNN: (B, T, ...) ids to (B, T, P) vectors.

Any module with this signature can be the first part of a `BiLM`.
"""

import torch
from torch import Tensor, nn

from elmokit.config import WordAndCharConfig, WordEmbeddingConfig
from elmokit.errors import InputError
from elmokit.model.char_cnn import CharCNN


class WordEmbedding(nn.Module):
    """One vector per word of a fixed vocabulary, as in word-level bilm-tf models."""

    def __init__(self, config: WordEmbeddingConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_words, output_dim)
        nn.init.uniform_(self.embedding.weight, -1.0, 1.0)  # as in bilm-tf

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) word ids shifted by one, 0 where there is no token, to (B, T, P)."""
        vectors: Tensor = self.embedding((ids - 1).clamp(min=0))
        return vectors * (ids > 0).unsqueeze(-1)


class WordAndChar(nn.Module):
    """A word vector and what a character CNN makes of the word's characters, projected together (Che et al. 2018)."""

    def __init__(self, config: WordAndCharConfig, output_dim: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.num_words, config.word_dim)
        characters = config.characters
        # With nothing left to project: the one projection is that of both.
        self.char_cnn = CharCNN(characters, characters.num_filters) if characters else None
        self.projection = nn.Linear(config.word_dim + (characters.num_filters if characters else 0), output_dim)
        nn.init.uniform_(self.embedding.weight, -0.25, 0.25)  # as in ELMoForManyLangs

    def forward(self, ids: Tensor) -> Tensor:
        """Encode each token by itself.

        Args:
            ids: (B, T, 1 + C), a word id and character ids, or (B, T, 1) without characters; all shifted by one, 0
                where there is no token.

        Returns:
            (B, T, P) token vectors; zero where there is no token.

        Raises:
            InputError: ids of another width, which were made for another model.
        """
        width = 1 + (self.config.characters.max_characters_per_token if self.config.characters else 0)
        if ids.dim() != 3 or ids.shape[2] != width:
            raise InputError(
                f"ids have the shape {tuple(ids.shape)}, expected (sentences, tokens, {width}): "
                "a word and its characters, as elmokit.text.token_ids makes them for this model"
            )
        parts = [self.embedding((ids[..., 0] - 1).clamp(min=0))]
        if self.char_cnn is not None:
            parts.append(self.char_cnn(ids[..., 1:]))
        vectors: Tensor = self.projection(torch.cat(parts, dim=-1))
        return vectors * (ids[..., :1] > 0)
