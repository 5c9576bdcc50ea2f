"""Text files to a prepared corpus: memory-mapped type ids, one row of character ids a type, the held-out part apart.

Preparing streams the text once and is cached under a hash of the settings and of the files' bytes. A *type* is a
distinct token; types are numbered by falling (weighted) frequency after the three special words, so that a type's id
is its word id for a softmax of any size. Takes lines from `elmokit.text`; `stream` reads the result.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elmokit.config import BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError, InputError
from elmokit.text.characters import SENTENCE_END, SENTENCE_START, tokens_to_ids
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.text.sentences import read_lines, split_tokens
from elmokit.text.tokens import Tokenizer
from elmokit.train.recipe import CorpusRecipe

FORMAT = 1  # part of the cache key: raise it when the files below change
BLOCK_LINES = 200  # text is held out by documents, long ones by blocks of this many lines
SENTENCE_START_TYPE, SENTENCE_END_TYPE, UNKNOWN_TYPE = range(3)


@dataclass(frozen=True)
class Sentences:
    """Sentences as type ids, boundaries included.

    Attributes:
        tokens: (N,) uint32 type ids, memory-mapped, sentence after sentence.
        offsets: (S + 1,) int64, where each sentence starts.
        sources: (R + 1,) int64, at which sentence each source starts.
    """

    tokens: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> npt.NDArray[np.uint32]:
        """(T,) the type ids of one sentence."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]


