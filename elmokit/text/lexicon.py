"""The words a language model predicts: an ordered vocabulary, most frequent first, and its file.

The file has one word a line, as in bilm-tf: `<S>`, `</S>`, `<UNK>`, then words by falling frequency, which the
log-uniform sampler relies on. Used by `train` and, for word-level models, by `embed`.
"""

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError
from elmokit.text.characters import SENTENCE_END, SENTENCE_START

LARGEST_FILE: Final = 2**28  # bytes; the published vocabulary of 793,471 words has 7 MB
UNKNOWN: Final = "<UNK>"
SPECIAL: Final = (SENTENCE_START, SENTENCE_END, UNKNOWN)


class Lexicon:
    """Words and their ids, counted from 0; a word outside has the id of `<UNK>`."""

    def __init__(self, words: Sequence[str]) -> None:
        """Args:
        words: in id order; must hold the three special words, once, and no word twice.

        Raises:
            InputError: a special word is missing, or a word is there twice.
        """
        self.words = tuple(words)
        self._ids = {word: index for index, word in enumerate(self.words)}
        missing = [word for word in SPECIAL if word not in self._ids]
        if missing:
            raise InputError(
                f"the vocabulary lacks {', '.join(missing)}; expected {', '.join(SPECIAL)} among its words"
            )
        if len(self._ids) < len(self.words):
            twice = next(word for index, word in enumerate(self.words) if self._ids[word] != index)
            raise InputError(f"the word {twice!r} is in the vocabulary twice")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._ids

    def ids(self, tokens: Iterable[str]) -> npt.NDArray[np.int64]:
        """(T,) ids."""
        unknown = self._ids[UNKNOWN]
        return np.fromiter((self._ids.get(token, unknown) for token in tokens), dtype=np.int64)

    def write(self, path: Path) -> None:
        """Write one word a line, UTF-8."""
        path.write_bytes("".join(f"{word}\n" for word in self.words).encode("utf-8", "surrogatepass"))

    @classmethod
    def read(cls, path: Path) -> "Lexicon":
        """Read what `write` or bilm-tf wrote, compressed where the name ends in `.gz`.

        Raises:
            InputError: not UTF-8 (the line is named), or no vocabulary.
        """
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise InputError(f"{path} holds more than {LARGEST_FILE} bytes, expected a vocabulary of one word a line")
        lines = data.removesuffix(b"\n").split(b"\n")
        if all(line.endswith(b"\r") for line in lines):  # of some only, it belongs to the words
            lines = [line[:-1] for line in lines]
        words = []
        for number, line in enumerate(lines, start=1):
            try:
                words.append(line.decode("utf-8", "surrogatepass"))
            except UnicodeDecodeError as error:
                raise InputError(f"{path}, line {number}: byte {error.start} is not UTF-8") from error
        return cls(words)
