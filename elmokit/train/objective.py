"""What is learned: the joint log-likelihood of both directions, and its held-out measure, perplexity.

Token encoder and softmax are shared by the directions (Peters et al. 2018, section 3.1). The loss may be sampled; the
perplexity never is: every token of every sentence is scored once with the full softmax, from a fresh state, so that
neither batch size nor order matters.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.model.bilm import BiLM
from elmokit.model.lm_head import Candidates, LMHead
from elmokit.model.lstm import dropout
from elmokit.model.outputs import BiLMState, LSTMState
from elmokit.train.concurrent import losses
from elmokit.train.corpus import UNKNOWN_TYPE, Corpus, Sentences
from elmokit.train.stream import Batch

TOKENS_AT_ONCE = 4096


class LanguageModel(nn.Module):
    """A biLM with the softmax that trains it."""

    def __init__(self, bilm: BiLM, head: LMHead, *, dropout: float = 0.0) -> None:
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
        bilm = self.bilm

        def direction(
            number: int, encoder: nn.Module, places: Tensor, targets: Tensor, start: LSTMState | None
        ) -> Callable[[Tensor], tuple[Tensor, LSTMState]]:
            def loss(vectors: Tensor) -> tuple[Tensor, LSTMState]:
                generator = torch.Generator(vectors.device).manual_seed(2 * seed + number)
                x = nn.functional.embedding(places, vectors)  # (B, T, P)
                layers, end = encoder(x, torch.ones_like(places, dtype=torch.bool), start, generator=generator)
                hidden = dropout(layers[-1], self.dropout if self.training else 0.0, generator).flatten(0, 1)
                words = torch.where(targets < self.head.num_words, targets, UNKNOWN_TYPE).flatten()
                return self.head.loss(hidden, words, candidates).mean(), end.detach()

            return loss

        functions = [
            direction(0, bilm.forward_encoder, batch.forward, batch.forward_targets, state.forward if state else None),
            direction(
                1, bilm.backward_encoder, batch.backward, batch.backward_targets, state.backward if state else None
            ),
        ]
        shared = [p for part in (bilm.forward_encoder, bilm.backward_encoder, self.head) for p in part.parameters()]
        (forward, backward), states = losses(functions, vectors, shared)
        return forward, backward, BiLMState(*states)


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Sums over held-out text, and the figures they give.

    Attributes:
        forward_loss: summed negative log-probability (nats) of each next token.
        backward_loss: the same of each token before.
        tokens: predictions of one direction: the words of each sentence and one boundary.
        unknown: of these, words outside the vocabulary, which are scored as `<UNK>`.
    """

    forward_loss: float
    backward_loss: float
    tokens: int
    unknown: int

    @property
    def forward(self) -> float:
        """Perplexity of the forward direction."""
        return math.exp(self.forward_loss / self.tokens)

    @property
    def backward(self) -> float:
        """Perplexity of the backward direction."""
        return math.exp(self.backward_loss / self.tokens)

    @property
    def mean(self) -> float:
        """Exponential of the mean loss of both directions, as bilm-tf reports it."""
        return math.exp((self.forward_loss + self.backward_loss) / (2 * self.tokens))


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
    sums = np.zeros(2)
    tokens = unknown = 0
    for types, lengths in _batches(sentences):
        distinct, places = np.unique(types, return_inverse=True)
        ids = torch.from_numpy(corpus.characters[distinct].astype(np.int64)).unsqueeze(1)
        vectors = model.bilm.token_encoder(ids).squeeze(1)
        output = model.bilm.contextualize(vectors[torch.from_numpy(places.reshape(types.shape))], lengths)
        words = torch.from_numpy(corpus.words(types, model.head.num_words))
        predicts = output.mask[:, 1:]  # every position but the first has one before it, and the other way round
        forward = model.head.full_loss(output.forward_layers[-1][:, :-1][predicts], words[:, 1:][predicts])
        backward = model.head.full_loss(output.backward_layers[-1][:, 1:][predicts], words[:, :-1][predicts])
        sums += [float(forward.sum(dtype=torch.float64)), float(backward.sum(dtype=torch.float64))]
        tokens += int(predicts.sum())
        unknown += int((words[:, 1:][predicts] == UNKNOWN_TYPE).sum())
    model.train(was_training)
    return Perplexity(float(sums[0]), float(sums[1]), tokens, unknown)


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
