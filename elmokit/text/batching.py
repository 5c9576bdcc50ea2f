"""A stream of sentences to batches of like length, and results back to the order of the stream.

A batch's size is what the network pays for: sentences times the longest, boundaries included. Sentences are sorted only
within a look-ahead that is bounded in tokens, so that a stream of any length takes the same memory. Used by `embed`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from elmokit.errors import InputError
from elmokit.text.characters import SENTENCE_END, SENTENCE_START

LOOK_AHEAD: Final = 8  # batches that are cut together; more would pad less and hold more results back

S = TypeVar("S", bound=Sequence[str])
R = TypeVar("R")


def batches_by_tokens(sentences: Iterable[S], budget: int) -> Iterator[list[tuple[int, S]]]:
    """Cut a stream into batches.

    Args:
        sentences: of any number.
        budget: bound on B * (longest + 2), the tokens and boundaries that are computed for one batch; a sentence
            that is longer by itself is a batch by itself.

    Yields:
        (place in the stream, sentence) of each sentence of a batch; any place comes within a bounded distance of its
        turn, so that `in_order` holds few results back.

    Raises:
        InputError: the budget is not positive.
    """
    if budget < 1:
        raise InputError(f"the token budget of a batch is {budget}, expected 1 or more")
    return _cut(sentences, budget)


def in_order(results: Iterable[tuple[int, R]]) -> Iterator[R]:
    """Results that come as (place, result) in any order, by rising place, each as soon as its turn has come."""
    waiting: dict[int, R] = {}
    turn = 0
    for place, result in results:
        waiting[place] = result
        while turn in waiting:
            yield waiting.pop(turn)
            turn += 1
    assert not waiting, f"no result for place {turn}"


def distinct_tokens(
    sentences: Sequence[Sequence[str]],
) -> tuple[list[str], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The tokens of a batch, each once, so that each is encoded once.

    Args:
        sentences: B of them, without boundaries.

    Returns:
        U distinct tokens; (B, T) the number of each token among them, boundaries included, 0 beyond a sentence;
        (B,) lengths, boundaries included.
    """
    numbers: dict[str, int] = {SENTENCE_START: 0, SENTENCE_END: 1}
    lengths = np.array([_cost(sentence) for sentence in sentences], dtype=np.int64)
    places = np.zeros((len(sentences), int(lengths.max(initial=0))), dtype=np.int64)
    for row, sentence in zip(places, sentences, strict=True):
        row[1 : len(sentence) + 1] = [numbers.setdefault(token, len(numbers)) for token in sentence]
        row[len(sentence) + 1] = numbers[SENTENCE_END]
    return list(numbers), places, lengths


def _cut(sentences: Iterable[S], budget: int) -> Iterator[list[tuple[int, S]]]:
    window: list[tuple[int, S]] = []
    size = 0
    for place, sentence in enumerate(sentences):
        window.append((place, sentence))
        size += _cost(sentence)
        if size >= LOOK_AHEAD * budget:
            yield from _cut_window(window, budget)
            window, size = [], 0
    yield from _cut_window(window, budget)


def _cut_window(window: list[tuple[int, S]], budget: int) -> Iterator[list[tuple[int, S]]]:
    """Batches of a window by rising length, so that the sentence last added is a batch's longest."""
    batch: list[tuple[int, S]] = []
    for item in sorted(window, key=lambda item: len(item[1])):
        if batch and (len(batch) + 1) * _cost(item[1]) > budget:
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _cost(sentence: Sequence[str]) -> int:
    """Tokens and both boundaries."""
    return len(sentence) + 2
