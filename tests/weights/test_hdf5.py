import gzip
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import elmokit
from elmokit.config import CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError, InputError, WeightsError
from elmokit.model.lm_head import AdaptiveHead, LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import convert, load_bilm, load_language_model, load_model, save_bilm
from elmokit.weights.native import save_language_model
from elmokit.weights.transforms import FORGET_BIAS

P, D, E, F = 5, 7, 3, 10
PUBLISHED = Path(__file__).parents[2].parent / "shared" / "fixtures" / "allennlp"
FILTERS = ((1, 4), (2, 6))

SHAPES = {
    "tanh and no highway": (CharCNNConfig(embedding_dim=3, filters=FILTERS, num_highways=0, activation="tanh"), None),
    "filters that sum to P": (CharCNNConfig(embedding_dim=3, filters=((1, 2), (2, 3)), num_highways=2), None),
    "narrow tokens": (CharCNNConfig(embedding_dim=3, filters=FILTERS, max_characters_per_token=10), None),
    "no projection": (None, EncoderConfig(projection_dim=6, cell_dim=6)),
    "one layer": (None, EncoderConfig(projection_dim=5, cell_dim=7, num_layers=1)),
    "four layers": (None, EncoderConfig(projection_dim=5, cell_dim=7, num_layers=4)),
    "no clips, no skips": (
        None,
        EncoderConfig(projection_dim=5, cell_dim=7, cell_clip=None, proj_clip=None, skip_connections=False),
    ),
    "words": (WordEmbeddingConfig(num_words=11), None),
}


