"""Preparing a corpus: one pass over the text, types told apart and counted, then everything renumbered and written.

Memory grows with the types, which are capped, and by eight bytes a sentence; the text itself goes straight to files.
Takes paragraphs from `sources`, cuts them with `elmokit.text`; `corpus` says when this runs and opens what it leaves.
"""

import hashlib
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import numpy.typing as npt

from elmokit.config import CharCNNConfig
from elmokit.errors import InputError
from elmokit.text.lexicon import SPECIAL
from elmokit.text.sentences import split_tokens
from elmokit.text.token_ids import TokenIds
from elmokit.text.tokens import Tokenizer
from elmokit.train.recipe import CorpusRecipe
from elmokit.train.sources import SourceFile

PARTS: Final = ("train", "held_out")
SENTENCE_START_TYPE, SENTENCE_END_TYPE, UNKNOWN_TYPE = range(len(SPECIAL))  # the order of `SPECIAL`
BLOCK_LINES: Final = 200  # text is held out by documents, long ones by blocks of this many lines
REPORT_SECONDS: Final = 5.0
TYPE_BYTES: Final = 200  # of memory: the string, its place in the table, its count
MANY_TYPES: Final = 5_000_000
ALPHABET_NAME: Final = "alphabet.txt"


@dataclass(frozen=True)
class CorpusFiles:
    """All files of a corpus, source by source."""

    sources: list[list[SourceFile]]
    held_out: list[list[SourceFile]]

    def __iter__(self) -> Iterator[SourceFile]:
        return (file for files in (*self.sources, *self.held_out) for file in files)

    @property
    def size(self) -> int:
        """Bytes as stored."""
        return sum(file.path.stat().st_size for file in self)


class Progress:
    """A line every few seconds on how far a pass over files has come."""

    def __init__(self, size: int, report: Callable[[str], None]) -> None:
        """Args:
        size: bytes in all.
        report: called with a line.
        """
        self.size, self.report = size, report
        self.before = 0  # bytes of the files that are behind
        self.start = self.last = time.monotonic()

    def due(self) -> bool:
        """Whether it is time to say something."""
        now = time.monotonic()
        if now - self.last < REPORT_SECONDS:
            return False
        self.last = now
        return True

    def say(self, position: int, news: str) -> None:
        """Report the news at a position in the present file."""
        read = self.before + position
        left = (time.monotonic() - self.start) * (self.size - read) / max(read, 1)
        self.report(
            f"{news}; {read / 1e6:,.1f} of {self.size / 1e6:,.1f} MB ({read / max(self.size, 1):.0%}), "
            f"left {int(left // 3600)}:{int(left % 3600 // 60):02}:{int(left % 60):02}"
        )

    def done(self, size: int) -> None:
        """Go on to the next file."""
        self.before += size


