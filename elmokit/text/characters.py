"""Tokens to arrays of character ids, the input of a character-level biLM.

A token becomes its UTF-8 bytes between two word markers, padded to a fixed width. Ids follow bilm-tf and AllenNLP to
the letter (bytes 0-255, markers 256-260, everything shifted by one so that 0 can mean "no token here"), because
published weights depend on them. Takes strings from `sentences`, `tokens` or a caller; gives arrays to `model`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError

CharacterIds = npt.NDArray[np.int64]

NUM_CHARACTERS: Final = 261  # bytes and the five markers, before the shift
BEGIN_SENTENCE: Final = 256
END_SENTENCE: Final = 257
BEGIN_WORD: Final = 258
END_WORD: Final = 259
PADDING: Final = 260

SENTENCE_START: Final = "<S>"
SENTENCE_END: Final = "</S>"


def token_to_ids(token: str, width: int) -> npt.NDArray[np.int64]:
    """Character ids of one token, shifted by one.

    The bytes beyond `width - 2` are cut, possibly inside a character, as in the published models; lone surrogates
    vanish. An empty token is a word without bytes. The exact tokens `<S>` and `</S>` are the sentence boundaries.

    Args:
        token: any string.
        width: characters per token (C), from the model's configuration.

    Returns:
        (C,) values 1 to 261.
    """
    if token == SENTENCE_START:
        inner: Sequence[int] = (BEGIN_SENTENCE,)
    elif token == SENTENCE_END:
        inner = (END_SENTENCE,)
    else:
        inner = token.encode("utf-8", "ignore")[: width - 2]
    ids = np.full(width, PADDING, dtype=np.int64)
    ids[0] = BEGIN_WORD
    ids[1 : 1 + len(inner)] = np.frombuffer(inner, np.uint8) if isinstance(inner, bytes) else inner
    ids[1 + len(inner)] = END_WORD
    ids += 1
    return ids


def tokens_to_ids(tokens: Sequence[str], width: int) -> CharacterIds:
    """Character ids of one sentence without boundaries: (T, C)."""
    ids = np.zeros((len(tokens), width), dtype=np.int64)
    for position, token in enumerate(tokens):
        ids[position] = token_to_ids(token, width)
    return ids


def sentence_to_ids(tokens: Sequence[str], width: int) -> CharacterIds:
    """Character ids of one sentence with both boundaries in place: (T + 2, C)."""
    return tokens_to_ids([SENTENCE_START, *tokens, SENTENCE_END], width)


def sentences_to_ids(sentences: Iterable[Sequence[str]], width: int) -> tuple[CharacterIds, npt.NDArray[np.int64]]:
    """A batch for the biLM: sentences with boundaries, zero-padded to the longest.

    Args:
        sentences: B lists of tokens; an empty list is a sentence of two boundaries.
        width: characters per token (C).

    Returns:
        ids (B, T, C), where T counts the boundaries and 0 is padding; lengths (B,), boundaries included.

    Raises:
        InputError: a string stands where a list of tokens belongs.
    """
    encoded = [sentence_to_ids(check_tokens(sentence, index), width) for index, sentence in enumerate(sentences)]
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
