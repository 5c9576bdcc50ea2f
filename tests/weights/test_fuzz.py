"""Damaged model files of every kind: a model or an ElmokitError comes out, never another exception."""

import json
import shutil
import zipfile
from pathlib import Path

import h5py
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from elmokit.errors import ElmokitError
from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import convert, load_model
from elmokit.weights.layouts import Mix, StoredModel
from elmokit.weights.native import write

# The same examples in every run: a new one that fails should be found by someone who is looking for it.
fuzz = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def models(make_bilm, tmp_path):
    """Whole model files by kind, and a folder to damage copies in."""
    words = Lexicon([*SPECIAL, "word"])
    write(StoredModel(make_bilm(), words, LMHead(4, 5), (Mix((0.0, 1.0, 2.0), 3.0),)), tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "hdf5" / "model.hdf5")
    archive = tmp_path / "zip" / "m.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in (tmp_path / "hdf5").iterdir():
            file.write(path, path.name)
    return tmp_path


def load(source: Path) -> None:
    try:
        stored = load_model(source, head=True)
    except ElmokitError:
        return
    assert all(bool(torch.isfinite(parameter).all()) for parameter in stored.bilm.parameters())


def copy_of(models: Path, kind: str) -> Path:
    target = models / "damaged"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(models / kind, target)
    return target


KINDS = {
    "hdf5": ["model.hdf5", "options.json", "vocab.txt"],
    "native": ["model.safetensors", "config.json", "vocab.txt"],
    "zip": ["m.zip"],
}
FILES = st.sampled_from([(kind, name) for kind, names in KINDS.items() for name in names])


@fuzz
@given(FILES, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=1, max_size=8))
def test_flipped_bytes(models, file, flips):
    kind, name = file
    path = copy_of(models, kind) / name
    data = bytearray(path.read_bytes())
    for place, change in flips:
        data[int(place * len(data))] ^= change
    path.write_bytes(data)
    load(path if kind == "zip" else path.parent)


@fuzz
@given(
    st.sampled_from(["hdf5", "native", "zip"]),
    st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 255)), max_size=4),
)
def test_flipped_bytes_near_the_beginning_where_the_structure_is(models, kind, flips):
    path = copy_of(models, kind) / KINDS[kind][0]
    data = bytearray(path.read_bytes())
    for place, change in flips:
        data[place % len(data)] ^= change
    path.write_bytes(data)
    load(path if kind == "zip" else path.parent)


@fuzz
@given(FILES, st.floats(0, 1), st.binary(max_size=100))
def test_cut_files_and_foreign_endings(models, file, share, ending):
    kind, name = file
    path = copy_of(models, kind) / name
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))] + ending)
    load(path if kind == "zip" else path.parent)


@fuzz
@given(st.binary(max_size=300), st.sampled_from(["model.hdf5", "m.zip", "model.safetensors", "model"]))
def test_arbitrary_bytes(models, content, name):
    path = copy_of(models, "hdf5") / name
    path.write_bytes(content)
    load(path)


@fuzz
@given(st.data())
def test_renamed_reshaped_and_retyped_datasets(models, data):
    folder = copy_of(models, "hdf5")
    with h5py.File(folder / "model.hdf5", "a") as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = data.draw(st.sampled_from(names))
        values = file[name][...]
        del file[name]
        new_name = data.draw(
            st.one_of(st.just(name), st.sampled_from(["x", "CNN/x", "RNN_0/RNN/LSTMCell/B", "embedding", "softmax/W"]))
        )
        file.pop(new_name, None)
        shape = data.draw(
            st.sampled_from([values.shape, (values.size,), (1, *values.shape), (), (0,), values.shape[::-1]])
        )
        dtype = data.draw(st.sampled_from(["f4", "f8", "f2", "i4", "u1", "S3", "c8", "b1"]))
        if shape == () or shape == (0,):
            file.create_dataset(new_name, shape, dtype)
        else:
            file[new_name] = values.reshape(shape).astype(dtype)
    load(folder)


@fuzz
@given(st.data())
def test_renamed_and_reshaped_tensors(models, data):
    path = copy_of(models, "native") / "model.safetensors"
    tensors = load_file(path)
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors.pop(name)
    shape = data.draw(st.sampled_from([tensor.shape, (tensor.numel(),), (1, *tensor.shape), tuple(tensor.shape)[::-1]]))
    dtype = data.draw(st.sampled_from([torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool]))
    tensors[
        data.draw(st.sampled_from([name, "x", "lm_head.weight", "mixes.1.gamma", "lm_head.softmax.tail.0.1.weight"]))
    ] = tensor.reshape(shape).to(dtype)
    save_file(tensors, path)
    load(path)


@fuzz
@given(st.sampled_from([("hdf5", "options.json"), ("native", "config.json")]), st.data())
def test_changed_values_in_options_and_config(models, file, data):
    kind, name = file
    path = copy_of(models, kind) / name
    content = json.loads(path.read_text("utf-8"))
    section = data.draw(st.sampled_from(sorted(content)))
    values = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.just([]),
        st.just({}),
        st.just([[1, 2]]),
    )
    if isinstance(content[section], dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from(sorted(content[section])))
        content[section][key] = data.draw(values)
    else:
        content[section] = data.draw(values)
    path.write_text(json.dumps(content), "utf-8")
    load(path.parent)
