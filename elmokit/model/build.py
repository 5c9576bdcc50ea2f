"""From a configuration to a biLM with freshly drawn weights."""

from elmokit.config import BiLMConfig, CharCNNConfig
from elmokit.model.bilm import BiLM
from elmokit.model.char_cnn import CharCNN
from elmokit.model.lstm import ProjectedLSTM
from elmokit.model.token_encoders import WordEmbedding


def build_bilm(config: BiLMConfig, *, dropout: float = 0.0) -> BiLM:
    """A biLM of this shape, its weights drawn as bilm-tf draws them from torch's default generator.

    Args:
        config: the shape.
        dropout: on every LSTM layer's input while training.
    """
    width = config.encoder.projection_dim
    return BiLM(
        config,
        token_encoder=(
            CharCNN(config.tokens, width)
            if isinstance(config.tokens, CharCNNConfig)
            else WordEmbedding(config.tokens, width)
        ),
        forward_encoder=ProjectedLSTM(config.encoder, dropout=dropout),
        backward_encoder=ProjectedLSTM(config.encoder, dropout=dropout),
    )
