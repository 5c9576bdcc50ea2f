"""A language model on sentences: perplexity, scores of tokens, words for blanks."""

import math

import numpy as np
import psutil
import pytest
import torch

from elmokit.config import BiLMConfig
from elmokit.errors import InputError
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import LMHead
from elmokit.text.characters import tokens_to_ids
from elmokit.text.lexicon import Lexicon
from elmokit.train import objective, scoring
from elmokit.train.corpus import prepare
from elmokit.train.objective import LanguageModel, Perplexity, perplexity
from elmokit.train.scoring import Scorer
from elmokit.train.stream import Stream

CONFIG = BiLMConfig.model_validate(
    {
        "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (2, 5)], "max_characters_per_token": 8},
        "encoder": {"projection_dim": 6, "cell_dim": 9},
    }
)
WORDS = ["<S>", "</S>", "<UNK>", "a", "b", "c", "苹果", "d", "e"]
SENTENCES = [["a", "b", "new", "c"], [], ["苹果"], ["e", "d", "c", "b", "a", "a"] * 4, ["unseen"]]


@pytest.fixture
def scorer():
    torch.manual_seed(0)
    bilm, head = build_bilm(CONFIG).eval(), LMHead(len(WORDS), 6)
    torch.nn.init.normal_(head.bias)
    torch.nn.init.normal_(head.weight, std=2)
    return Scorer(bilm, head, Lexicon(WORDS))


def plain(scorer, tokens):
    """Log-probabilities (T + 1, V) of each direction, one sentence at a time: of the next tokens, of those before."""
    ids = torch.from_numpy(tokens_to_ids(["<S>", *tokens, "</S>"], 8)).unsqueeze(0)
    with torch.no_grad():
        output = scorer.bilm(ids, torch.tensor([len(tokens) + 2]))
        forward = scorer.head.log_probs(output.forward_layers[-1][0, :-1])
        backward = scorer.head.log_probs(output.backward_layers[-1][0, 1:])
    return forward.double().numpy(), backward.double().numpy()


def word_ids(tokens):
    return [WORDS.index(token) if token in WORDS else 2 for token in tokens]


def combined(forward, backward):
    """The rule in its own words: a product over a prior by rank, made to sum to one."""
    prior = np.log((np.arange(len(WORDS)) + 2) / (np.arange(len(WORDS)) + 1)) / np.log(len(WORDS) + 1)
    joint = np.exp(forward) * np.exp(backward) / prior
    return np.log(joint / joint.sum())


@pytest.mark.parametrize(("numbers", "budget"), [(2**24, 2048), (1, 2048), (20, 7), (2**24, 1)])
def test_scores_are_those_of_a_plain_loop_whatever_the_batch(scorer, monkeypatch, numbers, budget):
    for module in (objective, scoring):
        monkeypatch.setattr(module, "SOFTMAX_NUMBERS", numbers)
    monkeypatch.setattr(scoring, "BUDGET", budget)
    found = list(scorer.score(SENTENCES))
    assert [[token.token for token in sentence.tokens] for sentence in found] == SENTENCES
    for tokens, sentence in zip(SENTENCES, found, strict=True):
        forward, backward = plain(scorer, tokens)
        words = word_ids(tokens)
        assert [token.unknown for token in sentence.tokens] == [word == 2 for word in words]
        for index, (word, token) in enumerate(zip(words, sentence.tokens, strict=True)):
            wanted = (
                forward[index, word],
                backward[index + 1, word],
                combined(forward[index], backward[index + 1])[word],
            )
            np.testing.assert_allclose([token.forward, token.backward, token.combined], wanted, atol=1e-4)
        np.testing.assert_allclose([sentence.end, sentence.start], [forward[-1, 1], backward[0, 0]], atol=1e-4)
        total = sum(forward[index, word] for index, word in enumerate([*words, 1]))
        assert math.isclose(sentence.forward, total, abs_tol=1e-3)


@pytest.mark.parametrize(("numbers", "budget"), [(2**24, 2048), (20, 7)])
def test_perplexity_is_of_the_same_scores_each_counted_once(scorer, monkeypatch, numbers, budget):
    monkeypatch.setattr(objective, "SOFTMAX_NUMBERS", numbers)
    monkeypatch.setattr(scoring, "BUDGET", budget)
    found = scorer.perplexity(SENTENCES)
    scores = [score for score in scorer.score(SENTENCES) if score.tokens]  # an empty sentence is none here
    assert (found.tokens, found.unknown) == (4 + 1 + 24 + 1 + 4, 2)
    wanted = [-sum(score.forward for score in scores), -sum(score.backward for score in scores)]
    np.testing.assert_allclose([found.forward_loss, found.backward_loss], wanted, rtol=1e-5)
    assert math.isclose(found.forward, math.exp(wanted[0] / 34), rel_tol=1e-5)


def test_perplexities_of_parts_add_up(scorer):
    whole = scorer.perplexity(SENTENCES)
    parts = scorer.perplexity(SENTENCES[:3]) + scorer.perplexity(SENTENCES[3:])
    assert (parts.tokens, parts.unknown) == (whole.tokens, whole.unknown)
    assert math.isclose(parts.mean, whole.mean, rel_tol=1e-5)


def test_a_hopeless_model_has_infinite_perplexity_rather_than_an_overflow():
    assert Perplexity(1e6, 10.0, 10, 0).forward == math.inf
    assert Perplexity(1e6, 10.0, 10, 0).mean == math.inf


