"""The shape of a biLM as frozen, validated values, to and from JSON.

`BiLMConfig` says everything that is needed to build a network (`elmokit.model.build`) and is what `config.json` of the
native format holds. Names follow Peters et al. 2018 and the options files of bilm-tf where those have one.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from elmokit.errors import ConfigError

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

LARGEST_ALPHABET: Final = 32_000  # character ids have to fit into 16 bits


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CharCNNConfig(_Frozen):
    """A character CNN over the UTF-8 bytes or the code points of a token (Kim et al. 2016, Jozefowicz et al. 2016).

    Attributes:
        embedding_dim: width of a character vector (E).
        filters: (width, count) of each convolution; the counts sum to F.
        num_highways: highway layers after the pooling.
        activation: non-linearity after the pooling.
        max_characters_per_token: characters in the ids of one token (C), word markers included.
        alphabet: the code points that have a vector of their own, in the order of the rows; the characters of a token
            are its code points then. None where they are its UTF-8 bytes.
    """

    kind: Literal["char_cnn"] = "char_cnn"
    embedding_dim: PositiveInt = 16
    filters: tuple[tuple[PositiveInt, PositiveInt], ...] = Field(min_length=1)
    num_highways: Annotated[int, Field(ge=0)] = 2
    activation: Literal["relu", "tanh"] = "relu"
    max_characters_per_token: Annotated[int, Field(ge=3)] = 50
    alphabet: Annotated[str, Field(min_length=1, max_length=LARGEST_ALPHABET)] | None = None

    @property
    def num_characters(self) -> int:
        """Rows of the character table: bytes and five markers, or code points, the markers and one for all others."""
        return 256 + 5 if self.alphabet is None else len(self.alphabet) + 6

    @property
    def padding_id(self) -> int:
        """The id that fills a token up to C, the last of the markers (`elmokit.text.characters`), shifted by one."""
        return (256 if self.alphabet is None else len(self.alphabet)) + 5

    @property
    def num_filters(self) -> int:
        """F, the width after pooling."""
        return sum(count for _, count in self.filters)

    @field_validator("alphabet")
    @classmethod
    def _every_code_point_once(cls, alphabet: str | None) -> str | None:
        if alphabet is not None and len(set(alphabet)) < len(alphabet):
            twice = next(point for index, point in enumerate(alphabet) if point in alphabet[:index])
            raise ValueError(f"the code point {twice!r} is there twice")
        return alphabet

    @model_serializer(mode="wrap")
    def _bytes_go_without_saying(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        if self.alphabet is None:  # as in the files that were written before there was a choice
            values.pop("alphabet", None)
        return values

    @model_validator(mode="after")
    def _filters_fit_the_token(self) -> Self:
        widest = max(width for width, _ in self.filters)
        if widest > self.max_characters_per_token:
            raise ValueError(
                f"a filter is {widest} characters wide, but a token has only {self.max_characters_per_token}"
            )
        return self


class WordEmbeddingConfig(_Frozen):
    """One learned vector per word of a fixed vocabulary: word-level bilm-tf models.

    Attributes:
        num_words: rows of the table (V), in the order of the model's vocabulary file.
    """

    kind: Literal["word_embedding"] = "word_embedding"
    num_words: PositiveInt


class WordAndCharConfig(_Frozen):
    """A word's vector and the character CNN's side by side, projected together: ELMoForManyLangs (Che et al. 2018).

    Attributes:
        num_words: rows of the word table (V), in the order of the model's vocabulary file.
        word_dim: width of a word vector.
        characters: the character CNN, used up to its highways; None for a model that reads words alone.
    """

    kind: Literal["word_and_char"] = "word_and_char"
    num_words: PositiveInt
    word_dim: PositiveInt
    characters: CharCNNConfig | None = None


TokensConfig = CharCNNConfig | WordEmbeddingConfig | WordAndCharConfig


class EncoderConfig(_Frozen):
    """The LSTM of one direction; both directions have the same shape (Sak et al. 2014, Peters et al. 2018).

    Attributes:
        projection_dim: width of token vectors and of each direction's output (P).
        cell_dim: width of the LSTM cell (D); equal to `projection_dim` there is no projection matrix.
        num_layers: LSTM layers (L).
        cell_clip: bound on the absolute value of the cell state; None for no bound.
        proj_clip: bound on the absolute value of the projected output; None for no bound.
        skip_connections: from the second layer on, add a layer's input to its output.
    """

    projection_dim: PositiveInt = 512
    cell_dim: PositiveInt = 4096
    num_layers: PositiveInt = 2
    cell_clip: PositiveFloat | None = 3.0
    proj_clip: PositiveFloat | None = 3.0
    skip_connections: bool = True

    @property
    def has_projection(self) -> bool:
        """Whether the cell output is projected; as in bilm-tf, not when both widths agree."""
        return self.cell_dim != self.projection_dim


class BiLMConfig(_Frozen):
    """Everything that is needed to build a biLM.

    Attributes:
        tokens: how token ids become vectors.
        encoder: the LSTM of each direction.
        language: ISO 639-1 code of the text it was trained on; chooses the tokeniser for raw text. None if unknown.
    """

    tokens: TokensConfig = Field(discriminator="kind")
    encoder: EncoderConfig = EncoderConfig()
    language: str | None = None

    @property
    def num_layers(self) -> int:
        """Layers that the biLM returns: the token layer and L LSTM layers."""
        return self.encoder.num_layers + 1

    @property
    def output_dim(self) -> int:
        """Width of a returned layer: both directions side by side (2 P)."""
        return 2 * self.encoder.projection_dim

    @property
    def characters(self) -> CharCNNConfig | None:
        """The character CNN's shape, where there is one."""
        if isinstance(self.tokens, WordAndCharConfig):
            return self.tokens.characters
        return self.tokens if isinstance(self.tokens, CharCNNConfig) else None

    def to_json(self) -> str:
        """This configuration as the text of a `config.json`."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, *, source: str | Path = "config.json") -> Self:
        """Read what `to_json` wrote.

        Args:
            text: JSON.
            source: name to use in messages.

        Raises:
            ConfigError: not JSON, or not a biLM configuration.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"{source} is no elmokit configuration: {describe_validation(error)}") from error


def describe_validation(error: ValidationError) -> str:
    """The findings of pydantic as one line: `place: what is wrong`, separated by semicolons."""
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'file'}: {item['msg']}" for item in error.errors()
    )
