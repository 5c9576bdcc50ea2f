"""Sentences in, arrays out: shapes, independence of neighbours and of history, layers by name, and clear refusals."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit import kernel
from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.embed.embedder import DEFAULT_MODEL, EmbeddedSentence, Embedder, load
from elmokit.errors import ConfigError, InputError, WeightsError
from elmokit.model.build import build_bilm
from elmokit.text.characters import sentences_to_ids
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import available_models, save_bilm

A = ["The", "cat", "sat", "."]
B = ["你好", ",", "naïve", "world", "", "!"]
LONG = [f"word{number % 97}" for number in range(700)]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Threads that wait for each other on a busy machine make small models many times slower."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_bilm(*, dropout=0.0, num_layers=2, tokens=None, projection_dim=8):
    config = BiLMConfig(
        tokens=tokens or CharCNNConfig(embedding_dim=4, filters=((1, 4), (2, 6), (3, 8))),
        encoder=EncoderConfig(projection_dim=projection_dim, cell_dim=16, num_layers=num_layers),
    )
    with torch.random.fork_rng():
        torch.manual_seed(7)
        bilm = build_bilm(config, dropout=dropout)
        for parameter in bilm.parameters():  # far enough from zero that a mistake shows
            torch.nn.init.normal_(parameter, std=0.5)
    return bilm.eval()


@pytest.fixture(scope="module")
def embedder():
    return Embedder(make_bilm())


def plain(bilm, tokens):
    """All layers by the network's own way from ids, without batches or tables of distinct tokens."""
    ids, lengths = sentences_to_ids([tokens], bilm.config.tokens.max_characters_per_token)
    with torch.no_grad():
        output = bilm(torch.from_numpy(ids), torch.from_numpy(lengths))
    return torch.stack(output.layers)[:, 0, 1:-1].numpy()


def test_vectors_are_those_of_the_network(embedder):
    sentences = [A, B, LONG, [], ["<S>", "</S>", "x" * 200, "\ud800"]]
    for vectors, sentence in zip(embedder.embed(sentences), sentences, strict=True):
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(vectors, plain(embedder.bilm, sentence), atol=1e-5)


