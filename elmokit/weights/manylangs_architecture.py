"""The architecture file of ELMoForManyLangs, such as `cnn_50_100_512_4096_sample.json`, and the biLM that it describes.

The `config.json` of a model names it, often by a path on the disk of who trained the model, and most released archives
came without it; all are of one architecture, which is `PUBLISHED` here. `manylangs` reads and writes the rest.
"""

import warnings
from pathlib import Path, PureWindowsPath
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from elmokit.config import (
    BiLMConfig,
    CharCNNConfig,
    EncoderConfig,
    TokensConfig,
    WordAndCharConfig,
    WordEmbeddingConfig,
    describe_validation,
)
from elmokit.errors import ConfigError, WeightsError
from elmokit.weights.files import read_json


class TokenEmbedder(BaseModel):
    """How a token becomes a vector; a width of 0 leaves out words or characters."""

    name: Literal["cnn"]
    word_dim: int
    char_dim: int
    filters: tuple[tuple[int, int], ...] = ()
    n_highway: int = 0
    activation: Literal["relu", "tanh"] = "relu"
    max_characters_per_token: int = 50


class Encoder(BaseModel):
    """The LSTMs."""

    name: Literal["elmo"]
    projection_dim: int
    dim: int
    n_layers: int
    cell_clip: float | None
    proj_clip: float | None


class Architecture(BaseModel):
    """The part of an architecture file that shapes the network; other keys are ignored."""

    token_embedder: TokenEmbedder
    encoder: Encoder

    @classmethod
    def of(cls, config: BiLMConfig) -> "Architecture":
        """The architecture of a biLM.

        Raises:
            WeightsError: the format has no place for such a model.
        """
        unfit = _unfit(config)
        if unfit:
            raise WeightsError(f"this model {unfit}, which ELMoForManyLangs' format cannot hold")
        tokens, encoder, characters = config.tokens, config.encoder, config.characters
        shape: dict[str, Any] = {"char_dim": 0}
        if characters:
            shape = {
                "char_dim": characters.embedding_dim,
                "filters": characters.filters,
                "n_highway": characters.num_highways,
                "activation": characters.activation,
                "max_characters_per_token": characters.max_characters_per_token,
            }
        word_dim = tokens.word_dim if isinstance(tokens, WordAndCharConfig) else 0
        return cls(
            token_embedder=TokenEmbedder(name="cnn", word_dim=word_dim, **shape),
            encoder=Encoder(
                name="elmo",
                projection_dim=encoder.projection_dim,
                dim=encoder.cell_dim,
                n_layers=encoder.num_layers,
                cell_clip=encoder.cell_clip,
                proj_clip=encoder.proj_clip,
            ),
        )

    def config(self, alphabet: str, num_words: int, *, source: Path) -> BiLMConfig:
        """The biLM of this architecture.

        Args:
            alphabet: the code points of its character table.
            num_words: rows of its word table.
            source: where the architecture is from.

        Raises:
            ConfigError: it is none, or of a kind that is not read here.
        """
        try:
            config = BiLMConfig(
                tokens=self._tokens(alphabet, num_words),
                encoder=EncoderConfig(
                    projection_dim=self.encoder.projection_dim,
                    cell_dim=self.encoder.dim,
                    num_layers=self.encoder.n_layers,
                    cell_clip=self.encoder.cell_clip or None,
                    proj_clip=self.encoder.proj_clip or None,
                ),
            )
        except ValidationError as error:
            raise ConfigError(f"{source} describes no biLM: {describe_validation(error)}") from error
        unfit = _unfit(config)
        if unfit:
            raise ConfigError(f"{source} describes a model that {unfit}; no released one does, and it is not read here")
        return config

    def _tokens(self, alphabet: str, num_words: int) -> TokensConfig:
        characters = None
        if self.token_embedder.char_dim > 0:
            characters = CharCNNConfig(
                embedding_dim=self.token_embedder.char_dim,
                filters=self.token_embedder.filters,
                num_highways=self.token_embedder.n_highway,
                activation=self.token_embedder.activation,
                max_characters_per_token=self.token_embedder.max_characters_per_token,
                alphabet=alphabet,
            )
            if self.token_embedder.word_dim <= 0:
                return characters
        return WordAndCharConfig(num_words=num_words, word_dim=self.token_embedder.word_dim, characters=characters)


PUBLISHED: Final = Architecture(
    token_embedder=TokenEmbedder(
        name="cnn",
        word_dim=100,
        char_dim=50,
        filters=((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)),
        n_highway=2,
    ),
    encoder=Encoder(name="elmo", projection_dim=512, dim=4096, n_layers=2, cell_clip=3, proj_clip=3),
)


class _Training(BaseModel):
    config_path: str


def read_architecture(config_file: Path, folder: Path) -> tuple[Architecture, Path]:
    """The architecture of a model and the file it is from: beside the weights, or the published one with a warning.

    Args:
        config_file: the arguments of the training, which name it.
        folder: of the weights.

    Raises:
        ConfigError: one of the two files is not what it should be.
        WeightsError: there are no arguments.
    """
    try:
        training = _Training.model_validate_json(read_json(config_file))
        name = PureWindowsPath(training.config_path).name  # of a path of either kind
        for file in folder.iterdir():
            if file.name == name:
                return Architecture.model_validate_json(read_json(file)), file
    except ValidationError as error:
        raise ConfigError(
            f"{config_file}, or the file that its config_path names, is not as ELMoForManyLangs writes it: "
            f"{describe_validation(error)}"
        ) from error
    warnings.warn(
        f"{config_file} names the architecture {training.config_path!r}, which is not beside it; taking that of all "
        "released models",
        stacklevel=2,
    )
    return PUBLISHED, config_file


def _unfit(config: BiLMConfig) -> str:
    """What of a biLM the format, or this package, has no place for; nothing where it fits."""
    tokens, encoder = config.tokens, config.encoder
    if isinstance(tokens, WordEmbeddingConfig):
        return "has word vectors that no projection follows"
    if config.characters and config.characters.alphabet is None:
        return "reads UTF-8 bytes, not code points"
    if isinstance(tokens, CharCNNConfig) and tokens.num_filters == encoder.projection_dim:
        return "has no projection behind its filters, or one of equal width"
    if not encoder.has_projection:
        return "has no projection in its LSTMs, or one of equal width"
    if not encoder.skip_connections and encoder.num_layers > 1:
        return "has no skip connections"
    return ""
