import gzip
import shutil
import zipfile
from importlib import resources

import pytest

from elmokit.errors import ElmokitError, InputError, WeightsError
from elmokit.weights import available_models, load_bilm, save_bilm


@pytest.fixture
def hdf5_folder(make_bilm, tmp_path):
    folder = tmp_path / "hdf5"
    save_bilm(make_bilm(), folder / "model.hdf5")
    return folder


@pytest.fixture
def native_folder(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path / "native")
    return tmp_path / "native"


def pack(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def contents(folder, prefix=""):
    return {prefix + path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["directory", "file", "pair", "strings", "zip", "zip of a folder", "stored zip"])
@pytest.mark.parametrize("layout", ["hdf5", "native"])
def test_a_model_is_recognised_by_its_files(kind, layout, request, make_bilm, assert_same, tmp_path):
    folder = request.getfixturevalue(f"{layout}_folder")
    config, weights = ("options.json", "model.hdf5") if layout == "hdf5" else ("config.json", "model.safetensors")
    sources = {
        "directory": lambda: folder,
        "file": lambda: folder / weights,
        "pair": lambda: (folder / config, folder / weights),
        "strings": lambda: (str(folder / config), str(folder / weights)),
        "zip": lambda: pack(tmp_path / "m.zip", contents(folder) | {"vocab.txt": b"a\nb\n"}),
        "zip of a folder": lambda: pack(tmp_path / "m.zip", contents(folder, "some/") | {"__MACOSX/._x": b""}),
        "stored zip": lambda: pack(tmp_path / "m.zip", contents(folder), zipfile.ZIP_STORED),
    }
    assert_same(load_bilm(sources[kind]()), make_bilm())


@pytest.mark.parametrize(
    "extra", [{}, {"vocab.txt": b"the\n"}, {"vocab.txt.gz": gzip.compress(b"the\n"), "meta.json": b"{}"}]
)
@pytest.mark.parametrize("name", ["model.hdf5", "weights.hdf5", "elmo_2x1024_weights.hdf5", "X.H5"])
def test_any_single_hdf5_file_is_accepted_with_or_without_a_vocabulary(
    extra, name, hdf5_folder, make_bilm, assert_same
):
    (hdf5_folder / "model.hdf5").rename(hdf5_folder / name)
    for other, content in extra.items():
        (hdf5_folder / other).write_bytes(content)
    assert_same(load_bilm(hdf5_folder), make_bilm())
    assert_same(load_bilm(pack(hdf5_folder.parent / "z.zip", contents(hdf5_folder))), make_bilm())


def test_several_hdf5_files_are_listed(hdf5_folder):
    shutil.copy(hdf5_folder / "model.hdf5", hdf5_folder / "other.hdf5")
    with pytest.raises(WeightsError, match=r"model\.hdf5, other\.hdf5"):
        load_bilm(hdf5_folder)
    with pytest.raises(WeightsError, match=r"model\.hdf5, other\.hdf5"):
        load_bilm(pack(hdf5_folder.parent / "z.zip", contents(hdf5_folder)))


def test_a_weight_file_finds_the_options_of_its_own_name(make_bilm, assert_same, tmp_path):
    for name in ("small", "tall"):
        save_bilm(make_bilm(), tmp_path / f"{name}_weights.hdf5", options_file=tmp_path / f"{name}_options.json")
    (tmp_path / "options.json").write_text("{}", "utf-8")
    assert_same(load_bilm(tmp_path / "small_weights.hdf5"), make_bilm())
    (tmp_path / "options.json").unlink()
    (tmp_path / "small_options.json").rename(tmp_path / "my_options.json")
    with pytest.raises(WeightsError, match=r"several options files \(my_options\.json, tall_options\.json\)"):
        load_bilm(tmp_path / "small_weights.hdf5")


def test_weights_without_options_or_config_say_what_is_wanted(hdf5_folder, native_folder):
    (hdf5_folder / "options.json").unlink()
    for source in (hdf5_folder, hdf5_folder / "model.hdf5"):
        with pytest.raises(WeightsError, match=r"no options file beside.*\(options, weights\)"):
            load_bilm(source)
    (native_folder / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"there is no file .*config\.json"):
        load_bilm(native_folder / "model.safetensors")


@pytest.mark.parametrize("layout", ["hdf5", "native"])
def test_swapped_files_are_named(layout, request):
    folder = request.getfixturevalue(f"{layout}_folder")
    config, weights = sorted(folder.iterdir(), key=lambda path: path.suffix != ".json")
    with pytest.raises(WeightsError, match=f"swapped: .*{weights.name} is an? .*{config.name} is JSON text"):
        load_bilm((weights, config))


def test_a_pair_of_the_same_kind_is_named(hdf5_folder):
    options, weights = hdf5_folder / "options.json", hdf5_folder / "model.hdf5"
    with pytest.raises(WeightsError, match=r"model\.hdf5 is an HDF5 file, expected options"):
        load_bilm((weights, weights))
    with pytest.raises(WeightsError, match=r"options\.json is JSON text, expected weights"):
        load_bilm((options, options))
    with pytest.raises(WeightsError, match="is a directory, expected weights"):
        load_bilm((options, hdf5_folder))


def test_options_and_config_are_not_taken_for_each_other(hdf5_folder, native_folder):
    with pytest.raises(ElmokitError, match=r"config\.json"):
        load_bilm((native_folder / "config.json", hdf5_folder / "model.hdf5"))
    with pytest.raises(ElmokitError, match=r"options\.json"):
        load_bilm((hdf5_folder / "options.json", native_folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"\x00\x01\x02" * 100, "unknown format"),
        (b"just text", "unknown format"),
        (b'{"lstm": {}}', "JSON text"),
        (b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "cannot be read as an HDF5 file"),
        (b"\x10" + b"\0" * 7 + b"{" + b"\0" * 50, "cannot be read as a safetensors file"),
        (b"PK\x03\x04" + b"\0" * 50, "cannot be read as a zip archive"),
    ],
)
def test_a_file_that_holds_no_model_is_named_for_what_it_is(content, words, hdf5_folder, native_folder):
    shutil.copy(native_folder / "config.json", hdf5_folder)
    for name in ("model.hdf5", "model.safetensors", "model"):
        (hdf5_folder / name).write_bytes(content)
        with pytest.raises(WeightsError, match=words):
            load_bilm(hdf5_folder / name)


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_truncated_files_are_refused(share, hdf5_folder, native_folder):
    archive = pack(hdf5_folder.parent / "m.zip", contents(hdf5_folder))
    for path in (hdf5_folder / "model.hdf5", native_folder / "model.safetensors", archive):
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(WeightsError, match=path.name):
            load_bilm(path)


