"""The softmax of the language model, shared by both directions: full for figures, sampled or adaptive for training.

The sampled softmax follows TensorFlow's `sampled_softmax_loss` with its log-uniform candidate sampler (Jean et al.
2015), the adaptive one is torch's (Grave et al. 2017); both suppose a vocabulary sorted by falling frequency. Without
padding rows: word ids count from 0.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from elmokit.model.concurrent import wants_gradient
from elmokit.model.linear import linear
from elmokit.model.lstm_fast import product_dtype
from elmokit.model.softmax_fast import MeanLoss

WORDS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class Candidates:
    """The negatives of one training step.

    Attributes:
        words: (S,) distinct word ids.
        log_expected: (V,) log of each word's chance to be among them.
    """

    words: Tensor
    log_expected: Tensor


class LMHead(nn.Module):
    """Hidden vectors (N, P) to losses or log-probabilities over V words."""

    def __init__(self, num_words: int, dim: int) -> None:
        super().__init__()
        self.num_words = num_words
        self.weight = nn.Parameter(torch.empty(num_words, dim))
        self.bias = nn.Parameter(torch.zeros(num_words))
        nn.init.normal_(self.weight, 0.0, math.sqrt(1 / dim))  # as in bilm-tf

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(N, P) to log-probabilities (N, V)."""
        return torch.log_softmax(linear(hidden, self.weight, self.bias).float(), dim=-1)

    def loss(self, hidden: Tensor, targets: Tensor, candidates: Candidates | None) -> Tensor:
        """The mean of the sampled loss where there are candidates, of the full one otherwise: (N, P), (N,) to ()."""
        negatives = (candidates.words, candidates.log_expected) if candidates else (None, None)
        full = hidden.to(self.weight.dtype)
        loss: Tensor = MeanLoss.apply(full, self.weight, self.bias, targets, *negatives, product_dtype(full))  # type: ignore[no-untyped-call]
        return loss

    def full_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-probability of each target: (N, P), (N,) to (N,)."""
        if not wants_gradient(hidden, self.weight, self.bias):
            return self._log_sums(hidden) - (hidden * self.weight[targets]).sum(-1).float() - self.bias[targets].float()
        logits = nn.functional.linear(hidden, self.weight, self.bias).float()
        return nn.functional.cross_entropy(logits, targets, reduction="none")

    def _log_sums(self, hidden: Tensor) -> Tensor:
        """(N, P) to the logarithm of the softmax's sum (N,), in blocks of words whose logits stay in the cache."""
        total = hidden.new_full((len(hidden),), -math.inf, dtype=torch.promote_types(hidden.dtype, torch.float32))
        for weight, bias in zip(self.weight.split(WORDS_AT_ONCE), self.bias.split(WORDS_AT_ONCE), strict=True):
            total = torch.logaddexp(total, linear(hidden, weight, bias).to(total.dtype).logsumexp(dim=-1))
        return total

    def sampled_loss(self, hidden: Tensor, targets: Tensor, candidates: Candidates) -> Tensor:
        """Sampled-softmax loss of each target, lower than the full one and no estimate of perplexity.

        This is the plain reference; training takes `loss`.

        Args:
            hidden: (N, P).
            targets: (N,) word ids.
            candidates: the negatives, the same for all N.

        Returns:
            (N,) losses.
        """
        words, log_expected = candidates.words, candidates.log_expected
        own = (hidden * self.weight[targets]).sum(-1).float() + self.bias[targets] - log_expected[targets]
        logits = nn.functional.linear(hidden, self.weight[words], self.bias[words] - log_expected[words])
        logits = torch.cat([own.unsqueeze(1).to(logits.dtype), logits], dim=1).float()
        # A negative that is the target itself is none. Few are: setting them one by one beats a mask over all.
        place = torch.full_like(log_expected, -1, dtype=torch.long)
        place[words] = torch.arange(1, len(words) + 1, device=words.device)
        hit = place[targets]
        rows = (hit >= 0).nonzero().squeeze(1)
        logits = logits.index_put((rows, hit[rows]), logits.new_tensor(-math.inf))
        return nn.functional.cross_entropy(logits, torch.zeros_like(targets), reduction="none")


