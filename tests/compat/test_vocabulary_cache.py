import copy

import pytest
import torch

from elmokit.compat.allennlp import Elmo, batch_to_ids
from elmokit.errors import ConfigError, ElmokitError, InputError

VOCABULARY = ["@@PADDING@@", "@@UNKNOWN@@", "This", "is", "a", "sentence", "Here", "'s", "one"]
SENTENCES = [["This", "is", "a", "sentence"], ["Here", "'s", "one"], ["a"], []]


def character_ids(sentences):
    return batch_to_ids(sentences, max_characters_per_token=12)


def word_ids(sentences, unseen=1):
    numbers = {word: i for i, word in enumerate(VOCABULARY)}
    longest = max(map(len, sentences))
    rows = [[numbers.get(word, unseen) for word in s] + [0] * (longest - len(s)) for s in sentences]
    return torch.tensor(rows)


@pytest.fixture
def cached_and_plain(make_bilm):
    """The same weights in two modules, so that state is carried apart."""
    cached = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY).eval()
    return cached, Elmo(None, None, 1, module=make_bilm()).eval()


def assert_equal(cached, plain):
    assert torch.equal(cached["mask"], plain["mask"])
    for a, b in zip(cached["elmo_representations"], plain["elmo_representations"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_cached_words_give_the_vectors_of_the_character_cnn_and_do_not_run_it(cached_and_plain):
    cached, plain = cached_and_plain
    calls = []
    cached.bilm.token_encoder.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):  # with state
        assert_equal(cached(character_ids(SENTENCES), word_ids(SENTENCES)), plain(character_ids(SENTENCES)))
    assert not calls
    cached(character_ids([["unseen"]]))
    assert calls


def test_a_batch_of_four_dimensions_works_with_word_ids(cached_and_plain):
    cached, plain = cached_and_plain
    characters, words = character_ids(SENTENCES), word_ids(SENTENCES)
    folded = characters.view(2, 2, *characters.shape[1:])
    assert_equal(cached(folded, words.view(2, 2, -1)), plain(folded))


# R37
@pytest.mark.parametrize("unseen", [0, 1, 3, -1, 10**6])
def test_an_unseen_word_goes_through_its_characters_whatever_its_number(cached_and_plain, unseen):
    cached, plain = cached_and_plain
    sentences = [["This", "is", "unheard-of", "a"], ["nowhere"], ["Here", "zzz"]]
    assert_equal(cached(character_ids(sentences), word_ids(sentences, unseen)), plain(character_ids(sentences)))


def test_words_are_found_by_their_characters_without_or_with_wrong_word_ids(cached_and_plain):
    cached, plain = cached_and_plain
    expected = plain(character_ids(SENTENCES))
    assert_equal(cached(character_ids(SENTENCES)), expected)
    cached.reset_states()
    wrong = word_ids(SENTENCES)
    assert_equal(cached(character_ids(SENTENCES), torch.where(wrong > 0, wrong % 8 + 1, 0)), expected)


def test_word_ids_without_characters_are_refused_by_place(cached_and_plain):
    cached, _ = cached_and_plain
    words = word_ids(SENTENCES)
    words[2, 3] = 7
    with pytest.raises(InputError, match=r"word 7 at \(2, 3\)"):
        cached(character_ids(SENTENCES), words)
    with pytest.raises(InputError, match=r"shape \(4, 3\)"):
        cached(character_ids(SENTENCES), words[:, :3])


def test_word_ids_count_for_nothing_without_a_cache(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm(), stateful=False).eval()
    with_words = elmo(character_ids(SENTENCES), character_ids(SENTENCES))
    assert_equal(with_words, elmo(character_ids(SENTENCES)))


# R39
def test_a_cache_and_a_trained_language_model_are_refused_together(make_bilm):
    with pytest.raises(ConfigError, match="training changes"):
        Elmo(None, None, 1, True, module=make_bilm(), vocab_to_cache=VOCABULARY)


def test_two_steps_of_training_the_mix_work_with_a_cache(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY, dropout=0.0)
    for _ in range(2):
        elmo(character_ids([*SENTENCES, ["unseen"]]))["elmo_representations"][0].sum().backward()
    assert elmo.scalar_mix_0.weights.grad is not None


def test_the_cache_is_not_used_while_the_character_cnn_is_trained(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY, dropout=0.0)
    elmo.bilm.requires_grad_(True)
    optimizer = torch.optim.SGD(elmo.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        elmo(character_ids(SENTENCES))["elmo_representations"][0].square().sum().backward()
        assert elmo.bilm.token_encoder.embedding.grad.abs().sum() > 0
        optimizer.step()


def test_loaded_weights_are_cached_anew(make_bilm):
    elmo = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY).eval()
    other = Elmo(None, None, 1, module=make_bilm(seed=7)).eval()
    # One without a cache has the same names, so that files do not depend on it.
    torch.nn.ModuleList([elmo]).load_state_dict(torch.nn.ModuleList([other]).state_dict())
    assert_equal(elmo(character_ids(SENTENCES)), other(character_ids(SENTENCES)))


def test_a_module_with_a_cache_can_be_copied_and_pickled_whole(make_bilm, tmp_path):
    elmo = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY).eval()
    torch.save(elmo, tmp_path / "whole.pt")
    for other in (copy.deepcopy(elmo), torch.load(tmp_path / "whole.pt", weights_only=False)):
        other.load_state_dict(Elmo(None, None, 1, module=make_bilm(seed=7)).state_dict())
        plain = Elmo(None, None, 1, module=make_bilm(seed=7)).eval()
        assert_equal(other(character_ids(SENTENCES)), plain(character_ids(SENTENCES)))
    assert_equal(
        elmo(character_ids(SENTENCES)), Elmo(None, None, 1, module=make_bilm()).eval()(character_ids(SENTENCES))
    )


def test_the_cache_follows_the_model_to_another_precision(make_bilm):
    cached = Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=VOCABULARY).eval().double()
    assert cached(character_ids([["This", "unseen"]]))["elmo_representations"][0].dtype == torch.float64


def test_a_vocabulary_must_be_a_list_of_words(make_bilm):
    for wrong in ("This", [1], ["This", None]):
        with pytest.raises(ElmokitError, match="vocab_to_cache"):
            Elmo(None, None, 1, module=make_bilm(), vocab_to_cache=wrong)
