"""A run that was cut short, however, ends as the uninterrupted one does, bit for bit."""

import random
import signal
import time

import pytest
import torch

from elmokit.errors import TrainingError
from elmokit.train.checkpoints import latest_checkpoint
from elmokit.train.module import BiLMTraining

ALL_AT_ONCE = {"dropout": 0.2, "precision": "bf16", "accumulate": 2, "evaluate_every": 6, "decay_steps": 8}
AT_EVERY_STEP = 1e-6  # minutes between checkpoints


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def measured(log):
    """What a log says that does not hang on time and on where a run was cut."""
    return [record for record in log if "held-out perplexity mean" in record]


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.005)


@pytest.fixture
def checkpoints(tmp_path):
    """A function from the name of a run to the steps that are saved."""

    def steps(name="run"):
        return sorted(int(path.stem.removeprefix("step-")) for path in (tmp_path / name / "checkpoints").glob("*.ckpt"))

    return steps


@pytest.fixture
def kill_and_go_on(start, ends, checkpoints, tmp_path):
    """A function that kills a run a few times, at any point after its first new checkpoint, and then lets it end."""

    def work(recipe, name, *, processes, times):
        draw = random.Random(processes)
        for _ in range(times):
            before = checkpoints(name)
            ranks = start(recipe, name, processes=processes)
            wait_for(lambda before=before: checkpoints(name)[-1:] > before[-1:])
            time.sleep(draw.uniform(0, 0.2))
            draw.choice(ranks).kill()
            codes = ends(ranks)
            assert -signal.SIGKILL in codes and 0 not in codes, "no process outlives another, and none was done"
        (tmp_path / name / "checkpoints" / "step-9999.partial").write_bytes(b"half of it")
        assert ends(start(recipe, name, processes=processes)) == [0] * processes
        assert not list((tmp_path / name).rglob("*.partial"))

    return work


def test_one_process_killed_again_and_again_ends_like_the_uninterrupted_one(
    run, recipe_of, text, kill_and_go_on, weights_of, log_of
):
    recipe = recipe_of(text, steps=40, checkpoint_minutes=AT_EVERY_STEP, **ALL_AT_ONCE)
    run(recipe, "whole")
    kill_and_go_on(recipe, "parts", processes=1, times=2)
    assert equal(weights_of("whole"), weights_of("parts"))
    assert measured(log_of("whole")) == measured(log_of("parts"))
    steps = [record["step"] for record in log_of("parts")]
    assert steps == sorted(steps)


def test_two_processes_of_which_one_is_killed_end_like_uninterrupted_ones(
    start, ends, recipe_of, text, kill_and_go_on, weights_of, log_of
):
    recipe = recipe_of(text, steps=40, checkpoint_minutes=AT_EVERY_STEP, **ALL_AT_ONCE)
    assert ends(start(recipe, "whole", processes=2)) == [0, 0]
    kill_and_go_on(recipe, "parts", processes=2, times=1)
    assert equal(weights_of("whole"), weights_of("parts"))
    assert measured(log_of("whole")) == measured(log_of("parts"))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("optimizer", ["adamw", "adagrad"])
def test_any_number_of_processes_killed_many_times_end_like_uninterrupted_ones(
    start, ends, recipe_of, text, kill_and_go_on, weights_of, processes, optimizer
):
    options = {"rows": 12, "optimizer": optimizer, "checkpoint_minutes": AT_EVERY_STEP, **ALL_AT_ONCE}
    recipe = recipe_of(text, steps=150, **options)
    assert ends(start(recipe, "whole", processes=processes)) == [0] * processes
    kill_and_go_on(recipe, "parts", processes=processes, times=6)
    assert equal(weights_of("whole"), weights_of("parts"))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_signal_saves_at_once_and_ends_all_processes(
    start, ends, run, recipe_of, text, checkpoints, tmp_path, processes
):
    recipe = recipe_of(text, steps=100_000, evaluate_every=10)
    ranks = start(recipe, processes=processes)
    wait_for(lambda: (tmp_path / "run" / "metrics.jsonl").exists())
    ranks[0]._popen._send_signal(signal.SIGTERM)
    assert ends(ranks, 20) == [1] + [0] * (processes - 1)
    assert 10 <= checkpoints()[0] < 100_000 and len(checkpoints()) == 1
    assert not (tmp_path / "run" / "model").exists()


def test_a_run_that_was_stopped_by_a_signal_goes_on_exactly(start, ends, run, recipe_of, text, weights_of, tmp_path):
    recipe = recipe_of(text, steps=80, **ALL_AT_ONCE)
    run(recipe, "whole")
    for number in (signal.SIGINT, signal.SIGTERM):
        ranks = start(recipe, "parts")
        wait_for(lambda: (tmp_path / "parts" / "metrics.jsonl").exists())
        ranks[0]._popen._send_signal(number)
        ends(ranks)
    run(recipe, "parts")
    assert equal(weights_of("whole"), weights_of("parts"))