def test_a_directory_of_unknown_contents_is_listed(tmp_path):
    with pytest.raises(WeightsError, match="nothing"):
        load_bilm(tmp_path)
    for name in ("char.dic", "encoder.bin", "config.json"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(WeightsError, match=r"char\.dic, config\.json, encoder\.bin; expected config\.json and model"):
        load_bilm(tmp_path)


@pytest.mark.parametrize(
    "name", ["../evil.txt", "a/../../evil.txt", "/tmp/evil.txt", "..\\evil.txt", "C:\\evil.txt", ".."]
)
def test_members_that_leave_their_folder_are_refused(name, hdf5_folder, tmp_path):
    path = pack(tmp_path / "m.zip", contents(hdf5_folder) | {name: b"evil"})
    with pytest.raises(WeightsError, match="outside its folder"):
        load_bilm(path)


def test_an_archive_that_unpacks_out_of_all_proportion_is_refused(hdf5_folder, tmp_path):
    path = pack(tmp_path / "m.zip", contents(hdf5_folder))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("vocab.txt", "w") as member:
        for _ in range(100):
            member.write(bytes(2**20))
    with pytest.raises(WeightsError, match="claims to hold"):
        load_bilm(path)


def test_a_damaged_member_is_refused(hdf5_folder, tmp_path):
    path = pack(tmp_path / "m.zip", contents(hdf5_folder), zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"m\.zip"):
        load_bilm(path)


def test_an_unknown_name_lists_the_models_in_the_box():
    with pytest.raises(WeightsError) as caught:
        load_bilm("no-such-model")
    assert "'no-such-model'" in str(caught.value)
    for name in available_models():
        assert name in str(caught.value)


def test_every_model_in_the_box_is_listed_and_loads():
    assets = resources.files("elmokit") / "assets"
    present = sorted(f.name for f in assets.iterdir() if f.is_dir() and not f.name.startswith(("_", ".")))
    assert available_models() == present
    for name in available_models():
        assert load_bilm(name).config.language
        assert (assets / name / "README.md").is_file()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.ckpt-935588.index", "the index of a TensorFlow checkpoint"),
        ("weights.th", "a state dictionary of PyTorch"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_named_and_so_is_the_archive_that_holds_it(name, kind, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / name).write_bytes(b"something")
    (tmp_path / "model" / "options.json").write_text('{"lstm": {"dim": 2, "projection_dim": 2}}')
    pack(tmp_path / "model.zip", contents(tmp_path / "model"))
    for path in (tmp_path / "model", tmp_path / "model.zip"):
        with pytest.raises(WeightsError, match=f"cannot be read as {kind}") as raised:
            load_bilm(path)
        assert str(raised.value).startswith(f"{path / name}")


@pytest.mark.parametrize(
    "wrong", [5, None, "", [], ("a",), ("a", "b", "c"), ("a", 5), ["options.json", "weights.hdf5"]]
)
def test_what_is_no_name_path_or_pair_is_refused(wrong):
    with pytest.raises(InputError, match="expected a name, a path, or a pair"):
        load_bilm(wrong)
