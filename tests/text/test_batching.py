"""Batches by token budget: within the budget, all there, and back in order with little held back."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import InputError
from elmokit.text.batching import LOOK_AHEAD, batches_by_tokens, in_order

lengths = st.lists(st.integers(0, 60), max_size=200)


@given(lengths, st.integers(1, 120))
def test_every_sentence_is_in_one_batch_and_no_batch_of_several_exceeds_the_budget(lengths, budget):
    sentences = [["x"] * length for length in lengths]
    batches = list(batches_by_tokens(sentences, budget))
    assert sorted(place for batch in batches for place, _ in batch) == list(range(len(sentences)))
    for batch in batches:
        assert batch
        assert all(sentence is sentences[place] for place, sentence in batch)
        assert len(batch) == 1 or len(batch) * (max(len(s) for _, s in batch) + 2) <= budget


@given(lengths, st.integers(1, 120))
def test_results_come_back_in_the_order_of_the_stream(lengths, budget):
    batches = batches_by_tokens([["x"] * length for length in lengths], budget)
    assert list(in_order((place, len(s)) for batch in batches for place, s in batch)) == lengths


def test_an_endless_stream_gives_batches_and_ordered_results():
    read = itertools.count()
    sentences = (["x"] * (next(read) % 7) for _ in itertools.repeat(None))
    batches = batches_by_tokens(sentences, 50)
    results = in_order((place, place) for batch in batches for place, _ in batch)
    assert list(itertools.islice(results, 1000)) == list(range(1000))
    assert next(read) <= 1000 + LOOK_AHEAD * 50


def test_lengths_that_alternate_are_sorted_apart():
    sentences = [["x"] * (1 if i % 2 else 98) for i in range(40)]
    padded = sum(len(b) * (max(len(s) for _, s in b) + 2) for b in batches_by_tokens(sentences, 1000))
    real = sum(len(s) + 2 for s in sentences)
    assert padded < 1.1 * real


@pytest.mark.parametrize("budget", [0, -1])
def test_a_budget_that_holds_nothing_is_refused_at_once(budget):
    with pytest.raises(InputError, match="budget"):
        batches_by_tokens([], budget)
