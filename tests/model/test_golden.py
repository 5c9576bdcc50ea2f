"""The published fixture: what TensorFlow computed for AllenNLP's tiny model.

Ten batches in order, state carried row by row. Agreement is to six decimals, the criterion of AllenNLP's own test:
float64 arithmetic is itself 1.1e-6 away from TensorFlow's float32 at one or two of the values.
"""

import json

import h5py
import numpy as np
import numpy_bilm
import pytest
import torch

import elmokit
from elmokit.model.build import build_bilm
from elmokit.text.characters import sentences_to_ids

SIX_DECIMALS = 1.5e-6


@pytest.fixture
def bilm(published):
    return elmokit.load_bilm((published / "options.json", published / "lm_weights.hdf5"))


@pytest.fixture
def batches(published):
    """(three token lists, their three arrays (T, 32) by TensorFlow), ten times."""
    sentences = json.loads((published / "sentences.json").read_text("utf-8"))
    files = [h5py.File(published / f"lm_embeddings_{row}.hdf5") for row in range(3)]
    found = []
    for index in range(10):
        vectors = [np.concatenate(list(file[str(index)][...]), axis=-1) for file in files]
        found.append(([sentences[row][index].split() for row in range(3)], vectors))
    return found


def worst_difference(bilm, batches, *, carry=True):
    worst, state = 0.0, None
    for sentences, expected in batches:
        ids, lengths = sentences_to_ids(sentences, 50)
        with torch.no_grad():
            output = bilm(torch.from_numpy(ids), torch.from_numpy(lengths), state)
        state = output.state if carry else None
        for row, wanted in enumerate(expected):
            found = output.layers[-1][row, 1 : len(wanted) + 1].numpy()
            worst = max(worst, float(np.abs(found - wanted).max()))
    return worst


def test_the_top_layer_of_all_ten_batches_agrees_to_six_decimals(bilm, batches):
    assert worst_difference(bilm, batches) < SIX_DECIMALS


def test_it_is_no_further_away_than_float64_arithmetic_is(bilm, batches):
    weights = {name: value.numpy() for name, value in bilm.state_dict().items()}
    exact, states = 0.0, None
    for sentences, expected in batches:
        rows = numpy_bilm.run(bilm.config, weights, sentences, states)
        states = [row.state for row in rows]
        for row, wanted in zip(rows, expected, strict=True):
            exact = max(exact, float(np.abs(row.layers[-1][1:-1] - wanted).max()))
    assert exact < SIX_DECIMALS
    assert worst_difference(bilm, batches) < exact + 2e-7


def without_forget_bias(bilm):
    for encoder in (bilm.forward_encoder, bilm.backward_encoder):
        for layer in encoder.layers:
            layer.bias.data[64:128] -= 1
    return bilm


def without_skips(bilm):
    shape = bilm.config.encoder.model_copy(update={"skip_connections": False})
    other = build_bilm(bilm.config.model_copy(update={"encoder": shape})).eval()
    other.load_state_dict(bilm.state_dict())
    return other


def with_gates_as_stored(bilm):
    for encoder in (bilm.forward_encoder, bilm.backward_encoder):
        for layer in encoder.layers:
            for parameter in (layer.weight_ih, layer.weight_hh, layer.bias):
                i, f, g, o = parameter.data.chunk(4)
                parameter.data = torch.cat([i, g, f, o])
    return bilm


@pytest.mark.parametrize("spoil", [without_forget_bias, without_skips, with_gates_as_stored])
def test_an_error_of_the_usual_kinds_is_seen_at_once(bilm, batches, spoil):
    assert worst_difference(spoil(bilm), batches) > 1


def test_state_that_is_not_carried_is_seen_at_once(bilm, batches):
    assert worst_difference(bilm, batches, carry=False) > 1


def test_token_vectors_agree_with_the_published_ones(bilm, published):
    words = (published / "vocab_test.txt").read_text("utf-8").split("\n")
    with h5py.File(published / "elmo_token_embeddings.hdf5") as file:
        expected = file["embedding"][...]
    words = [word for word in words if word]
    assert len(words) == len(expected)
    ids, _ = sentences_to_ids([words], 50)
    with torch.no_grad():
        found = bilm.token_encoder(torch.from_numpy(ids))[0, 1:-1].numpy()
    rows = [k for k, word in enumerate(words) if word != "<UNK>"]
    assert np.abs(found - expected)[rows].max() < SIX_DECIMALS
