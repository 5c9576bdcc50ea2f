"""The options file of bilm-tf and AllenNLP, `options.json`: the shape of a biLM in their words.

Shared by the formats that have one: `hdf5`, `tf_checkpoint`, `allennlp`. Read from JSON with everything but the shape
ignored, turned into a `BiLMConfig`, and made of one for writing. In NLPL's archives a `meta.json` beside it says the
language.
"""

import json
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ValidationError

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig, describe_validation
from elmokit.errors import ConfigError, WeightsError
from elmokit.weights.files import read_json

# ISO 639-1 codes and those of three letters, which NLPL uses; some languages have two of those.
_LANGUAGES: Final = (
    "ar ara, bg bul, ca cat, cs ces cze, cu chu, da dan, de deu ger, el ell gre, en eng, es spa, et est, eu eus baq, "
    "fa fas per, fi fin, fr fra fre, ga gle, gl glg, he heb, hi hin, hr hrv, hu hun, hy hye arm, id ind, it ita, "
    "ja jpn, kk kaz, ko kor, la lat, lt lit, lv lav, nb nob, nl nld dut, nn nno, no nor, pl pol, pt por, ro ron rum, "
    "ru rus, sk slk slo, sl slv, sv swe, tr tur, ug uig, uk ukr, ur urd, vi vie, zh zho chi"
)
_TWO_LETTERS: Final = {code: codes.split()[0] for codes in _LANGUAGES.split(", ") for code in codes.split()}


class Embedding(BaseModel):
    """Of the characters."""

    dim: int


class CharCNNOptions(BaseModel):
    """Of the token encoder."""

    embedding: Embedding
    filters: tuple[tuple[int, int], ...]
    activation: Literal["relu", "tanh"]
    n_highway: int | None = 0
    max_characters_per_token: int = 50
    # 261 in training, 262 at use, or missing: the file's table has 261 rows in each case, and that is what counts.
    n_characters: Any = 262


class LSTMOptions(BaseModel):
    """Of each direction."""

    dim: int
    projection_dim: int
    n_layers: int = 1
    cell_clip: float | None = None
    proj_clip: float | None = None
    use_skip_connections: bool = False


class Options(BaseModel):
    """The part of an options file that shapes the network, with bilm-tf's defaults; other keys are ignored."""

    lstm: LSTMOptions
    char_cnn: CharCNNOptions | None = None
    n_tokens_vocab: Any = None
    language: str | None = None  # ours: other programs ignore it

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an options file; without a language it has that of the `meta.json` beside it.

        Raises:
            ConfigError: it holds no options of a biLM.
            WeightsError: there is none, or it cannot be read.
        """
        try:
            options = cls.model_validate_json(read_json(path))
        except ValidationError as error:
            raise ConfigError(f"{path} holds no biLM options: {describe_validation(error)}") from error
        return options.model_copy(update={"language": options.language or _language_beside(path)})

    @classmethod
    def of(cls, config: BiLMConfig) -> Self:
        """The options of a biLM.

        Raises:
            WeightsError: they cannot say what it is.
        """
        encoder, tokens = config.encoder, config.tokens
        if isinstance(tokens, CharCNNConfig) and tokens.alphabet is not None:
            raise WeightsError(
                "the characters of this model are Unicode code points, but the formats of AllenNLP and bilm-tf know "
                "UTF-8 bytes alone; save it to a directory in native format"
            )
        return cls(
            lstm=LSTMOptions(
                dim=encoder.cell_dim,
                projection_dim=encoder.projection_dim,
                n_layers=encoder.num_layers,
                cell_clip=encoder.cell_clip,
                proj_clip=encoder.proj_clip,
                use_skip_connections=encoder.skip_connections,
            ),
            char_cnn=CharCNNOptions(
                embedding=Embedding(dim=tokens.embedding_dim),
                filters=tokens.filters,
                activation=tokens.activation,
                n_highway=tokens.num_highways,
                max_characters_per_token=tokens.max_characters_per_token,
            )
            if isinstance(tokens, CharCNNConfig)
            else None,
            n_tokens_vocab=tokens.num_words if isinstance(tokens, WordEmbeddingConfig) else None,
            language=config.language,
        )

    def config(self, num_words: int | None, *, source: Path) -> BiLMConfig:
        """The biLM of these options.

        Args:
            num_words: rows of the weights' table of words, None where they are of characters. The weights decide:
                options of word-level models may keep a `char_cnn` that means nothing.
            source: the file of these options.

        Raises:
            ConfigError: they are of no biLM.
            WeightsError: they are of a word-level model and there are no words.
        """
        lstm, characters = self.lstm, self.char_cnn
        if characters is None and num_words is None:
            raise WeightsError(
                f"{source} has no 'char_cnn' and so is for a model of whole words, but the weights have no table "
                f"'embedding' of (words, {lstm.projection_dim}); use the options that came with these weights"
            )
        try:
            return BiLMConfig(
                tokens=WordEmbeddingConfig(num_words=num_words or 0)
                if characters is None or num_words is not None
                else CharCNNConfig(
                    embedding_dim=characters.embedding.dim,
                    filters=characters.filters,
                    num_highways=characters.n_highway or 0,
                    activation=characters.activation,
                    max_characters_per_token=characters.max_characters_per_token,
                ),
                encoder=EncoderConfig(
                    projection_dim=lstm.projection_dim,
                    cell_dim=lstm.dim,
                    num_layers=lstm.n_layers,
                    cell_clip=lstm.cell_clip or None,
                    proj_clip=lstm.proj_clip or None,
                    skip_connections=lstm.use_skip_connections,
                ),
                language=self.language,
            )
        except ValidationError as error:
            raise ConfigError(f"{source} describes no biLM: {describe_validation(error)}") from error


def options_beside(weights: Path) -> Path:
    """The options of a weight file: of the same name with `options` for `weights`, `options.json`, or the only file.

    Raises:
        WeightsError: there is none, or there are several.
    """
    for name in (weights.stem.replace("weights", "options") + ".json", "options.json"):
        if (weights.parent / name).is_file() and "options" in name:
            return weights.parent / name
    found = sorted(weights.parent.glob("*options*.json"))
    if len(found) != 1:
        listed = f"several options files ({', '.join(path.name for path in found)})" if found else "no options file"
        raise WeightsError(
            f"there is {listed} beside {weights}, expected an options.json; name both files: (options, weights)"
        )
    return found[0]


def _language_beside(path: Path) -> str | None:
    """The one language of the corpora that an NLPL archive names; None where that is not clear."""
    meta = path.with_name("meta.json")
    try:
        content = json.loads(read_json(meta)) if meta.is_file() else {}
    except (ValueError, RecursionError, ConfigError):  # what it says of the model is of no other use
        return None
    corpora = content.get("corpus") if isinstance(content, dict) else None
    corpora = corpora if isinstance(corpora, list) else [corpora]
    named = {str(corpus.get("language")).lower() for corpus in corpora if isinstance(corpus, dict)}
    return _TWO_LETTERS.get(named.pop()) if len(named) == 1 else None
