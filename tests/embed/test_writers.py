import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pyarrow.parquet
import pytest

from elmokit.embed.writers import SUFFIXES, open_writer, read_hdf5, writing
from elmokit.embed.writers.hdf5 import HDF5File
from elmokit.errors import ElmokitError, InputError

SHAPES = [(3, 2, 6), (2, 6), (6,), (3, 0, 6), (3, 7, 6)]
ODD_TEXT = ["a\u00a0b", "c\u2028d", "\ud800", "\udc80x", '"\\ud800"', "", "日本", "e\0f", "🎈"]

every_format = pytest.mark.parametrize("suffix", SUFFIXES)


def records(count=11, seed=0):
    generator = np.random.default_rng(seed)
    for i in range(count):
        tokens = [f"t{i}"] * (i + 1)
        yield " ".join(tokens), tokens, generator.standard_normal(SHAPES[i % len(SHAPES)]).astype(np.float32)


def write(path, rows):
    with open_writer(path) as writer:
        for row in rows:
            writer.write(*row)


def read(path):
    """The arrays of a file in its own order, by the format's usual reader."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            return [file[key] for key in file.files]
    if path.suffix == ".parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
        return [np.array(row["vectors"], np.float32).reshape(row["shape"]) for row in rows]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        return [np.array(row["vectors"], np.float32).reshape(row["shape"]) for row in rows]
    return [vectors for _, vectors in read_hdf5(path)]


def leftovers(folder):
    return sorted(path.name for path in folder.iterdir())


@every_format
def test_arrays_of_every_rank_come_back_bit_for_bit_in_input_order(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    rows = list(records(count=25))
    write(path, rows)
    found = read(path)
    assert len(found) == len(rows)
    for vectors, (_, _, expected) in zip(found, rows, strict=True):
        assert vectors.dtype == np.float32
        assert vectors.shape == expected.shape
        assert vectors.tobytes() == expected.tobytes()
    assert leftovers(tmp_path) == [path.name]


@every_format
def test_extreme_numbers_come_back_bit_for_bit(tmp_path, suffix):
    info = np.finfo(np.float32)
    values = np.array([0.0, -0.0, info.max, info.min, info.tiny, info.smallest_subnormal, 1 / 3, 1e-7, 123456792], "f4")
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, bits[np.isfinite(bits)]])
    path = tmp_path / f"out{suffix}"
    write(path, [("x", ["x"], values)])
    assert read(path)[0].tobytes() == values.tobytes()


@every_format
def test_half_and_double_precision_are_stored_as_float32(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(path, [("x", ["x"], np.ones(3, np.float16)), ("x", ["x"], [0.5, 2.0, 1 / 3])])
    half, double = read(path)
    assert half.dtype == double.dtype == np.float32
    np.testing.assert_array_equal(double, np.array([0.5, 2.0, 1 / 3], np.float32))


@every_format
def test_no_sentences_give_a_readable_empty_file(tmp_path, suffix):
    write(tmp_path / f"out{suffix}", [])
    assert read(tmp_path / f"out{suffix}") == []


@every_format
def test_odd_text_stops_no_writer(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(path, [(text, [text], np.full((1, 2), i, np.float32)) for i, text in enumerate(ODD_TEXT)])
    assert [vectors[0, 0] for vectors in read(path)] == list(range(len(ODD_TEXT)))


def test_json_lines_give_odd_text_back_exactly_one_line_a_record(tmp_path):
    path = tmp_path / "out.jsonl"
    write(path, [(text, [text], np.zeros(2)) for text in ODD_TEXT])
    rows = [json.loads(line) for line in path.read_text("ascii").splitlines()]
    assert [row["sentence"] for row in rows] == ODD_TEXT
    assert [row["tokens"] for row in rows] == [[text] for text in ODD_TEXT]
    assert [row["index"] for row in rows] == list(range(len(ODD_TEXT)))


def test_hdf5_gives_odd_text_back_exactly(tmp_path):
    path = tmp_path / "out.hdf5"
    write(path, [(text, [text], np.zeros(2)) for text in ODD_TEXT])
    with h5py.File(path) as file:
        assert json.loads(file["sentence_to_index"][0]) == {text: str(i) for i, text in enumerate(ODD_TEXT)}


def test_parquet_writes_a_lone_surrogate_as_its_escape_and_all_else_as_it_is(tmp_path):
    path = tmp_path / "out.parquet"
    write(path, [(text, [text, "b"], np.zeros(2)) for text in ODD_TEXT])
    rows = pyarrow.parquet.read_table(path).to_pylist()
    expected = [text.replace("\ud800", "\\ud800").replace("\udc80", "\\udc80") for text in ODD_TEXT]
    assert [row["sentence"] for row in rows] == expected
    assert [row["tokens"] for row in rows] == [[text, "b"] for text in expected]
    assert [row["index"] for row in rows] == list(range(len(ODD_TEXT)))


def test_json_lines_refuse_what_json_cannot_say_and_the_others_keep_it(tmp_path):
    row = ("x", ["x"], np.array([1.0, np.nan, np.inf], np.float32))
    with pytest.raises(InputError, match="sentence 0 is not finite"):
        write(tmp_path / "out.jsonl", [row])
    assert leftovers(tmp_path) == []
    for suffix in (".hdf5", ".npz", ".parquet"):
        write(tmp_path / f"out{suffix}", [row])
        np.testing.assert_array_equal(read(tmp_path / f"out{suffix}")[0], row[2])


@every_format
def test_repeated_sentences_give_a_record_each(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write(path, [("a b", ["a", "b"], np.full(2, i, np.float32)) for i in range(3)])
    assert [vectors[0] for vectors in read(path)] == [0, 1, 2]


def test_hdf5_has_the_layout_of_allennlp(tmp_path):
    path = tmp_path / "out.hdf5"
    rows = list(records(count=11))
    write(path, [*rows, rows[0]])
    with h5py.File(path) as file:
        # Iteration alone, without our reader, gives input order too.
        assert list(file) == [*map(str, range(12)), "sentence_to_index"]
        assert file["3"].dtype == np.float32
        assert file["sentence_to_index"].shape == (1,)
        mapping = json.loads(file["sentence_to_index"][0])
    assert len(mapping) == 11
    assert mapping[rows[4][0]] == "4"
    assert mapping[rows[0][0]] == "11"  # the last line of a repeated sentence, as in AllenNLP


def test_the_reader_gives_input_order_for_files_that_do_not_track_it(tmp_path):
    path = tmp_path / "allennlp.hdf5"
    with h5py.File(path, "w") as file:
        for i in range(11):
            file.create_dataset(str(i), data=np.full((3, i, 4), i, np.float32))
        file.create_dataset("sentence_to_index", (1,), dtype=h5py.string_dtype())[0] = "{}"
        assert list(file)[:3] == ["0", "1", "10"]
    assert [(key, vectors.shape[1]) for key, vectors in read_hdf5(path)] == [(str(i), i) for i in range(11)]


def test_the_reader_says_what_is_no_hdf5(tmp_path):
    (tmp_path / "x.hdf5").write_text("no")
    for name in ("x.hdf5", "absent.hdf5"):
        with pytest.raises(InputError, match=f"{name} cannot be read as HDF5"):
            next(read_hdf5(tmp_path / name))


def test_sentences_as_keys_are_looked_up_by_the_sentence(tmp_path):
    path = tmp_path / "out"
    sentences = ["b c", "a", "either / or .", "日本", "10"]
    with writing(path, lambda temporary: HDF5File(temporary, sentence_keys=True)) as writer:
        for i, sentence in enumerate(sentences):
            writer.write(sentence, sentence.split(), np.full(2, i, np.float32))
    with h5py.File(path) as file:
        assert [file[sentence][0] for sentence in sentences] == [0, 1, 2, 3, 4]
    assert [(key, vectors[0]) for key, vectors in read_hdf5(path)] == [(key, i) for i, key in enumerate(sentences)]


def test_a_repeated_sentence_as_key_keeps_its_first_vectors_and_says_so(tmp_path):
    with writing(tmp_path / "out", lambda temporary: HDF5File(temporary, sentence_keys=True)) as writer:
        writer.write("a b", ["a", "b"], np.zeros(2))
        with pytest.warns(UserWarning, match="sentence 1, 'a b', came before"):
            writer.write("a b", ["a", "b"], np.ones(2))
    assert [(key, vectors[0]) for key, vectors in read_hdf5(tmp_path / "out")] == [("a b", 0)]


@pytest.mark.parametrize("sentence", ["", ".", "/", "a/b", "c", "sentence_to_index", "x\0y", "\ud800"])
def test_a_sentence_that_cannot_be_a_key_is_named(tmp_path, sentence):
    def write_under_sentences():
        with writing(tmp_path / "out", lambda temporary: HDF5File(temporary, sentence_keys=True)) as writer:
            writer.write("a", ["a"], np.zeros(2))
            writer.write("c/d", ["c/d"], np.zeros(2))
            writer.write(sentence, [sentence], np.zeros(2))

    with pytest.raises(InputError, match=r"sentence 2, .* cannot be a key"):
        write_under_sentences()
    assert leftovers(tmp_path) == []


@every_format
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError, SystemExit, GeneratorExit])
def test_an_interrupted_run_leaves_the_older_file_and_nothing_else(tmp_path, suffix, interruption):
    path = tmp_path / f"out{suffix}"
    path.write_text("older")

    def rows():
        yield from records(count=3)
        assert path.read_text() == "older"
        raise interruption

    with pytest.raises(interruption):
        write(path, rows())
    assert path.read_text() == "older"
    assert leftovers(tmp_path) == [path.name]


@every_format
def test_a_finished_run_replaces_the_older_file(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    path.write_text("older")
    write(path, records(count=2))
    assert len(read(path)) == 2
    assert leftovers(tmp_path) == [path.name]


@every_format
def test_a_record_that_cannot_be_stored_leaves_nothing(tmp_path, suffix):
    with pytest.raises(ValueError, match="float"):
        write(tmp_path / f"out{suffix}", [*records(count=2), ("x", ["x"], ["no number"])])
    assert leftovers(tmp_path) == []


@every_format
def test_a_link_stays_a_link(tmp_path, suffix):
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / f"real{suffix}"
    link = tmp_path / f"out{suffix}"
    link.symlink_to(target)
    write(link, records(count=2))
    assert link.is_symlink()
    assert len(read(target)) == 2


@every_format
def test_files_have_the_permissions_that_the_user_asks_for(tmp_path, suffix):
    before = os.umask(0o027)
    try:
        write(tmp_path / f"out{suffix}", records(count=1))
    finally:
        os.umask(before)
    assert (tmp_path / f"out{suffix}").stat().st_mode & 0o777 == 0o640


def test_an_unknown_suffix_names_the_known_ones(tmp_path):
    for name in ("out.txt", "out", "out.npy", "hdf5"):
        with pytest.raises(ElmokitError, match=r"expected one of .*\.parquet"):
            write(tmp_path / name, records(count=1))
    assert leftovers(tmp_path) == []


def test_the_suffix_may_be_in_capitals(tmp_path):
    write(tmp_path / "OUT.NPZ", records(count=1))
    assert zipfile.is_zipfile(tmp_path / "OUT.NPZ")


@every_format
def test_a_target_that_cannot_be_written_is_named_before_anything_is_embedded(tmp_path, suffix):
    (tmp_path / f"folder{suffix}").mkdir()
    (tmp_path / "file").write_text("")
    for name in (f"absent/out{suffix}", f"folder{suffix}", f"file/out{suffix}"):
        with pytest.raises(ElmokitError, match=f"{name} cannot be written"), open_writer(tmp_path / name):
            pytest.fail("opened")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_protected_file_is_not_replaced(tmp_path):
    path = tmp_path / "out.npz"
    path.write_text("older")
    path.chmod(0o444)
    with pytest.raises(ElmokitError, match="write-protected"):
        write(path, records(count=1))


@every_format
def test_a_full_disk_is_an_error_that_names_the_target_and_leaves_nothing(tmp_path, suffix):
    # A limit on the size of files fails in the same place as a full disk, without filling one.
    script = """
        import resource, sys
        import numpy as np
        from elmokit.embed.writers import open_writer
        from elmokit.errors import ElmokitError
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        try:
            with open_writer(sys.argv[1]) as writer:
                for i in range(3000):
                    writer.write("a", ["a"], np.random.default_rng(i).random((3, 1, 64)))
        except ElmokitError as error:
            print("told:", error, flush=True)
    """
    path = tmp_path / f"out{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], capture_output=True, text=True, timeout=120
    )
    assert f"told: {path} cannot be written" in done.stdout, done.stderr
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("suffix", [".hdf5", ".jsonl", ".parquet"])
def test_memory_is_flat_over_many_sentences(tmp_path, suffix):
    script = """
        import sys
        from pathlib import Path
        import numpy as np
        from elmokit.embed.writers import open_writer

        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

        sizes = []
        vectors = np.random.default_rng(0).random((3, 4, 16))
        with open_writer(sys.argv[1]) as writer:
            for i in range(30_001):
                writer.write(f"this is sentence {i}", ["a", "b", "c", "d"], vectors)
                if i % 10_000 == 0:
                    sizes.append(resident())
        print(*sizes)
    """
    if not Path("/proc/self/statm").exists():
        pytest.skip("measures memory by Linux's /proc")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / f"out{suffix}")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    sizes = [float(size) for size in done.stdout.split()]
    assert max(sizes[2:]) - sizes[1] < 20, sizes  # kept, the 20,000 sentences between would take 31 MB
