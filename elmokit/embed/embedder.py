"""The `Embedder`: sentences in, one float32 array of contextual vectors a sentence out, in the same order.

Batches come from `elmokit.text.batching`, so that a stream of any length takes the same memory. A token goes through
the token encoder once, as long as `cache` keeps its vector. Nothing is carried from one sentence to another and dropout
is never applied: a sentence's vectors depend on the sentence alone.
"""

import operator
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn

from elmokit.embed.cache import TokenVectors
from elmokit.embed.pooling import Pooling, Vectors, mean_pool
from elmokit.errors import ConfigError, InputError
from elmokit.model.bilm import BiLM
from elmokit.model.concurrent import conducted
from elmokit.model.mix import ScalarMix
from elmokit.model.outputs import BiLMOutput
from elmokit.model.precision import Precision, set_precision
from elmokit.text.batching import batches_by_tokens, distinct_tokens, in_order
from elmokit.text.characters import check_tokens
from elmokit.text.lexicon import Lexicon
from elmokit.text.token_ids import TokenIds
from elmokit.text.tokens import Tokenizer
from elmokit.weights import load_model
from elmokit.weights.files import reading

DEFAULT_MODEL: Final = "small-en"
DEFAULT_BUDGET: Final = 2048  # tokens a batch; on two cores more gains nothing

Layers = Literal["all", "mix", "average", "top"] | int


@dataclass(frozen=True, eq=False, slots=True)
class EmbeddedSentence:
    """A sentence and its vectors.

    Attributes:
        tokens: T strings.
        vectors: (L + 1, T, 2 P) for all layers, (T, 2 P) for one; without T where they are pooled.
    """

    tokens: list[str]
    vectors: Vectors


