"""SeqVec's and bio_embeddings' way of using an ELMo: a protein's letters in, vectors of residues and proteins out.

One amino acid is one token. A residue's vector is the sum of all layers, a protein's the mean over its residues
(Heinzinger et al. 2019). Nothing is carried from protein to protein, so a vector depends on its sequence alone, and not
on what was embedded before, as it did there.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from elmokit.embed.embedder import DEFAULT_BUDGET, Embedder, load
from elmokit.embed.pooling import Vectors, mean_pool
from elmokit.errors import InputError
from elmokit.model.bilm import BiLM


class SeqVecEmbedder:
    """Proteins to vectors, with the names of bio_embeddings.

    Attributes:
        embedding_dimension: width of a vector (2 P); 1024 for SeqVec.
        number_of_layers: with the token layer (L + 1); 3 for SeqVec.
    """

    name = "seqvec"

    def __init__(
        self,
        model: BiLM | str | Path | tuple[str | Path, str | Path] = "seqvec",
        *,
        device: str | torch.device | None = None,
        max_amino_acids: int = DEFAULT_BUDGET,
    ) -> None:
        """Args:
        model: a biLM, or what `elmokit.load` takes; by default SeqVec itself, which is fetched once.
        device: such as "cuda"; None for the CPU.
        max_amino_acids: bound on proteins times the longest in a batch of `embed_many`; memory grows with it.

        Raises:
            ConfigError: the device cannot be used, or the model reads no characters.
            WeightsError: there is no such model, or its files are damaged.
            DownloadError: it could not be fetched.
        """
        if isinstance(model, BiLM):
            self._embedder = Embedder(model, device=device, max_tokens_per_batch=max_amino_acids)
        else:
            self._embedder = load(model, device=device, max_tokens_per_batch=max_amino_acids)
        config = self._embedder.bilm.config
        self.embedding_dimension = config.output_dim
        self.number_of_layers = config.num_layers

    def embed(self, sequence: str) -> Vectors:
        """All layers of a protein of T residues: (L + 1, T, 2 P).

        Args:
            sequence: one letter an amino acid, without white space; case matters, and SeqVec knows capitals.

        Raises:
            InputError: not a string, or with white space in it.
        """
        (layers,) = self.embed_many([sequence])
        return layers

    def embed_many(self, sequences: Iterable[str]) -> Iterator[Vectors]:
        """All layers of each of any number of proteins, in order; arguments and errors as for `embed`."""
        if isinstance(sequences, str):
            raise InputError(f"sequences is the string {sequences[:40]!r}, expected several of them")
        residues = (_residues(sequence) for sequence in sequences)
        return (sentence.vectors for sentence in self._embedder.stream(residues, "all"))

    @staticmethod
    def reduce_per_residue(embedding: Vectors) -> Vectors:
        """The sum of the layers of `embed`: (L + 1, T, 2 P) to (T, 2 P)."""
        summed: Vectors = np.asarray(embedding).sum(axis=0)
        return summed

    @staticmethod
    def reduce_per_protein(embedding: Vectors) -> Vectors:
        """The mean over residues of their sums: (L + 1, T, 2 P) to (2 P,); zeros for a protein of none."""
        return mean_pool(SeqVecEmbedder.reduce_per_residue(embedding))


def _residues(sequence: str) -> list[str]:
    if not isinstance(sequence, str):
        raise InputError(f"a protein is of type {type(sequence).__name__}, expected a string of one-letter amino acids")
    if any(letter.isspace() for letter in sequence):
        raise InputError(
            f"the protein {sequence[:20]!r}... has white space in it, which is no amino acid; join its lines first"
        )
    return list(sequence)
