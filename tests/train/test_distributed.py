"""Several processes, and several machines (here all on 127.0.0.1), train what one process trains."""

import pytest
import torch

from elmokit.errors import TrainingError

EXACT = {"dropout": 0.0, "evaluate_every": 1, "steps": 25}


def curve(log):
    """(steps, 2) training losses."""
    values = [[value for key, value in record.items() if "loss" in key] for record in log if "learning rate" in record]
    return torch.tensor(values)


def perplexities(log):
    return torch.tensor([record["held-out perplexity mean"] for record in log if "held-out perplexity mean" in record])


@pytest.mark.parametrize(
    ("layout", "options"),
    [
        ({"processes": 2}, {"num_samples": 10}),
        ({"processes": 2}, {"num_samples": 8192, "accumulate": 2, "optimizer": "adagrad", "learning_rate": 0.2}),
        ({"nodes": 2}, {"num_samples": 10, "accumulate": 2, "clip_norm": 0.1}),
        pytest.param({"processes": 2, "nodes": 2}, {}, marks=pytest.mark.slow),
    ],
)
def test_processes_have_the_loss_curve_of_one_with_the_same_rows(
    run, start, ends, recipe_of, text, log_of, weights_of, layout, options
):
    recipe = recipe_of(text, **EXACT, **options)
    run(recipe, "one")
    ranks = start(recipe, "several", **layout)
    assert set(ends(ranks)) == {0}
    one, several = curve(log_of("one")), curve(log_of("several"))
    assert one.shape == (25, 2) and (one - one[0]).abs().max() > 0.05, "the curve is no line"
    torch.testing.assert_close(several, one, rtol=0, atol=1e-5)
    torch.testing.assert_close(perplexities(log_of("several")), perplexities(log_of("one")), rtol=1e-4, atol=0)
    first, second = weights_of("one"), weights_of("several")
    assert all(torch.allclose(first[name], second[name], atol=1e-4) for name in first)


@pytest.mark.parametrize("numbers", [(2, 1), (1, 2), pytest.param((4, 2), marks=pytest.mark.slow)])
def test_a_run_goes_on_with_another_number_of_processes(run, start, ends, recipe_of, text, log_of, numbers):
    recipe = recipe_of(text, **EXACT)
    run(recipe, "one")
    part = recipe_of(text, **{**EXACT, "steps": 13})
    for recipe_now, processes in zip((part, recipe), numbers, strict=True):
        assert ends(start(recipe_now, "several", processes=processes)) == [0] * processes
    torch.testing.assert_close(curve(log_of("several")), curve(log_of("one")), rtol=0, atol=1e-5)


def test_processes_draw_different_dropout(start, ends, run, recipe_of, tmp_path, log_of):
    # Every window of every row is the same sentence: with the same masks two processes would have the loss of one.
    text = tmp_path / "same.txt"
    text.write_text("a cat sleeps\n" * 100, encoding="utf-8")
    options = {"corpus": {"held_out": 0.0}, "steps": 1, "evaluate_every": 1, "num_samples": 8192, "window": 5}
    for dropout, same in ((0.0, True), (0.5, False)):
        run(recipe_of(text, rows=1, dropout=dropout, **options), f"one-{dropout}")
        recipe = recipe_of(text, rows=2, dropout=dropout, **options)
        assert ends(start(recipe, f"two-{dropout}", processes=2)) == [0, 0]
        one, two = (curve(log_of(f"{name}-{dropout}")) for name in ("one", "two"))
        assert torch.allclose(one, two, atol=1e-5) == same


def test_a_loss_that_is_not_finite_ends_all_processes(start, ends, recipe_of, text, tmp_path):
    recipe = recipe_of(text, steps=40, learning_rate=1e30, clip_norm=1e30, warmup_steps=0)
    assert ends(start(recipe, processes=2)) == [1, 1]
    assert not (tmp_path / "run" / "model").exists()


def test_rows_that_cannot_be_shared_out_are_refused(start, ends, recipe_of, text):
    assert ends(start(recipe_of(text, steps=2, rows=3), processes=2)) == [1, 1]


def test_a_stream_refuses_rows_that_cannot_be_shared_out(corpus_of):
    from elmokit.train.stream import Stream

    corpus = corpus_of([[0, 3, 4, 1]] * 40)
    with pytest.raises(TrainingError, match="3 rows cannot be shared out to 2 processes"):
        Stream(corpus, rows=3, window=2, seed=1, num_ranks=2)