class Embedder:
    """A biLM made ready for extraction.

    Layer 0 holds the context-independent token vectors, 1 to L the LSTM layers, each forward and backward side by side.

    Attributes:
        bilm: the model.
        mix: the `ScalarMix` behind `layers="mix"`; its `weights` and `gamma` can be read and set.
    """

    def __init__(
        self,
        bilm: BiLM,
        *,
        device: str | torch.device | None = None,
        lexicon: Lexicon | None = None,
        mix_weights: Sequence[float] | None = None,
        gamma: float = 1.0,
        max_tokens_per_batch: int = DEFAULT_BUDGET,
    ) -> None:
        """Args:
        bilm: the model, moved to `device`.
        device: such as "cuda"; None for where the model is.
        lexicon: the vocabulary, for a word-level model only.
        mix_weights: one a layer, before the softmax; None for equal ones, which give the mean of the layers.
        gamma: factor of the mix.
        max_tokens_per_batch: bound on sentences times the longest, boundaries included; memory grows with it.

        Raises:
            ConfigError: the device cannot be used, a word-level model has no fitting vocabulary, or the number of
                mix weights is not the number of layers.
        """
        self._vectors = TokenVectors(bilm.token_encoder, TokenIds(bilm.config.tokens, lexicon))
        self.bilm = bilm
        self.lexicon = lexicon
        self.max_tokens_per_batch = max_tokens_per_batch
        self.mix = ScalarMix(bilm.config.num_layers, initial=mix_weights, trainable=False)
        nn.init.constant_(self.mix.gamma, gamma)
        self._tokenizers: dict[str | None, Tokenizer] = {}
        if device is not None:
            try:
                self.bilm.to(torch.device(device))
            except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for the device
                raise ConfigError(f"the device {str(device)!r} cannot be used: {str(error).splitlines()[0]}") from error

    def __getstate__(self) -> dict[str, object]:
        """Without the tokenisers, which cannot be pickled and are made again when they are needed."""
        return {**self.__dict__, "_tokenizers": {}}

    def embed(
        self, sentences: Iterable[Sequence[str]], layers: Layers = "all", *, pooling: Pooling | None = None
    ) -> list[Vectors]:
        """Embed sentences that are tokenised already.

        Args:
            sentences: lists of tokens; an object with a string `.text` is a token too. An empty list is a sentence.
            layers: "all", "mix", "average" (the mean of all), "top" (the last), or a number; -1 is the top layer too.
            pooling: "mean" for one vector a sentence, the mean over its tokens; zeros for an empty sentence.

        Returns:
            One array a sentence, in order: (L + 1, T, 2 P) for all layers, else (T, 2 P); without T where pooled.

        Raises:
            InputError: a string stands where a list of tokens belongs, or there is no such layer.
        """
        return [sentence.vectors for sentence in self.stream(sentences, layers, pooling=pooling)]

    def embed_text(
        self, text: str, layers: Layers = "all", *, pooling: Pooling | None = None, language: str | None = None
    ) -> list[EmbeddedSentence]:
        """Split raw text into sentences and tokens, and embed them.

        Args:
            text: any text; a line break ends a sentence.
            layers: as for `embed`.
            pooling: as for `embed`.
            language: ISO 639-1 code; None for the model's own, or English where that is unknown.

        Raises:
            InputError: not a string, no such layer, or no rules for the language.
            MissingExtraError: the extra `text` is not installed.
        """
        return list(self.stream(self.tokenizer(language).sentences(text), layers, pooling=pooling))

    def tokenizer(self, language: str | None = None) -> Tokenizer:
        """The tokeniser of a language, made once; arguments and errors as for `embed_text`."""
        language = language or self.bilm.config.language
        if language not in self._tokenizers:
            self._tokenizers[language] = Tokenizer(language)
        return self._tokenizers[language]

    def stream(
        self, sentences: Iterable[Sequence[str]], layers: Layers = "all", *, pooling: Pooling | None = None
    ) -> Iterator[EmbeddedSentence]:
        """Embed any number of sentences while they are read, in order; arguments and errors as for `embed`."""
        if isinstance(sentences, (str, bytes)):
            raise InputError(
                f"sentences is the string {sentences[:40]!r}, expected lists of tokens; "
                "pass [['I', 'am', 'here']], or raw text to embed_text"
            )
        if not isinstance(sentences, Iterable):
            raise InputError(f"sentences is of type {type(sentences).__name__}, expected lists of tokens")
        if pooling not in (None, "mean"):
            raise InputError(f"pooling is {pooling!r}, expected 'mean' or None")
        chosen = self._check_layers(layers)
        checked = (check_tokens(sentence, index) for index, sentence in enumerate(sentences))
        batches = batches_by_tokens(checked, self.max_tokens_per_batch)
        return in_order(result for batch in batches for result in self._embed_batch(batch, chosen, pooling))

    def _check_layers(self, layers: Layers) -> Layers:
        """A name as it is, a number counted from 0."""
        if isinstance(layers, str):
            if layers not in ("all", "mix", "average", "top"):
                raise InputError(f"layers is {layers!r}, expected 'all', 'mix', 'average', 'top' or a number")
            return layers
        count = self.bilm.config.num_layers
        try:
            return range(count)[operator.index(layers)]
        except (IndexError, TypeError) as error:
            raise InputError(
                f"layers is {layers!r}, but this model has layers 0 (tokens) to {count - 1} (top)"
            ) from error

    def _embed_batch(
        self, batch: Sequence[tuple[int, list[str]]], layers: Layers, pooling: Pooling | None
    ) -> Iterator[tuple[int, EmbeddedSentence]]:
        """(place, result) of each sentence of a batch."""
        selected = conducted(lambda: self._run([tokens for _, tokens in batch], layers))
        for row, (place, tokens) in enumerate(batch):
            real = slice(1, len(tokens) + 1)  # without the boundaries
            # Memory of its own, so that keeping one sentence does not keep its whole batch.
            vectors = np.empty((len(selected), len(tokens), self.bilm.config.output_dim), np.float32)
            for layer, parts in zip(vectors, selected, strict=True):
                np.concatenate([part[row, real] for part in parts], axis=-1, out=layer)
            if layers != "all":
                vectors = vectors[0]
            yield place, EmbeddedSentence(tokens, vectors if pooling is None else mean_pool(vectors))

    @torch.inference_mode()
    def _run(self, sentences: Sequence[list[str]], layers: Layers) -> list[list[Vectors]]:
        """The layers asked for, each (B, T, 2 P) in one part, or in two of half the width."""
        device = next(self.bilm.parameters()).device
        tokens, places, lengths = distinct_tokens(sentences)
        with _evaluating(self.bilm):
            token_layer = self._vectors(tokens)[torch.from_numpy(places).to(device)]
            output = self.bilm.contextualize(token_layer, torch.from_numpy(lengths).to(device))
        return [[part.float().cpu().numpy() for part in parts] for parts in self._select(output, layers)]

    def _select(self, output: BiLMOutput, layers: Layers) -> Sequence[Sequence[Tensor]]:
        if layers in ("mix", "average"):
            every = [layer.float() for layer in output.layers]
            return [[self.mix.to(every[0].device)(every) if layers == "mix" else torch.stack(every).mean(dim=0)]]
        directions = zip(output.forward_layers, output.backward_layers, strict=True)
        halves = [(output.token_layer, output.token_layer), *directions]
        if layers == "all":
            return halves
        assert layers == "top" or isinstance(layers, int)
        return [halves[-1 if layers == "top" else layers]]


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Eval mode, and afterwards each part's own mode again: the model may be in training elsewhere."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def load(
    name_or_path: str | Path | tuple[str | Path, str | Path] | None = None,
    *,
    device: str | torch.device | None = None,
    dtype: Precision = "float32",
    vocabulary: str | Path | None = None,
    max_tokens_per_batch: int = DEFAULT_BUDGET,
) -> Embedder:
    """Load a model for embedding.

    The words that lie beside a word-level model are taken. Of an AllenNLP task model `layers="mix"` is the mix that the
    task learned; where it learned several, the first, which made the input of the task's network.

    Args:
        name_or_path: a built-in name, a directory, zip or weight file, or a pair (options, weights); None for the
            built-in English model.
        device: such as "cuda"; None for the CPU.
        dtype: what weights and matrix products are rounded to; cells and vectors stay float32. "bfloat16" is up to
            twice as fast on a CPU that has it, and takes half the memory; "int8" rounds the recurrent weights further.
        vocabulary: file of words in the order of the model's rows, for a word-level model only; None for the one that
            lies beside it.
        max_tokens_per_batch: as for `Embedder`.

    Raises:
        ConfigError: the device or dtype cannot be used, or the vocabulary is missing or not the model's.
        WeightsError: there is no such model, or its files are damaged.
    """
    stored = load_model(DEFAULT_MODEL if name_or_path is None else name_or_path, words=vocabulary is None)
    lexicon = stored.lexicon
    if vocabulary is not None:
        with reading(Path(vocabulary), "a vocabulary"):
            lexicon = Lexicon.read(Path(vocabulary))
    mix = stored.mixes[0] if stored.mixes else None
    set_precision(stored.bilm, dtype)
    return Embedder(
        stored.bilm,
        device=device,
        lexicon=lexicon,
        mix_weights=mix.weights if mix else None,
        gamma=mix.gamma if mix else 1.0,
        max_tokens_per_batch=max_tokens_per_batch,
    )
