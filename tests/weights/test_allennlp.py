import gzip
import io
import json
import pickle
import shutil
import tarfile
from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import elmokit
from elmokit.errors import ConfigError, ElmokitError, WeightsError
from elmokit.weights import convert, load_bilm, load_model
from elmokit.weights.layouts import Mix

P, D, E = 4, 6, 3
FILTERS = ((1, 4), (2, 6))
F = sum(count for _, count in FILTERS)
ELMO = "text_field_embedder.token_embedder_elmo._elmo."
OPTIONS = {
    "lstm": {
        "dim": D,
        "projection_dim": P,
        "n_layers": 2,
        "cell_clip": 3,
        "proj_clip": 3,
        "use_skip_connections": True,
    },
    "char_cnn": {
        "embedding": {"dim": E},
        "filters": FILTERS,
        "n_highway": 2,
        "activation": "relu",
        "n_characters": 262,
        "max_characters_per_token": 50,
    },
}
MIX = Mix((3.0, 0.0, -3.0), 2.0)


def weights(mixes=(MIX,), seed=0):
    """A tagger's parameters by AllenNLP's names."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, scale=0.5):
        return torch.randn(*shape, generator=generator) * scale

    elmo, token = {}, "_elmo_lstm._token_embedder."
    elmo[f"{token}_char_embedding_weights"] = torch.cat([torch.zeros(1, E), draw(261, E)])
    for i, (width, count) in enumerate(FILTERS):
        elmo |= {f"{token}char_conv_{i}.weight": draw(count, E, width), f"{token}char_conv_{i}.bias": draw(count)}
    for k in range(2):
        elmo[f"{token}_highways._layers.{k}.weight"] = draw(2 * F, F)
        elmo[f"{token}_highways._layers.{k}.bias"] = draw(2 * F)
    elmo |= {f"{token}_projection.weight": draw(P, F), f"{token}_projection.bias": draw(P)}
    for direction in ("forward", "backward"):
        for layer in range(2):
            name = f"_elmo_lstm._elmo_lstm.{direction}_layer_{layer}"
            elmo[f"{name}.input_linearity.weight"] = draw(4 * D, P)
            elmo |= {f"{name}.state_linearity.weight": draw(4 * D, P), f"{name}.state_linearity.bias": draw(4 * D)}
            elmo[f"{name}.state_projection.weight"] = draw(P, D)
    for k, mix in enumerate(mixes):
        elmo[f"scalar_mix_{k}.gamma"] = torch.tensor([mix.gamma])
        elmo |= {f"scalar_mix_{k}.scalar_parameters.{i}": torch.tensor([w]) for i, w in enumerate(mix.weights)}
    tagger = {"encoder._module.weight_ih_l0": draw(8, 5), "tag_projection_layer._module.bias": draw(3)}
    return OrderedDict({ELMO + name: tensor for name, tensor in elmo.items()} | tagger)


def config(options_file="https://s3.example.com/elmo_options.json", **more):
    elmo = {"type": "elmo_token_embedder", "options_file": options_file, "weight_file": "w.hdf5", "dropout": 0, **more}
    return {"model": {"type": "crf_tagger", "text_field_embedder": {"token_embedders": {"elmo": elmo}}}}


IN_FTA = "fta/model.text_field_embedder.token_embedders.elmo.options_file"


def files(state=None, task=None, options=OPTIONS, where=IN_FTA, old=False):
    """What is in an archive, by name."""
    stream = io.BytesIO()
    torch.save(weights() if state is None else state, stream, _use_new_zipfile_serialization=not old)
    contents = {
        "config.json": json.dumps(config() if task is None else task).encode(),
        "weights.th": stream.getvalue(),
        "vocabulary/tokens.txt": b"@@UNKNOWN@@\nthe\n",
    }
    return contents | ({where: json.dumps(options).encode()} if options else {})


def pack(path, contents, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def spread(folder, contents):
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def allennlp_vectors(state, sentence):
    """All layers (3, T, 2 P) by AllenNLP's own arithmetic, in float64, from its own tensors."""
    tensors = {name.removeprefix(ELMO + "_elmo_lstm."): t.double().numpy() for name, t in state.items() if ELMO in name}

    def token(inner):
        ids = [259, *inner, 260]
        ids += [261] * (50 - len(ids))
        characters = tensors["_token_embedder._char_embedding_weights"][ids]
        pooled = []
        for i, (width, _) in enumerate(FILTERS):
            kernel = tensors[f"_token_embedder.char_conv_{i}.weight"]
            windows = [np.einsum("oew,we->o", kernel, characters[at : at + width]) for at in range(51 - width)]
            pooled.append(np.max(windows, axis=0) + tensors[f"_token_embedder.char_conv_{i}.bias"])
        x = np.maximum(np.concatenate(pooled), 0)
        for k in range(2):
            name = f"_token_embedder._highways._layers.{k}"
            projected = tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"]
            nonlinear, gate = np.maximum(projected[:F], 0), sigmoid(projected[F:])
            x = gate * x + (1 - gate) * nonlinear
        return tensors["_token_embedder._projection.weight"] @ x + tensors["_token_embedder._projection.bias"]

    inner = [[257], *([byte + 1 for byte in word.encode()] for word in sentence), [258]]
    layers = [[token(word) for word in inner]]
    both = []
    for direction, order in (("forward", 1), ("backward", -1)):
        inputs, outputs = layers[0][::order], []
        for layer in range(2):
            name = f"_elmo_lstm.{direction}_layer_{layer}"
            hidden, cell, out = np.zeros(P), np.zeros(D), []
            for x in inputs:
                gates = tensors[f"{name}.input_linearity.weight"] @ x
                gates += tensors[f"{name}.state_linearity.weight"] @ hidden + tensors[f"{name}.state_linearity.bias"]
                i, f, g, o = gates[:D], gates[D : 2 * D], gates[2 * D : 3 * D], gates[3 * D :]
                cell = np.clip(sigmoid(i) * np.tanh(g) + sigmoid(f) * cell, -3, 3)
                raw = tensors[f"{name}.state_projection.weight"] @ (sigmoid(o) * np.tanh(cell))
                hidden = np.clip(raw, -3, 3)
                out.append(hidden)
            inputs = out if layer == 0 else [a + b for a, b in zip(out, inputs, strict=True)]
            outputs.append(inputs[::order])
        both.append([layers[0], *outputs])
    return np.concatenate(np.array(both), axis=-1)[:, 1:-1]


