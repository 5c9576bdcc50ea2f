"""Whole runs: learning, resuming, saving."""

import itertools
import json
import math

import pytest
import torch

from elmokit.errors import ConfigError, TrainingError
from elmokit.train.module import learning_rate_factor
from elmokit.train.recipe import Recipe, TrainingRecipe
from elmokit.train.run import train


@pytest.fixture
def run(tmp_path):
    def start(recipe, name="run", **options):
        return train(recipe, tmp_path / name, root=tmp_path, cache=tmp_path / "cache", threads=1, **options)

    return start


def weights_of(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def test_training_lowers_held_out_perplexity(run, recipe_of, text):
    before = run(recipe_of(text, steps=1), "before")
    after = run(recipe_of(text, steps=250), "after")
    assert before.mean > 15
    assert 2 < after.forward < 10 and 2 < after.backward < 10


def test_the_saved_model_has_vocabulary_and_softmax_and_scores_the_same(run, recipe_of, text, tmp_path):
    import elmokit
    from elmokit.text.lexicon import Lexicon

    run(recipe_of(text, steps=5))
    tensors = weights_of(tmp_path / "run")
    lexicon = Lexicon.read(tmp_path / "run" / "model" / "vocab.txt")
    assert tensors["lm_head.weight"].shape == (len(lexicon), 8)
    bilm = elmokit.load_bilm(tmp_path / "run" / "model")
    state = bilm.state_dict()
    assert set(tensors) == {*state, "lm_head.weight", "lm_head.bias"}
    assert all(torch.equal(tensors[name], value) for name, value in state.items())


def test_a_run_cut_short_and_resumed_equals_the_uninterrupted_one(run, recipe_of, text, tmp_path):
    options = {"decay_steps": 0, "dropout": 0.2, "precision": "bf16"}
    run(recipe_of(text, steps=24, **options), "whole")
    # A run to step 11 stops in the middle of an epoch and of the schedule of the longer one.
    run(recipe_of(text, steps=11, **options), "parts")
    run(recipe_of(text, steps=24, **options), "parts")
    whole, parts = weights_of(tmp_path / "whole"), weights_of(tmp_path / "parts")
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_the_log_names_a_sampled_loss_as_sampled_and_counts_steps_and_epochs(run, recipe_of, text, tmp_path, capfd):
    run(recipe_of(text, steps=12, evaluate_every=6))
    said = capfd.readouterr().err
    assert "softmax: sampled" in said and "12 steps of 20 tokens" in said
    assert "held-out perplexity (full softmax)" in said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [r["step"] for r in records if "held-out perplexity mean" in r] == [6, 12]
    assert any("sampled loss forward" in r for r in records)


def test_a_vocabulary_smaller_than_the_sample_uses_the_full_softmax(run, recipe_of, text, capfd):
    assert run(recipe_of(text, steps=2, num_samples=8192)).tokens > 0
    assert "softmax: full" in capfd.readouterr().err


def test_steps_follow_from_epochs_and_the_corpus(run, recipe_of, text, capfd):
    recipe = recipe_of(text, epochs=2)
    run(recipe.model_copy(update={"training": recipe.training.model_copy(update={"steps": None})}))
    lines = [line for line in text.read_text("utf-8").split("\n") if line]
    assert "epoch 2.00" in capfd.readouterr().err
    assert len(lines) == 600


def test_a_loss_that_is_not_finite_stops_the_run_and_says_what_to_do(run, recipe_of, text, monkeypatch):
    recipe = recipe_of(text, steps=40, learning_rate=1e30, clip_norm=1e30, warmup_steps=0)
    with pytest.raises(TrainingError, match="last checkpoint is kept"):
        run(recipe)


def test_the_learning_rate_rises_stays_and_falls():
    training = TrainingRecipe(warmup_steps=10, decay_steps=20)
    factors = [learning_rate_factor(step, training, 100) for step in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0 and factors[79] == 1.0
    assert factors[90] == pytest.approx(0.5) and factors[99] == pytest.approx(0.05)
    assert all(math.isclose(a - b, 0.05) for a, b in itertools.pairwise(factors[80:]))


def test_recipes_name_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="there is no recipe"):
        Recipe.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [", encoding="utf-8")
    with pytest.raises(ConfigError, match="no TOML"):
        Recipe.read(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("[training]\nstepz = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"training\.stepz"):
        Recipe.read(tmp_path / "odd.toml")
