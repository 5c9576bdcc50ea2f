"""AllenNLP's `ElmoEmbedder`: lists of tokens to arrays of all layers, and text files to HDF5.

Uses the biLM through `Elmo` without any mix, so that state is carried as there; files go through
`elmokit.embed.writers`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, tee
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from elmokit.compat.allennlp.elmo import Elmo
from elmokit.compat.allennlp.ids import batch_to_ids
from elmokit.config import CharCNNConfig
from elmokit.embed.writers import writing
from elmokit.embed.writers.hdf5 import HDF5File
from elmokit.errors import ConfigError, InputError
from elmokit.text.characters import check_tokens
from elmokit.text.sentences import split_tokens
from elmokit.weights import load_bilm

Vectors = npt.NDArray[np.float32]

DEFAULT_MODEL: Final = "small-en"
DEFAULT_BATCH_SIZE: Final = 64

_REDUCTIONS: Final[dict[str, Callable[[Vectors], Vectors]]] = {
    "all": lambda layers: layers,
    "top": lambda layers: layers[-1],
    "average": lambda layers: layers.mean(axis=0),
}


class ElmoEmbedder:
    """All layers of a biLM, without gradient and without dropout.

    **Repeated calls differ, as they did in AllenNLP**, because LSTM state is carried from batch to batch;
    `reset_states()` starts anew, `ElmoEmbedder(..., stateful=False)` never carries it.
    """

    def __init__(
        self,
        options_file: str | Path | None = None,
        weight_file: str | Path | None = None,
        cuda_device: int = -1,
        *,
        stateful: bool = True,
    ) -> None:
        """Args:
        options_file: path or URL of the options (JSON).
        weight_file: path or URL of the weights (HDF5). Without both, the built-in English model, in place of the
            addresses that AllenNLP downloaded from.
        cuda_device: number of the GPU; -1 for the CPU.
        stateful: whether to carry state from batch to batch.

        Raises:
            ConfigError: one file without the other, or a model that reads no characters.
            WeightsError: files that are missing, damaged, swapped or of different models.
        """
        built_in = load_bilm(DEFAULT_MODEL) if options_file is None and weight_file is None else None
        self.elmo = Elmo(options_file, weight_file, 0, module=built_in, stateful=stateful).eval()
        self.cuda_device = cuda_device
        if cuda_device >= 0:
            self.elmo.to(torch.device("cuda", cuda_device))

    def reset_states(self) -> None:
        """Forget what was carried: the next batch is like the first."""
        self.elmo.reset_states()

    @torch.no_grad()
    def batch_to_embeddings(self, batch: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
        """Embed a batch in one piece.

        Args:
            batch: B lists of tokens.

        Returns:
            (B, L + 1, T, 2 P), zero beyond each sentence; (B, T) bool.
        """
        characters = self.elmo.bilm.config.tokens
        assert isinstance(characters, CharCNNConfig)
        ids = batch_to_ids(batch, max_characters_per_token=characters.max_characters_per_token)
        output = self.elmo.run(ids.to(next(self.elmo.parameters()).device))
        layers = torch.stack(output.bilm.layers, dim=1)[:, :, 1:-1]
        return layers * output.mask[:, None, :, None], output.mask

    def embed_sentence(self, sentence: Sequence[str]) -> Vectors:
        """All layers of one list of T tokens: (L + 1, T, 2 P)."""
        return self.embed_batch([sentence])[0]

    def embed_batch(self, batch: Sequence[Sequence[str]]) -> list[Vectors]:
        """All layers of each sentence of a batch, which is run in one piece.

        Args:
            batch: B lists of tokens. One without any token is not run and leaves the carried state as it is.

        Returns:
            B arrays (L + 1, T, 2 P); T is 0 for an empty sentence.

        Raises:
            InputError: a string stands where a list of tokens belongs.
        """
        sentences = [check_tokens(sentence, index) for index, sentence in enumerate(batch)]
        if not any(sentences):
            config = self.elmo.bilm.config
            return [np.empty((config.num_layers, 0, config.output_dim), np.float32) for _ in sentences]
        layers = self.batch_to_embeddings(sentences)[0].float().cpu().numpy()
        # Copies, for a view would keep the whole batch alive.
        return [x[:, : len(sentence)].copy() for x, sentence in zip(layers, sentences, strict=True)]

    def embed_sentences(
        self, sentences: Iterable[Sequence[str]], batch_size: int = DEFAULT_BATCH_SIZE
    ) -> Iterator[Vectors]:
        """All layers of any number of sentences, batch by batch, in input order.

        Args:
            sentences: lists of tokens.
            batch_size: sentences at once; with `stateful`, part of what decides the vectors.

        Raises:
            InputError: as in `embed_batch`, or a batch size below 1.
        """
        if batch_size < 1:
            raise InputError(f"the batch size is {batch_size}, expected 1 or more")
        remaining = iter(sentences)
        while batch := list(islice(remaining, batch_size)):
            yield from self.embed_batch(batch)

    def embed_file(
        self,
        input_file: Iterable[str],
        output_file_path: str | Path,
        output_format: Literal["all", "top", "average"] = "all",
        batch_size: int = DEFAULT_BATCH_SIZE,
        forget_sentences: bool = False,
        use_sentence_keys: bool = False,
    ) -> None:
        """Embed the lines of an open text file into HDF5, in AllenNLP's layout and in constant memory.

        An empty line gives a record of no tokens, where AllenNLP stopped. Lines are split at spaces and tabs only.

        Args:
            input_file: an open text file, one sentence of tokens a line.
            output_file_path: where to write; it appears when it is whole.
            output_format: all layers (L + 1, T, 2 P), the top one or the average of all, (T, 2 P).
            batch_size: sentences at once.
            forget_sentences: leave out `sentence_to_index`.
            use_sentence_keys: key records by sentence and not by line number; repeated sentences then share one.

        Raises:
            ConfigError: unknown output format.
            InputError: a path in place of a file, or an output file that cannot be written.
        """
        if output_format not in _REDUCTIONS:
            raise ConfigError(f"the output format is {output_format!r}, expected one of {', '.join(_REDUCTIONS)}")
        if isinstance(input_file, (str, Path)):
            raise InputError(f"input_file is the path {str(input_file)!r}, expected a file that open() gave")
        reduce = _REDUCTIONS[output_format]

        def make(path: Path) -> HDF5File:
            return HDF5File(path, keep_sentences=not forget_sentences, sentence_keys=use_sentence_keys)

        lines, again = tee(line.strip(" \t\r\n") for line in input_file)
        with writing(output_file_path, make) as writer:
            embedded = self.embed_sentences(map(split_tokens, lines), batch_size)
            for sentence, layers in zip(again, embedded, strict=True):
                writer.write(sentence, split_tokens(sentence), reduce(layers))
