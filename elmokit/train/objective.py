"""What is learned: the joint log-likelihood of both directions, and its held-out measure, perplexity.

Token encoder and softmax are shared by the directions (Peters et al. 2018, section 3.1). The loss may be sampled; the
perplexity never is: every token of every sentence is scored once with the full softmax, from a fresh state, so that
neither batch size nor order matters.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.model.bilm import BiLM
from elmokit.model.concurrent import side_by_side, workers_for
from elmokit.model.lm_head import Candidates, LMHead, Softmax
from elmokit.model.lstm import dropout
from elmokit.model.outputs import BiLMOutput, BiLMState, LSTMState
from elmokit.train.concurrent import losses
from elmokit.train.corpus import Corpus, Sentences
from elmokit.train.corpus_writer import UNKNOWN_TYPE
from elmokit.train.stream import Batch

TOKENS_AT_ONCE = 4096
SOFTMAX_NUMBERS = 2**24  # log-probabilities that are held in memory at once, 64 MiB


class LanguageModel(nn.Module):
    """A biLM with the softmax that trains it."""

    def __init__(self, bilm: BiLM, head: Softmax, *, dropout: float = 0.0) -> None:
        """Args:
        bilm: the network.
        head: the shared softmax.
        dropout: before the softmax, while training.
        """
        super().__init__()
        self.bilm = bilm
        self.head = head
        self.dropout = dropout

    def forward(
        self, batch: Batch, state: BiLMState | None, candidates: Candidates | None, *, seed: int = 0
    ) -> tuple[Tensor, Tensor, BiLMState]:
        """One step.

        Args:
            batch: from `Stream`.
            state: carried from the step before; None at the start.
            candidates: negatives of the sampled softmax; None for the full one.
            seed: of this step's dropout. Each direction has random numbers of its own, since both run at once.

        Returns:
            mean losses of the forward and of the backward direction; the state to carry on, detached.
        """
        vectors = self.bilm.token_encoder(batch.characters.unsqueeze(1)).squeeze(1)  # (U, P)
        bilm, head = self.bilm, self.head
        softmax: list[Tensor] = list(head.parameters())
        targets = [self._cut(batch.forward_targets), self._cut(batch.backward_targets)]
        if candidates:
            assert isinstance(head, LMHead)
            # Apart from these rows the softmax takes no part: its gradient, as large as itself, is made once this way.
            parts = [*targets, candidates.words]
            rows, places = torch.cat(parts).unique(return_inverse=True)
            *targets, drawn = places.split([len(part) for part in parts])
            softmax = [head.weight.index_select(0, rows), head.bias.index_select(0, rows)]
            head = _Rows(*softmax)
            candidates = Candidates(drawn, candidates.log_expected[rows])

        def direction(
            number: int, encoder: nn.Module, places: Tensor, start: LSTMState | None
        ) -> Callable[[Tensor], tuple[Tensor, LSTMState]]:
            def loss(vectors: Tensor) -> tuple[Tensor, LSTMState]:
                generator = torch.Generator(vectors.device).manual_seed(2 * seed + number)
                x = nn.functional.embedding(places, vectors)  # (B, T, P)
                layers, end = encoder(x, torch.ones_like(places, dtype=torch.bool), start, generator=generator)
                hidden = dropout(layers[-1], self.dropout if self.training else 0.0, generator).flatten(0, 1)
                return head.loss(hidden, targets[number], candidates), end.detach()

            return loss

        functions = [
            direction(0, bilm.forward_encoder, batch.forward, state.forward if state else None),
            direction(1, bilm.backward_encoder, batch.backward, state.backward if state else None),
        ]
        shared = [*softmax, *bilm.forward_encoder.parameters(), *bilm.backward_encoder.parameters()]
        (forward, backward), states = losses(functions, vectors, shared)
        return forward, backward, BiLMState(*states)

    def _cut(self, words: Tensor) -> Tensor:
        """Words of a vocabulary of any size (B, T) to those of the softmax (B T,)."""
        return torch.where(words < self.head.num_words, words, UNKNOWN_TYPE).flatten()


class _Rows(LMHead):
    """Some rows of a softmax, for a sampled loss."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        nn.Module.__init__(self)
        self.__dict__ |= {"weight": weight, "bias": bias}  # tensors on the way to a gradient, no parameters


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Sums over text, and the figures they give; those of several texts can be added.

    Attributes:
        forward_loss: summed negative log-probability (nats) of each next token.
        backward_loss: the same of each token before.
        tokens: predictions of one direction: the words of each sentence and one boundary.
        unknown: of these, words outside the vocabulary, which are scored as `<UNK>`.
    """

    forward_loss: float = 0.0
    backward_loss: float = 0.0
    tokens: int = 0
    unknown: int = 0

    def __add__(self, other: "Perplexity") -> "Perplexity":
        return Perplexity(
            self.forward_loss + other.forward_loss,
            self.backward_loss + other.backward_loss,
            self.tokens + other.tokens,
            self.unknown + other.unknown,
        )

    @property
    def forward(self) -> float:
        """Perplexity of the forward direction."""
        return _perplexity(self.forward_loss, self.tokens)

    @property
    def backward(self) -> float:
        """Perplexity of the backward direction."""
        return _perplexity(self.backward_loss, self.tokens)

    @property
    def mean(self) -> float:
        """Exponential of the mean loss of both directions, as bilm-tf reports it."""
        return _perplexity(self.forward_loss + self.backward_loss, 2 * self.tokens)


def _perplexity(loss: float, tokens: int) -> float:
    """Infinite where a figure would have more than 300 digits."""
    return math.exp(loss / tokens) if loss / tokens < 700 else math.inf


def full_losses(head: Softmax, hidden: Tensor, targets: Tensor) -> Tensor:
    """Negative log-probability of each target by the full softmax, some rows at a time: (N, P), (N,) to (N,)."""
    rows = max(1, SOFTMAX_NUMBERS // head.num_words)
    parts = zip(hidden.split(rows), targets.split(rows), strict=True)
    workers = workers_for(hidden, *head.parameters())
    return torch.cat(side_by_side([partial(head.full_loss, *part) for part in parts], workers=workers))


@torch.no_grad()
def score_batch(head: Softmax, output: BiLMOutput, words: Tensor, *, unknown: int) -> Perplexity:
    """The sums over one batch.

    Args:
        head: the softmax.
        output: of the batch.
        words: (B, T) word ids, boundaries included.
        unknown: the id of `<UNK>`.
    """
    predicts = output.mask[:, 1:]  # every position but the first has one before it, and the other way round
    following, before = words[:, 1:][predicts], words[:, :-1][predicts]
    forward = full_losses(head, output.forward_layers[-1][:, :-1][predicts], following)
    backward = full_losses(head, output.backward_layers[-1][:, 1:][predicts], before)
    return Perplexity(
        float(forward.sum(dtype=torch.float64)),
        float(backward.sum(dtype=torch.float64)),
        len(following),
        int((following == unknown).sum()),
    )


@torch.no_grad()
def perplexity(model: LanguageModel, corpus: Corpus, sentences: Sentences) -> Perplexity:
    """Score every token of these sentences once in each direction, with the full softmax and a fresh state.

    Args:
        model: put into evaluation mode here and back afterwards.
        corpus: for the characters of types.
        sentences: e.g. `corpus.held_out`.
    """
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    found = Perplexity()
    unknown = int(corpus.words(np.array([UNKNOWN_TYPE]), model.head.num_words)[0])
    for types, lengths in _batches(sentences):
        distinct, places = np.unique(types, return_inverse=True)
        ids = torch.from_numpy(corpus.characters[distinct].astype(np.int64)).to(device)
        vectors = model.bilm.token_encoder(ids.unsqueeze(1)).squeeze(1)
        token_layer = nn.functional.embedding(torch.from_numpy(places.reshape(types.shape)).to(device), vectors)
        output = model.bilm.contextualize(token_layer, lengths.to(device))
        words = torch.from_numpy(corpus.words(types, model.head.num_words)).to(device)
        found += score_batch(model.head, output, words, unknown=unknown)
    model.train(was_training)
    return found


def _batches(sentences: Sentences) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Padded batches of sentences of similar length: type ids (B, T), lengths (B,)."""
    lengths = np.diff(sentences.offsets)
    order = np.argsort(lengths, kind="stable")
    start = 0
    while start < len(order):
        size = 1
        while start + size < len(order) and (size + 1) * lengths[order[start + size]] <= TOKENS_AT_ONCE:
            size += 1
        rows = order[start : start + size]
        types = np.zeros((size, int(lengths[rows[-1]])), dtype=np.int64)
        for row, index in zip(types, rows, strict=True):
            row[: lengths[index]] = sentences[index]
        yield types, torch.from_numpy(lengths[rows])
        start += size