def test_no_token_and_a_string_are_refused(scorer):
    with pytest.raises(InputError, match=r"empty\.txt has no token"):
        scorer.perplexity([[], []], source="empty.txt")
    with pytest.raises(InputError, match="is the string"):
        scorer.perplexity(["a b"])
    with pytest.raises(InputError, match="is the string"):
        list(scorer.score(["a b"]))


def test_blanks_get_the_most_probable_words_and_never_a_special_one(scorer):
    sentences = [["a", "___", "b", "___"], ["a"], ["___"]]
    found = list(scorer.fill(sentences, "___", top=4))
    assert [[blank.position for blank in sentence.blanks] for sentence in found] == [[1, 3], [], [0]]
    assert [list(sentence.tokens) for sentence in found] == sentences
    for tokens, sentence in zip(sentences, found, strict=True):
        forward, backward = plain(scorer, tokens)
        for blank in sentence.blanks:
            left, right = forward[blank.position], backward[blank.position + 1]
            for candidates, log_probs in (
                (blank.forward, left), (blank.backward, right), (blank.combined, combined(left, right))
            ):  # fmt: skip
                order = [index for index in np.argsort(-log_probs) if index > 2][:4]
                assert [candidate.word for candidate in candidates] == [WORDS[index] for index in order]
                values = [candidate.log_prob for candidate in candidates]
                np.testing.assert_allclose(values, log_probs[order], atol=1e-4)


def test_more_candidates_than_words_are_all_words(scorer):
    (sentence,) = scorer.fill([["___"]], "___", top=100)
    assert {candidate.word for candidate in sentence.blanks[0].combined} == set(WORDS[3:])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tiny model that has learned sentences in which a word follows from what is left and right of it together."""
    from elmokit.train.recipe import Recipe

    folder = tmp_path_factory.mktemp("trained")
    animals, foods = ["cat", "dog", "cow", "bird"], ["fish", "meat", "grass", "seed"]
    # What the middle word is depends on both ends; each end alone leaves four equally good ones.
    lines = [f"{animals[a]} v{a}{f} {foods[f]}" for a in range(4) for f in range(4)]
    (folder / "text.txt").write_text("\n".join(lines * 40), encoding="utf-8")
    recipe = Recipe.model_validate(
        {
            "model": {
                "tokens": {"kind": "char_cnn", "embedding_dim": 8, "filters": [(1, 8), (2, 8), (3, 16)],
                           "max_characters_per_token": 8},
                "encoder": {"projection_dim": 24, "cell_dim": 24, "num_layers": 1},
            },
            "corpus": {"sources": [{"files": "text.txt"}], "tokenized": True, "held_out": 0},
        }
    )  # fmt: skip
    corpus = prepare(recipe.corpus, recipe.model, root=folder, cache=folder / "cache")
    torch.manual_seed(1)
    model = LanguageModel(build_bilm(recipe.model), LMHead(len(corpus.types), 24))
    stream = Stream(corpus, rows=8, window=60, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(250):
        forward, backward, _ = model(stream.batch(step), None, None)
        optimizer.zero_grad()
        (forward + backward).backward()
        optimizer.step()
    return model, corpus, [line.split() for line in lines]


def test_both_directions_together_know_the_word_that_neither_knows_alone(trained):
    model, corpus, sentences = trained
    scorer = Scorer(model.bilm.eval(), model.head, corpus.lexicon(10_000))
    for tokens in sentences:
        (sentence,) = scorer.fill([[tokens[0], "___", tokens[2]]], "___", top=4)
        (blank,) = sentence.blanks
        assert blank.combined[0].word == tokens[1]
        assert blank.forward[0].log_prob < math.log(0.5) and blank.backward[0].log_prob < math.log(0.5)
        assert blank.combined[0].log_prob > math.log(0.4)


def test_the_figure_is_that_of_training(trained):
    model, corpus, _ = trained
    scorer = Scorer(model.bilm.eval(), model.head, corpus.lexicon(10_000))
    sentences = [[corpus.types[index] for index in corpus.train[row][1:-1]] for row in range(len(corpus.train))]
    wanted, found = perplexity(model, corpus, corpus.train), scorer.perplexity(sentences)
    assert (found.tokens, found.unknown) == (wanted.tokens, wanted.unknown)
    assert math.isclose(found.mean, wanted.mean, rel_tol=1e-5)


def test_a_vocabulary_of_200_000_words_takes_bounded_memory(monkeypatch):
    words = ["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(200_000 - 3))]
    scorer = Scorer(build_bilm(CONFIG).eval(), LMHead(len(words), 6), Lexicon(words))
    sentences = [[words[3 + (7 * row + column) % 150_000] for column in range(20)] for row in range(40)]
    list(scorer.score(sentences[:1]))
    process = psutil.Process()
    before, highest = process.memory_info().rss, 0
    whole = objective.full_losses

    def watched(*arguments):
        nonlocal highest
        losses = whole(*arguments)
        highest = max(highest, process.memory_info().rss)
        return losses

    monkeypatch.setattr(objective, "full_losses", watched)
    found = scorer.perplexity(sentences)
    assert found.tokens == 40 * 21
    assert highest - before < 400e6  # all log-probabilities of one direction at once would be 670 MB, and as much again
