import json
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elmokit.config import EncoderConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError, ElmokitError, InputError, WeightsError
from elmokit.weights import convert, load_bilm, load_language_model, load_model
from elmokit.weights.tensor_bundle import read_bundle

# What TensorFlow 2.21's tf.compat.v1.train.Saver wrote of variables with bilm-tf's names, Adagrad's slots and a step.
REAL = Path(__file__).parent / "data" / "bilm_tf"
P, D, E, V = 4, 6, 3, 7
FILTERS = [[1, 2], [2, 3]]


def graph_shapes(layers=2, cell="multi_rnn_cell/cell_{}/lstm_cell"):
    """Names and shapes of bilm-tf's variables, as its graph has them."""
    f = sum(count for _, count in FILTERS)
    shapes = {"char_embed": (261, E), "CNN_proj/W_proj": (f, P), "CNN_proj/b_proj": (P,)}
    for i, (width, count) in enumerate(FILTERS):
        shapes |= {f"CNN/W_cnn_{i}": (1, width, E, count), f"CNN/b_cnn_{i}": (count,)}
    for gate in ("carry", "transform"):
        shapes |= {f"CNN_high_0/W_{gate}": (f, f), f"CNN_high_0/b_{gate}": (f,)}
    for direction in range(2):
        for layer in range(layers):
            name = f"RNN_{direction}/rnn/{cell.format(layer)}"
            shapes |= {f"{name}/kernel": (2 * P, 4 * D), f"{name}/bias": (4 * D,), f"{name}/projection/kernel": (D, P)}
    return {f"lm/{name}": shape for name, shape in (shapes | {"softmax/W": (V, P), "softmax/b": (V,)}).items()}


def values(name, shape):
    """The numbers that the real checkpoint was made with."""
    numbers = (np.arange(np.prod(shape)) * 37 + sum(name.encode())) % 101
    return ((numbers - 50) / 128).astype(np.float32).reshape(shape)


def variables(**changes):
    return {name: values(name, shape) for name, shape in graph_shapes(**changes).items()}


# A writer of the format, made from its description alone and without a line of the reader's.
POLYNOMIAL = 0x82F63B78


def checksum(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (POLYNOMIAL * (crc & 1))
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(number):
    out = b""
    while number >= 128:
        out += bytes([number % 128 + 128])
        number //= 128
    return out + bytes([number])


def field(number, kind, content):
    return varint(number * 8 + kind) + (varint(len(content)) + content if kind == 2 else content)


def block(entries, restart_every, compression=0, damage=bytes):
    out, restarts, last = b"", [], b""
    for index, (key, value) in enumerate(entries):
        shared = 0
        if index % restart_every == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    out += b"".join(struct.pack("<I", place) for place in restarts or [0])
    out = damage(out + struct.pack("<I", len(restarts or [0]))) + bytes([compression])
    return out + checksum(out)


def entry(array, shard, offset, crc, slices=b""):
    kind = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}[array.dtype.newbyteorder("=").name]
    shape = b"".join(field(2, 2, field(1, 0, varint(size))) for size in array.shape)
    return (
        field(1, 0, varint(kind))
        + field(2, 2, shape)
        + (field(3, 0, varint(shard)) if shard else b"")
        + (field(4, 0, varint(offset)) if offset else b"")
        + field(5, 0, varint(array.nbytes))
        + field(6, 5, crc)
        + slices
    )


def write_bundle(
    prefix, arrays, shards=1, per_block=1000, restart_every=16, compression=0, big=False, slices=b"", damage=bytes
):
    prefix.parent.mkdir(parents=True, exist_ok=True)
    data = [b"" for _ in range(shards)]
    header = (
        field(1, 0, varint(shards)) + (field(2, 0, varint(1)) if big else b"") + field(3, 2, field(1, 0, varint(1)))
    )
    entries = [(b"", header)]
    for index, name in enumerate(sorted(arrays, key=str.encode)):
        array = arrays[name].astype(arrays[name].dtype.newbyteorder(">")) if big else arrays[name]
        raw, shard = array.tobytes(), index % shards
        entries.append((name.encode(), entry(array, shard, len(data[shard]), checksum(raw), slices)))
        data[shard] += raw
    table, handles = b"", []
    for start in range(0, len(entries), per_block):
        part = entries[start : start + per_block]
        content = block(part, restart_every, compression, damage)
        handles.append((part[-1][0] + b"~", varint(len(table)) + varint(len(content) - 5)))
        table += content
    meta, index_block = block([], 1), block(handles, 1)
    footer = varint(len(table)) + varint(len(meta) - 5) + varint(len(table) + len(meta)) + varint(len(index_block) - 5)
    footer = footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)
    prefix.with_name(prefix.name + ".index").write_bytes(table + meta + index_block + footer)
    for number, content in enumerate(data):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{shards:05d}").write_bytes(content)


