import inspect
import json
import re

import h5py
import numpy as np
import pytest
import torch

import elmokit
from elmokit.compat.allennlp import ElmoEmbedder
from elmokit.embed.writers import read_hdf5
from elmokit.errors import ConfigError, ElmokitError, InputError, WeightsError
from elmokit.weights import available_models, load_bilm, save_bilm

SENTENCES = [["The", "cat", "sat", "."], ["Sparks", "fly"], [], ["Extraordinarily"]]


@pytest.fixture
def embedder(files):
    return ElmoEmbedder(*files, stateful=False)


def test_the_constructor_has_the_signature_of_allennlp():
    positional = list(inspect.signature(ElmoEmbedder).parameters)[:3]
    assert positional == ["options_file", "weight_file", "cuda_device"]
    file = inspect.signature(ElmoEmbedder.embed_file).parameters
    assert list(file)[1:] == [
        "input_file",
        "output_file_path",
        "output_format",
        "batch_size",
        "forget_sentences",
        "use_sentence_keys",
    ]


# R07
@pytest.mark.parametrize("num_layers", [1, 2, 4])
def test_an_empty_sentence_has_the_shape_of_the_model(make_bilm, tmp_path, num_layers):
    save_bilm(make_bilm(num_layers=num_layers), tmp_path / "weights.hdf5")
    embedder = ElmoEmbedder(tmp_path / "options.json", tmp_path / "weights.hdf5")
    assert embedder.embed_sentence([]).shape == (num_layers + 1, 0, 16)
    assert [x.shape for x in embedder.embed_batch([[], ["a"], []])] == [(num_layers + 1, n, 16) for n in (0, 1, 0)]
    assert embedder.embed_batch([]) == []
    assert embedder.embed_batch([[], []])[1].dtype == np.float32


def test_all_ways_in_give_the_same_arrays(embedder):
    batch = embedder.embed_batch(SENTENCES)
    assert [x.shape for x in batch] == [(3, len(s), 16) for s in SENTENCES]
    assert all(x.dtype == np.float32 for x in batch)
    stacked, mask = embedder.batch_to_embeddings(SENTENCES)
    assert stacked.shape == (4, 3, 4, 16)
    assert not stacked.requires_grad
    assert mask.sum(dim=1).tolist() == [4, 2, 0, 1]
    assert stacked[~mask[:, None].expand(-1, 3, -1)].abs().sum() == 0
    for size in (1, 2, 3, 64):
        streamed = list(embedder.embed_sentences(iter(SENTENCES), batch_size=size))
        for got, expected in zip(streamed, batch, strict=True):
            np.testing.assert_allclose(got, expected, atol=1e-5)
    np.testing.assert_allclose(embedder.embed_sentence(SENTENCES[0]), batch[0], atol=1e-5)
    # R47: the first layer is the token's own, twice; the others are of the sentence.
    np.testing.assert_array_equal(batch[0][0, :, :8], batch[0][0, :, 8:])


def test_the_first_batch_is_embedded_before_the_second_is_read(embedder):
    def endless():
        yield from SENTENCES[:2]
        raise AssertionError("read too far")

    stream = embedder.embed_sentences(endless(), batch_size=2)
    assert next(stream).shape == (3, 4, 16)


# R02, R05
def test_state_is_carried_by_default_and_nothing_is_dropped_out(files):
    embedder = ElmoEmbedder(*files)
    first, second = embedder.embed_sentence(["a", "b"]), embedder.embed_sentence(["a", "b"])
    assert np.abs(first - second)[1:].max() > 1e-3
    assert np.array_equal(first[0], second[0])  # the token layer knows no context
    embedder.reset_states()
    assert np.array_equal(embedder.embed_sentence(["a", "b"]), first)
    stateless = ElmoEmbedder(*files, stateful=False)
    assert np.array_equal(stateless.embed_sentence(["a", "b"]), first)
    assert np.array_equal(stateless.embed_sentence(["a", "b"]), first)


def test_a_batch_of_empty_sentences_leaves_the_state_as_it_is(files):
    embedder = ElmoEmbedder(*files)
    embedder.embed_sentence(["a"])
    second = embedder.embed_sentence(["a"])
    embedder.reset_states()
    embedder.embed_sentence(["a"])
    embedder.embed_sentence([])
    assert np.array_equal(embedder.embed_sentence(["a"]), second)


# R09, R10
@pytest.mark.parametrize("wrong", [["i am here"], "i am here", ["i", "am"], [["a"], None], [[1]]])
def test_strings_in_place_of_sentences_are_refused(embedder, wrong):
    with pytest.raises(InputError):
        embedder.embed_batch(wrong)
    with pytest.raises(InputError):
        list(embedder.embed_sentences(wrong))
    with pytest.raises(InputError):
        embedder.embed_sentence("i am here")


