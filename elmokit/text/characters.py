"""Tokens to arrays of character ids, the input of a character-level biLM.

A token becomes its symbols between two word markers, padded to a fixed width. Symbols are UTF-8 bytes; then ids follow
bilm-tf and AllenNLP to the letter (bytes 0-255, markers 256-260, everything shifted by one so that 0 can mean "no token
here"), because published weights depend on them. Or they are the code points of an alphabet, with one id more for all
others. Takes strings from `sentences`, `tokens` or a caller; gives arrays to `model`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError

CharacterIds = npt.NDArray[np.int64]

SENTENCE_START: Final = "<S>"
SENTENCE_END: Final = "</S>"


class Alphabet:
    """The symbols that have a vector of their own, and their numbers, before the shift.

    The N symbols are numbered from 0. Behind them stand the markers `begin_sentence`, `end_sentence`, `begin_word`,
    `end_word` and `padding`, and last what is there for code points outside.
    """

    def __init__(self, code_points: str | None = None) -> None:
        """Args:
        code_points: each once, in the order of the model's rows; None for the 256 bytes.
        """
        self._numbers = None if code_points is None else {point: number for number, point in enumerate(code_points)}
        first = 256 if code_points is None else len(code_points)
        self.begin_sentence, self.end_sentence, self.begin_word, self.end_word, self.padding, self._other = range(
            first, first + 6
        )

    def symbols(self, token: str, limit: int) -> Sequence[int] | npt.NDArray[np.uint8]:
        """The numbers of at most `limit` symbols of a token."""
        if self._numbers is None:
            return np.frombuffer(token.encode("utf-8", "ignore")[:limit], np.uint8)
        return [self._numbers.get(point, self._other) for point in token[:limit]]


BYTES: Final = Alphabet()


def token_to_ids(token: str, width: int, *, alphabet: Alphabet = BYTES) -> npt.NDArray[np.int64]:
    """Character ids of one token, shifted by one.

    The symbols beyond `width - 2` are cut; as in the published models, bytes possibly inside a character. Lone
    surrogates have no bytes. An empty token is a word without symbols. The exact tokens `<S>` and `</S>` are the
    sentence boundaries.

    Args:
        token: any string.
        width: characters per token (C), from the model's configuration.
        alphabet: what a token is made of, from there too.

    Returns:
        (C,) values 1 to 261 for bytes, to N + 6 for N code points.
    """
    if token == SENTENCE_START:
        inner: Sequence[int] | npt.NDArray[np.uint8] = (alphabet.begin_sentence,)
    elif token == SENTENCE_END:
        inner = (alphabet.end_sentence,)
    else:
        inner = alphabet.symbols(token, width - 2)
    ids = np.full(width, alphabet.padding, dtype=np.int64)
    ids[0] = alphabet.begin_word
    ids[1 : 1 + len(inner)] = inner
    ids[1 + len(inner)] = alphabet.end_word
    ids += 1
    return ids


def tokens_to_ids(tokens: Sequence[str], width: int, *, alphabet: Alphabet = BYTES) -> CharacterIds:
    """Character ids of one sentence without boundaries: (T, C)."""
    ids = np.zeros((len(tokens), width), dtype=np.int64)
    for position, token in enumerate(tokens):
        ids[position] = token_to_ids(token, width, alphabet=alphabet)
    return ids


def sentence_to_ids(tokens: Sequence[str], width: int, *, alphabet: Alphabet = BYTES) -> CharacterIds:
    """Character ids of one sentence with both boundaries in place: (T + 2, C)."""
    return tokens_to_ids([SENTENCE_START, *tokens, SENTENCE_END], width, alphabet=alphabet)


def sentences_to_ids(
    sentences: Iterable[Sequence[str]], width: int, *, alphabet: Alphabet = BYTES
) -> tuple[CharacterIds, npt.NDArray[np.int64]]:
    """A batch for the biLM: sentences with boundaries, zero-padded to the longest.

    Args:
        sentences: B lists of tokens; an empty list is a sentence of two boundaries.
        width: characters per token (C).
        alphabet: what a token is made of.

    Returns:
        ids (B, T, C), where T counts the boundaries and 0 is padding; lengths (B,), boundaries included.

    Raises:
        InputError: a string stands where a list of tokens belongs.
    """
    encoded = [
        sentence_to_ids(check_tokens(sentence, index), width, alphabet=alphabet)
        for index, sentence in enumerate(sentences)
    ]
    lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
    batch = np.zeros((len(encoded), int(lengths.max(initial=0)), width), dtype=np.int64)
    for row, ids in zip(batch, encoded, strict=True):
        row[: len(ids)] = ids
    return batch, lengths


def check_tokens(sentence: object, index: int) -> list[str]:
    """The tokens of one sentence as strings; objects with a string `.text` (spaCy, AllenNLP) count as tokens.

    Raises:
        InputError: the sentence is a string, is no sequence, or holds something that is no token.
    """
    if isinstance(sentence, (str, bytes)):
        raise InputError(
            f"sentence {index} is the string {sentence[:40]!r}, expected a list of tokens; "
            "pass [['I', 'am', 'here']], or use the raw-text entry (embed_text, or --text on the command line)"
        )
    if not isinstance(sentence, Iterable) or isinstance(sentence, (Mapping, Set)):  # those have no order of tokens
        raise InputError(f"sentence {index} is of type {type(sentence).__name__}, expected a list of tokens")
    tokens = []
    for position, token in enumerate(sentence):
        if not isinstance(token, str):
            token = getattr(token, "text", token)
        if not isinstance(token, str):
            raise InputError(
                f"token {position} of sentence {index} is of type {type(token).__name__}, "
                "expected a string or an object with a string .text"
            )
        tokens.append(token)
    return tokens
