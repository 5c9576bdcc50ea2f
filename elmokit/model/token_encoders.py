"""Token encoders other than the character CNN: (B, T, ...) ids to (B, T, P) vectors.

Any module with this signature can be the first part of a `BiLM`.
"""

from torch import Tensor, nn

from elmokit.config import WordEmbeddingConfig


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
