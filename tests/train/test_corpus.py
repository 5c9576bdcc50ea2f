"""Preparing a corpus."""

import lzma

import numpy as np
import pytest

from elmokit.errors import ConfigError, InputError
from elmokit.text.characters import token_to_ids
from elmokit.train.corpus import prepare


@pytest.fixture
def prepared(tmp_path):
    def run(recipe):
        return prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache")

    return run


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
    assert len(list((tmp_path / "cache").iterdir())) == 1
    prepared(first)
    prepared(first.model_copy(update={"training": first.training.model_copy(update={"rows": 2})}))
    assert len(list((tmp_path / "cache").iterdir())) == 1
    text.write_bytes(text.read_bytes() + b"\none more line\n")
    prepared(first)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    prepared(recipe_of(text, corpus={"held_out": 0.3}))
    assert len(list((tmp_path / "cache").iterdir())) == 3


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
    assert [path.name for path in (tmp_path / "cache").iterdir()] == []
