"""Batches from a prepared corpus."""

from collections import Counter

import numpy as np
import pytest

from elmokit.errors import TrainingError
from elmokit.train.stream import Stream


@pytest.fixture
def corpus(corpus_of):
    draw = np.random.default_rng(0)
    return corpus_of([np.array([0, *draw.integers(3, 40, draw.integers(1, 9)), 1]) for _ in range(300)])


def rows_of(stream, field, steps):
    """(B, steps x T) what a field of the batches spells, as type ids."""
    parts = []
    for step in range(steps):
        batch = stream.batch(step)
        values = getattr(batch, field).numpy()
        parts.append(values if field.endswith("targets") else batch.characters.numpy()[values, 0])
    return np.concatenate(parts, axis=1)


def split(row):
    """The whole sentences within a stream of type ids."""
    sentences, current = [], None
    for value in row.tolist():
        if value == 0:
            current = []
        elif value == 1 and current is not None:
            sentences.append(tuple(current))
        elif current is not None:
            current.append(value)
    return sentences


def test_a_row_is_contiguous_and_targets_are_the_next_token(corpus):
    stream = Stream(corpus, rows=3, window=4, seed=1)
    inputs = rows_of(stream, "forward", stream.steps_per_epoch)
    targets = rows_of(stream, "forward_targets", stream.steps_per_epoch)
    assert (inputs[:, 1:] == targets[:, :-1]).all()


def test_an_epoch_holds_every_sentence_at_most_once_and_nearly_all_of_them(corpus):
    stream = Stream(corpus, rows=3, window=4, seed=1)
    found = [s for row in rows_of(stream, "forward", stream.steps_per_epoch) for s in split(row)]
    given = Counter(tuple(corpus.train[k][1:-1].tolist()) for k in range(300))
    assert len(found) > 290
    assert Counter(found) <= given


def test_the_backward_stream_holds_the_same_sentences_reversed(corpus):
    stream = Stream(corpus, rows=2, window=5, seed=2)
    forward = [s for row in rows_of(stream, "forward", stream.steps_per_epoch) for s in split(row)]
    backward = rows_of(stream, "backward", stream.steps_per_epoch)
    swapped = np.where(backward == 0, 1, np.where(backward == 1, 0, backward))
    found = {tuple(reversed(s)) for row in swapped for s in split(row)}
    assert len(found & set(forward)) > 280


def test_epochs_differ_in_order_and_the_same_step_is_the_same_batch(corpus):
    stream = Stream(corpus, rows=2, window=5, seed=3)
    n = stream.steps_per_epoch
    late, first = stream.batch(n + 2), stream.batch(2)
    again = Stream(corpus, rows=2, window=5, seed=3)
    for a, b in zip(late, again.batch(n + 2), strict=True):
        assert (a == b).all()
    assert not np.array_equal(late.forward_targets, first.forward_targets)


def test_processes_share_out_the_rows_of_one_batch(corpus):
    whole = Stream(corpus, rows=4, window=5, seed=4).batch(3)
    parts = [Stream(corpus, rows=4, window=5, seed=4, rank=rank, num_ranks=2).batch(3) for rank in range(2)]
    joined = np.concatenate([part.backward_targets for part in parts])
    assert (joined == whole.backward_targets.numpy()).all()


def test_weights_say_how_often_a_sentence_comes(corpus_of):
    sentences = [np.array([0, 10 + k, 1]) for k in range(40)]
    stream = Stream(corpus_of(sentences, [0, 20, 40], (2.0, 0.5)), rows=1, window=3, seed=0)
    counts = np.bincount(rows_of(stream, "forward", stream.steps_per_epoch).ravel(), minlength=50)[10:]
    assert 38 <= counts[:20].sum() <= 40 and counts[:20].max() == 2
    assert 9 <= counts[20:].sum() <= 10 and counts[20:].max() == 1


def test_a_corpus_too_small_for_one_step_says_how_many_rows_would_do(corpus):
    with pytest.raises(TrainingError, match="at most"):
        Stream(corpus, rows=10_000, window=20, seed=0)


def test_rows_that_cannot_be_shared_out_are_refused(corpus):
    with pytest.raises(TrainingError, match="3 rows cannot be shared out to 2"):
        Stream(corpus, rows=3, window=5, seed=0, num_ranks=2)