def write_training(folder, arrays, prefix="model.ckpt-5", options=None, words=None, **how):
    write_bundle(folder / prefix, arrays, **how)
    content = json.loads((REAL / "options.json").read_text("utf-8"))
    for key, value in (options or {}).items():
        content[key] = content[key] | value if isinstance(value, dict) else value
        if value is None:
            del content[key]
    (folder / "options.json").write_text(json.dumps(content), "utf-8")
    if words is not None:
        (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    return folder


def dumped(folder, arrays, options=None):
    """The model as bilm-tf's own dump to HDF5 has it."""
    folder.mkdir()
    source = json.loads((REAL / "options.json").read_text("utf-8")) if options is None else options
    (folder / "options.json").write_text(json.dumps(source), "utf-8")
    with h5py.File(folder / "weights.hdf5", "w") as file:
        for name, array in arrays.items():
            parts = name.split("/")
            if parts[1].startswith("RNN"):
                last = {"kernel": "W_0", "bias": "B"}.get(parts[-1]) if "projection" not in parts else "W_P_0"
                layer = next(part for part in parts if part.startswith("cell_"))[5:]
                file[f"{parts[1]}/RNN/MultiRNNCell/Cell{layer}/LSTMCell/{last}"] = array
            elif parts[1] != "softmax":
                file["/".join(parts[1:])] = array
    return folder


def test_what_tensorflow_wrote_is_read_bit_by_bit():
    stored = read_bundle(REAL / "model.ckpt-3.index")
    expected = variables()
    assert set(stored) == {*expected, *(f"{name}/Adagrad" for name in expected), "global_step"}
    for name, array in expected.items():
        assert stored[name].shape == array.shape
        assert np.array_equal(stored[name].read().numpy(), array), name
        assert np.array_equal(stored[f"{name}/Adagrad"].read().numpy(), np.ones(array.shape, np.float32))
    assert stored["global_step"].shape == ()


def test_a_training_of_bilm_tf_is_a_language_model_and_the_one_that_its_dump_is(assert_same, tmp_path):
    bilm, head, lexicon = load_language_model(REAL)
    assert_same(bilm, load_bilm(dumped(tmp_path / "dump", variables())))
    assert not bilm.training and not head.training
    assert bilm.config.encoder == EncoderConfig(projection_dim=P, cell_dim=D)
    assert np.array_equal(head.weight.detach().numpy(), values("lm/softmax/W", (V, P)))
    assert np.array_equal(head.bias.detach().numpy(), values("lm/softmax/b", (V,)))
    assert lexicon.words == ("<S>", "</S>", "<UNK>", "the", "of", "and", "to")


@pytest.mark.parametrize(
    "how",
    [
        {"shards": 2, "per_block": 3},
        {"shards": 5, "per_block": 1, "restart_every": 1},
        {"per_block": 7, "restart_every": 4},
        {"big": True},
    ],
)
def test_blocks_shards_restarts_and_byte_orders_change_nothing(how, assert_same, tmp_path):
    arrays = variables()
    slots = {f"{name}/Adagrad": array for name, array in arrays.items()}
    extras = {"global_step": np.array(5, np.int64), "beta1_power": np.array(0.9, np.float32)}
    write_training(tmp_path, arrays | slots | extras, **how)
    assert_same(load_bilm(tmp_path), load_bilm(REAL))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.sampled_from("abc/_é"), min_size=1, max_size=12),
        st.lists(st.integers(0, 4), max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 4),
)
def test_any_bundle_comes_back(tmp_path, shapes, shards, per_block, restart_every):
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    write_bundle(tmp_path / "b.ckpt", arrays, shards=shards, per_block=per_block, restart_every=restart_every)
    stored = read_bundle(tmp_path / "b.ckpt.index")
    assert set(stored) == set(arrays)
    for name, array in arrays.items():
        assert stored[name].shape == array.shape
        assert np.array_equal(stored[name].read().numpy(), array)


@pytest.mark.parametrize("name", ["model.ckpt-3", "model.ckpt-3.index"])
def test_a_checkpoint_goes_by_its_prefix_and_by_its_index(name, assert_same):
    assert_same(load_bilm(REAL / name), load_bilm(REAL))
    assert_same(load_bilm(str(REAL / name)), load_bilm(REAL))
    assert_same(load_bilm((REAL / "options.json", REAL / "model.ckpt-3.index")), load_bilm(REAL))


