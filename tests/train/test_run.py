"""Whole runs: learning, resuming, saving."""

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

from elmokit.errors import ConfigError, TrainingError
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import AdaptiveHead, build_softmax
from elmokit.train.corpus import prepare
from elmokit.train.module import BiLMTraining, learning_rate_factor
from elmokit.train.recipe import Recipe, TrainingRecipe
from elmokit.train.report import memory_needed
from elmokit.weights import load_language_model


def test_training_lowers_held_out_perplexity(run, recipe_of, text):
    before = run(recipe_of(text, steps=1), "before")
    after = run(recipe_of(text, steps=250), "after")
    assert before.mean > 15
    assert 2 < after.forward < 10 and 2 < after.backward < 10


def test_the_saved_model_has_vocabulary_and_softmax_and_scores_the_same(run, recipe_of, text, weights_of, tmp_path):
    import elmokit
    from elmokit.text.lexicon import Lexicon

    run(recipe_of(text, steps=5))
    tensors = weights_of("run")
    lexicon = Lexicon.read(tmp_path / "run" / "model" / "vocab.txt")
    assert tensors["lm_head.weight"].shape == (len(lexicon), 8)
    bilm = elmokit.load_bilm(tmp_path / "run" / "model")
    state = bilm.state_dict()
    assert set(tensors) == {*state, "lm_head.weight", "lm_head.bias"}
    assert all(torch.equal(tensors[name], value) for name, value in state.items())


def test_the_log_names_a_sampled_loss_as_sampled_and_counts_steps_and_epochs(run, recipe_of, text, tmp_path, capfd):
    run(recipe_of(text, steps=12, evaluate_every=6))
    said = capfd.readouterr().err
    assert "softmax: sampled" in said and "12 steps of 20 tokens" in said
    assert "held-out perplexity (full softmax)" in said
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [r["step"] for r in records if "held-out perplexity mean" in r] == [6, 12]
    assert any("sampled loss forward" in r for r in records)


def test_the_log_says_what_the_parameters_take_before_the_first_step(run, recipe_of, text, capfd):
    run(recipe_of(text, steps=1))
    assert "M parameters and 0.0 M of the softmax; with gradients and the optimiser's state" in capfd.readouterr().err


def test_a_softmax_of_millions_of_words_is_said_to_need_more_than_a_small_machine_has(recipe_of, text, tmp_path):
    recipe = recipe_of(text)
    corpus = prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path)
    module = BiLMTraining(recipe, corpus)
    with torch.device("meta"):
        module.model.head = build_softmax(12_900_000, 512)
    assert memory_needed(module, 1 << 40).endswith(
        "6,617.7 M of the softmax; with gradients and the optimiser's state 105.9 GB"
    )
    assert memory_needed(module, 64 << 30).endswith(
        'lower corpus.vocabulary_size or set training.softmax to "adaptive"'
    )


def test_a_vocabulary_smaller_than_the_sample_uses_the_full_softmax(run, recipe_of, text, capfd):
    assert run(recipe_of(text, steps=2, num_samples=8192)).tokens > 0
    assert "softmax: full" in capfd.readouterr().err


def test_an_adaptive_softmax_trains_is_saved_and_scores_the_same(run, recipe_of, text, tmp_path, monkeypatch):
    monkeypatch.setattr(AdaptiveHead, "SHORTLIST", 8)
    before = run(recipe_of(text, steps=1, softmax="adaptive"), "before")
    after = run(recipe_of(text, steps=150, softmax="adaptive"), "after")
    assert after.mean < 0.8 * before.mean
    bilm, head, lexicon = load_language_model(tmp_path / "after" / "model")
    assert isinstance(head, AdaptiveHead)
    found = head.log_probs(torch.zeros(1, bilm.config.encoder.projection_dim)).exp().sum()
    assert len(lexicon) == head.num_words and found.item() == pytest.approx(1)


def test_a_full_softmax_can_be_asked_for(run, recipe_of, text, capfd):
    run(recipe_of(text, steps=2, softmax="full"))
    assert "softmax: full" in capfd.readouterr().err


def test_steps_follow_from_epochs_and_the_corpus(run, recipe_of, text, capfd):
    recipe = recipe_of(text, epochs=2, rows=16, window=10)
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


def test_a_cosine_falls_slowly_at_both_ends_and_to_zero():
    training = TrainingRecipe(warmup_steps=10, decay_steps=20, decay="cosine")
    factors = [learning_rate_factor(step, training, 100) for step in range(101)]
    assert factors[80] == 1.0 and factors[90] == pytest.approx(0.5) and factors[100] == 0.0
    assert factors[85] == pytest.approx((1 + math.sqrt(0.5)) / 2)


@pytest.mark.parametrize(("optimizer", "window"), [("adamw", 1), ("adagrad", 5)])
def test_accumulated_windows_carry_state_and_make_one_step(
    run, recipe_of, text, weights_of, tmp_path, optimizer, window
):
    # The plain way: three windows one after the other, gradients of the mean loss, by bilm-tf's rule times the window.
    recipe = recipe_of(text, steps=1, accumulate=3, optimizer=optimizer, clip_norm=0.1, warmup_steps=0,
                       dropout=0.0, weight_decay=0.0)  # fmt: skip
    run(recipe)
    corpus = prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache")
    module = BiLMTraining(recipe, corpus)
    state, total = None, 0.0
    for number in range(3):
        forward, backward, state = module.model(module.stream.batch(number), state, module.sampler.draw(number))
        total = total + window * (forward + backward) / 2 / 3
    total.backward()
    assert torch.nn.utils.clip_grad_norm_(module.model.parameters(), 0.1) > 0.1
    if optimizer == "adamw":
        torch.optim.AdamW(module.model.parameters(), 0.01, betas=(0.9, 0.98), weight_decay=0.0).step()
    else:
        torch.optim.Adagrad(module.model.parameters(), 0.01, initial_accumulator_value=1.0).step()
    found = weights_of("run")
    for name, parameter in module.model.head.named_parameters():
        torch.testing.assert_close(found[f"lm_head.{name}"], parameter.detach(), rtol=0, atol=2e-6)
    for name, parameter in module.model.bilm.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=0, atol=2e-6)


def test_recipes_name_what_is_wrong(tmp_path):
    with pytest.raises(ConfigError, match="there is no recipe"):
        Recipe.read(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = [", encoding="utf-8")
    with pytest.raises(ConfigError, match="no TOML"):
        Recipe.read(tmp_path / "bad.toml")
    (tmp_path / "odd.toml").write_text("[training]\nstepz = 3\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"training\.stepz"):
        Recipe.read(tmp_path / "odd.toml")


RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


def test_the_recipes_that_are_promised_are_there():
    assert {"original", "medium", "small", "laptop", "small-en", "small-zh"} <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_read_and_built(path):
    recipe = Recipe.read(path)
    with torch.device("meta"):
        build_bilm(recipe.model)


@pytest.mark.parametrize(("name", "millions"), [("original", 93.6), ("medium", 28.0), ("small", 13.6)])
def test_published_networks_have_the_published_number_of_parameters(name, millions):
    with torch.device("meta"):
        bilm = build_bilm(Recipe.read(Path(__file__).parents[2] / "recipes" / f"{name}.toml").model)
    assert round(sum(parameter.numel() for parameter in bilm.parameters()) / 1e6, 1) == millions
