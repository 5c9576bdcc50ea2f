"""The models in the box: small, licensed, whole, and able to do what contextual vectors are for."""

from importlib import resources

import numpy as np
import pytest
from safetensors import safe_open

import elmokit
from elmokit.weights import available_models, load_language_model
from elmokit.weights.card import show

FOLDER = resources.files("elmokit") / "assets"
if not available_models():
    pytest.skip("this installation has no built-in models", allow_module_level=True)

# A word in one sense, twice, and in another; `benchmarks/senses` measures how often that comes out right.
EXAMPLES = {
    "small-en": [
        (
            "bank",
            "The bank lent him money to buy a house .",
            "The bank refused to lend the company more money .",
            "The bank of the river was covered with grass .",
        ),
        (
            "cell",
            "The nucleus of the cell contains the DNA .",
            "Each cell divides into two new ones with the same membrane .",
            "The prisoner was locked in a cell with a small window .",
        ),
        (
            "play",
            "The play was performed in a small theatre .",
            "The play was written by a young author .",
            "The children play in the garden after school .",
        ),
        (
            "run",
            "They run to the house every morning .",
            "The children run across the field .",
            "The play had a long run in London .",
        ),
        ("apple", "Apple released a new phone .", "Apple said its profits rose .", "She ate an apple ."),
    ],
    "small-zh": [
        ("苹果", "苹果 很 好吃", "我 吃 了 一个 苹果", "苹果 发布 新 手机"),
        ("苹果", "我 吃 了 一个 苹果", "苹果 很 好吃", "苹果 公司"),
        ("苹果", "苹果 发布 新 手机", "苹果 公司", "苹果 很 好吃"),
        ("苹果", "苹果 公司", "苹果 发布 新 手机", "我 吃 了 一个 苹果"),
    ],
}


@pytest.mark.parametrize("name", available_models())
def test_a_model_in_the_box_is_small_whole_and_has_a_card(name):
    folder = FOLDER / name
    assert sum(file.stat().st_size for file in folder.iterdir()) <= 16.5e6
    with resources.as_file(folder / "model.safetensors") as path, safe_open(path, framework="np") as file:
        assert {str(file.get_tensor(key).dtype) for key in file.keys()} == {"float16"}  # noqa: SIM118 - no mapping
    bilm, head, lexicon = load_language_model(name)
    assert bilm.config.language == name.removeprefix("small-")
    assert head.num_words == len(lexicon)
    assert show(name)["licence"] == "apache-2.0"


@pytest.mark.parametrize(
    ("name", "word", "anchor", "same", "other"),
    [(name, *example) for name in available_models() for example in EXAMPLES[name]],
    ids=lambda value: value,
)
def test_a_word_is_nearer_to_itself_in_its_own_sense(name, word, anchor, same, other):
    rows = [sentence.split() for sentence in (anchor, same, other)]
    found = elmokit.load(name).embed(rows, 1)
    vectors = np.stack([v[[t.lower() for t in row].index(word)] for v, row in zip(found, rows, strict=True)])
    if word == "苹果":  # opens sentences, where the forward half has read nothing yet and cannot know
        vectors = vectors[:, vectors.shape[1] // 2 :]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2] + 0.02