SENTENCE = ["It", "is", "naïve", ",", "苹果", "x" * 60][:5]


@pytest.mark.parametrize("old", [True, False], ids=["torch before 1.6", "torch since"])
@pytest.mark.parametrize("kind", ["archive", "plain tar", "directory", "weights"])
def test_a_task_model_gives_the_vectors_of_its_own_arithmetic(kind, old, tmp_path):
    state = weights()
    contents = files(state, old=old)
    source = {
        "archive": lambda: pack(tmp_path / "model.tar.gz", contents),
        "plain tar": lambda: pack(tmp_path / "model.tar", contents, "w"),
        "directory": lambda: spread(tmp_path, contents),
        "weights": lambda: spread(tmp_path, contents) / "weights.th",
    }[kind]()
    embedder = elmokit.load(source)
    expected = allennlp_vectors(state, SENTENCE)
    found = embedder.embed([SENTENCE])[0]
    assert np.abs(found - expected).max() < 1e-5 < np.abs(expected).max()
    shares = np.exp(MIX.weights) / np.exp(MIX.weights).sum()
    mixed = MIX.gamma * np.tensordot(shares, expected, axes=1)
    assert np.abs(embedder.embed([SENTENCE], "mix")[0] - mixed).max() < 1e-5


def test_mixes_come_in_order_and_the_first_is_the_embedders(tmp_path):
    mixes = tuple(Mix((float(k), 1.0, -1.5), 0.5 + k) for k in range(12))
    source = pack(tmp_path / "model.tar.gz", files(weights(mixes)))
    assert load_model(source).mixes == mixes
    embedder = elmokit.load(source)
    assert embedder.mix.weights.tolist() == [0.0, 1.0, -1.5]
    assert embedder.mix.gamma.item() == 0.5


def test_a_format_without_a_place_for_mixes_says_that_they_are_left_out(tmp_path):
    source = pack(tmp_path / "model.tar.gz", files(weights()))
    with pytest.warns(UserWarning, match=r"model\.hdf5 is written without its learned mixes: hdf5 has no such thing"):
        convert(source, tmp_path / "model.hdf5")
    assert load_model(tmp_path / "model.hdf5").mixes == ()


