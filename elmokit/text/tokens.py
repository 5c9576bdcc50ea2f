"""Raw text to sentences of tokens, by language: spaCy's rules, and jieba's words for Chinese.

Both come with the extra `text` and are loaded when a `Tokenizer` is made. Nothing but white space is lost: the tokens
of a text hold all its other characters in order. The published models were trained on such tokens: original case,
punctuation parted from words, entities such as `&amp;` resolved beforehand.
"""

import re
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

from elmokit.errors import InputError, require

DEFAULT_LANGUAGE: Final = "en"

# Latin marks end a Chinese sentence too, but not inside an address; closing quotes stay with the sentence they close.
_CHINESE_SENTENCE: Final = re.compile(
    r".*?(?:(?:(?:[。！？；…]|[!?](?![A-Za-z0-9=&%/#_]))[”’」』）》】〉]*)+|$)", re.DOTALL
)
_LONE_SURROGATES: Final = re.compile(r"[\ud800-\udfff]")
# Both take a time that grows with the square of what hangs together without a space, so much of it is cut.
_RUN_ON: Final = re.compile(r"(?:[^\w\s]|_){200}(?=\S)|\S{1000}(?=\S)")


class Tokenizer:
    """Raw text to lists of tokens, one list a sentence."""

    def __init__(self, language: str | None = None) -> None:
        """Args:
        language: ISO 639-1 code, such as "en" or "zh"; None for English.

        Raises:
            InputError: there are no rules for this language.
            MissingExtraError: spaCy or jieba is not installed.
        """
        self.language = language or DEFAULT_LANGUAGE
        self._sentences = _chinese() if self.language == "zh" else _by_rules(self.language)

    def sentences(self, text: str) -> list[list[str]]:
        """Split and tokenise a text.

        Args:
            text: of any length; a line break ends a sentence. Lone surrogates become U+FFFD.

        Returns:
            The tokens of each sentence that has any.

        Raises:
            InputError: not a string.
        """
        if not isinstance(text, str):
            raise InputError(f"raw text is of type {type(text).__name__}, expected one string")
        text = _LONE_SURROGATES.sub("\ufffd", text)
        found = (sentence for line in text.split("\n") if line.strip() for sentence in self._sentences(line))
        without_space = ([token for token in sentence if not token.isspace()] for sentence in found)
        return [tokens for tokens in without_space if tokens]


def _by_rules(language: str) -> Callable[[str], list[list[str]]]:
    """The tokeniser of spaCy and its rule-based sentence splitter."""
    spacy: Any = require("spacy", extra="text")
    try:
        pipeline = spacy.blank(language)
    except ImportError as error:  # also where a language's own package, such as Japanese's, is missing
        raise InputError(f"no tokeniser for language {language!r}: {str(error).splitlines()[0]}") from error
    pipeline.add_pipe("sentencizer")
    pipeline.max_length = sys.maxsize  # spaCy's limit is for parsers, which need far more memory

    def split(line: str) -> list[list[str]]:
        with pipeline.memory_zone():  # else every new word would stay in memory for good
            doc = pipeline(_RUN_ON.sub(r"\g<0> ", line))
            return [[token.text for token in sentence] for sentence in doc.sents]

    return split


def _chinese() -> Callable[[str], list[list[str]]]:
    """Sentences by their final marks, words by jieba."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of invalid escapes in jieba's source
        jieba: Any = require("jieba", extra="text")
    words = jieba.Tokenizer()
    # Its own start-up prints, and trusts a cache in the folder for temporary files, which others can write to.
    words.FREQ, words.total = words.gen_pfdict(words.get_dict_file())
    words.initialized = True

    def split(line: str) -> list[list[str]]:
        sentences = _CHINESE_SENTENCE.findall(line)
        return [list(words.cut(_RUN_ON.sub(r"\g<0> ", sentence))) for sentence in sentences]

    return split