# R02, R03: no state is carried from one call to the next
def test_a_sentence_gives_bit_identical_vectors_when_repeated(embedder):
    first = embedder.embed([A, B, LONG])
    embedder.embed([B, ["something", "else"]])
    for one, other in zip(first, embedder.embed([A, B, LONG]), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_fresh_embedder_and_a_used_one_agree_to_the_bit():
    # Products of fewer than 9 columns round by where a row stands.
    used, fresh = (Embedder(make_bilm(projection_dim=12)) for _ in range(2))
    for _ in range(5):
        used.embed([LONG, B])
    np.testing.assert_array_equal(used.embed([A])[0], fresh.embed([A])[0])


# R04: neighbours, place and batch size make no difference
words = st.text(st.characters(), max_size=8)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(words, max_size=12), max_size=12), st.integers(1, 200))
def test_neighbours_and_budget_make_no_difference(others, budget):
    alone = Embedder(BILM).embed([A])[0]
    crowd = Embedder(BILM, max_tokens_per_batch=budget)
    for place in {0, len(others) // 2, len(others)}:
        vectors = crowd.embed([*others[:place], A, *others[place:]])
        assert [v.shape for v in vectors] == [(3, len(s), 16) for s in [*others[:place], A, *others[place:]]]
        np.testing.assert_allclose(vectors[place], alone, atol=1e-5)


BILM = make_bilm()


def test_a_very_long_neighbour_makes_no_difference(embedder):
    np.testing.assert_allclose(embedder.embed([A, LONG, A])[2], embedder.embed([A])[0], atol=1e-5)


# R05: no dropout, whatever the model's mode, which stays what it was
def test_extraction_never_applies_dropout_and_leaves_the_mode_alone():
    bilm = make_bilm(dropout=0.5)
    expected = Embedder(bilm).embed([A])[0]
    bilm.train()
    bilm.backward_encoder.eval()
    before = [module.training for module in bilm.modules()]
    np.testing.assert_array_equal(Embedder(bilm).embed([A])[0], expected)
    np.testing.assert_array_equal(Embedder(bilm).embed([A])[0], expected)
    assert [module.training for module in bilm.modules()] == before


def test_the_callers_random_numbers_stay_as_they_were(tmp_path):
    save_bilm(make_bilm(dropout=0.5), tmp_path / "model")
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    load(tmp_path / "model").embed([A, B])
    assert torch.equal(torch.get_rng_state(), state[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])


# R42: nothing hangs on to a graph, and the caller's own gradients go on working between two results
def test_a_stream_leaves_gradients_on_for_its_consumer(embedder):
    for _ in embedder.stream([A, B]):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert all(parameter.grad is None for parameter in embedder.bilm.parameters())


def test_each_array_owns_its_memory(embedder):
    short, _ = embedder.embed([A, LONG], "top")
    assert (short if short.base is None else short.base).nbytes == short.nbytes


# R07: shapes follow the model
@pytest.mark.parametrize("num_layers", [1, 2, 4])
@pytest.mark.parametrize("projection_dim", [8, 5])
def test_shapes_follow_the_model_also_for_an_empty_sentence(num_layers, projection_dim):
    embedder = Embedder(make_bilm(num_layers=num_layers, projection_dim=projection_dim))
    for sentence in ([], ["a"], A):
        (every,) = embedder.embed([sentence])
        assert every.shape == (num_layers + 1, len(sentence), 2 * projection_dim)
        assert embedder.embed([sentence], pooling="mean")[0].shape == (num_layers + 1, 2 * projection_dim)
        for layers in ("mix", "average", "top", 0, -1):
            assert embedder.embed([sentence], layers)[0].shape == (len(sentence), 2 * projection_dim)
            assert embedder.embed([sentence], layers, pooling="mean")[0].shape == (2 * projection_dim,)


def test_no_sentence_gives_no_array(embedder):
    assert embedder.embed([]) == []
    assert list(embedder.stream(iter([]))) == []


# R09: a string is never taken apart in silence
@pytest.mark.parametrize("bad", ["I am here", ["I am here"], ["I", "am"], b"bytes", [b"bytes"], [A, "I am"]])
def test_strings_where_token_lists_belong_are_refused(embedder, bad):
    with pytest.raises(InputError, match=r"is the string .*embed_text"):
        embedder.embed(bad)


@pytest.mark.parametrize("bad", [5, None, [5], [None], [[5]], [["a", None]], [[["a"]]]])
def test_what_is_no_list_of_tokens_is_refused(embedder, bad):
    with pytest.raises(InputError, match="expected"):
        embedder.embed(bad)


# R10: token objects
@dataclass
class Token:
    text: str


def test_objects_with_a_text_are_tokens(embedder):
    expected = embedder.embed([A])[0]
    np.testing.assert_array_equal(embedder.embed([[Token(text) for text in A]])[0], expected)
    np.testing.assert_array_equal(embedder.embed([tuple(A)])[0], expected)
    np.testing.assert_array_equal(embedder.embed([np.array(A)])[0], expected)
    np.testing.assert_array_equal(embedder.embed(token for token in [iter(A)])[0], expected)
    spacy = pytest.importorskip("spacy")
    doc = spacy.tokens.Doc(spacy.blank("en").vocab, words=A)
    np.testing.assert_array_equal(embedder.embed([doc])[0], expected)
    with pytest.raises(InputError, match="expected a list of tokens"):
        embedder.embed(doc)


# R12: equal sentences are sentences of their own
def test_equal_sentences_give_a_result_each(embedder):
    first, second, third = embedder.embed([A, B, A])
    np.testing.assert_allclose(first, third, atol=1e-6)
    assert second.shape[1] == len(B)


# R41: one very long sentence among short ones
def test_a_sentence_of_20_000_tokens_is_embedded_whole(embedder):
    sentence = [f"w{number}" for number in range(20_000)]
    short, long, _ = embedder.embed([A, sentence, B], "top")
    assert long.shape == (20_000, 16)
    assert np.isfinite(long).all()
    np.testing.assert_allclose(short, embedder.embed([A], "top")[0], atol=1e-5)


# R47: layers by name
def test_layers_by_name_and_number(embedder):
    (every,) = embedder.embed([A])
    for number in range(3):
        np.testing.assert_array_equal(embedder.embed([A], number)[0], every[number])
        np.testing.assert_array_equal(embedder.embed([A], number - 3)[0], every[number])
        np.testing.assert_array_equal(embedder.embed([A], np.int64(number))[0], every[number])
    np.testing.assert_array_equal(embedder.embed([A], "top")[0], every[2])
    np.testing.assert_allclose(embedder.embed([A], "average")[0], every.mean(axis=0), atol=1e-6)
    assert all(np.abs(one - other).max() > 0.1 for one, other in itertools.combinations(every, 2))
    np.testing.assert_array_equal(every[0, :, :8], every[0, :, 8:])


def test_a_fresh_mix_is_the_mean_and_given_weights_are_used():
    bilm = make_bilm()
    every = Embedder(bilm).embed([A])[0]
    np.testing.assert_allclose(Embedder(bilm).embed([A], "mix")[0], every.mean(axis=0), atol=1e-6)
    mixed = Embedder(bilm, mix_weights=[3.0, 0.0, -3.0], gamma=2.0)
    shares = np.exp([3.0, 0.0, -3.0]) / np.exp([3.0, 0.0, -3.0]).sum()
    np.testing.assert_allclose(mixed.embed([A], "mix")[0], 2 * np.tensordot(shares, every, 1), atol=1e-5)
    assert mixed.mix.gamma.item() == 2.0
    with pytest.raises(ConfigError, match="2 mix weights were given for 3 layers"):
        Embedder(bilm, mix_weights=[1.0, 2.0])


@pytest.mark.parametrize("layers", [3, -4, 1.5, None, "Top", "0", [0, 1]])
def test_a_layer_that_is_not_there_is_refused_at_once(embedder, layers):
    with pytest.raises(InputError, match="layers is"):
        embedder.stream(iter([]), layers)


def test_pooling_is_the_mean_of_a_sentences_own_tokens(embedder):
    pooled = embedder.embed([A, LONG, []], pooling="mean")
    np.testing.assert_allclose(pooled[0], embedder.embed([A])[0].mean(axis=1), atol=1e-5)
    np.testing.assert_array_equal(pooled[2], np.zeros((3, 16), np.float32))
    with pytest.raises(InputError, match="pooling is 'max'"):
        embedder.embed([A], pooling="max")


def test_an_endless_stream_gives_results_in_order():
    embedder = Embedder(make_bilm(), max_tokens_per_batch=64)
    source = ([str(number)] * (number % 5) for number in itertools.count())
    for number, result in enumerate(itertools.islice(embedder.stream(source, "top"), 300)):
        assert isinstance(result, EmbeddedSentence)
        assert result.tokens == [str(number)] * (number % 5)
        assert result.vectors.shape == (number % 5, 16)


@pytest.mark.parametrize(("language", "text", "tokens"), [
    (None, "I don't know. Do you?", [["I", "do", "n't", "know", "."], ["Do", "you", "?"]]),
    ("zh", "我来到北京。你呢？", [["我", "来到", "北京", "。"], ["你", "呢", "？"]]),
])  # fmt: skip
def test_raw_text_gives_tokens_and_vectors_together(embedder, language, text, tokens):
    pytest.importorskip("spacy")
    pytest.importorskip("jieba")
    found = embedder.embed_text(text, "top", language=language)
    assert [sentence.tokens for sentence in found] == tokens
    for sentence, vectors in zip(found, embedder.embed(tokens, "top"), strict=True):
        np.testing.assert_array_equal(sentence.vectors, vectors)
    assert embedder.embed_text("") == []
    with pytest.raises(InputError, match="expected one string"):
        embedder.embed_text(["I", "know"])


# R21: word-level models
def test_a_word_level_model_needs_its_vocabulary(tmp_path):
    lexicon = Lexicon([*SPECIAL, "The", "cat"])
    bilm = make_bilm(tokens=WordEmbeddingConfig(num_words=len(lexicon)))
    with pytest.raises(ConfigError, match="needs its vocabulary"):
        Embedder(bilm)
    with pytest.raises(ConfigError, match="has 4 words, but the model has 5"):
        Embedder(bilm, lexicon=Lexicon([*SPECIAL, "The"]))
    embedder = Embedder(bilm, lexicon=lexicon)
    table = bilm.token_encoder.embedding.weight.detach().numpy()
    (vectors,) = embedder.embed([["cat", "unseen", "The"]], 0)
    np.testing.assert_array_equal(vectors[:, :8], table[[4, 2, 3]])
    lexicon.write(tmp_path / "vocabulary.txt")
    save_bilm(bilm, tmp_path / "model")
    loaded = load(tmp_path / "model", vocabulary=tmp_path / "vocabulary.txt")
    np.testing.assert_array_equal(loaded.embed([["cat", "unseen", "The"]], 0)[0], vectors)


def test_a_device_that_is_not_there_is_named():
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ConfigError, match=f"device '{device}' cannot be used"):
            Embedder(make_bilm(), device=device)


