"""A trained language model on text: perplexity, what each direction thought of each word, and words for a blank.

Takes what `elmokit.weights.load_language_model` gives and sentences of any number; all figures are the full softmax's,
evaluated some rows at a time, and every sentence starts from a fresh state. Needs no training package.

Both directions are combined by Bayes' rule. If what stands left and right of a word were independent given the word,
then P(word | left, right) = P(word | left) P(word | right) / P(word), up to a factor that makes it sum to one: the
product alone would count how common a word is twice. P(word) is the log-uniform law over ranks that the sampled softmax
supposes, since a vocabulary is sorted by frequency and a model keeps no counts.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.embed.cache import TokenVectors
from elmokit.errors import InputError
from elmokit.model.bilm import BiLM
from elmokit.model.concurrent import conducted
from elmokit.model.lm_head import Softmax
from elmokit.model.outputs import BiLMOutput
from elmokit.text.batching import batches_by_tokens, distinct_tokens, in_order
from elmokit.text.characters import check_tokens
from elmokit.text.lexicon import SPECIAL, UNKNOWN, Lexicon
from elmokit.text.token_ids import TokenIds
from elmokit.train.objective import SOFTMAX_NUMBERS, Perplexity, full_losses, score_batch

Ids = npt.NDArray[np.int64]

BUDGET: Final = 2048  # tokens a batch, boundaries included


@dataclass(frozen=True, slots=True)
class TokenScore:
    """What the model thought of a token, in nats.

    Attributes:
        token: as it stands in the text.
        unknown: whether it is outside the vocabulary; then the figures are those of `<UNK>`.
        forward: log-probability given all to its left.
        backward: given all to its right.
        combined: given both.
    """

    token: str
    unknown: bool
    forward: float
    backward: float
    combined: float


@dataclass(frozen=True, slots=True)
class SentenceScore:
    """A sentence, token by token.

    Attributes:
        tokens: one a token.
        end: log-probability of the sentence's end, by the forward direction.
        start: of its start, by the backward direction.
    """

    tokens: tuple[TokenScore, ...]
    end: float
    start: float

    @property
    def forward(self) -> float:
        """Log-probability of the sentence and its end, by the forward direction."""
        return math.fsum([*(token.forward for token in self.tokens), self.end])

    @property
    def backward(self) -> float:
        """Log-probability of the sentence and its start, by the backward direction."""
        return math.fsum([*(token.backward for token in self.tokens), self.start])

    @property
    def combined(self) -> float:
        """Pseudo-log-likelihood: the sum over tokens, each given all others."""
        return math.fsum(token.combined for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word and its log-probability."""

    word: str
    log_prob: float


@dataclass(frozen=True, slots=True)
class Blank:
    """The best words for one place in a sentence, best first; never a boundary or `<UNK>`.

    Attributes:
        position: of the token, from 0.
        forward: given all to its left.
        backward: given all to its right.
        combined: given both.
    """

    position: int
    forward: tuple[Candidate, ...]
    backward: tuple[Candidate, ...]
    combined: tuple[Candidate, ...]


@dataclass(frozen=True, slots=True)
class FilledSentence:
    """A sentence and the best words for each of its blanks."""

    tokens: tuple[str, ...]
    blanks: tuple[Blank, ...]