def test_a_task_model_converts_with_its_mixes(assert_same, tmp_path):
    source = pack(tmp_path / "model.tar.gz", files())
    convert(source, tmp_path / "native")
    assert load_model(tmp_path / "native").mixes == (MIX,)
    convert(tmp_path / "native", tmp_path / "half", dtype="float16")
    assert load_model(tmp_path / "half").mixes == (MIX,)
    convert(source, tmp_path / "hdf5" / "weights.hdf5")
    for path in (tmp_path / "native", tmp_path / "hdf5"):
        found, expected = load_bilm(path).state_dict(), load_bilm(source).state_dict()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=0)
    assert_same(load_bilm(tmp_path / "native"), load_bilm(source))
    assert elmokit.load(tmp_path / "native").mix.gamma.item() == 2.0


@pytest.mark.parametrize("place", ["fta", "old fta", "beside", "where the configuration says"])
def test_options_are_found_wherever_they_lie(place, tmp_path):
    options = json.loads(json.dumps(OPTIONS))
    options["char_cnn"] |= {"activation": "tanh", "max_characters_per_token": 30}
    options["lstm"]["cell_clip"] = 1.5
    own = tmp_path / "mine.json"
    own.write_text(json.dumps(options), "utf-8")
    old = {"model": {"text_field_embedder": {"elmo": {"options_file": "https://x/o.json"}}}}
    task, where = {
        "fta": (config(), IN_FTA),
        "old fta": (old, "fta/model.text_field_embedder.elmo.options_file"),
        "beside": (config("https://x.org/path/elmo_options.json"), "elmo_options.json"),
        "where the configuration says": (config(str(own)), "other.json"),
    }[place]
    found = load_bilm(pack(tmp_path / "model.tar.gz", files(task=task, options=options, where=where))).config
    assert found.tokens.activation == "tanh"
    assert found.tokens.max_characters_per_token == 30
    assert found.encoder.cell_clip == 1.5


@pytest.mark.parametrize(
    "task", [config(), {}, {"model": {"options_file": "\0"}}, config("x" * 5000), config("a\ud800")]
)
def test_without_options_the_tensors_give_the_shape_and_a_warning_says_what_is_supposed(task, assert_same, tmp_path):
    expected = load_bilm(pack(tmp_path / "a.tar.gz", files()))
    with pytest.warns(UserWarning, match=r"no options file lies with the ELMo in weights\.th: clips of 3, relu and 50"):
        found = load_bilm(pack(tmp_path / "b.tar.gz", files(task=task, options=None)))
    assert_same(found, expected)


def test_what_versions_of_allennlp_keep_beside_the_parameters_is_passed_over(assert_same, tmp_path):
    state = weights()
    state[f"{ELMO}_elmo_lstm._word_embedding.weight"] = torch.zeros(9, P)
    state[f"{ELMO}_elmo_lstm._token_embedder._beginning_of_sentence_characters"] = torch.zeros(50, dtype=torch.long)
    state[f"{ELMO}_elmo_lstm._token_embedder._end_of_sentence_characters"] = torch.zeros(50, dtype=torch.long)
    same = OrderedDict(state | {f"again.{name}": tensor for name, tensor in state.items()})
    expected = load_bilm(pack(tmp_path / "a.tar.gz", files()))
    for name, content in (("b", state), ("c", same)):
        assert_same(load_bilm(pack(tmp_path / f"{name}.tar.gz", files(content))), expected)


def test_several_elmos_that_differ_and_none_at_all_are_named(tmp_path):
    other = {f"again.{name}": tensor for name, tensor in weights(seed=1).items()}
    with pytest.raises(WeightsError, match=f"several ELMos that differ .again.{ELMO}, {ELMO}., expected one"):
        load_bilm(pack(tmp_path / "a.tar.gz", files(OrderedDict(weights() | other))))
    with pytest.raises(WeightsError, match=r"a\.tar\.gz/weights\.th holds no ELMo.*'?tag\.weight"):
        load_bilm(pack(tmp_path / "a.tar.gz", files({"tag.weight": torch.zeros(2)})))


