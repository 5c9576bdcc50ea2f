"""Text files to a prepared corpus: memory-mapped type ids, one row of character ids a type, the held-out part apart.

Preparing streams the text once and is cached under a hash of the settings and of the files' bytes. A *type* is a
distinct token; types are numbered by falling (weighted) frequency after the three special words, so that a type's id
is its word id for a softmax of any size. Takes lines from `elmokit.text`; `stream` reads the result.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from elmokit.config import BiLMConfig, CharCNNConfig
from elmokit.errors import ConfigError
from elmokit.text.lexicon import Lexicon
from elmokit.train.corpus_writer import ALPHABET_NAME, UNKNOWN_TYPE, CorpusFiles, CorpusWriter, Progress
from elmokit.train.recipe import CorpusRecipe
from elmokit.train.sources import find

FORMAT = 1  # part of the cache key: raise it when the files below change


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
        type_words: (types,) word id of each type for a softmax that has its words in another order; None where a
            type's id is its word id.
        alphabet: of the character ids, where the recipe asked to collect one.
    """

    train: Sentences
    held_out: Sentences
    types: tuple[str, ...]
    characters: npt.NDArray[np.int16]
    weights: tuple[float, ...]
    type_words: npt.NDArray[np.int64] | None = None
    alphabet: str | None = None

    def model(self, config: BiLMConfig) -> BiLMConfig:
        """A recipe's model as this corpus makes it: with the alphabet that was collected here."""
        if self.alphabet is None:
            return config
        return config.model_copy(update={"tokens": config.tokens.model_copy(update={"alphabet": self.alphabet})})

    def lexicon(self, size: int) -> Lexicon:
        """The most frequent words as a vocabulary of at most `size`, special words included."""
        return Lexicon(self.types[:size])

    def targets(self, types: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Type ids to word ids of a vocabulary of any size."""
        return types if self.type_words is None else self.type_words[types]

    def words(self, types: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """Type ids to word ids of a vocabulary of this size."""
        words = self.targets(types)
        return np.where(words < size, words, UNKNOWN_TYPE)


def prepare(
    recipe: CorpusRecipe,
    model: BiLMConfig,
    *,
    root: Path,
    cache: Path,
    report: Callable[[str], None] = lambda message: None,
) -> Corpus:
    """Prepare a corpus, or open it where that was done before; processes that want the same one wait for the first.

    Args:
        recipe: the files and how to read them.
        model: for the language and the width of a token.
        root: folder that relative paths start from.
        cache: folder of prepared corpora.
        report: called with a line of progress now and then.

    Raises:
        ConfigError: a file is missing, or the model has no characters, or an alphabet where one is to be collected.
        InputError: a file cannot be read as what it should be, or there is no text.
        MissingExtraError: what unpacks or reads a file is not installed.
    """
    if not isinstance(model.tokens, CharCNNConfig):
        raise ConfigError("training needs a model that reads characters (tokens.kind = 'char_cnn')")
    if recipe.alphabet_size and model.tokens.alphabet is not None:
        raise ConfigError("the model has an alphabet (model.tokens.alphabet); leave out corpus.alphabet_size")
    files = CorpusFiles(
        [find(source, root) for source in recipe.sources], [find(source, root) for source in recipe.held_out_sources]
    )
    folder = cache / _key(recipe, model, files, report)
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with _alone(cache / f".{folder.name}.lock", report):
            if not folder.exists():
                with _appearing(folder) as unfinished:
                    CorpusWriter(recipe, model.language, unfinished, report).write(files, model.tokens)
    return _open(folder, tuple(source.weight for source in recipe.sources))


@contextmanager
def _alone(path: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock between processes; the system takes it back from one that dies."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report("another process is preparing this corpus; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill that gets its name when it is whole; to be used by one process at a time."""
    unfinished = folder.with_suffix(".partial")
    if unfinished.exists():  # of a process that was killed
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    try:
        yield unfinished
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _key(recipe: CorpusRecipe, model: BiLMConfig, files: CorpusFiles, report: Callable[[str], None]) -> str:
    """A hash of all that the prepared files depend on; what is at its default adds nothing, so that old keys hold."""
    assert isinstance(model.tokens, CharCNNConfig)
    settings: dict[str, object] = {
        "format": FORMAT,
        "language": model.language,
        "width": model.tokens.max_characters_per_token,
        "tokenized": recipe.tokenized,
        "held_out": recipe.held_out,
        "weights": [source.weight for source in recipe.sources],
    }
    if recipe.max_types != CorpusRecipe.model_fields["max_types"].default:
        settings["max_types"] = recipe.max_types
    if recipe.alphabet_size:
        settings["alphabet_size"] = recipe.alphabet_size
    if model.tokens.alphabet is not None:
        settings["alphabet"] = model.tokens.alphabet
    counts = [len(found) for found in files.sources]
    if files.held_out or any(count > 1 for count in counts):
        settings["files"] = [counts, [len(found) for found in files.held_out]]
    if any(file.kind != "text" for file in files):
        settings["records"] = [(file.kind, file.field if file.kind != "text" else "") for file in files]
    if any("/" in file.name for file in files):
        settings["names"] = [file.name for file in files]
    digest = hashlib.sha256(json.dumps(settings).encode())
    progress = Progress(files.size, report)
    for file in files:
        own = hashlib.sha256()
        with file.path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                own.update(chunk)
                if progress.due():
                    progress.say(stream.tell(), f"hashing {file.name}")
        progress.done(file.path.stat().st_size)
        digest.update(own.digest())
    return digest.hexdigest()[:20]


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

    with (folder / "types.txt").open("rb") as lines:
        types = tuple(line[:-1].decode("utf-8", "surrogatepass") for line in lines)
    alphabet = folder / ALPHABET_NAME
    return Corpus(
        train=sentences("train"),
        held_out=sentences("held_out"),
        types=types,
        characters=np.load(folder / "characters.npy", mmap_mode="r"),
        weights=weights,
        alphabet=alphabet.read_bytes().decode("utf-8") if alphabet.exists() else None,
    )
