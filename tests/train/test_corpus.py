"""Preparing a corpus."""

import gzip
import json
import lzma
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from elmokit.errors import ConfigError, InputError
from elmokit.text.characters import token_to_ids
from elmokit.train import corpus_writer
from elmokit.train.corpus import prepare


@pytest.fixture
def prepared(tmp_path):
    def run(recipe):
        return prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache")

    return run


def folders(cache):
    return [path.name for path in cache.iterdir() if not path.name.endswith(".lock")]


def trained(corpus):
    """The tokens of each sentence to train on, without boundaries."""
    return [row[1:-1] for row in sentences_of(corpus, corpus.train)]


def sentences_of(corpus, part):
    return [[corpus.types[t] for t in part[index]] for index in range(len(part))]


def test_every_sentence_is_in_one_part_with_its_boundaries(prepared, recipe_of, text):
    corpus = prepared(recipe_of(text))
    lines = [line.split() for line in text.read_text("utf-8").split("\n") if line]
    found = sentences_of(corpus, corpus.train) + sentences_of(corpus, corpus.held_out)
    assert sorted(found) == sorted(["<S>", *line, "</S>"] for line in lines)
    assert 0 < len(corpus.held_out) < 200


def test_documents_are_held_out_whole(prepared, recipe_of, tmp_path):
    blocks = [[f"d{d}w{s}" for s in range(5)] for d in range(100)]
    (tmp_path / "docs.txt").write_text("\n\n".join("\n".join(block) for block in blocks), encoding="utf-8")
    corpus = prepared(recipe_of(tmp_path / "docs.txt"))
    held_out = {row[1].split("w")[0] for row in sentences_of(corpus, corpus.held_out)}
    trained = {row[1].split("w")[0] for row in sentences_of(corpus, corpus.train)}
    assert held_out and trained and not held_out & trained