@pytest.fixture
def tensorflow_file(tmp_path):
    """(options, weights, options as a dict, arrays) of a model as bilm-tf writes it, made without our own writer."""
    rng = np.random.default_rng(0)
    shapes = {"char_embed": (261, E), "CNN_proj/W_proj": (F, P), "CNN_proj/b_proj": (P,)}
    for i, (width, count) in enumerate(FILTERS):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, E, count), f"CNN/b_cnn_{i}": (count,)}
    for gate in ("carry", "transform"):
        shapes |= {f"CNN_high_0/W_{gate}": (F, F), f"CNN_high_0/b_{gate}": (F,)}
    for direction in range(2):
        for layer in range(2):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            shapes |= {f"{cell}/W_0": (2 * P, 4 * D), f"{cell}/B": (4 * D,), f"{cell}/W_P_0": (D, P)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    options = {
        "lstm": {"dim": D, "projection_dim": P, "n_layers": 2, "cell_clip": 3, "use_skip_connections": True},
        "char_cnn": {
            "embedding": {"dim": E},
            "filters": FILTERS,
            "n_highway": 1,
            "activation": "relu",
            "n_characters": 261,
            "max_characters_per_token": 20,
        },
    }
    write(tmp_path, options, arrays)
    return tmp_path / "options.json", tmp_path / "weights.hdf5", options, arrays


def write(folder, options, arrays):
    (folder / "options.json").write_text(json.dumps(options), "utf-8")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            file[name] = array


def read(path):
    with h5py.File(path) as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        return {name: file[name][...] for name in names}


def assert_holds(bilm, arrays, num_layers, cell_dim, width):
    """Each parameter is the number that the published description of the format names, element by element."""
    ours = {name: tensor.numpy() for name, tensor in bilm.state_dict().items()}
    for i in range(len(bilm.config.tokens.filters)):
        kernel = arrays[f"CNN/W_cnn_{i}"]
        for step in range(kernel.shape[1]):
            for channel in range(kernel.shape[2]):
                weight = ours[f"token_encoder.convolutions.{i}.weight"][:, channel, step]
                assert np.array_equal(weight, kernel[0, step, channel])
        assert np.array_equal(ours[f"token_encoder.convolutions.{i}.bias"], arrays[f"CNN/b_cnn_{i}"])
    for k in range(bilm.config.tokens.num_highways):
        for gate in ("carry", "transform"):
            weight = ours[f"token_encoder.highways.{k}.{gate}.weight"]
            assert np.array_equal(weight, arrays[f"CNN_high_{k}/W_{gate}"].transpose())
            assert np.array_equal(ours[f"token_encoder.highways.{k}.{gate}.bias"], arrays[f"CNN_high_{k}/b_{gate}"])
    assert np.array_equal(ours["token_encoder.embedding"], arrays["char_embed"])
    assert np.array_equal(ours["token_encoder.projection.weight"], arrays["CNN_proj/W_proj"].transpose())
    theirs_in_our_order = (0, 2, 1, 3)  # i, f, g, o among i, j, f, o
    for number, direction in enumerate(("forward", "backward")):
        for layer in range(num_layers):
            cell = f"RNN_{number}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            prefix = f"{direction}_encoder.layers.{layer}"
            for gate, place in enumerate(theirs_in_our_order):
                rows = slice(gate * cell_dim, (gate + 1) * cell_dim)
                columns = slice(place * cell_dim, (place + 1) * cell_dim)
                assert np.array_equal(ours[f"{prefix}.weight_ih"][rows].T, arrays[f"{cell}/W_0"][:width, columns])
                assert np.array_equal(ours[f"{prefix}.weight_hh"][rows].T, arrays[f"{cell}/W_0"][width:, columns])
                bias = arrays[f"{cell}/B"][columns] + np.float32(gate == 1)
                assert np.array_equal(ours[f"{prefix}.bias"][rows], bias)
            assert np.array_equal(ours[f"{prefix}.weight_hr"].T, arrays[f"{cell}/W_P_0"])


def test_a_file_in_tensorflows_layout_loads_number_by_number(tensorflow_file):
    options, weights, _, arrays = tensorflow_file
    bilm = load_bilm((options, weights))
    assert not bilm.training
    assert bilm.config.tokens == CharCNNConfig(
        embedding_dim=E, filters=FILTERS, num_highways=1, max_characters_per_token=20
    )
    assert bilm.config.encoder == EncoderConfig(projection_dim=P, cell_dim=D, cell_clip=3, proj_clip=None)
    assert_holds(bilm, arrays, num_layers=2, cell_dim=D, width=P)


@pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published fixture is not beside this checkout")
def test_the_published_file_loads_number_by_number_and_round_trips(tmp_path, assert_same):
    bilm = load_bilm((PUBLISHED / "options.json", PUBLISHED / "lm_weights.hdf5"))
    arrays = read(PUBLISHED / "lm_weights.hdf5")
    assert_holds(bilm, arrays, num_layers=2, cell_dim=64, width=16)
    save_bilm(bilm, tmp_path / "copy.hdf5")
    assert_same(bilm, load_bilm(tmp_path / "copy.hdf5"))
    written = read(tmp_path / "copy.hdf5")
    assert list(written) == list(arrays)
    for name, array in arrays.items():
        difference = np.abs(written[name] - array)
        assert difference.max() <= (2**-24 if name.endswith("/B") else 0), name


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back_bit_identical(shape, make_bilm, assert_same, tmp_path):
    bilm = make_bilm(*SHAPES[shape], language="de")
    save_bilm(bilm, tmp_path / "model.hdf5")
    assert_same(bilm, load_bilm(tmp_path))


def test_a_written_file_is_in_tensorflows_layout(make_bilm, tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path / "model.h5", options_file=tmp_path / "elsewhere" / "o.json")
    assert_holds(bilm, read(tmp_path / "model.h5"), num_layers=2, cell_dim=D, width=P)
    options = json.loads((tmp_path / "elsewhere" / "o.json").read_text("utf-8"))
    assert options["char_cnn"]["n_characters"] == 262
    assert options["lstm"]["n_layers"] == 2
    assert not (tmp_path / "options.json").exists()


def test_options_of_a_word_model_have_no_char_cnn_and_clips_that_are_off_are_null(make_bilm, tmp_path):
    save_bilm(make_bilm(*SHAPES["words"]), tmp_path / "words.hdf5")
    assert "char_cnn" not in json.loads((tmp_path / "options.json").read_text("utf-8"))
    save_bilm(make_bilm(*SHAPES["no clips, no skips"]), tmp_path / "free" / "weights.hdf5")
    lstm = json.loads((tmp_path / "free" / "options.json").read_text("utf-8"))["lstm"]
    assert (lstm["cell_clip"], lstm["proj_clip"]) == (None, None)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50))
