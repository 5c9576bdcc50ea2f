"""The comparison of shapes trains what it says, for the time it says, on the text it says."""

import importlib
import random
from pathlib import Path

import pytest

from elmokit.train.corpus import prepare
from elmokit.train.recipe import Recipe

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def sizes(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("sizes")


@pytest.fixture
def recipe(tmp_path):
    draw = random.Random(1)
    words = ["苹果", "很", "好吃", "公司", "发布", "手机", "ok", "我", "吃了", "一个"]
    lines = [" ".join(draw.choices(words, k=8)) for _ in range(4000)]
    (tmp_path / "text.txt").write_text("\n".join(lines), "utf-8")
    return Recipe.model_validate(
        {
            "model": {
                "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4)], "max_characters_per_token": 9},
                "encoder": {"projection_dim": 8, "cell_dim": 12},
                "language": "zh",
            },
            "corpus": {
                "sources": [{"files": str(tmp_path / "text.txt")}],
                "tokenized": True,
                "held_out": 0.2,
                "alphabet_size": 30,
            },
            "training": {"rows": 4, "window": 5, "warmup_steps": 1},
        }
    )


@pytest.fixture
def corpus(recipe, tmp_path):
    return prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache")


def test_a_variant_is_trained_for_its_time_and_measured_on_other_text(sizes, recipe, corpus, tmp_path):
    variant = sizes.Variant("narrow", encoder={"cell_dim": 10})
    row = sizes.measure(recipe, variant, corpus, tmp_path, 1.0)
    assert row["variant"] == "narrow"
    assert 0 < row["processor seconds"] < 30
    assert row["tokens"] % 20 == 0
    assert 5 < row["perplexity"] < 40
    assert row["unknown"] == 0
    assert row["bits with unknown words spelt"] == row["bits a character"] > 0


def test_single_characters_are_the_same_text_in_more_tokens(sizes, corpus, tmp_path):
    texts = {}
    for by_character in (False, True):
        folder = tmp_path / str(by_character)
        folder.mkdir()
        fields = sizes.sample(corpus, folder, by_character=by_character)
        assert fields["tokenized"]
        texts[by_character] = Path(fields["sources"][0]["files"]).read_text("utf-8")
    assert texts[True].replace(" ", "") == texts[False].replace(" ", "")
    assert len(texts[True].split()) > 1.5 * len(texts[False].split())
    assert "苹 果" in texts[True] and "ok" in texts[True].split()
    assert len(texts[False].splitlines()) == -(-len(corpus.train) // 10)
