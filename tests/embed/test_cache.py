"""Token vectors that are kept: each made once, nobody can tell, bounded, dropped when the weights change."""

import copy
import pickle
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import CharCNNConfig
from elmokit.embed import cache
from elmokit.embed.cache import TokenVectors
from elmokit.embed.embedder import Embedder
from elmokit.model.char_cnn import CharCNN
from elmokit.text.token_ids import TokenIds

CONFIG = CharCNNConfig(embedding_dim=16, filters=((1, 16), (2, 32)), num_highways=1, max_characters_per_token=20)


class Counting(CharCNN):
    """Remembers how many tokens it has encoded."""

    encoded = 0

    def forward(self, ids):
        self.encoded += ids.shape[1]
        return super().forward(ids)


def make():
    torch.manual_seed(5)
    encoder = Counting(CONFIG, 32).eval()
    return encoder, TokenVectors(encoder, TokenIds(CONFIG))


def fresh(encoder, tokens):
    return TokenVectors(encoder, TokenIds(CONFIG))(tokens)


TOKENS = st.lists(st.text("abcdefgh", max_size=3), min_size=1, max_size=30, unique=True)


@given(st.lists(TOKENS, min_size=1, max_size=6), st.sampled_from([0, 1, 7, 1000]), st.sampled_from([2, 1000]))
def test_nobody_can_tell_where_a_vector_comes_from(calls, kept, at_once):
    encoder, vectors = make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "KEPT_TOKENS", kept)
        patch.setattr(cache, "TOKENS_AT_ONCE", at_once)
        for tokens in calls:
            assert torch.equal(vectors(tokens), fresh(encoder, tokens))
            assert len(vectors._places) <= kept


def test_a_token_is_encoded_once():
    encoder, vectors = make()
    vectors(["a", "b", "c"])
    vectors(["b", "d", "a"])
    vectors(["d", "c"])
    assert encoder.encoded == 4


def test_those_longest_unused_make_room_for_others(monkeypatch):
    monkeypatch.setattr(cache, "KEPT_BYTES", 3 * 32 * 4)
    encoder, vectors = make()
    vectors(["a", "b", "c"])
    vectors(["a"])
    vectors(["d"])
    assert set(vectors._places) == {"c", "a", "d"}
    assert len(vectors._table) == 3
    vectors(["e", "f", "g", "h"])
    assert set(vectors._places) == {"f", "g", "h"}
    before = encoder.encoded
    vectors(["f", "g", "h"])
    assert encoder.encoded == before


@pytest.mark.parametrize("change", ["in place", "by data", "another tensor", "another place", "dtype", "buffer"])
def test_weights_that_change_are_noticed(change):
    encoder, vectors = make()
    tokens = ["a", "few", "words"]
    if change == "buffer":
        encoder.register_buffer("scale", torch.ones(1))
        encoder.register_forward_hook(lambda module, _, output: output * module.scale)
    before = vectors(tokens)
    weight = encoder.projection.weight
    with torch.no_grad():
        if change == "in place":
            weight.mul_(2)
        elif change == "by data":
            weight.data.mul_(2)
        elif change == "another tensor":
            encoder.projection.weight = torch.nn.Parameter(2 * weight)
        elif change == "another place":
            weight.data = 2 * weight
        elif change == "dtype":
            encoder.to(torch.bfloat16)
        else:
            encoder.scale.mul_(2)
    after = vectors(tokens)
    assert not torch.equal(after, before)
    assert torch.equal(after, fresh(encoder, tokens))


def test_autocast_has_vectors_of_its_own():
    encoder, vectors = make()
    exact = vectors(["a", "b"])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = vectors(["a", "b"])
        assert torch.equal(rounded, fresh(encoder, ["a", "b"]))
    assert not torch.equal(rounded.float(), exact)
    assert torch.equal(vectors(["a", "b"]), exact)


def test_copies_begin_empty():
    encoder, vectors = make()
    expected = vectors(["a"])
    for other in (copy.deepcopy(vectors), pickle.loads(pickle.dumps(vectors))):
        assert not other._places
        assert other._encoder is not encoder
        assert torch.equal(other(["a"]), expected)


def test_threads_may_share_it():
    encoder, vectors = make()
    lists = [[f"w{number * step % 211}" for number in range(40)] for step in range(1, 30)]
    lists = [list(dict.fromkeys(tokens)) for tokens in lists]
    expected = [fresh(encoder, tokens) for tokens in lists]
    wrong = []

    def work(offset):
        for number in range(len(lists)):
            at = (number * 7 + offset) % len(lists)
            if not torch.equal(vectors(lists[at]), expected[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_embedder_sees_weights_that_change_between_two_sentences(tiny_bilm):
    embedder = Embedder(tiny_bilm, max_tokens_per_batch=1)
    sentences = [["a", "word"]] * 40
    stream = embedder.stream(sentences, 0)
    first = next(stream).vectors
    with torch.no_grad():
        tiny_bilm.token_encoder.projection.bias.add_(1.0)
    *_, last = stream
    np.testing.assert_allclose(last.vectors, first + 1, atol=1e-6)
