"""Batches of a prepared corpus: contiguous rows of shuffled sentences, read forwards and backwards.

As in bilm-tf, sentences are shuffled, each row is one long stream of them, and the backward stream holds the same
sentences, each reversed. A batch is a pure function of seed, epoch and place, so a run can go on from a step number,
and the rows of a batch can be shared out between processes.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.errors import TrainingError
from elmokit.train.corpus import Corpus

Ids = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """One step of training.

    Attributes:
        characters: (U, C) character ids of the distinct types of this batch.
        forward: (B, T) row of `characters` for each token of the forward stream.
        forward_targets: (B, T) word id of the token that comes next, in a vocabulary of any size.
        backward: (B, T) the same for the backward stream.
        backward_targets: (B, T) the same of the token that came before.
    """

    characters: Tensor
    forward: Tensor
    forward_targets: Tensor
    backward: Tensor
    backward_targets: Tensor


class Stream:
    """All batches of a run, by step number."""

    def __init__(self, corpus: Corpus, *, rows: int, window: int, seed: int, rank: int = 0, num_ranks: int = 1) -> None:
        """Args:
        corpus: what to read.
        rows: contiguous streams over all processes (B).
        window: tokens of each stream in a step (T).
        seed: of the order of sentences.
        rank: which share of the rows this process takes.
        num_ranks: processes.

        Raises:
            TrainingError: the corpus is too small for one step, or rows cannot be shared out evenly.
        """
        if rows % num_ranks:
            raise TrainingError(f"{rows} rows cannot be shared out to {num_ranks} processes; choose a multiple")
        self.corpus, self.window, self.seed = corpus, window, seed
        self.rows = range(rank * rows // num_ranks, (rank + 1) * rows // num_ranks)
        self._num_rows = rows
        self._epoch = -1
        self.tokens_per_epoch = int(self._lengths(self._draw(0)).sum())
        self.steps_per_epoch = (self.tokens_per_epoch // rows - 1) // window
        if self.steps_per_epoch < 1:
            raise TrainingError(
                f"the corpus has {self.tokens_per_epoch:,} tokens, too few for {rows} rows of {window} tokens and one "
                f"to predict; take fewer rows (at most {max(1, self.tokens_per_epoch // (window + 1))})"
            )

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = self._draw(epoch)
            self._ends = np.cumsum(self._lengths(self._order))
            self._epoch = epoch
        row_length = int(self._ends[-1]) // self._num_rows
        starts = np.array(self.rows, dtype=np.int64) * row_length + index * self.window
        # Epochs differ a little in length where a source has a fractional weight: the last row may wrap around.
        positions = (starts[:, None] + np.arange(self.window + 1)) % self._ends[-1]  # (B, T + 1)
        forward, backward = self._types(positions)
        inputs = np.stack([forward[:, :-1], backward[:, :-1]])
        types, places = np.unique(inputs, return_inverse=True)
        places = places.reshape(inputs.shape)
        characters = self.corpus.characters[types].astype(np.int64)
        targets = self.corpus.targets(forward[:, 1:]), self.corpus.targets(backward[:, 1:])
        arrays = characters, places[0], targets[0], places[1], targets[1]
        return Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays))

    def _types(self, positions: Ids) -> tuple[Ids, Ids]:
        """Positions in the epoch's stream to type ids there, with each sentence as it is and reversed."""
        sentence = np.searchsorted(self._ends, positions, side="right")
        source = self._order[sentence]
        offsets = self.corpus.train.offsets
        start, end = offsets[source], offsets[source + 1]
        inside = positions - (self._ends[sentence] - (end - start))
        tokens = self.corpus.train.tokens
        return tokens[start + inside].astype(np.int64), tokens[end - 1 - inside].astype(np.int64)

    def _draw(self, epoch: int) -> Ids:
        """The sentences of an epoch in order: each source as often as its weight says, shuffled together."""
        generator = np.random.default_rng([self.seed, epoch])
        parts = []
        bounds = self.corpus.train.sources
        for start, end, weight in zip(bounds[:-1], bounds[1:], self.corpus.weights, strict=True):
            whole, fraction = divmod(weight, 1)
            parts += [np.arange(start, end)] * int(whole)
            parts.append(start + generator.permutation(end - start)[: round(fraction * (end - start))])
        order = np.concatenate(parts)
        generator.shuffle(order)
        return order

    def _lengths(self, order: Ids) -> Ids:
        """Tokens of each of these sentences."""
        lengths: Ids = np.diff(self.corpus.train.offsets)[order]
        return lengths
