"""From tokens to the ids that a model's token encoder takes, whatever its kind.

Given the part of a configuration that says how a model reads tokens, and its words where it has any. Used wherever ids
are made for a model: `embed`, `train`.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elmokit.config import CharCNNConfig, TokensConfig, WordAndCharConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError
from elmokit.text.characters import SENTENCE_END, SENTENCE_START, Alphabet, tokens_to_ids
from elmokit.text.lexicon import Lexicon


class TokenIds:
    """A function from tokens to ids, made once for a model."""

    def __init__(self, config: TokensConfig, lexicon: Lexicon | None = None) -> None:
        """Args:
        config: how the model reads tokens.
        lexicon: its words, where it reads words.

        Raises:
            ConfigError: the words are missing, or are another model's.
        """
        self._lexicon, self._characters = lexicon, None
        if isinstance(config, CharCNNConfig):
            self._lexicon, self._characters = None, config
        elif lexicon is None:
            raise ConfigError("this is a word-level model, which needs its vocabulary: pass vocabulary= or lexicon=")
        elif len(lexicon) != config.num_words:
            raise ConfigError(f"the vocabulary has {len(lexicon)} words, but the model has {config.num_words}")
        if isinstance(config, WordAndCharConfig):
            self._characters = config.characters
        self._one_dimensional = isinstance(config, WordEmbeddingConfig)
        self._alphabet = Alphabet(self._characters.alphabet if self._characters else None)

    def __call__(self, tokens: Sequence[str]) -> npt.NDArray[np.int64]:
        """The ids of T tokens, sentence boundaries among them, all shifted by one.

        Returns:
            (T, C) characters, (T,) words, or (T, 1 + C) for a model that reads a word and its characters.
        """
        parts = []
        if self._lexicon is not None:
            parts.append(self._lexicon.ids(map(self._read, tokens))[:, np.newaxis] + 1)
        if self._characters is not None:
            width = self._characters.max_characters_per_token
            parts.append(tokens_to_ids(tokens, width, alphabet=self._alphabet))
        ids = np.concatenate(parts, axis=1)
        return ids[:, 0] if self._one_dimensional else ids

    def _read(self, token: str) -> str:
        """As much of a word as is looked up: as in ELMoForManyLangs, what its characters are read of."""
        if self._characters is None or token in (SENTENCE_START, SENTENCE_END):
            return token
        return token[: self._characters.max_characters_per_token - 2]