def test_of_several_checkpoints_the_named_one_is_read_and_else_the_newest(tmp_path):
    for step in (9, 10, 100):
        arrays = variables()
        arrays["lm/char_embed"][:] = step
        write_training(tmp_path, arrays, prefix=f"model.ckpt-{step}")

    def step():
        return load_bilm(tmp_path).token_encoder.embedding[0, 0].item()

    assert step() == 100
    for path in ("model.ckpt-9", "/home/author/run 1/model.ckpt-9", r"C:\\run\\model.ckpt-9"):
        (tmp_path / "checkpoint").write_text(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "x"\n')
        assert step() == 9
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-77"\n')  # removed since
    assert step() == 100


def test_a_training_with_a_dump_beside_it_keeps_its_softmax(tmp_path):
    shutil.copytree(REAL, tmp_path / "run")
    with h5py.File(tmp_path / "run" / "weights.hdf5", "w") as file:
        file["RNN_0"] = 1
    assert load_language_model(tmp_path / "run")[1].num_words == V


def test_one_layer_has_no_level_of_cells(tmp_path):
    write_training(tmp_path, variables(layers=1, cell="lstm_cell"), options={"lstm": {"n_layers": 1}})
    bilm = load_bilm(tmp_path)
    assert bilm.config.encoder.num_layers == 1
    name = "lm/RNN_1/rnn/lstm_cell/projection/kernel"
    weight = bilm.state_dict()["backward_encoder.layers.0.weight_hr"].numpy()
    assert np.array_equal(weight, values(name, (D, P)).T)


@pytest.mark.parametrize("shared", [True, False])
def test_a_word_level_training_has_its_rows_and_perhaps_its_softmax_in_them(shared, tmp_path):
    table = values("table", (V, P))
    arrays = {name: array for name, array in variables().items() if "RNN" in name or "softmax" in name}
    arrays["lm/embedding"] = table
    if shared:
        del arrays["lm/softmax/W"]
    words = ["<S>", "</S>", "<UNK>", "a", "b", "c", "d"]
    write_training(tmp_path, arrays, options={"char_cnn": None, "share_embedding_softmax": shared}, words=words)
    bilm, head, lexicon = load_language_model(tmp_path)
    assert bilm.config.tokens == WordEmbeddingConfig(num_words=V)
    assert np.array_equal(head.weight.detach().numpy(), table if shared else arrays["lm/softmax/W"])
    assert lexicon.words == tuple(words)
    assert load_model(tmp_path).lexicon.words == tuple(words)
    assert load_model(tmp_path).head is None


def test_a_training_without_its_words_says_what_to_put_beside_and_converts_as_a_bilm(assert_same, tmp_path):
    write_training(tmp_path / "run", variables())
    with pytest.raises(WeightsError, match=r"without its words.*vocab\.txt"):
        load_language_model(tmp_path / "run")
    convert(tmp_path / "run", tmp_path / "native")
    assert_same(load_bilm(tmp_path / "native"), load_bilm(REAL))
    (tmp_path / "run" / "vocab-2016-09-10.txt").write_text("<S>\n</S>\n<UNK>\na\nb\n")
    with pytest.raises(WeightsError, match=r"vocabulary .* has 5 words, but its softmax has 7 rows"):
        load_language_model(tmp_path / "run")
    (tmp_path / "run" / "vocab-2016-09-10.txt").write_text("a\nb\n")
    with pytest.raises(InputError, match="lacks <S>"):
        load_language_model(tmp_path / "run")
    assert_same(load_bilm(tmp_path / "run"), load_bilm(REAL))


def test_a_training_converts_with_its_softmax_and_words(assert_same, tmp_path):
    expected, head, lexicon = load_language_model(REAL)
    convert(REAL, tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "hdf5" / "weights.hdf5")
    for place in ("native", "hdf5"):
        bilm, same, words = load_language_model(tmp_path / place)
        assert_same(bilm, expected)
        assert np.array_equal(same.weight.detach().numpy(), head.weight.detach().numpy())
        assert words.words == lexicon.words


def test_all_that_does_not_fit_comes_in_one_error(tmp_path):
    arrays = variables()
    del arrays["lm/CNN/b_cnn_1"]
    arrays["lm/CNN/b_cnn_9"] = np.zeros(2, np.float32)
    arrays["lm/CNN_proj/W_proj"] = arrays["lm/CNN_proj/W_proj"].T.copy()
    arrays["lm/CNN_high_0/b_carry"] = np.zeros(5, np.int32)
    write_training(tmp_path, arrays)
    with pytest.raises(WeightsError) as caught:
        load_bilm(tmp_path)
    for finding in (
        "missing: 'CNN/b_cnn_1' (3,)",
        "unused: 'CNN/b_cnn_9' (2,)",
        "'CNN_proj/W_proj' is (4, 5), expected (5, 4)",
        "'CNN_high_0/b_carry' is int32",
    ):
        assert finding in str(caught.value)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"compression": 1}, "compressed block at 0; load and save it with TensorFlow"),
        ({"slices": field(7, 2, b"")}, "is in slices, expected floating point"),
    ],
)
def test_what_bilm_tf_never_writes_is_named(how, said, tmp_path):
    write_training(tmp_path, variables(), **how)
    with pytest.raises(WeightsError, match=said):
        load_bilm(tmp_path)