@dataclass(frozen=True)
class Corpus:
    """A prepared corpus.

    Attributes:
        train: what is trained on.
        held_out: what perplexity is measured on.
        types: all tokens that occur, by id.
        characters: (types, C) int16 character ids, memory-mapped.
        weights: of each source.
    """

    train: Sentences
    held_out: Sentences
    types: tuple[str, ...]
    characters: npt.NDArray[np.int16]
    weights: tuple[float, ...]

    def lexicon(self, size: int) -> Lexicon:
        """The most frequent words as a vocabulary of at most `size`, special words included."""
        return Lexicon(self.types[:size])

    def words(self, types: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """Type ids to word ids of a vocabulary of this size."""
        return np.where(types < size, types, UNKNOWN_TYPE)


def prepare(
    recipe: CorpusRecipe,
    model: BiLMConfig,
    *,
    root: Path,
    cache: Path,
    report: Callable[[str], None] = lambda message: None,
) -> Corpus:
    """Prepare a corpus, or open it where that was done before.

    Args:
        recipe: the files and how to read them.
        model: for the language and the width of a token.
        root: folder that relative paths start from.
        cache: folder of prepared corpora.
        report: called with a line of progress now and then.

    Raises:
        ConfigError: a file is missing, or the model has no characters.
        InputError: a byte is not UTF-8, or there is no text.
    """
    if not isinstance(model.tokens, CharCNNConfig):
        raise ConfigError("training needs a model that reads characters (tokens.kind = 'char_cnn')")
    sources = [_files(source.files, root) for source in recipe.sources]
    key = _key(recipe, model, sources, report)
    folder = cache / key
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{key}-", dir=cache) as temporary:
            _Writer(recipe, model.language, Path(temporary), report).write(sources, model.tokens)
            shutil.copytree(temporary, folder.with_suffix(".partial"), dirs_exist_ok=True)
        folder.with_suffix(".partial").rename(folder)
    return _open(folder, tuple(source.weight for source in recipe.sources))


def _files(pattern: str, root: Path) -> list[Path]:
    """The files of a source, in name order."""
    path = root / pattern
    files = (
        [path]
        if path.is_file()
        else sorted(p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file())
    )
    if not files:
        raise ConfigError(f"no file matches {pattern!r} (looked from {root})")
    return files


def _key(recipe: CorpusRecipe, model: BiLMConfig, sources: list[list[Path]], report: Callable[[str], None]) -> str:
    """A hash of all that the prepared files depend on."""
    assert isinstance(model.tokens, CharCNNConfig)
    digest = hashlib.sha256()
    settings = {
        "format": FORMAT,
        "language": model.language,
        "width": model.tokens.max_characters_per_token,
        "tokenized": recipe.tokenized,
        "held_out": recipe.held_out,
        "weights": [source.weight for source in recipe.sources],
    }
    digest.update(json.dumps(settings).encode())
    for file in (file for files in sources for file in files):
        report(f"hashing {file.name}")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()[:20]


class _Writer:
    """One pass over the text in order of first sight, then a renumbering by frequency."""

    def __init__(self, recipe: CorpusRecipe, language: str | None, folder: Path, report: Callable[[str], None]) -> None:
        self.recipe, self.folder, self.report = recipe, folder, report
        self.tokenizer = None if recipe.tokenized else Tokenizer(language)
        self.types = {word: index for index, word in enumerate(SPECIAL)}
        self.counts = [0.0] * len(SPECIAL)
        self.lengths: dict[str, list[int]] = {"train": [], "held_out": []}
        self.starts: dict[str, list[int]] = {"train": [], "held_out": []}

    def write(self, sources: list[list[Path]], config: CharCNNConfig) -> None:
        """Write all files of a prepared corpus."""
        with (self.folder / "train.raw").open("wb") as train, (self.folder / "held_out.raw").open("wb") as held_out:
            outputs = {"train": train, "held_out": held_out}
            for source, files in zip(self.recipe.sources, sources, strict=True):
                for part, lengths in self.lengths.items():
                    self.starts[part].append(len(lengths))
                for file in files:
                    for part, sentence in self._sentences(file):
                        ids = self._ids(sentence, source.weight if part == "train" else 0.0)
                        outputs[part].write(ids.tobytes())
                        self.lengths[part].append(len(ids))
                    total = sum(len(lengths) for lengths in self.lengths.values())
                    self.report(f"read {file.name}: {total:,} sentences, {len(self.types):,} types so far")
        if not self.lengths["train"]:
            raise InputError("the corpus holds no sentence to train on")
        self._renumber(config)

    def _sentences(self, file: Path) -> Iterator[tuple[str, list[str]]]:
        """(part, tokens) of each sentence; the part is drawn for each document, or block of a long one."""
        block, position, document = 0, 0, ""
        for number, line in enumerate(read_lines(file)):
            if not line.strip():
                position = 0
                continue
            if position % BLOCK_LINES == 0:
                block = number
            position += 1
            document = self._part(f"{file.name}:{block}")
            if self.tokenizer is None:
                yield document, split_tokens(line)
            else:
                for sentence in self.tokenizer.sentences(line):
                    yield document, sentence

    def _part(self, name: str) -> str:
        """The part a block belongs to: a fixed function of its place, not of any seed."""
        draw = int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8]) / 2**64
        return "held_out" if draw < self.recipe.held_out else "train"

    def _ids(self, sentence: list[str], weight: float) -> npt.NDArray[np.uint32]:
        """Provisional type ids of a sentence with its boundaries."""
        types, counts = self.types, self.counts
        ids = [SENTENCE_START_TYPE]
        for token in sentence:
            index = types.get(token)
            if index is None:
                index = types[token] = len(counts)
                counts.append(0.0)
            counts[index] += weight
            ids.append(index)
        ids.append(SENTENCE_END_TYPE)
        return np.array(ids, dtype=np.uint32)

    def _renumber(self, config: CharCNNConfig) -> None:
        """Number types by falling frequency, and write the tables."""
        counts = np.array(self.counts)
        counts[: len(SPECIAL)] = np.inf
        order = np.argsort(-counts, kind="stable")
        new = np.empty(len(order), dtype=np.uint32)
        new[order] = np.arange(len(order), dtype=np.uint32)
        for part, lengths in self.lengths.items():
            raw = self.folder / f"{part}.raw"
            with raw.open("rb") as source, (self.folder / f"{part}.tokens").open("wb") as target:
                while chunk := source.read(1 << 24):
                    target.write(new[np.frombuffer(chunk, dtype=np.uint32)].tobytes())
            raw.unlink()
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
            np.save(self.folder / f"{part}.offsets.npy", offsets)
            np.save(self.folder / f"{part}.sources.npy", np.array([*self.starts[part], len(lengths)], dtype=np.int64))
        words = list(self.types)
        types = [words[index] for index in order]
        Lexicon(types).write(self.folder / "types.txt")
        width = config.max_characters_per_token
        characters = np.lib.format.open_memmap(
            self.folder / "characters.npy", mode="w+", dtype=np.int16, shape=(len(types), width)
        )
        for start in range(0, len(types), 10_000):
            characters[start : start + 10_000] = tokens_to_ids(types[start : start + 10_000], width)
        characters.flush()


def _open(folder: Path, weights: tuple[float, ...]) -> Corpus:
    """Map the files of a prepared corpus."""

    def sentences(part: str) -> Sentences:
        file = folder / f"{part}.tokens"
        empty = file.stat().st_size == 0
        return Sentences(
            tokens=np.empty(0, np.uint32) if empty else np.memmap(file, dtype=np.uint32, mode="r"),
            offsets=np.load(folder / f"{part}.offsets.npy"),
            sources=np.load(folder / f"{part}.sources.npy"),
        )

    return Corpus(
        train=sentences("train"),
        held_out=sentences("held_out"),
        types=Lexicon.read(folder / "types.txt").words,
        characters=np.load(folder / "characters.npy", mmap_mode="r"),
        weights=weights,
    )


assert SPECIAL[:2] == (SENTENCE_START, SENTENCE_END)