def test_a_longer_run_goes_on_from_the_end_of_a_shorter_one(run, recipe_of, text, weights_of):
    run(recipe_of(text, steps=24, dropout=0.2), "whole")
    # A run to step 11 stops in the middle of an epoch.
    run(recipe_of(text, steps=11, dropout=0.2), "parts")
    run(recipe_of(text, steps=24, dropout=0.2), "parts")
    assert equal(weights_of("whole"), weights_of("parts"))


def test_a_complete_run_that_is_started_again_says_the_same(run, recipe_of, text, weights_of, log_of):
    first = run(recipe_of(text, steps=5))
    before, log = weights_of("run"), log_of("run")
    assert run(recipe_of(text, steps=5)).mean == pytest.approx(first.mean, rel=1e-6)
    assert equal(before, weights_of("run")) and log_of("run") == log


def test_the_last_checkpoints_are_kept(run, recipe_of, text, checkpoints):
    run(recipe_of(text, steps=9, checkpoint_minutes=AT_EVERY_STEP, keep_checkpoints=3))
    assert checkpoints() == [7, 8, 9]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"rows": 2}}, r"training\.rows was 4, is 2"),
        ({"training": {"window": 4}}, r"training\.window was 5, is 4"),
        ({"training": {"accumulate": 3}}, r"training\.accumulate was 1, is 3"),
        ({"training": {"seed": 8}}, r"training\.seed was 1, is 8"),
        ({"training": {"optimizer": "adagrad"}}, r"training\.optimizer was adamw, is adagrad"),
        ({"corpus": {"vocabulary_size": 20}}, r"corpus\.vocabulary_size was 24, is 20"),
        ({"corpus": {"held_out": 0.3}}, r"corpus\.text was \w+, is \w+"),
        ({"model": {"encoder": {"cell_dim": 13}}}, r"model\.encoder\.cell_dim was 12, is 13"),
        ({"model": {"tokens": {"num_highways": 1}}}, r"model\.tokens\.num_highways was 2, is 1"),
    ],
)
def test_another_model_corpus_or_order_is_refused_by_name(run, recipe_of, text, weights_of, changes, named):
    def changed(values, changes):
        return {
            **values,
            **{key: changed(values[key], new) if isinstance(new, dict) else new for key, new in changes.items()},
        }

    recipe = recipe_of(text, steps=3)
    run(recipe)
    other = type(recipe).model_validate(changed(recipe.model_dump(), changes))
    with pytest.raises(TrainingError, match=named):
        run(other)
    run(recipe)


def test_steps_rates_and_evaluations_may_change_on_the_way(run, recipe_of, text, log_of):
    run(recipe_of(text, steps=3, warmup_steps=0))
    changes = {"learning_rate": 0.02, "decay_steps": 2, "evaluate_every": 1, "dropout": 0.3, "num_samples": 9}
    run(recipe_of(text, steps=6, warmup_steps=0, **changes))
    rates = [record["learning rate"] for record in log_of("run") if "learning rate" in record]
    assert rates == pytest.approx([0.01, 0.02, 0.02, 0.01])


def test_what_is_logged_beyond_the_checkpoint_is_forgotten(run, recipe_of, text, tmp_path, log_of):
    run(recipe_of(text, steps=4, evaluate_every=2))
    log = tmp_path / "run" / "metrics.jsonl"
    with log.open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "kept": 1}\n{"step": 5, "beyond": 1}\n{"step": 6, "unfin')
    run(recipe_of(text, steps=8, evaluate_every=2))
    steps = [(record["step"], "beyond" in record) for record in log_of("run")]
    assert steps == [(step, False) for step in (2, 2, 4, 4, 4, 6, 6, 8, 8)]


def test_a_gradient_that_is_not_finite_changes_no_weight_and_saves_nothing(recipe_of, text, tmp_path):
    import lightning

    from elmokit.train.checkpoints import Checkpoints
    from elmokit.train.corpus import prepare

    recipe = recipe_of(text, steps=9)
    module = BiLMTraining(recipe, prepare(recipe.corpus, recipe.model, root=tmp_path, cache=tmp_path / "cache"))
    before = {}

    def spoil(gradient):
        if module.trainer.global_step == 4:
            before.update({name: value.clone() for name, value in module.state_dict().items()})
            gradient = gradient * torch.nan
        return gradient

    module.model.head.bias.register_hook(spoil)
    callback = Checkpoints(tmp_path / "checkpoints", minutes=AT_EVERY_STEP, keep=2)
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=9, logger=False, enable_checkpointing=False, callbacks=[callback], max_epochs=-1,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"not finite at step 4; the step was not made"):
        trainer.fit(module)
    assert equal(before, module.state_dict())
    assert latest_checkpoint(tmp_path / "checkpoints").name == "step-4.ckpt"
    assert not list(tmp_path.glob("checkpoints/*.partial"))
