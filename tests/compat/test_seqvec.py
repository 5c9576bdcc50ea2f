import numpy as np
import pytest
from numpy_bilm import run

from elmokit import load, save_bilm
from elmokit.compat.seqvec import SeqVecEmbedder
from elmokit.errors import InputError

PROTEIN = "SEQWENCEMKVLAAGIVGLLLAQWERTYX"


@pytest.fixture
def embedder(tiny_bilm):
    return SeqVecEmbedder(tiny_bilm)


def test_a_residue_is_the_sum_of_the_layers_of_one_letter_as_a_token(embedder, tiny_bilm):
    layers = embedder.embed(PROTEIN)
    (row,) = run(tiny_bilm.config, tiny_bilm.state_dict(), [list(PROTEIN)])
    expected = row.layers[:, 1:-1]
    assert layers.shape == (embedder.number_of_layers, len(PROTEIN), embedder.embedding_dimension)
    np.testing.assert_allclose(layers, expected, atol=1e-6)
    residues = SeqVecEmbedder.reduce_per_residue(layers)
    np.testing.assert_allclose(residues, expected[0] + expected[1] + expected[2], atol=3e-6)
    np.testing.assert_allclose(embedder.reduce_per_protein(layers), residues.mean(axis=0), atol=1e-6)


def test_a_protein_has_the_same_vectors_whatever_came_before(embedder):
    first = embedder.embed(PROTEIN)
    for _ in embedder.embed_many([PROTEIN[::-1]] * 5):
        pass
    np.testing.assert_array_equal(embedder.embed(PROTEIN), first)


def test_many_proteins_come_back_in_order_however_small_the_batches(tiny_bilm):
    proteins = [PROTEIN, "M", "", PROTEIN * 3, "SEQ"]
    embedder = SeqVecEmbedder(tiny_bilm, max_amino_acids=10)
    for protein, layers in zip(proteins, embedder.embed_many(iter(proteins)), strict=True):
        assert layers.shape == (3, len(protein), 16)
        np.testing.assert_allclose(layers, embedder.embed(protein), atol=1e-6)


def test_a_protein_of_no_residues_is_zeros_and_not_nan(embedder):
    assert not embedder.reduce_per_protein(embedder.embed("")).any()


def test_it_takes_a_path_too(embedder, tiny_bilm, tmp_path):
    save_bilm(tiny_bilm, tmp_path / "seqvec")
    from_files = SeqVecEmbedder(tmp_path / "seqvec").embed("SEQ")
    np.testing.assert_array_equal(from_files, load(tmp_path / "seqvec").embed([["S", "E", "Q"]])[0])
    np.testing.assert_array_equal(from_files, embedder.embed("SEQ"))


@pytest.mark.parametrize("wrong", ["SEQ WENCE", "SEQ\nWENCE", "SEQ\u00a0", ["S", "E"], b"SEQ", None])
def test_what_is_no_sequence_of_letters_is_refused(wrong, embedder):
    with pytest.raises(InputError, match=r"white space|one-letter amino acids"):
        embedder.embed(wrong)


def test_one_string_in_place_of_several_is_refused(embedder):
    with pytest.raises(InputError, match="expected several"):
        embedder.embed_many(PROTEIN)