def test_a_forget_bias_that_came_from_a_file_survives_any_number_of_round_trips(values):
    theirs = torch.tensor(values, dtype=torch.float32).repeat(4)
    ours = FORGET_BIAS.read(theirs)
    assert torch.equal(FORGET_BIAS.read(FORGET_BIAS.write(ours)), ours)


@given(st.lists(st.floats(width=32, min_value=-1, max_value=4), min_size=1, max_size=50))
def test_any_forget_bias_survives_a_round_trip_to_one_rounding_and_exactly_from_one_half_on(values):
    ours = torch.tensor(values, dtype=torch.float32).repeat(4)
    back = FORGET_BIAS.read(FORGET_BIAS.write(ours))
    assert (back - ours).abs().max() <= 2**-24
    exact = ours >= 0.5
    assert torch.equal(back[exact], ours[exact])


@pytest.mark.parametrize("count", [261, 262, None, "missing"])
def test_the_number_of_characters_in_the_options_changes_nothing(count, tensorflow_file, assert_same):
    options, weights, content, _ = tensorflow_file
    expected = load_bilm((options, weights))
    if count == "missing":
        del content["char_cnn"]["n_characters"]
    else:
        content["char_cnn"]["n_characters"] = count
    options.write_text(json.dumps(content), "utf-8")
    assert_same(load_bilm((options, weights)), expected)