class TypeTable:
    """Types in order of first sight, with weighted counts; the rarest are given up where there are too many.

    An id is never given twice. A type that was given up and comes again is a new one: what was seen of it before has
    become unknown. While reading, a quarter more than the cap is kept, so that new types have time to prove themselves.
    """

    def __init__(self, max_types: int, report: Callable[[str], None]) -> None:
        """Args:
        max_types: special ones included.
        report: told when memory matters.
        """
        self.max_types, self.report = max_types, report
        self._ids = {word: index for index, word in enumerate(SPECIAL)}
        self._counts = array("d", [0.0] * len(SPECIAL))
        self._warned = False

    def __len__(self) -> int:
        return len(self._ids)

    def ids(self, sentence: list[str], weight: float) -> npt.NDArray[np.uint32]:
        """(T + 2,) ids of a sentence with its boundaries, which it is counted into with a weight."""
        types, counts = self._ids, self._counts
        ids = [SENTENCE_START_TYPE]
        for token in sentence:
            index = types.get(token)
            if index is None:
                index = types[token] = len(counts)
                counts.append(0.0)
            counts[index] += weight
            ids.append(index)
        ids.append(SENTENCE_END_TYPE)
        if len(types) > self.max_types + self.max_types // 4:
            self._give_up()
        elif len(types) > MANY_TYPES and not self._warned:
            self._warned = True
            self.report(
                f"more than {MANY_TYPES:,} types, each about {TYPE_BYTES} bytes of memory now and while training: "
                f"up to {self.max_types * TYPE_BYTES / 1e9:.1f} GB; corpus.max_types sets the bound"
            )
        return np.array(ids, dtype=np.uint32)

    def by_frequency(self) -> tuple[list[str], npt.NDArray[np.uint32]]:
        """The types by falling count, special ones first; and the new id of each id given so far."""
        ids = self._most_frequent()
        new = np.full(len(self._counts), UNKNOWN_TYPE, dtype=np.uint32)
        new[ids] = np.arange(len(ids), dtype=np.uint32)
        if len(ids) < len(new):
            self.report(f"{len(new) - len(ids):,} of the rarest types are read as <UNK>, to keep {len(ids):,}")
        words = dict(zip(self._ids.values(), self._ids, strict=True))
        return [words[index] for index in ids.tolist()], new

    def code_points(self) -> dict[str, float]:
        """How often each code point stands in the text, by the weighted counts of the types; it may be 0."""
        found: dict[str, float] = defaultdict(float)
        for word, index in self._ids.items():
            if index >= len(SPECIAL):
                for point in word:
                    found[point] += self._counts[index]
        return found

    def _give_up(self) -> None:
        """Forget the rarest types."""
        kept = np.zeros(len(self._counts), dtype=bool)
        kept[self._most_frequent()] = True
        self._ids = {word: index for word, index in self._ids.items() if kept[index]}

    def _most_frequent(self) -> npt.NDArray[np.int64]:
        """Ids of the types to keep, by falling count, of equal ones the first seen first."""
        counts = np.array(self._counts)
        counts[: len(SPECIAL)] = np.inf
        ids = np.fromiter(self._ids.values(), dtype=np.int64, count=len(self._ids))
        kept: npt.NDArray[np.int64] = ids[np.argsort(-counts[ids], kind="stable")][: self.max_types]
        return kept