class Scorer:
    """A language model made ready for questions."""

    def __init__(self, bilm: BiLM, head: Softmax, lexicon: Lexicon) -> None:
        """Args:
        bilm: the network, in eval mode.
        head: its softmax.
        lexicon: the softmax's words, by falling frequency.
        """
        self.bilm, self.head, self.lexicon = bilm, head, lexicon
        self._vectors = TokenVectors(bilm.token_encoder, TokenIds(bilm.config.tokens, lexicon))
        self._unknown = int(lexicon.ids([UNKNOWN])[0])
        ranks = torch.arange(len(lexicon), dtype=torch.float64)
        self._log_prior = torch.log(torch.log1p(1 / (ranks + 1)) / math.log(len(lexicon) + 1)).float()

    def perplexity(self, sentences: Iterable[Sequence[str]], *, source: str = "the text") -> Perplexity:
        """Score every token of these sentences once in each direction; a sentence without tokens does not count.

        Args:
            sentences: lists of tokens.
            source: name to use in messages.

        Raises:
            InputError: a string stands where a list of tokens belongs, or there is no token at all.
        """
        found = Perplexity()
        for _, output, words in self._run(sentence for sentence in sentences if len(sentence)):
            found += conducted(partial(score_batch, self.head, output, words, unknown=self._unknown))
        if not found.tokens:
            raise InputError(f"{source} has no token to measure perplexity on")
        return found

    def score(self, sentences: Iterable[Sequence[str]]) -> Iterator[SentenceScore]:
        """Score each sentence token by token, in order.

        Args:
            sentences: lists of tokens; an empty one has its boundaries scored.

        Raises:
            InputError: a string stands where a list of tokens belongs.
        """
        return in_order(
            (place, self._score(tokens, hidden, words))
            for batch, output, all_words in self._run(sentences)
            for (place, tokens), hidden, words in _rows(batch, output, all_words)
        )

    def fill(self, sentences: Iterable[Sequence[str]], blank: str, *, top: int = 10) -> Iterator[FilledSentence]:
        """The best words for each blank of each sentence, in order.

        Args:
            sentences: lists of tokens.
            blank: the token that stands for one. Other blanks of the sentence are read as they stand.
            top: words of each direction and of both.

        Raises:
            InputError: a string stands where a list of tokens belongs.
        """
        return in_order(
            (place, FilledSentence(tuple(tokens), tuple(self._fill(at, hidden, top) for at in _places(tokens, blank))))
            for batch, output, all_words in self._run(sentences)
            for (place, tokens), hidden, _ in _rows(batch, output, all_words)
        )

    def _run(
        self, sentences: Iterable[Sequence[str]]
    ) -> Iterator[tuple[list[tuple[int, list[str]]], BiLMOutput, Tensor]]:
        """Batches of (place, tokens) with the network's output and word ids (B, T), boundaries included."""
        checked = (check_tokens(sentence, index) for index, sentence in enumerate(sentences))
        for batch in batches_by_tokens(checked, BUDGET):
            tokens, places, lengths = distinct_tokens([sentence for _, sentence in batch])
            words = torch.from_numpy(self.lexicon.ids(tokens)[places])
            yield batch, conducted(partial(self._contextualize, tokens, places, lengths)), words

    @torch.inference_mode()
    def _contextualize(self, tokens: list[str], places: Ids, lengths: Ids) -> BiLMOutput:
        """The network on what `distinct_tokens` gave."""
        token_layer = self._vectors(tokens)[torch.from_numpy(places)]
        return self.bilm.contextualize(token_layer, torch.from_numpy(lengths))

    @torch.inference_mode()
    def _score(self, tokens: list[str], hidden: "_Hidden", words: Tensor) -> SentenceScore:
        """One sentence; words: (T + 2,)."""
        forward = -full_losses(self.head, hidden.forward, words[1:])
        backward = -full_losses(self.head, hidden.backward, words[:-1])
        combined: list[float] = []
        for rows in torch.arange(len(tokens)).split(max(1, SOFTMAX_NUMBERS // self.head.num_words)):
            joint = self._combine(hidden.at(rows))
            combined += joint.gather(1, words[1:-1][rows].unsqueeze(1)).squeeze(1).tolist()
        scores = zip(tokens, words[1:-1].tolist(), forward.tolist()[:-1], backward.tolist()[1:], combined, strict=True)
        return SentenceScore(
            tuple(TokenScore(token, word == self._unknown, *figures) for token, word, *figures in scores),
            end=float(forward[-1]),
            start=float(backward[0]),
        )

    @torch.inference_mode()
    def _fill(self, position: int, hidden: "_Hidden", top: int) -> Blank:
        """One blank."""
        pair = hidden.at(torch.tensor([position]))
        rows = *(self.head.log_probs(side) for side in pair), self._combine(pair)
        return Blank(position, *(self._best(log_probs[0], top) for log_probs in rows))

    def _combine(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        """Hidden vectors of both directions, (N, P) each, to log-probabilities (N, V) given both sides."""
        forward, backward = (self.head.log_probs(side) for side in pair)
        return torch.log_softmax(forward + backward - self._log_prior, dim=-1)

    def _best(self, log_probs: Tensor, top: int) -> tuple[Candidate, ...]:
        """The most probable real words of (V,)."""
        values, ids = log_probs.topk(min(top + len(SPECIAL), len(log_probs)))
        pairs = zip(ids.tolist(), values.tolist(), strict=True)
        found = (Candidate(self.lexicon.words[index], value) for index, value in pairs)
        return tuple(candidate for candidate in found if candidate.word not in SPECIAL)[:top]


@dataclass(frozen=True, slots=True)
class _Hidden:
    """What predicts a sentence of T tokens.

    Attributes:
        forward: (T + 1, P) before each token and the end.
        backward: (T + 1, P) behind the start and each token.
    """

    forward: Tensor
    backward: Tensor

    def at(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What each direction predicts these tokens from, numbered from 0: (N, P) twice."""
        return self.forward[tokens], self.backward[tokens + 1]


def _rows(
    batch: list[tuple[int, list[str]]], output: BiLMOutput, words: Tensor
) -> Iterator[tuple[tuple[int, list[str]], _Hidden, Tensor]]:
    """A batch sentence by sentence."""
    for index, (place, tokens) in enumerate(batch):
        inside = slice(0, len(tokens) + 2)
        forward, backward = output.forward_layers[-1][index, inside], output.backward_layers[-1][index, inside]
        yield (place, tokens), _Hidden(forward[:-1], backward[1:]), words[index, inside]


def _places(tokens: list[str], blank: str) -> list[int]:
    """Where the blanks are."""
    return [index for index, token in enumerate(tokens) if token == blank]