class AdaptiveHead(nn.Module):
    """Hidden vectors (N, P) to exact losses or log-probabilities over V words, rare words by way of their cluster.

    Each cluster has 1 / 4 the width of the one before it, so that a step costs little more than the most frequent words
    do. Clusters follow from V alone: the tensors say all that is needed to load one.
    """

    SHORTLIST = 2000
    GROWTH = 5

    def __init__(self, num_words: int, dim: int) -> None:
        """Args:
        num_words: V, sorted by falling frequency, above `SHORTLIST`; fewer words should use the full softmax.
        dim: P, at least 4 ** clusters.
        """
        super().__init__()
        assert num_words > self.SHORTLIST, num_words
        self.num_words = num_words
        ends = [self.SHORTLIST]
        while ends[-1] * self.GROWTH < num_words and dim >= 4 ** (len(ends) + 1):
            ends.append(ends[-1] * self.GROWTH)
        self.softmax = nn.AdaptiveLogSoftmaxWithLoss(dim, num_words, ends, head_bias=True)

    def log_probs(self, hidden: Tensor) -> Tensor:
        """(N, P) to log-probabilities (N, V)."""
        with torch.autocast(hidden.device.type, enabled=False):
            log_probs: Tensor = self.softmax.log_prob(hidden.float())
        return log_probs

    def loss(self, hidden: Tensor, targets: Tensor, candidates: Candidates | None = None) -> Tensor:
        """The mean of the full loss, the only one there is: (N, P), (N,) to ()."""
        assert candidates is None, "an adaptive softmax takes no negatives"
        return self.full_loss(hidden, targets).mean()

    def full_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Negative log-probability of each target: (N, P), (N,) to (N,)."""
        with torch.autocast(hidden.device.type, enabled=False):  # torch's module mixes up types under it
            output: Tensor = self.softmax(hidden.float(), targets).output
        # A cluster that no target is in gets gradients of zero, not none: processes must agree on which there are.
        return 0.0 * sum(p.flatten()[0] for p in self.softmax.tail.parameters()) - output


Softmax = LMHead | AdaptiveHead


def build_softmax(num_words: int, dim: int, *, adaptive: bool = False) -> Softmax:
    """A softmax over this many words; an adaptive one only where there are enough of them to be worth clusters."""
    return AdaptiveHead(num_words, dim) if adaptive and num_words > AdaptiveHead.SHORTLIST else LMHead(num_words, dim)


class LogUniformSampler:
    """Draws S distinct words by the law P(k) = log((k + 2) / (k + 1)) / log(V + 1).

    A draw depends on the seed and the step alone, so that every process and every resumed run draws the same.
    """

    def __init__(self, num_words: int, num_samples: int, *, seed: int) -> None:
        """Args:
        num_words: V, sorted by falling frequency.
        num_samples: S, below V; a smaller vocabulary should use the full softmax.
        seed: of the draws.
        """
        assert 0 < num_samples < num_words, (num_samples, num_words)
        self.num_samples, self.seed = num_samples, seed
        ranks = torch.arange(num_words, dtype=torch.float64)
        self.probabilities = torch.log((ranks + 2) / (ranks + 1)) / math.log(num_words + 1)
        self.log_expected = torch.log(self._chance(self._tries())).float()

    def _chance(self, tries: float) -> Tensor:
        """(V,) chance that a word comes up in this many draws with replacement."""
        return -torch.expm1(tries * torch.log1p(-self.probabilities))

    def _tries(self) -> float:
        """How many draws give S distinct words on average, by bisection."""
        low, high = 1.0, 1e15
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if float(self._chance(middle).sum()) < self.num_samples else (low, middle)
        return high

    def draw(self, step: int) -> Candidates:
        """The candidates of one training step, on the CPU."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        return Candidates(
            torch.multinomial(self.probabilities, self.num_samples, generator=generator), self.log_expected
        )
