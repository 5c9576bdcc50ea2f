"""The door of ELMoForManyLangs."""

import numpy as np
import pytest

from elmokit.compat.manylangs import Embedder
from elmokit.errors import InputError, WeightsError
from elmokit.weights import save_bilm
from tests.manylangs_reference import MadeUp

SENTENCES = [["的", "人民", "abc"], ["人民"], [], ["的", "龍", "民", "abc", "x" * 60], ["人民"]]


@pytest.fixture
def model():
    return MadeUp()


@pytest.fixture
def folder(model, tmp_path):
    return model.write(tmp_path / "zhs.model")


@pytest.mark.parametrize("output_layer", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("batch_size", [1, 64])
def test_each_output_layer_is_what_it_was_there(model, folder, output_layer, batch_size):
    found = Embedder(str(folder), batch_size=batch_size).sents2elmo(SENTENCES, output_layer=output_layer)
    assert len(found) == len(SENTENCES)
    for sentence, vectors in zip(SENTENCES, found, strict=True):
        layers = model.layers(sentence)
        expected = {-1: layers.mean(axis=0), -2: layers}.get(output_layer, layers[output_layer])
        assert vectors.dtype == np.float32
        assert vectors.shape == expected.shape
        np.testing.assert_allclose(vectors, expected, atol=2e-6)


def test_the_mean_of_all_layers_is_the_default(folder):
    embedder = Embedder(folder)
    for default, mean in zip(embedder.sents2elmo(SENTENCES), embedder.sents2elmo(SENTENCES, -1), strict=True):
        assert np.array_equal(default, mean)


def test_any_model_goes_through(tiny_bilm, tmp_path):
    save_bilm(tiny_bilm, tmp_path / "any")
    embedder = Embedder(tmp_path / "any")
    assert embedder.sents2elmo([["a", "b"]], -2)[0].shape == (3, 2, 16)
    assert embedder.sents2elmo([]) == []


@pytest.mark.parametrize("output_layer", [3, -3, "all", None])
def test_another_layer_is_refused(folder, output_layer):
    with pytest.raises(InputError, match=r"expected 0 \(tokens\) to 2 \(top\), -1 \(mean\) or -2 \(all\)"):
        Embedder(folder).sents2elmo([["a"]], output_layer)


def test_what_is_no_batch_or_no_model_is_refused(folder, tmp_path):
    with pytest.raises(InputError, match="expected a list of tokens"):
        Embedder(folder).sents2elmo(["今天 天氣"])
    with pytest.raises(InputError, match="batch_size is 0"):
        Embedder(folder, batch_size=0)
    with pytest.raises(WeightsError, match="nowhere"):
        Embedder(tmp_path / "nowhere")
