"""Training a character CNN over code points: the alphabet is the corpus's, and goes with the model."""

import numpy as np
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from elmokit.config import BiLMConfig
from elmokit.embed.embedder import Embedder
from elmokit.errors import ConfigError, TrainingError
from elmokit.text.characters import Alphabet, tokens_to_ids
from elmokit.train.corpus import prepare
from elmokit.train.finetune import Plan, finetune
from elmokit.weights import load_bilm, load_language_model
from tests import numpy_bilm

LINES = [
    "的 人民 代表 大会",
    "中华 人民 共和国",
    "我 是 中国 人",
    "他 说 : 我 的 书 😀",
    "abc 的 书",
    "中国 的 大会 代表",
]


@pytest.fixture
def chinese(tmp_path):
    """A file of tokens, of which 'abc' and the smiling face are the rarest."""
    path = tmp_path / "zh.txt"
    path.write_text("\n".join(LINES[number % 7 % 6] for number in range(60)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def prepared(tmp_path):
    return lambda recipe: prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache")


def test_the_most_frequent_code_points_of_the_text_are_the_alphabet(prepared, recipe_of, tmp_path):
    (tmp_path / "a.jsonl").write_text(r'{"text": "bab ba cd\ud800"}', encoding="utf-8")  # only JSON can hold that
    (tmp_path / "b.txt").write_text("ee dc\n", encoding="utf-8")
    (tmp_path / "held.txt").write_text("zzzzzzzz\n", encoding="utf-8")
    options = {"held_out_sources": [{"files": "held.txt"}]}

    def alphabet(size):
        return prepared(
            recipe_of("a.jsonl", "b.txt", weights=[1, 2], corpus={"alphabet_size": size, **options})
        ).alphabet

    assert alphabet(100) == "ebcda"  # 4; then 3, 3, 3; 2: of equal ones the lower first
    assert alphabet(3) == "ebc"


def test_a_corpus_holds_the_ids_of_its_alphabet(prepared, recipe_of, chinese):
    corpus = prepared(recipe_of(chinese, corpus={"alphabet_size": 10}))
    assert corpus.alphabet is not None
    assert len(corpus.alphabet) == 10
    assert corpus.characters.dtype == np.int16
    expected = tokens_to_ids(corpus.types, 12, alphabet=Alphabet(corpus.alphabet))
    assert np.array_equal(corpus.characters, expected)


def test_bytes_and_each_alphabet_are_prepared_apart(prepared, recipe_of, chinese, tmp_path):
    recipes = [
        recipe_of(chinese),
        recipe_of(chinese, corpus={"alphabet_size": 10}),
        recipe_of(chinese, corpus={"alphabet_size": 11}),
        recipe_of(chinese, tokens={"alphabet": "的书"}),
        recipe_of(chinese, tokens={"alphabet": "书的"}),
    ]
    tables = [np.array(prepared(recipe).characters) for recipe in recipes]
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == len(recipes)
    assert len({table.tobytes() for table in tables}) == len(recipes)


def test_an_alphabet_is_given_or_collected_not_both(prepared, recipe_of, chinese):
    with pytest.raises(ConfigError, match="leave out"):
        prepared(recipe_of(chinese, tokens={"alphabet": "的"}, corpus={"alphabet_size": 10}))
    with pytest.raises(ValidationError, match="32000"):
        recipe_of(chinese, corpus={"alphabet_size": 32_001})


@pytest.fixture
def trained(run, recipe_of, chinese, tmp_path):
    """The folder of a model that was trained for a few steps."""
    recipe = recipe_of(chinese, corpus={"alphabet_size": 12}, steps=6)
    run(recipe)
    return tmp_path / "run" / "model"


def test_a_trained_model_takes_the_alphabet_with_it(trained):
    config = BiLMConfig.from_json((trained / "config.json").read_text("utf-8"))
    assert config.tokens.alphabet is not None
    assert len(config.tokens.alphabet) == 12
    assert config.tokens.alphabet.startswith("的")
    assert load_file(trained / "model.safetensors")["token_encoder.embedding"].shape == (18, 4)


def test_a_trained_model_embeds_as_numpy_does(trained):
    bilm = load_bilm(trained)
    sentences = [["我", "的", "书", "中华民国的" * 5], [], ["龍", "", "abc", "\ud800"]]
    found = Embedder(bilm).embed(sentences)
    weights = {name: value.numpy() for name, value in bilm.state_dict().items()}
    for vectors, row in zip(found, numpy_bilm.run(bilm.config, weights, sentences), strict=True):
        np.testing.assert_allclose(vectors, row.layers[:, 1:-1], atol=1e-5)
    other = found[2][0]
    assert not np.allclose(other[0], other[1])  # an unknown code point is no empty token
    assert np.array_equal(other[0], other[3])  # all unknown ones are alike


def test_a_trained_model_scores_text_and_is_adapted(trained, tmp_path, recipe_of, chinese):
    from elmokit.train.scoring import Scorer

    scorer = Scorer(*load_language_model(trained))
    assert scorer.perplexity([line.split() for line in LINES]).mean > 1
    corpus = recipe_of(chinese, corpus={"held_out": 0, "held_out_sources": [{"files": "zh.txt"}]}).corpus
    finetune(
        trained,
        corpus,
        tmp_path / "adapted",
        root=tmp_path,
        cache=tmp_path / "cache",
        plan=Plan(steps=2, rows=2, window=5),
        threads=1,
    )
    assert load_bilm(tmp_path / "adapted").config == load_bilm(trained).config


def test_a_run_does_not_go_on_with_another_alphabet(run, recipe_of, chinese):
    run(recipe_of(chinese, corpus={"alphabet_size": 12}, steps=2))
    with pytest.raises(TrainingError, match=r"model\.tokens\.alphabet was"):
        run(recipe_of(chinese, corpus={"alphabet_size": 13}, steps=4))
    with pytest.raises(TrainingError, match=r"model\.tokens\.alphabet was .*, is bytes"):
        run(recipe_of(chinese, steps=4))