def test_load_takes_a_path_and_says_what_there_is(tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path / "model")
    np.testing.assert_array_equal(load(tmp_path / "model").embed([A])[0], Embedder(bilm).embed([A])[0])
    with pytest.raises(WeightsError, match="built-in models"):
        load("no-such-model")


def test_load_without_a_name_gives_the_built_in_model():
    if DEFAULT_MODEL not in available_models():
        pytest.skip(f"the model {DEFAULT_MODEL} is not in this installation")
    (vectors,) = load().embed([A])
    assert vectors.shape[1] == len(A)


CORPUS = """The bank raised its interest rates again , which surprised nobody in the city .
We sat on the bank of the river and watched the boats go by until it was dark .
She said that she did n't know what Mr. Kowalczyk-Ødegård had meant by " deliverables " .
Run !
In 1984 , a fire destroyed most of the 3,400 books that the library of the small town had collected since 1877 ."""


@pytest.mark.parametrize(("dtype", "closeness"), [("bfloat16", 0.9999), ("int8", 0.999)])
def test_rounded_vectors_stay_close_on_the_built_in_model(dtype, closeness):
    if DEFAULT_MODEL not in available_models():
        pytest.skip(f"the model {DEFAULT_MODEL} is not in this installation")
    if dtype == "int8" and not kernel.available():
        pytest.skip(kernel.describe())
    sentences = [line.split() for line in CORPUS.splitlines()]
    exact, rounded = load().embed(sentences), load(dtype=dtype).embed(sentences)
    assert any((a != b).any() for a, b in zip(exact, rounded, strict=True))
    for a, b in zip(exact, rounded, strict=True):
        assert b.dtype == np.float32
        cosines = (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)
        assert cosines.min() >= closeness, cosines.min(axis=1)


