"""Shortcuts of the character CNN: columns that are left out, tokens taken in parts."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import CharCNNConfig
from elmokit.model import char_cnn
from elmokit.model.char_cnn import CharCNN
from elmokit.text.characters import tokens_to_ids


def make(filters=((1, 3), (2, 3), (4, 2)), **options):
    torch.manual_seed(0)
    cnn = CharCNN(CharCNNConfig(embedding_dim=3, filters=filters, **options), 5).eval().double()
    for parameter in cnn.parameters():
        torch.nn.init.normal_(parameter, 0, 0.8)
    return cnn


class Untrimmed(CharCNN):
    def _lengths(self, tokens):
        return torch.full((len(tokens),), tokens.shape[1])


@torch.no_grad()
@given(st.lists(st.text(max_size=14), min_size=1, max_size=5), st.sampled_from([4, 9, 12, 50]))
def test_leaving_out_columns_of_padding_is_exact(tokens, width):
    cnn = make(max_characters_per_token=width)
    ids = torch.from_numpy(tokens_to_ids(tokens, width)).unsqueeze(0)
    trimmed = cnn(ids)
    cnn.__class__ = Untrimmed
    assert (trimmed - cnn(ids)).abs().max() < 1e-13


@torch.no_grad()
@given(st.lists(st.lists(st.integers(0, 261) | st.just(261), min_size=9, max_size=9), min_size=1, max_size=4))
def test_leaving_out_columns_is_exact_for_any_ids_at_all(rows):
    cnn = make(max_characters_per_token=9)
    ids = torch.tensor([rows])
    trimmed = cnn(ids)
    cnn.__class__ = Untrimmed
    assert (trimmed - cnn(ids)).abs().max() < 1e-13


def test_a_part_of_short_tokens_is_convolved_without_the_columns_of_a_long_one(monkeypatch):
    monkeypatch.setattr(char_cnn, "TOKENS_AT_ONCE", 2)
    cnn = make()
    seen = []
    cnn.convolutions[2].register_forward_hook(lambda _, inputs, __: seen.append(inputs[0].shape[2]))
    cnn(torch.from_numpy(tokens_to_ids(["x" * 60, "ab", "c"], 50)).unsqueeze(0))
    assert seen == [4 + 4, 50]  # two characters, two markers and the filter; the long token by itself
    seen.clear()
    cnn(torch.zeros(1, 2, 50, dtype=torch.long))
    assert seen == [4]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200).map(sorted))
def test_blocks_convolve_few_windows_in_vain(lengths):
    sizes = char_cnn.blocks(lengths)
    assert sum(sizes) == len(lengths)
    assert min(sizes) > 0
    start = 0
    for size in sizes:
        block = lengths[start : (start := start + size)]
        assert sum(block[-1] - length for length in block) <= char_cnn.SPARE_WINDOWS
        if start < len(lengths):  # the next token did not fit in
            assert sum(lengths[start] - length for length in block) > char_cnn.SPARE_WINDOWS


@pytest.mark.parametrize("tokens", [[], ["a"], ["x" * 60, "ab", "c", "", "x" * 70, "漢字", "."] * 30])
def test_vectors_without_gradients_are_those_of_training(tokens):
    cnn = make()
    ids = torch.from_numpy(tokens_to_ids(tokens, 50)).unsqueeze(0)
    trained = cnn(ids)
    assert trained.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(cnn(ids), trained, atol=1e-13, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_has_the_same_bits_whatever_tokens_come_along(threads):
    torch.manual_seed(0)
    cnn = CharCNN(CharCNNConfig(embedding_dim=16, filters=((1, 32), (2, 32), (3, 64), (7, 128))), 64).eval()
    tokens = ["the", "x" * 60, "a", "naïve", "", "漢字", ".", *(f"word{number}" * (number % 4) for number in range(99))]
    ids = torch.from_numpy(tokens_to_ids(tokens, 50))
    order = torch.randperm(len(tokens))
    torch.set_num_threads(threads)
    try:
        together = cnn(ids.unsqueeze(0))[0]
        mixed = cnn(ids[order].unsqueeze(0))[0]
        alone = [cnn(ids[number].view(1, 1, -1))[0, 0] for number in range(7)]
    finally:
        torch.set_num_threads(1)
    assert torch.equal(mixed, together[order])
    assert torch.equal(torch.stack(alone), together[:7])


@torch.no_grad()
@pytest.mark.parametrize("at_once", [1, 2, 5, 6])
def test_tokens_taken_in_parts_give_the_same(at_once, monkeypatch):
    cnn = make()
    ids = torch.from_numpy(tokens_to_ids(["a", "longer", "", "x" * 70, "漢字", "."], 50)).view(2, 3, 50)
    whole = cnn(ids)
    monkeypatch.setattr(char_cnn, "TOKENS_A_TASK", at_once)
    torch.testing.assert_close(cnn(ids), whole, atol=1e-13, rtol=0)


@torch.no_grad()
def test_a_place_without_a_token_is_zero_and_padding_characters_are_learned():
    cnn = make()
    ids = torch.from_numpy(tokens_to_ids(["a", "b"], 50)).unsqueeze(0)
    ids[0, 1] = 0
    before = cnn(ids)
    assert (before[0, 1] == 0).all()
    assert (before[0, 0] != 0).any()
    cnn.embedding[260] += 5
    assert (cnn(ids)[0, 0] != before[0, 0]).any()


@torch.no_grad()
def test_id_zero_within_a_token_is_a_zero_vector_and_no_learned_one():
    cnn = make()
    ids = torch.from_numpy(tokens_to_ids(["abc"], 50)).unsqueeze(0)
    known = ids.clone()
    ids[0, 0, 2] = 0
    cnn.embedding[ord("b")] = 0
    assert torch.equal(cnn(ids), cnn(known))


def test_there_is_no_projection_where_the_filters_have_the_right_sum():
    assert CharCNN(CharCNNConfig(filters=((1, 2), (2, 3))), 5).projection is None
    assert CharCNN(CharCNNConfig(filters=((1, 2), (2, 3))), 6).projection is not None