def test_a_mix_of_normalised_layers_is_left_out_with_a_warning(tmp_path):
    with pytest.warns(UserWarning, match="normalises the layers"):
        stored = load_model(pack(tmp_path / "a.tar.gz", files(task=config(do_layer_norm=True))))
    assert stored.mixes == ()


def test_all_that_does_not_fit_comes_in_one_error(tmp_path):
    state, lstm = weights(), f"{ELMO}_elmo_lstm."
    del state[f"{lstm}_token_embedder.char_conv_0.bias"]
    state[f"{lstm}stranger"] = torch.zeros(1)
    state[f"{lstm}_token_embedder._projection.weight"] = torch.zeros(F, P)
    state[f"{lstm}_token_embedder._projection.bias"] = torch.zeros(P, dtype=torch.int64)
    with pytest.raises(WeightsError) as caught:
        load_bilm(pack(tmp_path / "m.tar.gz", files(state)))
    for finding in (
        "missing: '_token_embedder.char_conv_0.bias' (4,)",
        "unused: 'stranger' (1,)",
        "'_token_embedder._projection.weight' is (10, 4), expected (4, 10)",
        "'_token_embedder._projection.bias' is int64",
        str(tmp_path / "m.tar.gz"),
    ):
        assert finding in str(caught.value)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("scalar_mix_0.gamma", None),
        ("scalar_mix_0.scalar_parameters.1", torch.zeros(2)),
        ("scalar_mix_0.scalar_parameters.1", torch.zeros(1, dtype=torch.long)),
        ("scalar_mix_0.gamma", torch.tensor([torch.nan])),
    ],
)
def test_a_mix_that_is_none_is_named(name, tensor, tmp_path):
    state = weights()
    if tensor is None:
        del state[ELMO + name]
    else:
        state[ELMO + name] = tensor
    with pytest.raises(WeightsError, match=name):
        load_bilm(pack(tmp_path / "m.tar.gz", files(state)))


class Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("old", [True, False])
def test_a_pickle_that_would_run_something_runs_nothing(old, tmp_path):
    state = dict(weights()) | {"x": Harmful(str(tmp_path / "harmed"))}
    with pytest.raises(WeightsError, match="it holds more than tensors"):
        load_bilm(pack(tmp_path / "m.tar.gz", files(state, old=old)))
    (tmp_path / "weights.th").write_bytes(pickle.dumps(state))
    with pytest.raises(WeightsError):
        load_bilm(tmp_path)
    assert not (tmp_path / "harmed").exists()


def test_strides_that_make_much_of_little_take_no_memory(tmp_path):
    state = weights()
    state[f"{ELMO}_elmo_lstm._token_embedder._projection.weight"] = torch.zeros(1).expand(2**40)
    with pytest.raises(WeightsError, match="claims to hold"):
        load_bilm(pack(tmp_path / "m.tar.gz", files(state)))


@pytest.mark.parametrize("content", [[1, 2], {}, {"a": 1}, {1: torch.zeros(1)}, torch.zeros(3)])
def test_what_is_no_state_dictionary_is_named(content, tmp_path):
    torch.save(content, tmp_path / "weights.th")
    with pytest.raises(WeightsError, match=r"weights\.th holds no tensors by name"):
        load_bilm(tmp_path)


@pytest.mark.parametrize("text", [b"{", b"\xff", b"[" * 100_000, b"{" * 2**21])
def test_a_configuration_that_is_none_is_named(text, tmp_path):
    spread(tmp_path, files() | {"config.json": text})
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_bilm(tmp_path)