def test_a_batch_size_below_one_is_refused(embedder):
    with pytest.raises(InputError, match="batch size is 0"):
        list(embedder.embed_sentences(SENTENCES, batch_size=0))


def test_swapped_files_are_named_and_one_file_is_not_enough(files):
    with pytest.raises(WeightsError, match="swapped"):
        ElmoEmbedder(files[1], files[0])
    with pytest.raises(ConfigError, match="both needed"):
        ElmoEmbedder(files[0])


# R18
def test_the_width_of_a_token_comes_from_the_model(make_bilm, tmp_path):
    word = "incomprehensibilities"
    for width in (10, 100):
        save_bilm(make_bilm(width=width), tmp_path / "weights.hdf5")
        embedder = ElmoEmbedder(tmp_path / "options.json", tmp_path / "weights.hdf5")
        whole, cut = (embedder.embed_sentence([w])[0] for w in (word, word[: width - 2]))
        assert np.array_equal(whole, cut)
        assert not np.array_equal(whole, embedder.embed_sentence([word[:7]])[0])


def test_without_files_it_is_the_built_in_model():
    if "small-en" not in available_models():
        pytest.skip("this installation has no built-in model small-en")
    layers = ElmoEmbedder().embed_sentence(["Hello", "world"])
    config = load_bilm("small-en").config
    assert layers.shape == (config.num_layers, 2, config.output_dim)


def test_the_names_at_the_door_are_these():
    assert elmokit.ElmoEmbedder is ElmoEmbedder


# R12, R14 and the layout of AllenNLP's command
LINES = ["The cat sat .", "Sparks fly", "", "The cat sat .", *[f"line {'x ' * i}" for i in range(8)]]


@pytest.fixture
def embed_file(embedder, tmp_path):
    def embed(lines=LINES, **options):
        (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        with (tmp_path / "in.txt").open(encoding="utf-8") as file:
            embedder.embed_file(file, tmp_path / "out", **options)
        return tmp_path / "out"

    return embed


@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_a_file_gives_a_record_a_line_in_order(embed_file, embedder, batch_size):
    found = list(read_hdf5(embed_file(batch_size=batch_size)))
    assert [key for key, _ in found] == [str(i) for i in range(len(LINES))]
    for (_, layers), line in zip(found, LINES, strict=True):
        np.testing.assert_allclose(layers, embedder.embed_sentence(line.split()), atol=1e-5)


def test_the_file_maps_sentences_to_line_numbers(embed_file):
    with h5py.File(embed_file()) as file:
        assert list(file)[:-1] == [str(i) for i in range(len(LINES))]
        mapping = json.loads(file["sentence_to_index"][0])
    assert mapping["Sparks fly"] == "1"
    assert mapping["The cat sat ."] == "3"
    assert set(mapping) == {line.strip() for line in LINES}


def test_top_and_average_are_reductions_of_all(embed_file):
    every = [layers for _, layers in read_hdf5(embed_file())]
    top = [layers for _, layers in read_hdf5(embed_file(output_format="top"))]
    average = [layers for _, layers in read_hdf5(embed_file(output_format="average"))]
    for a, b, c in zip(every, top, average, strict=True):
        np.testing.assert_array_equal(b, a[-1])
        np.testing.assert_allclose(c, a.mean(axis=0), atol=1e-6)


def test_sentences_can_be_forgotten_or_be_keys(embed_file):
    with h5py.File(embed_file(forget_sentences=True)) as file:
        assert "sentence_to_index" not in file
    with h5py.File(embed_file(["b a", "a"], use_sentence_keys=True)) as file:
        assert list(file) == ["b a", "a", "sentence_to_index"]
        assert file["b a"].shape == (3, 2, 16)
    with pytest.warns(UserWarning, match="sentence 1, 'a', came before"):
        embed_file(["a", "a"], use_sentence_keys=True)


def test_lines_are_split_at_spaces_and_tabs_alone(embed_file):
    found = [layers.shape[1] for _, layers in read_hdf5(embed_file(["a\u00a0b c", "a\tb  c", "a\u2028b", "  a "]))]
    assert found == [2, 3, 1, 1]


def test_wrong_arguments_of_a_file_are_refused_before_anything_is_written(embedder, embed_file, tmp_path):
    with pytest.raises(ConfigError, match="'middle', expected one of all, top, average"):
        embed_file(output_format="middle")
    with pytest.raises(InputError, match=re.escape("expected a file that open() gave")):
        embedder.embed_file(str(tmp_path / "in.txt"), tmp_path / "out")
    with pytest.raises(ElmokitError, match="cannot be written"):
        embedder.embed_file(["a b"], tmp_path / "absent" / "out")
    assert not (tmp_path / "out").exists()


def test_an_interrupted_file_leaves_nothing(embedder, tmp_path):
    def lines():
        yield "a b"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        embedder.embed_file(lines(), tmp_path / "out", batch_size=1)
    assert list(tmp_path.glob("*out*")) == []
    assert torch.is_grad_enabled()