def test_types_are_numbered_by_weighted_frequency_after_the_special_words(prepared, recipe_of, tmp_path):
    (tmp_path / "a.txt").write_text("x x x y\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("y y z\n", encoding="utf-8")
    corpus = prepared(recipe_of("a.txt", "b.txt", weights=[1, 4], corpus={"held_out": 0}))
    assert corpus.types == ("<S>", "</S>", "<UNK>", "y", "z", "x")
    assert corpus.lexicon(4).words == ("<S>", "</S>", "<UNK>", "y")
    assert corpus.words(np.array([0, 3, 4, 5]), 4).tolist() == [0, 3, 2, 2]


def test_characters_of_a_type_are_those_of_the_token(prepared, recipe_of, text):
    corpus = prepared(recipe_of(text))
    for index, token in enumerate(corpus.types):
        if token != "<UNK>":
            assert corpus.characters[index].tolist() == token_to_ids(token, 12).tolist()


def test_a_prepared_corpus_is_opened_again_until_a_byte_or_a_setting_changes(prepared, recipe_of, text, tmp_path):
    first = recipe_of(text)
    prepared(first)
    assert len(folders(tmp_path / "cache")) == 1
    prepared(first)
    prepared(first.model_copy(update={"training": first.training.model_copy(update={"rows": 2})}))
    assert len(folders(tmp_path / "cache")) == 1
    text.write_bytes(text.read_bytes() + b"\none more line\n")
    prepared(first)
    assert len(folders(tmp_path / "cache")) == 2
    prepared(recipe_of(text, corpus={"held_out": 0.3}))
    assert len(folders(tmp_path / "cache")) == 3


def test_packed_files_and_patterns_are_read(prepared, recipe_of, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.txt").write_text("second\n", encoding="utf-8")
    with lzma.open(tmp_path / "in" / "a.txt.xz", "wt", encoding="utf-8") as file:
        file.write("first\n")
    corpus = prepared(recipe_of("in/*", corpus={"held_out": 0}))
    assert sentences_of(corpus, corpus.train) == [["<S>", "first", "</S>"], ["<S>", "second", "</S>"]]


def test_raw_text_is_split_and_tokenised_by_language(prepared, recipe_of, tmp_path):
    (tmp_path / "raw.txt").write_text("It's red. Dr. Smith left, didn't he?\n", encoding="utf-8")
    corpus = prepared(recipe_of("raw.txt", corpus={"held_out": 0, "tokenized": False}))
    assert [row[1:-1] for row in sentences_of(corpus, corpus.train)] == [
        ["It", "'s", "red", "."],
        ["Dr.", "Smith", "left", ",", "did", "n't", "he", "?"],
    ]


def test_a_missing_file_an_empty_corpus_and_a_bad_byte_are_named(prepared, recipe_of, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        prepared(recipe_of("nowhere.txt"))
    (tmp_path / "empty.txt").write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match="no sentence"):
        prepared(recipe_of("empty.txt"))
    (tmp_path / "bad.txt").write_bytes(b"fine\nbad \xff\n")
    with pytest.raises(InputError, match=r"bad\.txt.*line 2"):
        prepared(recipe_of("bad.txt"))
    assert folders(tmp_path / "cache") == []


def test_the_key_of_a_recipe_stays_the_same_so_that_prepared_corpora_stay_in_use(prepared, recipe_of, tmp_path):
    (tmp_path / "a.txt").write_text("a b\n", encoding="utf-8")
    prepared(recipe_of("a.txt", corpus={"held_out": 0.25}))
    assert folders(tmp_path / "cache") == ["c79677c7b8839fb825c5"]


RECORDS = ["a b\nc d", "", "e", None, "苹果 f\n\n \ng"]
LINES = [["a", "b"], ["c", "d"], ["e"], ["苹果", "f"], ["g"]]


def write_parquet(path, records, **options):
    pq.write_table(pa.table({"id": list(range(len(records))), "body": pa.array(records, pa.string())}), path, **options)


def json_lines(records):
    return "".join(json.dumps({"id": 1, "body": text}) + "\n" for text in records).encode()


@pytest.mark.parametrize(
    ("name", "pack"),
    [("x.jsonl", bytes), ("x.jsonl.gz", gzip.compress), ("x.JSONL.xz", lzma.compress),
     ("x.jsonl.zst", zstandard.compress)],
)  # fmt: skip
def test_json_lines_are_read_packed_or_not(prepared, recipe_of, tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(json_lines(RECORDS) + b"\n" + json_lines(["last"])))
    recipe = recipe_of(corpus={"held_out": 0, "sources": [{"files": name, "field": "body"}]})
    assert trained(prepared(recipe)) == [*LINES, ["last"]]


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_parquet_is_read_whatever_its_row_groups(prepared, recipe_of, tmp_path, rows):
    write_parquet(tmp_path / "x.parquet", RECORDS, row_group_size=rows)
    recipe = recipe_of(corpus={"held_out": 0, "sources": [{"files": "x.parquet", "field": "body"}]})
    assert trained(prepared(recipe)) == LINES


def test_a_record_is_a_document_and_is_held_out_whole(prepared, recipe_of, tmp_path):
    records = ["\n\n".join(f"d{d}w{s}" for s in range(5)) for d in range(100)]
    (tmp_path / "docs.jsonl").write_bytes(json_lines(records))
    write_parquet(tmp_path / "docs.parquet", records)
    for name in ("docs.jsonl", "docs.parquet"):
        corpus = prepared(recipe_of(corpus={"sources": [{"files": name, "field": "body"}]}))
        parts = [sentences_of(corpus, part) for part in (corpus.train, corpus.held_out)]
        train, held_out = ({row[1].split("w")[0] for row in part} for part in parts)
        assert train and held_out and not train & held_out


def test_lone_surrogates_and_carriage_returns_in_tokens_survive_opening_again(prepared, recipe_of, tmp_path):
    (tmp_path / "odd.jsonl").write_bytes(json_lines(["a\r a \ud800 x\u2028y \0"]))
    recipe = recipe_of(corpus={"held_out": 0, "sources": [{"files": "odd.jsonl", "field": "body"}]})
    assert trained(prepared(recipe)) == trained(prepared(recipe)) == [["a\r", "a", "\ud800", "x\u2028y", "\0"]]


def test_a_packed_text_file_in_zst_and_any_folders_are_read(prepared, recipe_of, tmp_path):
    for name, text in (("in/one/a.txt", "first"), ("in/two/deep/a.txt", "second"), ("in/two/.hidden", "no")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "in" / "z.txt.zst").write_bytes(zstandard.compress(b"third"))
    assert trained(prepared(recipe_of("in/**", corpus={"held_out": 0}))) == [["first"], ["second"], ["third"]]
    assert trained(prepared(recipe_of("in/**/a.txt", corpus={"held_out": 0}))) == [["first"], ["second"]]


def test_files_of_one_name_in_many_folders_are_held_out_independently(prepared, recipe_of, tmp_path):
    for number in range(60):
        (tmp_path / "in" / str(number)).mkdir(parents=True)
        (tmp_path / "in" / str(number) / "text.txt").write_text(f"w{number}", encoding="utf-8")
    corpus = prepared(recipe_of("in/*/text.txt", corpus={"held_out": 0.5}))
    assert 10 < len(corpus.held_out) < 50


def test_a_root_whose_name_looks_like_a_pattern_is_no_pattern(recipe_of, tmp_path):
    root = tmp_path / "[ab]*"
    root.mkdir()
    (root / "x.txt").write_text("here", encoding="utf-8")
    recipe = recipe_of("*.txt", corpus={"held_out": 0})
    corpus = prepare(recipe.corpus, recipe.model, root=root, cache=tmp_path / "cache")
    assert trained(corpus) == [["here"]]


def test_which_files_a_source_has_is_part_of_the_key(prepared, recipe_of, tmp_path):
    for name in ("a1", "a2", "b1"):
        (tmp_path / name).write_text(f"{name} x x\n", encoding="utf-8")
    first = prepared(recipe_of("a*", "b1", weights=[1, 3], corpus={"held_out": 0}))
    (tmp_path / "a2").rename(tmp_path / "b0")
    second = prepared(recipe_of("a*", "b*", weights=[1, 3], corpus={"held_out": 0}))
    assert first.train.sources.tolist() == [0, 2, 3]
    assert second.train.sources.tolist() == [0, 1, 3]


def test_held_out_files_take_the_place_of_a_share(prepared, recipe_of, text, tmp_path):
    (tmp_path / "dev.txt").write_text("only here\n\nand here\n", encoding="utf-8")
    corpus = prepared(recipe_of(text, corpus={"held_out": 0.5, "held_out_sources": [{"files": "dev.txt"}]}))
    assert [row[1:-1] for row in sentences_of(corpus, corpus.held_out)] == [["only", "here"], ["and", "here"]]
    assert len(corpus.train) == 600
    assert corpus.types.index("only") > corpus.types.index("the")
    assert len(corpus.train.sources) == 2


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("x.jsonl", b'{"text": "a"}\n{"text": \n', r"x\.jsonl, line 2 is not JSON"),
        ("x.jsonl", b"[" * 100_000, r"x\.jsonl, line 1 is not JSON"),
        ("x.jsonl", b'{"text": "a"}\n\n["b"]\n', "line 3 holds a list"),
        ("x.jsonl", b'{"body": "a", "id": 2}\n', "line 1 has no 'text', but 'body', 'id'; name the source's text"),
        ("x.jsonl", b'{"text": ["a"]}\n', "line 1: 'text' is of type list, expected text"),
        ("x.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', "line 2: byte 11 is 0xff"),
        ("x.jsonl.zst", zstandard.compress(os.urandom(4000).hex().encode())[:-9], "cut short"),
        ("x.parquet", b"PAR1 but nothing else", r"x\.parquet cannot be read as Parquet"),
    ],
)
def test_a_bad_record_is_named_and_leaves_nothing(prepared, recipe_of, tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said):
        prepared(recipe_of(name))
    assert folders(tmp_path / "cache") == []


def test_parquet_without_the_column_or_with_numbers_is_named(prepared, recipe_of, tmp_path):
    write_parquet(tmp_path / "x.parquet", ["a"])
    with pytest.raises(InputError, match="has no 'text', but 'id', 'body'"):
        prepared(recipe_of("x.parquet"))
    with pytest.raises(InputError, match=r"x\.parquet, record 1: 'id' is of type int"):
        prepared(recipe_of(corpus={"sources": [{"files": "x.parquet", "field": "id"}]}))
    damaged = bytearray((tmp_path / "x.parquet").read_bytes())
    (tmp_path / "x.parquet").write_bytes(damaged[:-30] + damaged[-8:])
    with pytest.raises(InputError, match=r"x\.parquet cannot be read as Parquet"):
        prepared(recipe_of("x.parquet"))


def test_a_folder_is_refused_with_a_hint(prepared, recipe_of, tmp_path):
    (tmp_path / "texts").mkdir()
    with pytest.raises(ConfigError, match=r"it is a folder: write texts/\*"):
        prepared(recipe_of("texts"))


def test_the_rarest_types_become_unknown_where_there_are_too_many(prepared, recipe_of, tmp_path):
    draw = np.random.default_rng(0)
    frequent = [f"often{number}" for number in range(20)]
    rare = iter(range(10_000))
    lines = [[str(draw.choice(frequent)), f"once{next(rare)}", str(draw.choice(frequent))] for _ in range(2000)]
    (tmp_path / "x.txt").write_text("\n".join(map(" ".join, lines)), encoding="utf-8")
    messages = []
    recipe = recipe_of("x.txt", corpus={"held_out": 0, "max_types": 40})
    corpus = prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache", report=messages.append)
    assert len(corpus.types) == len(corpus.characters) == 40
    assert set(frequent) <= set(corpus.types)
    pairs = [pair for found, line in zip(trained(corpus), lines, strict=True) for pair in zip(found, line, strict=True)]
    assert all(found in (token, "<UNK>") for found, token in pairs)
    lost = sum(found != token for found, token in pairs if token in frequent)
    assert lost < 20  # a frequent one may be given up once, before it comes a second time
    assert any("rarest types are read as <UNK>" in message for message in messages)
    whole = prepared(recipe_of("x.txt", corpus={"held_out": 0}))
    assert trained(whole) == lines


def test_progress_tells_bytes_tokens_types_speed_and_time_left(recipe_of, text, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_writer, "REPORT_SECONDS", 0.0)
    messages = []
    recipe = recipe_of(text)
    prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache", report=messages.append)
    reading = [message for message in messages if message.startswith("reading text.txt: ")]
    assert len(reading) == 600
    for part in ("sentences", "tokens", "types", "tokens/s", " MB (", "left 0:00:0"):
        assert part in reading[300]
    assert "600 sentences" in messages[-1] and "(100%)" in messages[-1]


PREPARE = """
import sys, time
from pathlib import Path
from elmokit.train import corpus_writer
from elmokit.train.corpus import prepare
from elmokit.train.recipe import Recipe
recipe = Recipe.model_validate_json(sys.argv[1])
corpus_writer.REPORT_SECONDS = 0.0
def report(message):
    print(message, flush=True)
    if sys.argv[3] == "slow" and message.startswith("reading"):
        time.sleep(0.01)
corpus = prepare(recipe.corpus, recipe.model, root=Path("/"), cache=Path(sys.argv[2]), report=report)
print("tokens:", int(corpus.train.tokens.sum()))
"""


def start(recipe, cache, speed):
    arguments = [sys.executable, "-c", PREPARE, recipe.model_dump_json(), str(cache), speed]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_preparation_that_was_killed_leaves_nothing_that_looks_whole(prepared, recipe_of, text, tmp_path):
    killed = start(recipe_of(text), tmp_path / "cache", "slow")
    for line in killed.stdout:
        if line.startswith("reading"):
            break
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    (left,) = folders(tmp_path / "cache")
    assert left.endswith(".partial")
    corpus = prepared(recipe_of(text))
    assert len(corpus.train) + len(corpus.held_out) == 600
    assert folders(tmp_path / "cache") == [left.removesuffix(".partial")]


def test_processes_that_want_the_same_corpus_prepare_it_once(prepared, recipe_of, text, tmp_path):
    running = [start(recipe_of(text), tmp_path / "cache", "slow") for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in running]
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum(any(line.startswith("reading") for line in lines) for lines in outputs) == 1
    assert sum("another process is preparing" in line for lines in outputs for line in lines) <= 2
    assert len(folders(tmp_path / "cache")) == 1


MEASURE = """
import psutil, sys, threading, time
from pathlib import Path
from elmokit.train.corpus import prepare
from elmokit.train.recipe import Recipe
process, highest = psutil.Process(), [0]
def watch():
    while True:
        highest[0] = max(highest[0], process.memory_info().rss)
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
recipe = Recipe.model_validate_json(sys.argv[1])
prepare(recipe.corpus, recipe.model, root=Path("/"), cache=Path(sys.argv[2]))
print(highest[0])
"""


def test_memory_grows_by_little_more_than_the_offsets(recipe_of, tmp_path):
    def peak(num_lines):
        path = tmp_path / f"{num_lines}.txt"
        path.write_text(f"{'a b c d e f g h i j k l m n o p ' * 2}\n" * num_lines, encoding="utf-8")
        arguments = [recipe_of(path).model_dump_json(), str(tmp_path / "cache")]
        done = subprocess.run([sys.executable, "-c", MEASURE, *arguments], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # 8 bytes a sentence, a few times over while they are saved and opened; the text has 65 a sentence, its ids 136.
    assert peak(200_000) - peak(2000) < 200_000 * 8 * 5
