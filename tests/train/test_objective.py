"""The loss that is trained and the perplexity that is reported."""

import math

import numpy as np
import pytest
import torch

from elmokit.config import BiLMConfig
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import LMHead, LogUniformSampler
from elmokit.train import objective
from elmokit.train.objective import LanguageModel, perplexity
from elmokit.train.stream import Stream

CONFIG = BiLMConfig.model_validate(
    {
        "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (2, 5)], "max_characters_per_token": 4},
        "encoder": {"projection_dim": 6, "cell_dim": 9},
    }
)


@pytest.fixture
def corpus(corpus_of):
    draw = np.random.default_rng(0)
    return corpus_of([np.array([0, *draw.integers(3, 40, draw.integers(0, 9)), 1]) for _ in range(80)])


@pytest.fixture
def model():
    torch.manual_seed(0)
    return LanguageModel(build_bilm(CONFIG), LMHead(30, 6), dropout=0.0)


def plain_losses(model, batch, candidates):
    """The same losses by ordinary autograd, one direction after the other, every token encoded by itself."""
    found = []
    for encoder, places, targets in (
        (model.bilm.forward_encoder, batch.forward, batch.forward_targets),
        (model.bilm.backward_encoder, batch.backward, batch.backward_targets),
    ):
        x = model.bilm.token_encoder(batch.characters[places])
        mask = torch.ones_like(places, dtype=torch.bool)
        for index, layer in enumerate(encoder.layers):
            output, _, _ = layer.plain(x, mask, x.new_zeros(len(x), 6), x.new_zeros(len(x), 9))
            x = output + x if index else output
        words = torch.where(targets < 30, targets, 2).flatten()
        found.append(model.head.loss(x.flatten(0, 1), words, candidates).mean())
    return found


@pytest.mark.parametrize("sampled", [False, True])
def test_losses_and_gradients_equal_ordinary_autograd(model, corpus, sampled):
    model.double()
    batch = Stream(corpus, rows=3, window=5, seed=1).batch(0)
    candidates = LogUniformSampler(30, 8, seed=1).draw(0) if sampled else None
    plain = plain_losses(model, batch, candidates)
    wanted = torch.autograd.grad(sum(plain) / 2, list(model.parameters()))
    forward, backward, _ = model(batch, None, candidates)
    ((forward + backward) / 2).backward()
    torch.testing.assert_close(torch.stack([forward, backward]), torch.stack(plain), atol=1e-6, rtol=0)
    for (name, parameter), gradient in zip(model.named_parameters(), wanted, strict=True):
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=0, msg=name)


def test_state_is_carried_from_batch_to_batch(model, corpus):
    stream = Stream(corpus, rows=2, window=5, seed=1)
    _, _, state = model(stream.batch(0), None, None)
    carried = model(stream.batch(1), state, None)
    assert not torch.equal(carried[0], model(stream.batch(1), None, None)[0])
    twice_as_long = Stream(corpus, rows=2, window=10, seed=1).batch(0)
    for direction in range(2):
        halves = (model(stream.batch(0), None, None)[direction] + carried[direction]) / 2
        torch.testing.assert_close(halves, model(twice_as_long, None, None)[direction])


def test_perplexity_scores_every_token_once_from_a_fresh_state(model, corpus):
    found = perplexity(model, corpus, corpus.held_out)
    model.eval()
    losses = np.zeros(2)
    tokens = unknown = 0
    with torch.no_grad():
        for index in range(80):
            types = corpus.held_out[index].astype(np.int64)
            ids = torch.from_numpy(corpus.characters[types].astype(np.int64))[None]
            output = model.bilm(ids, torch.tensor([len(types)]))
            words = np.where(types < 30, types, 2)
            forward = model.head.log_probs(output.forward_layers[-1][0]).numpy()
            backward = model.head.log_probs(output.backward_layers[-1][0]).numpy()
            for t in range(1, len(types)):
                losses -= [forward[t - 1, words[t]], backward[t, words[t - 1]]]
                tokens += 1
                unknown += int(words[t] == 2)
    assert (found.tokens, found.unknown) == (tokens, unknown)
    np.testing.assert_allclose([found.forward_loss, found.backward_loss], losses, rtol=1e-5)
    assert math.isclose(found.mean, math.sqrt(found.forward * found.backward), rel_tol=1e-9)


def test_perplexity_does_not_depend_on_batch_size(model, corpus, monkeypatch):
    whole = perplexity(model, corpus, corpus.held_out)
    monkeypatch.setattr(objective, "TOKENS_AT_ONCE", 7)
    small = perplexity(model, corpus, corpus.held_out)
    assert whole.tokens == small.tokens
    assert math.isclose(whole.mean, small.mean, rel_tol=1e-5)


def test_perplexity_leaves_the_model_in_the_mode_it_was_in(model, corpus):
    model.train()
    perplexity(model, corpus, corpus.held_out)
    assert model.training