def test_a_dtype_that_there_is_not_is_refused(tmp_path, monkeypatch):
    save_bilm(make_bilm(), tmp_path / "model")
    with pytest.raises(ConfigError, match="dtype is 'float16', expected one of float32, bfloat16, int8"):
        load(tmp_path / "model", dtype="float16")
    monkeypatch.setenv("ELMOKIT_KERNEL", "0")
    with pytest.raises(ConfigError, match=r"int8 needs the native kernel.*use bfloat16 or float32"):
        load(tmp_path / "model", dtype="int8")


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_give_the_same_vectors_each_time(threads, embedder):
    expected = embedder.embed([A, B, LONG])
    torch.set_num_threads(threads)
    try:
        for _ in range(2):
            for one, other in zip(embedder.embed([A, B, LONG]), expected, strict=True):
                np.testing.assert_array_equal(one, other)
    finally:
        torch.set_num_threads(1)


def test_several_threads_may_embed_at_once():
    embedder = Embedder(make_bilm(), max_tokens_per_batch=20)
    sentences = [[f"w{number}"] * (number % 7) for number in range(60)]
    expected = embedder.embed(sentences)
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(4) as pool:
            for found in pool.map(lambda _: embedder.embed(sentences), range(8)):
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_allclose(one, other, atol=1e-5)
    finally:
        torch.set_num_threads(1)


def test_an_embedder_can_be_pickled_after_it_has_split_raw_text(tiny_bilm):
    embedder = Embedder(tiny_bilm)
    (before,) = embedder.embed_text("It is here.")
    (after,) = pickle.loads(pickle.dumps(embedder)).embed_text("It is here.")
    assert np.array_equal(before.vectors, after.vectors)