@pytest.mark.parametrize("text", ["[]", "null", "3", '{"model": [{"options_file": 3}]}'])
def test_a_configuration_of_any_form_is_looked_through(text, tmp_path):
    spread(tmp_path, files(options=None) | {"config.json": text.encode()})
    with pytest.warns(UserWarning, match="no options file"):
        assert load_bilm(tmp_path).config.encoder.cell_dim == D


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..\\evil", "C:\\evil"])
def test_members_that_leave_their_folder_are_refused(name, tmp_path):
    with pytest.raises(WeightsError, match="outside its folder"):
        load_bilm(pack(tmp_path / "m.tar.gz", files() | {name: b"evil"}))
    assert not list(tmp_path.parent.glob("evil"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind, tmp_path):
    with tarfile.open(tmp_path / "m.tar", "w") as archive:
        member = tarfile.TarInfo("config.json")
        member.type, member.linkname = kind, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(WeightsError, match=r"'config\.json', which is a link or a device"):
        load_bilm(tmp_path / "m.tar")


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_tar_that_unpacks_out_of_all_proportion_is_refused(kind, tmp_path):
    member = tarfile.TarInfo("vocabulary/x")
    member.type, member.size = kind, 100 * 2**20
    with gzip.open(tmp_path / "m.tar.gz", "wb", 1) as file:
        file.write(member.tobuf(tarfile.GNU_FORMAT))
        for _ in range(100):
            file.write(bytes(2**20))
    with pytest.raises(WeightsError, match="claims to hold"):
        load_bilm(tmp_path / "m.tar.gz")


def test_an_archive_in_a_folder_of_its_own_is_a_model_too(assert_same, tmp_path):
    """As people pack what they unpacked, of any format."""
    inside = {f"./serialization/{name}": content for name, content in files().items()}
    expected = load_bilm(pack(tmp_path / "a.tar.gz", files()))
    assert_same(load_bilm(pack(tmp_path / "b.tgz", inside)), expected)
    convert(tmp_path / "a.tar.gz", tmp_path / "hdf5" / "weights.hdf5")
    with tarfile.open(tmp_path / "c.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "hdf5", arcname=".")
    assert_same(load_bilm(tmp_path / "c.tar.gz"), load_bilm(tmp_path / "hdf5"))


fuzz = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def load(path):
    try:
        stored = load_model(path)
    except ElmokitError:
        return
    assert all(bool(parameter.isfinite().all()) for parameter in stored.bilm.parameters())


FILES = {old: files(old=old) for old in (True, False)}


@pytest.mark.filterwarnings("ignore:no options file")
@fuzz
@given(
    st.booleans(),
    st.sampled_from(["weights.th", "config.json", IN_FTA]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6),
    st.floats(0.5, 2),
)
def test_flipped_bytes_and_cut_files(tmp_path, old, name, flips, share):
    data = bytearray(FILES[old][name])
    for place, change in flips:
        data[int(place * len(data))] ^= change
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    load(spread(tmp_path / "m", FILES[old] | {name: bytes(data[: int(share * len(data))])}))


@pytest.mark.filterwarnings("ignore:no options file")
@fuzz
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 255)), min_size=1, max_size=5))
def test_flipped_bytes_where_the_pickle_is(tmp_path, old, flips):
    data = bytearray(FILES[old]["weights.th"])
    for place, change in flips:
        data[place] ^= change
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    load(spread(tmp_path / "m", FILES[old] | {"weights.th": bytes(data)}))


@pytest.mark.filterwarnings("ignore:no options file")
@fuzz
@given(
    st.sampled_from(["w", "w:gz"]),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6),
    st.floats(0.5, 2),
)
def test_damaged_archives(tmp_path, mode, flips, share):
    data = bytearray(pack(tmp_path / "whole", FILES[True], mode).read_bytes())
    for place, change in flips:
        data[int(place * len(data))] ^= change
    (tmp_path / "m.tar.gz").write_bytes(data[: int(share * len(data))])
    load(tmp_path / "m.tar.gz")


@pytest.mark.filterwarnings("ignore:no options file")
@fuzz
@given(st.data())
def test_renamed_reshaped_and_retyped_tensors(tmp_path, data):
    state = weights()
    name = data.draw(st.sampled_from(sorted(state)))
    tensor = state.pop(name)
    shapes = [tensor.shape, (tensor.numel(),), (1, *tensor.shape), tuple(tensor.shape)[::-1], None]
    shape = data.draw(st.sampled_from(shapes))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool]))
    new_name = data.draw(st.sampled_from([name, "x", f"{name}.x", name.replace("0", "7"), f"{ELMO}_elmo_lstm.x"]))
    state[new_name] = (torch.zeros(()) if shape is None else tensor.reshape(shape)).to(dtype)
    options = data.draw(st.sampled_from([OPTIONS, None]))
    shutil.rmtree(tmp_path / "m", ignore_errors=True)
    load(spread(tmp_path / "m", files(state, options=options)))
