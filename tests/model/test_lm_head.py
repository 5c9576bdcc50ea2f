"""The softmax, full and sampled."""

import math

import numpy as np
import pytest
import torch

from elmokit.model.lm_head import Candidates, LMHead, LogUniformSampler


@pytest.fixture
def head():
    torch.manual_seed(0)
    head = LMHead(50, 8)
    torch.nn.init.normal_(head.bias)
    return head


def test_log_probabilities_sum_to_one_and_give_the_full_loss(head):
    hidden, targets = torch.randn(5, 8), torch.tensor([0, 3, 49, 7, 7])
    log_probs = head.log_probs(hidden)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(5))
    torch.testing.assert_close(head.full_loss(hidden, targets), -log_probs[range(5), targets])


def test_a_sampled_loss_is_the_softmax_over_target_and_negatives_with_their_chances_taken_off(head):
    hidden, targets = torch.randn(4, 8), torch.tensor([2, 9, 30, 5])
    candidates = Candidates(torch.tensor([5, 9, 40]), torch.linspace(-1, -4, 50))
    logits = (hidden @ head.weight.T + head.bias - candidates.log_expected).detach().numpy().astype(np.float64)
    expected = []
    for row, target in zip(logits, targets.tolist(), strict=True):
        others = [word for word in (5, 9, 40) if word != target]  # a negative that is the target is none
        expected.append(np.log(np.exp(row[[target, *others]]).sum()) - row[target])
    found = head.sampled_loss(hidden, targets, candidates)
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-5)


def test_gradients_of_the_sampled_loss_reach_sampled_and_target_words_only(head):
    candidates = Candidates(torch.tensor([5, 9]), torch.zeros(50))
    head.sampled_loss(torch.randn(2, 8), torch.tensor([2, 9]), candidates).sum().backward()
    assert head.weight.grad.abs().sum(1).nonzero().squeeze(1).tolist() == [2, 5, 9]


def test_negatives_are_distinct_and_the_same_for_the_same_step():
    sampler = LogUniformSampler(1000, 100, seed=4)
    first, again, next_ = (sampler.draw(step).words for step in (7, 7, 8))
    assert len(set(first.tolist())) == 100
    assert torch.equal(first, again)
    assert not torch.equal(first, next_)
    assert not torch.equal(first, LogUniformSampler(1000, 100, seed=5).draw(7).words)


def test_words_are_drawn_as_often_as_the_correction_supposes():
    sampler = LogUniformSampler(200, 20, seed=1)
    counts = torch.zeros(200)
    for step in range(4000):
        counts[sampler.draw(step).words] += 1
    chance = sampler.log_expected.exp()
    assert math.isclose(float(chance.sum()), 20, rel_tol=1e-3)
    np.testing.assert_allclose(counts / 4000, chance, atol=0.03)