def test_damage_in_any_file_is_found_by_its_checksum(tmp_path):
    shutil.copytree(REAL, tmp_path / "m")
    data = tmp_path / "m" / "model.ckpt-3.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[9000] ^= 1
    data.write_bytes(content)
    with pytest.raises(WeightsError, match=r"data-00000-of-00001.*wrong checksum at \d+"):
        load_bilm(tmp_path / "m")
    data.unlink()
    with pytest.raises(WeightsError, match=r"there is no file .*data-00000-of-00001"):
        load_bilm(tmp_path / "m")
    index = tmp_path / "m" / "model.ckpt-3.index"
    content = bytearray(index.read_bytes())
    content[100] ^= 1
    index.write_bytes(content)
    with pytest.raises(WeightsError, match=r"index .*wrong checksum at 0"):
        load_bilm(tmp_path / "m")
    (tmp_path / "m" / "options.json").unlink()
    with pytest.raises(WeightsError, match="no options file beside"):
        load_bilm(tmp_path / "m")


def test_a_table_that_names_one_block_again_and_again_is_refused(tmp_path):
    content = block([(bytes([65 + index]), b"") for index in range(20)], 16)
    handle = varint(0) + varint(len(content) - 5)
    handles = block([(struct.pack(">I", index), handle) for index in range(1000)], 1)
    meta = block([], 1)
    footer = handle + varint(len(content) + len(meta)) + varint(len(handles) - 5)
    path = tmp_path / "m.ckpt.index"
    path.write_bytes(content + meta + handles + footer.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    with pytest.raises(WeightsError, match="overlapping blocks"):
        read_bundle(path)


def test_keys_out_of_all_proportion_to_the_file_are_refused(tmp_path):
    long = b"k" * 100_000
    body = varint(0) + varint(len(long)) + varint(0) + long
    body += (varint(len(long)) + varint(0) + varint(0)) * 150_000
    write_bundle(tmp_path / "m.ckpt", {}, damage=lambda _: body + struct.pack("<II", 0, 1))
    with pytest.raises(WeightsError, match="claims to hold"):
        read_bundle(tmp_path / "m.ckpt.index")


@pytest.mark.parametrize("shape", [(2**62, 2**62), (2**40,), (0, 2**62)])
def test_sizes_that_are_claimed_take_no_memory(shape, tmp_path):
    class Claimed:
        dtype = np.dtype("float32")
        nbytes = 0

        def __init__(self):
            self.shape = shape

        def tobytes(self):
            return b""

    words = {name: array for name, array in variables().items() if "RNN" in name}
    write_training(tmp_path, words | {"lm/embedding": Claimed(), "lm/softmax/b": Claimed()}, options={"char_cnn": None})
    with pytest.raises(ElmokitError):
        load_model(tmp_path, head=True)


def test_options_that_are_none_are_named(tmp_path):
    write_training(tmp_path, variables())
    (tmp_path / "options.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"options\.json"):
        load_bilm(tmp_path)


fuzz = settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load(folder):
    try:
        stored = load_model(folder, head=True)
    except ElmokitError:
        return
    assert all(bool(parameter.isfinite().all()) for parameter in stored.bilm.parameters())


def damaged_copy(tmp_path):
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    shutil.copytree(REAL, tmp_path / "m")
    return tmp_path / "m"


NAMES = st.sampled_from([path.name for path in sorted(REAL.iterdir())])


@fuzz
@given(NAMES, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=6))
def test_flipped_bytes(tmp_path, name, flips):
    path = damaged_copy(tmp_path) / name
    data = bytearray(path.read_bytes())
    for place, change in flips:
        data[int(place * len(data))] ^= change
    path.write_bytes(data)
    load(path.parent)


@fuzz
@given(NAMES, st.floats(0, 1), st.binary(max_size=60))
def test_cut_files_and_foreign_endings(tmp_path, name, share, ending):
    path = damaged_copy(tmp_path) / name
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))] + ending)
    load(path.parent)


@fuzz
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=4))
def test_an_index_with_right_sums_of_wrong_contents(tmp_path, flips):
    """What flipping bytes cannot reach, as the sums would tell."""

    def damage(content):
        content = bytearray(content)
        for place, change in flips:
            content[int(place * len(content))] ^= change
        return bytes(content)

    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    load(write_training(tmp_path / "m", variables(), words=["<S>", "</S>", "<UNK>", *"abcd"], damage=damage))
