"""The softmax, full and sampled."""

import math

import numpy as np
import pytest
import torch

from elmokit.model import softmax_fast
from elmokit.model.lm_head import AdaptiveHead, Candidates, LMHead, LogUniformSampler


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


@pytest.mark.parametrize("at_once", [1, 150, 2**20], ids=["row by row", "three rows", "all rows"])
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "full"])
def test_the_fast_mean_loss_has_the_value_and_gradients_of_the_plain_one(head, sampled, at_once, monkeypatch):
    monkeypatch.setattr(softmax_fast, "LOGITS_AT_ONCE", at_once)
    hidden, targets = torch.randn(8, 8, requires_grad=True), torch.tensor([2, 9, 30, 5, 5, 0, 49, 9])
    candidates = Candidates(torch.tensor([5, 9, 40]), torch.linspace(-1, -4, 50)) if sampled else None
    plain = head.sampled_loss(hidden, targets, candidates) if candidates else head.full_loss(hidden, targets)
    leaves = hidden, head.weight, head.bias
    expected = torch.autograd.grad(3 * plain.mean(), leaves)
    fast = head.loss(hidden, targets, candidates)
    torch.testing.assert_close(fast, plain.mean())
    for a, b in zip(torch.autograd.grad(3 * fast, leaves), expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def test_the_fast_mean_loss_of_huge_logits_is_finite(head):
    hidden, targets = torch.full((2, 8), 1e4, requires_grad=True), torch.tensor([2, 9])
    loss = head.loss(hidden, targets, None)
    torch.testing.assert_close(loss, head.full_loss(hidden, targets).mean())
    loss.backward()
    assert hidden.grad.isfinite().all()


def test_the_fast_mean_loss_under_autocast_is_close_to_the_one_in_full_precision(head):
    hidden, targets = torch.randn(8, 8, requires_grad=True), torch.arange(8)
    plain = torch.autograd.grad(head.loss(hidden, targets, None), hidden)[0]
    with torch.autocast("cpu", torch.bfloat16):
        loss = head.loss(hidden, targets, None)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(torch.autograd.grad(loss, hidden)[0], plain, atol=5e-3, rtol=0.05)
    assert not torch.equal(loss, head.loss(hidden, targets, None))  # its products did run in half precision


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


@pytest.fixture(params=[2001, 2100, 12_000])
def adaptive(request):
    torch.manual_seed(0)
    return AdaptiveHead(request.param, 16)


def words_of_every_cluster(head):
    return torch.tensor(sorted({0, 1999, 2000, min(10_000, head.num_words - 1), head.num_words - 1}))


def test_adaptive_log_probabilities_sum_to_one_and_give_the_loss(adaptive):
    targets = words_of_every_cluster(adaptive)
    hidden = torch.randn(len(targets), 16)
    log_probs = adaptive.log_probs(hidden)
    assert log_probs.shape == (len(targets), adaptive.num_words)
    torch.testing.assert_close(log_probs.exp().sum(1), torch.ones(len(targets)))
    torch.testing.assert_close(adaptive.full_loss(hidden, targets), -log_probs[range(len(targets)), targets])


def test_an_adaptive_softmax_learns_rare_and_frequent_words(adaptive):
    targets = words_of_every_cluster(adaptive)
    hidden = torch.randn(len(targets), 16)
    optimizer = torch.optim.Adam(adaptive.parameters(), 0.1)
    for _ in range(60):
        optimizer.zero_grad()
        adaptive.loss(hidden, targets, None).backward()
        optimizer.step()
    assert adaptive.log_probs(hidden).argmax(1).tolist() == targets.tolist()


def test_an_adaptive_loss_is_computed_in_float32_under_autocast(adaptive):
    targets = words_of_every_cluster(adaptive)
    hidden = torch.randn(len(targets), 16)
    plain = adaptive.full_loss(hidden, targets)
    with torch.autocast("cpu", torch.bfloat16):
        under = adaptive.full_loss(hidden.bfloat16(), targets)
    assert under.dtype == torch.float32
    torch.testing.assert_close(under, plain, rtol=0.02, atol=0.05)


def test_a_cluster_without_targets_gets_gradients_of_zero(adaptive):
    adaptive.loss(torch.randn(3, 16), torch.tensor([0, 1, 1999]), None).backward()
    assert adaptive.softmax.head.weight.grad.abs().max() > 0
    assert all(p.grad.abs().max() == 0 for p in adaptive.softmax.tail.parameters())


def test_an_adaptive_head_has_far_fewer_parameters_than_a_full_one():
    adaptive, full = (
        sum(p.numel() for p in head.parameters()) for head in (AdaptiveHead(50_000, 64), LMHead(50_000, 64))
    )
    assert adaptive < full / 5
