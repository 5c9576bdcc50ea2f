"""ELMoForManyLangs' door: `Embedder(model_dir).sents2elmo(sentences)`, its output layers and results (Che et al. 2018).

Takes its models or any other that `elmokit.load` takes. Nothing is carried from batch to batch, so a sentence's vectors
are those that it got there in the first batch after loading.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import torch

from elmokit.embed.embedder import Layers, load
from elmokit.embed.pooling import Vectors
from elmokit.errors import InputError

AVERAGE: Final = -1
ALL: Final = -2
TOKENS_PER_SENTENCE: Final = 32  # what a batch size of sentences means in tokens


class Embedder:
    """A model made ready for extraction.

    Attributes:
        model_dir: what it was loaded from.
        batch_size: sentences of 32 tokens in a batch; longer ones are fewer.
    """

    def __init__(
        self, model_dir: str | Path | tuple[str | Path, str | Path] | None = None, batch_size: int = 64
    ) -> None:
        """Args:
        model_dir: the directory or zip of an ELMoForManyLangs model, or anything else that `elmokit.load` takes.
        batch_size: bounds the memory; it changes no vector. On a GPU, which is used where there is one, more is faster.

        Raises:
            InputError: the batch size is below 1.
            ElmokitError: as `elmokit.load` does.
        """
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}, expected at least 1")
        self.model_dir, self.batch_size = model_dir, batch_size
        self._embedder = load(
            model_dir,
            device="cuda" if torch.cuda.is_available() else None,
            max_tokens_per_batch=batch_size * TOKENS_PER_SENTENCE,
        )

    def sents2elmo(self, sents: Iterable[Sequence[str]], output_layer: int = AVERAGE) -> list[Vectors]:
        """Embed sentences.

        Args:
            sents: lists of tokens.
            output_layer: 0 for the token layer, 1 to L for an LSTM layer, -1 for the mean of all, -2 for all.

        Returns:
            One float32 array a sentence, in order: (T, 2 P), or (L + 1, T, 2 P) for all layers.

        Raises:
            InputError: a string stands where a list of tokens belongs, or there is no such layer.
        """
        named: dict[int, Layers] = {AVERAGE: "average", ALL: "all"}
        count = self._embedder.bilm.config.num_layers
        if output_layer not in named and output_layer not in range(count):
            raise InputError(
                f"output_layer is {output_layer!r}, expected 0 (tokens) to {count - 1} (top), -1 (mean) or -2 (all)"
            )
        return self._embedder.embed(sents, named.get(output_layer, output_layer))