class CorpusWriter:
    """One pass over the text in order of first sight, then a renumbering by frequency."""

    def __init__(self, recipe: CorpusRecipe, language: str | None, folder: Path, report: Callable[[str], None]) -> None:
        self.recipe, self.folder, self.report = recipe, folder, report
        self.tokenizer = None if recipe.tokenized else Tokenizer(language)
        self.types = TypeTable(recipe.max_types, report)
        # Eight bytes a sentence; with the types, all that grows with the text.
        self.offsets = {part: array("q", [0]) for part in PARTS}
        self.starts: dict[str, list[int]] = {part: [] for part in PARTS}

    def write(self, files: CorpusFiles, config: CharCNNConfig) -> None:
        """Write all files of a prepared corpus."""
        self.progress = Progress(files.size, self.report)
        with (self.folder / "train.raw").open("wb") as train, (self.folder / "held_out.raw").open("wb") as held_out:
            outputs = {"train": train, "held_out": held_out}
            for source, found in zip(self.recipe.sources, files.sources, strict=True):
                for part in PARTS:
                    self.starts[part].append(len(self.offsets[part]) - 1)
                share = 0.0 if files.held_out else self.recipe.held_out
                for file in found:
                    self._read(file, outputs, share=share, weight=source.weight)
            for file in (file for found in files.held_out for file in found):
                self._read(file, outputs, share=1.0, weight=0.0)
        if len(self.offsets["train"]) == 1:
            raise InputError("the corpus holds no sentence to train on")
        self.progress.say(0, self._news("read"))
        self._renumber(config)

    def _read(self, file: SourceFile, outputs: Mapping[str, BinaryIO], *, share: float, weight: float) -> None:
        """One file, its sentences shared out to the parts."""
        position = [0]
        for part, sentence in self._sentences(file, share, partial(position.__setitem__, 0)):
            ids = self.types.ids(sentence, weight if part == "train" else 0.0)
            outputs[part].write(ids.tobytes())
            self.offsets[part].append(self.offsets[part][-1] + len(ids))
            if self.progress.due():
                self.progress.say(position[0], self._news(f"reading {file.name}"))
        self.progress.done(file.path.stat().st_size)

    def _news(self, doing: str) -> str:
        num_sentences = sum(len(offsets) - 1 for offsets in self.offsets.values())
        num_tokens = sum(offsets[-1] for offsets in self.offsets.values()) - 2 * num_sentences
        rate = num_tokens / max(time.monotonic() - self.progress.start, 1e-9)
        return (
            f"{doing}: {num_sentences:,} sentences, {num_tokens:,} tokens, "
            f"{len(self.types):,} types, {rate:,.0f} tokens/s"
        )

    def _sentences(
        self, file: SourceFile, share: float, on_read: Callable[[int], None]
    ) -> Iterator[tuple[str, list[str]]]:
        """(part, tokens) of each sentence; the part is drawn for each document, or block of a long one."""
        block, position, part = 0, 0, ""
        for number, line in enumerate(file.paragraphs(on_read)):
            if not line:
                position = 0
                continue
            if position % BLOCK_LINES == 0:
                block = number
                part = _part(f"{file.name}:{block}", share)
            position += 1
            if self.tokenizer is None:
                yield part, split_tokens(line)
            else:
                for sentence in self.tokenizer.sentences(line):
                    yield part, sentence

    def _renumber(self, config: CharCNNConfig) -> None:
        """Number types by falling frequency, and write the tables."""
        types, new = self.types.by_frequency()
        for part, offsets in self.offsets.items():
            raw = self.folder / f"{part}.raw"
            with raw.open("rb") as source, (self.folder / f"{part}.tokens").open("wb") as target:
                while chunk := source.read(1 << 20):
                    target.write(new[np.frombuffer(chunk, dtype=np.uint32)].tobytes())
            raw.unlink()
            np.save(self.folder / f"{part}.offsets.npy", np.frombuffer(offsets, dtype=np.int64))
            starts = [*self.starts[part], len(offsets) - 1]
            np.save(self.folder / f"{part}.sources.npy", np.array(starts, dtype=np.int64))
        with (self.folder / "types.txt").open("wb") as file:
            file.writelines(f"{word}\n".encode("utf-8", "surrogatepass") for word in types)
        if self.recipe.alphabet_size:
            alphabet = self._alphabet(self.recipe.alphabet_size)
            (self.folder / ALPHABET_NAME).write_bytes(alphabet.encode("utf-8"))
            config = config.model_copy(update={"alphabet": alphabet})
        token_ids, width = TokenIds(config), config.max_characters_per_token
        characters = np.lib.format.open_memmap(
            self.folder / "characters.npy", mode="w+", dtype=np.int16, shape=(len(types), width)
        )
        for start in range(0, len(types), 10_000):
            characters[start : start + 10_000] = token_ids(types[start : start + 10_000])
        characters.flush()

    def _alphabet(self, size: int) -> str:
        """The most frequent code points of the text to train on, of equal ones the lower first."""
        counts = self.types.code_points()
        # A lone surrogate cannot stand in a configuration.
        found = [point for point, count in counts.items() if count > 0 and not "\ud800" <= point <= "\udfff"]
        alphabet = "".join(sorted(found, key=lambda point: (-counts[point], point))[:size])
        inside = sum(counts[point] for point in alphabet) / sum(counts.values())
        self.report(f"{len(alphabet):,} of {len(found):,} code points, {inside:.3%} of the text, have a vector each")
        return alphabet


def _part(name: str, share: float) -> str:
    """The part a block belongs to: a fixed function of its place, not of any seed."""
    draw = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8]) / 2**64
    return "held_out" if draw < share else "train"