@pytest.mark.parametrize("rows", [1, 200, 260, 262])
def test_a_wrong_number_of_character_rows_is_named_with_both_shapes(rows, tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    write(weights.parent, content, arrays | {"char_embed": np.zeros((rows, E), np.float32)})
    with pytest.raises(WeightsError, match=rf"'char_embed' is \({rows}, 3\), expected \(261, 3\)"):
        load_bilm((options, weights))


def test_missing_unused_misshaped_and_mistyped_tensors_come_in_one_error(tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    del arrays["CNN/b_cnn_1"]
    arrays["CNN/b_cnn_9"] = np.zeros(2, np.float32)
    arrays["CNN_proj/W_proj"] = arrays["CNN_proj/W_proj"].T
    arrays["CNN_high_0/b_carry"] = np.zeros(F, np.int32)
    write(weights.parent, content, arrays)
    with pytest.raises(WeightsError) as caught:
        load_bilm((options, weights))
    message = str(caught.value)
    assert "missing: 'CNN/b_cnn_1' (6,)" in message
    assert "unused: 'CNN/b_cnn_9' (2,)" in message
    assert "misshaped: 'CNN_proj/W_proj' is (5, 10), expected (10, 5)" in message
    assert "of the wrong type: 'CNN_high_0/b_carry' is int32" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_a_number_that_is_not_finite_in_float32_names_its_tensor(value, tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    name = "RNN_1/RNN/MultiRNNCell/Cell1/LSTMCell/W_P_0"
    arrays[name] = arrays[name].astype(np.float64)
    arrays[name][3, 2] = value
    write(weights.parent, content, arrays)
    with pytest.raises(WeightsError, match=f"{name}.*NaN or infinite"):
        load_bilm((options, weights))


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<f2"])
def test_other_floating_types_and_byte_orders_load_as_float32(dtype, tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    write(weights.parent, content, {name: array.astype(dtype) for name, array in arrays.items()})
    bilm = load_bilm((options, weights))
    expected = torch.from_numpy(arrays["char_embed"].astype(dtype).astype(np.float32))
    assert torch.equal(bilm.token_encoder.embedding, expected)


@pytest.mark.parametrize("level", ["MultiRNNCell/Cell0/", ""])
def test_one_layer_models_load_in_both_spellings(level, tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    content["lstm"]["n_layers"] = 1
    arrays = {name.replace("MultiRNNCell/Cell0/", level): a for name, a in arrays.items() if "Cell1" not in name}
    write(weights.parent, content, arrays)
    bilm = load_bilm((options, weights))
    assert bilm.config.num_layers == 2
    weight = bilm.state_dict()["backward_encoder.layers.0.weight_hr"].numpy()
    assert np.array_equal(weight, arrays[f"RNN_1/RNN/{level}LSTMCell/W_P_0"].T)


@pytest.mark.parametrize("char_cnn", ["absent", "null", "left from another model"])
def test_word_level_models_take_their_words_from_the_file(char_cnn, tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    if char_cnn == "absent":
        del content["char_cnn"]
    elif char_cnn == "null":
        content["char_cnn"] = None
    words = {name: array for name, array in arrays.items() if name.startswith("RNN")}
    words["embedding"] = np.arange(13 * P, dtype=np.float32).reshape(13, P)
    write(weights.parent, content | {"n_tokens_vocab": 999}, words)
    bilm = load_bilm((options, weights))
    assert bilm.config.tokens == WordEmbeddingConfig(num_words=13)
    assert np.array_equal(bilm.token_encoder.embedding.weight.detach().numpy(), words["embedding"])


def test_options_of_words_with_weights_of_characters_are_named(tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    del content["char_cnn"]
    write(weights.parent, content, arrays)
    with pytest.raises(WeightsError, match=r"no 'char_cnn'.*'embedding'"):
        load_bilm((options, weights))


def test_real_files_carry_more_than_the_network_needs(tensorflow_file, assert_same):
    options, weights, content, arrays = tensorflow_file
    expected = load_bilm((options, weights))
    content |= {"bidirectional": True, "n_epochs": 10, "unroll_steps": 20, "dropout": 0.1, "all_clip_norm_val": 10.0}
    content["char_cnn"] |= {"reverse": False, "projection_after_highway": True}
    head = {"softmax/W": np.zeros((4, P), np.float32), "softmax/b": np.zeros(4, np.float32)}
    write(weights.parent, content, arrays | head)
    assert_same(load_bilm((options, weights)), expected)


@pytest.mark.parametrize("off", [0, 0.0, None, "missing"])
def test_a_clip_that_is_zero_null_or_missing_is_off(off, tensorflow_file):
    options, weights, content, _ = tensorflow_file
    del content["lstm"]["cell_clip"]
    if off != "missing":
        content["lstm"] |= {"cell_clip": off, "proj_clip": off}
    options.write_text(json.dumps(content), "utf-8")
    encoder = load_bilm((options, weights)).config.encoder
    assert (encoder.cell_clip, encoder.proj_clip) == (None, None)


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("lstm", {"dim": 0}),
        ("lstm", {"dim": "wide"}),
        ("lstm", {"cell_clip": -1}),
        ("lstm", {"projection_dim": None}),
        ("char_cnn", {"filters": []}),
        ("char_cnn", {"filters": [[1, 2, 3]]}),
        ("char_cnn", {"activation": "gelu"}),
        ("char_cnn", {"max_characters_per_token": 1}),
    ],
)
def test_options_of_no_possible_network_are_named(section, change, tensorflow_file):
    options, weights, content, _ = tensorflow_file
    content[section] |= change
    options.write_text(json.dumps(content), "utf-8")
    with pytest.raises(ConfigError, match=r"options\.json"):
        load_bilm((options, weights))


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe{}", b"null", b"{" * 100_000, b" " * 2**21])
def test_options_that_are_no_options_are_named(text, tensorflow_file):
    options, weights, _, _ = tensorflow_file
    options.write_bytes(text)
    with pytest.raises((ConfigError, WeightsError), match=r"options\.json"):
        load_bilm((options, weights))


@pytest.mark.parametrize(
    ("section", "change"),
    [
        ("lstm", {"n_layers": 10**9}),
        ("char_cnn", {"n_highway": 10**9}),
        ("char_cnn", {"filters": [[1, 1]] * 10_000}),
        ("lstm", {"dim": 10**12}),
        ("lstm", {"dim": 10**18}),
        ("lstm", {"projection_dim": 82351536043346224}),
        ("lstm", {"projection_dim": 10**30}),
        ("char_cnn", {"embedding": {"dim": 10**17}}),
    ],
)
def test_options_of_a_gigantic_network_are_refused_before_memory_is_taken(section, change, tensorflow_file):
    options, weights, content, _ = tensorflow_file
    content[section] |= change
    options.write_text(json.dumps(content), "utf-8")
    with pytest.raises((WeightsError, ConfigError)):
        load_bilm((options, weights))


def test_a_small_file_that_claims_to_hold_terabytes_is_refused(tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    content["lstm"]["dim"] = 10**9
    options.write_text(json.dumps(content), "utf-8")
    with h5py.File(weights, "a") as file:
        for name in [name for name in arrays if name.startswith("RNN")]:
            shape = tuple({D: 10**9, 4 * D: 4 * 10**9}.get(size, size) for size in file[name].shape)
            del file[name]
            file.create_dataset(name, shape=shape, dtype="f4", chunks=tuple(min(size, 8) for size in shape))
    with pytest.raises(WeightsError, match="claims to hold"):
        load_bilm((options, weights))


def test_values_kept_in_another_file_are_not_fetched(tensorflow_file, tmp_path):
    options, weights, _, arrays = tensorflow_file
    (tmp_path / "secret.bin").write_bytes(arrays["char_embed"].tobytes())
    with h5py.File(weights, "a") as file:
        del file["char_embed"]
        size = arrays["char_embed"].nbytes
        file.create_dataset("char_embed", (261, E), "f4", external=[(str(tmp_path / "secret.bin"), 0, size)])
    with pytest.raises(WeightsError, match=r"char_embed.*another file"):
        load_bilm((options, weights))


def test_a_model_that_cannot_be_saved_leaves_the_file_that_was_there(make_bilm, tmp_path, assert_same):
    good, bad = make_bilm(), make_bilm(*SHAPES["narrow tokens"])
    save_bilm(good, tmp_path / "model.hdf5")
    with torch.no_grad():
        bad.backward_encoder.layers[1].weight_hh[0, 0] = torch.nan
    with pytest.raises(WeightsError, match=r"backward_encoder\.layers\.1\.weight_hh"):
        save_bilm(bad, tmp_path / "model.hdf5")
    assert_same(load_bilm(tmp_path / "model.hdf5"), good)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.hdf5", "options.json"]


def test_loading_leaves_the_random_generator_alone(tensorflow_file):
    options, weights, _, _ = tensorflow_file
    before = torch.get_rng_state()
    load_bilm((options, weights))
    assert torch.equal(torch.get_rng_state(), before)


HEAD = {"softmax/W": np.ones((4, P), np.float32), "softmax/b": np.arange(4, dtype=np.float32)}


@pytest.mark.parametrize("place", ["inside", "beside"])
def test_a_softmax_in_the_file_or_beside_it_makes_a_language_model(place, tensorflow_file, assert_same):
    options, weights, content, arrays = tensorflow_file
    expected, folder = load_bilm((options, weights)), weights.parent
    if place == "inside":
        write(folder, content, arrays | HEAD)
    else:
        with h5py.File(folder / "softmax_weights.hdf5", "w") as file:
            for name, array in HEAD.items():
                file[name] = array
    Lexicon([*SPECIAL, "word"]).write(folder / "vocab.txt")
    for source in (folder, weights, (options, weights)):
        bilm, head, lexicon = load_language_model(source)
        assert_same(bilm, expected)
        assert np.array_equal(head.weight.detach().numpy(), HEAD["softmax/W"])
        assert np.array_equal(head.bias.detach().numpy(), HEAD["softmax/b"])
        assert lexicon.words[-1] == "word"
    assert load_model(folder).head is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"softmax/b": None}, r"missing: 'softmax/b' \(4,\)"),
        ({"softmax/W": None}, r"missing: 'softmax/W' \(4, 5\)"),
        ({"softmax/W": np.ones((4, 3), np.float32)}, r"'softmax/W' is \(4, 3\), expected \(4, 5\)"),
        ({"softmax/W": np.ones((), np.float32)}, r"'softmax/W' is \(\), expected \(4, 5\)"),
        ({"softmax/b": np.full(4, np.nan, np.float32)}, "NaN"),
    ],
)
def test_a_softmax_that_is_none_is_named_where_it_is_wanted(change, said, tensorflow_file, assert_same):
    options, weights, content, arrays = tensorflow_file
    expected = load_bilm((options, weights))
    head = {name: array for name, array in (HEAD | change).items() if array is not None}
    write(weights.parent, content, arrays | head)
    assert_same(load_bilm((options, weights)), expected)
    with pytest.raises(WeightsError, match=said):
        load_language_model(weights)


def test_vectors_and_caches_of_other_programs_beside_the_weights_are_passed_over(tensorflow_file, assert_same):
    """AllenNLP's own fixture folder is such a one."""
    options, weights, _, _ = tensorflow_file
    with h5py.File(weights.with_name("elmo_token_embeddings.hdf5"), "w") as file:
        file["embedding"] = np.zeros((3, P))
    with h5py.File(weights.with_name("vectors.hdf5"), "w") as file:
        file["0"] = np.zeros((3, 2, P))
    weights.with_name("empty.hdf5").write_bytes(b"")
    assert_same(load_bilm(weights.parent), load_bilm((options, weights)))


def test_the_published_folder_loads_as_it_is(published, assert_same):
    assert_same(load_bilm(published), load_bilm((published / "options.json", published / "lm_weights.hdf5")))


def test_a_language_model_goes_through_hdf5_with_softmax_and_words(make_bilm, assert_same, tmp_path):
    bilm, head, lexicon = make_bilm(), LMHead(5, 5), Lexicon([*SPECIAL, "the", "\u2028"])
    save_language_model(bilm, tmp_path / "a", head=head, lexicon=lexicon)
    convert(tmp_path / "a", tmp_path / "b" / "model.hdf5")
    written = read(tmp_path / "b" / "model.hdf5")
    assert np.array_equal(written["softmax/W"], head.weight.detach().numpy())
    convert(tmp_path / "b", tmp_path / "c")
    same, same_head, same_lexicon = load_language_model(tmp_path / "c")
    assert_same(same, bilm)
    assert same_lexicon.words == lexicon.words
    for name, tensor in head.state_dict().items():
        assert torch.equal(same_head.state_dict()[name], tensor)


def test_an_adaptive_softmax_has_no_place_in_hdf5(make_bilm, tmp_path):
    lexicon = Lexicon([*SPECIAL, *map(str, range(2500))])
    save_language_model(make_bilm(), tmp_path / "a", head=AdaptiveHead(len(lexicon), 5), lexicon=lexicon)
    convert(tmp_path / "a", tmp_path / "b" / "model.hdf5")
    assert not [name for name in read(tmp_path / "b" / "model.hdf5") if "softmax" in name]
    assert load_model(tmp_path / "b", head=True).head is None


def test_words_of_other_weights_are_not_written_over(make_bilm, tmp_path):
    save_language_model(make_bilm(), tmp_path / "a", head=LMHead(3, 5), lexicon=Lexicon(SPECIAL))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "vocab.txt").write_text("of another")
    with pytest.raises(WeightsError, match=r"vocab\.txt is there and belongs to other weights"):
        convert(tmp_path / "a", tmp_path / "b" / "model.hdf5")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["vocab.txt"]


def test_a_model_of_code_points_is_no_model_of_bytes(make_bilm, tmp_path):
    bilm = make_bilm(CharCNNConfig(embedding_dim=3, filters=FILTERS, alphabet="abc"))
    with pytest.raises(WeightsError, match=r"code points.*native format"):
        save_bilm(bilm, tmp_path / "model.hdf5")
    assert list(tmp_path.iterdir()) == []


META = {"corpus": [{"language": "rus", "description": "taiga"}], "algorithm": {"name": "ELMo"}, "id": 199}


@pytest.mark.parametrize(
    ("meta", "language"),
    [
        (META, "ru"),
        (META | {"corpus": {"language": "ENG"}}, "en"),
        (META | {"corpus": [{"language": "nob"}, {"language": "nob"}]}, "nb"),
        (META | {"corpus": [{"language": "nob"}, {"language": "nno"}]}, None),
        (META | {"corpus": [{"language": "xyz"}]}, None),
        (META | {"corpus": [3, {"language": None}, {}]}, None),
        ({}, None),
        ([], None),
        ("no JSON", None),
    ],
)
def test_an_nlpl_archive_says_its_language(meta, language, tensorflow_file):
    options, weights, content, _ = tensorflow_file
    text = meta if isinstance(meta, str) else json.dumps(meta)
    options.with_name("meta.json").write_text(text, "utf-8")
    assert load_bilm((options, weights)).config.language == language
    options.write_text(json.dumps(content | {"language": "de"}), "utf-8")
    assert load_bilm((options, weights)).config.language == "de"


def test_a_vocabulary_that_no_one_asked_for_is_not_read(tensorflow_file):
    options, weights, _, _ = tensorflow_file
    options.with_name("vocab.txt").write_text("no specials\n")
    assert load_model(weights).lexicon is None
    assert load_model(weights, head=True).lexicon is None
    assert load_bilm((options, weights)).config.num_layers == 3


def test_a_seqvec_folder_is_an_elmo_of_residues(tensorflow_file):
    """`weights.hdf5` and `options.json` as they are distributed, in either order of the two; a residue is a token."""
    options, weights, _, _ = tensorflow_file
    embedder = elmokit.load(weights.parent)
    layers = embedder.embed([list("SEQVEC")])[0]
    assert layers.shape == (3, 6, 2 * P)
    assert np.array_equal(layers[0, 1], layers[0, 4])  # both E
    with pytest.raises(WeightsError, match="swapped"):
        elmokit.load((weights, options))


@pytest.mark.parametrize("packed", [False, True])
def test_the_words_beside_a_word_level_model_are_taken_and_others_win(packed, tensorflow_file, tmp_path):
    _, weights, content, arrays = tensorflow_file
    words = {name: array for name, array in arrays.items() if name.startswith("RNN")}
    rng = np.random.default_rng(1)
    write(weights.parent, content | {"char_cnn": None}, words | {"embedding": rng.normal(size=(5, P)).astype("f4")})
    with pytest.raises(ConfigError, match="word-level model, which needs its vocabulary"):
        elmokit.load(weights.parent)
    lines = "".join(f"{word}\n" for word in [*SPECIAL, "a", "b"]).encode()
    beside = weights.parent / ("vocab.txt.gz" if packed else "vocab.txt")
    beside.write_bytes(gzip.compress(lines) if packed else lines)
    embedder = elmokit.load(weights)
    rows = embedder.bilm.token_encoder.embedding.weight.detach().numpy()
    assert np.array_equal(embedder.embed([["b", "zzz", "a"]], 0)[0][:, :P], rows[[4, 2, 3]])
    other = tmp_path / "other.txt"
    other.write_text("b\na\n<S>\n</S>\n<UNK>\n")
    assert np.array_equal(elmokit.load(weights, vocabulary=other).embed([["b"]], 0)[0][:, :P], rows[[0]])
    for damaged in (b"", b"\x1f\x8b" + bytes(20)):
        (tmp_path / "damaged.txt.gz").write_bytes(damaged)
        with pytest.raises((WeightsError, InputError)):
            elmokit.load(weights, vocabulary=tmp_path / "damaged.txt.gz")
    with pytest.raises(WeightsError, match=r"there is no file .*missing\.txt, expected a vocabulary"):
        elmokit.load(weights, vocabulary=tmp_path / "missing.txt")
    convert(weights.parent, tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "again" / "weights.hdf5")
    for place in ("native", "again"):
        found = elmokit.load(tmp_path / place).embed([["b", "a"]])[0]
        np.testing.assert_allclose(found, embedder.embed([["b", "a"]])[0], atol=1e-6)
    lines += b"one too many\n"
    beside.write_bytes(gzip.compress(lines) if packed else lines)
    with pytest.raises(WeightsError, match="has 6 words, but its table of words has 5 rows"):
        elmokit.load(weights)
    beside.write_bytes(lines if packed else lines[:7])
    with pytest.raises((WeightsError, InputError)):
        elmokit.load(weights)
    assert load_bilm(weights).config.tokens.num_words == 5
    assert elmokit.load(weights, vocabulary=other).lexicon.words[0] == "b"


def test_several_vocabularies_are_listed(tensorflow_file):
    options, weights, content, arrays = tensorflow_file
    write(weights.parent, content, arrays | HEAD)
    for name in ("vocab-a.txt", "vocab-b.txt"):
        Lexicon([*SPECIAL, "word"]).write(options.with_name(name))
    with pytest.raises(WeightsError, match=r"several vocabularies .*vocab-a\.txt, vocab-b\.txt"):
        load_language_model(weights)
    options.with_name("vocab-a.txt").rename(options.with_name("vocab.txt"))
    assert load_language_model(weights)[2].words[-1] == "word"
