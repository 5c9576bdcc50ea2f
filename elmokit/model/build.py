"""From a configuration to a biLM with freshly drawn weights."""

from torch import nn

from elmokit.config import BiLMConfig, CharCNNConfig, WordEmbeddingConfig
from elmokit.model.bilm import BiLM
from elmokit.model.char_cnn import CharCNN
from elmokit.model.lstm import ProjectedLSTM
from elmokit.model.token_encoders import WordAndChar, WordEmbedding


def build_bilm(config: BiLMConfig, *, dropout: float = 0.0) -> BiLM:
    """A biLM of this shape, its weights drawn as bilm-tf draws them from torch's default generator.

    Args:
        config: the shape.
        dropout: on every LSTM layer's input while training.
    """
    return BiLM(
        config,
        token_encoder=_token_encoder(config),
        forward_encoder=ProjectedLSTM(config.encoder, dropout=dropout),
        backward_encoder=ProjectedLSTM(config.encoder, dropout=dropout),
    )


def _token_encoder(config: BiLMConfig) -> nn.Module:
    width = config.encoder.projection_dim
    if isinstance(config.tokens, CharCNNConfig):
        return CharCNN(config.tokens, width)
    if isinstance(config.tokens, WordEmbeddingConfig):
        return WordEmbedding(config.tokens, width)
    return WordAndChar(config.tokens, width)
