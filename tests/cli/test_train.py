"""`elmokit train`, as typed: alone, with two processes, with torchrun, refused and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RECIPE = """
[model]
language = "en"
[model.tokens]
kind = "char_cnn"
embedding_dim = 4
filters = [[1, 4], [3, 8]]
max_characters_per_token = 12
[model.encoder]
projection_dim = 8
cell_dim = 12
[corpus]
sources = [{ files = "text.txt" }]
tokenized = true
held_out = 0.1
[training]
steps = 20
rows = 4
window = 5
num_samples = 10
warmup_steps = 3
evaluate_every = 10
"""


@pytest.fixture
def recipe(tmp_path):
    words = ["the", "cat", "sees", "a", "small", "red", "house", "and", "quickly", "eats", "it"]
    lines = [" ".join(words[(a * b) % 11] for b in range(1, 4 + a % 7)) for a in range(400)]
    paragraphs = ["\n".join(lines[start : start + 10]) for start in range(0, 400, 10)]
    (tmp_path / "text.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE, encoding="utf-8")
    return path


@pytest.fixture
def arguments(recipe, tmp_path):
    """A function from further options to a whole command line, without the program's name."""
    return lambda *more: ["train", recipe, "-o", tmp_path / "run", "--cache", tmp_path / "cache", *more]


@pytest.fixture
def program(tmp_path):
    """The command as a script: with several processes it is run again by its path."""
    path = tmp_path / "elmokit"
    path.write_text("from elmokit.cli.main import main\n\nmain()\n", encoding="utf-8")
    return path


def steps_of(folder):
    return sorted(int(path.stem.removeprefix("step-")) for path in (folder / "checkpoints").glob("*.ckpt"))


def test_a_recipe_becomes_a_model_and_its_folder_is_printed(elmokit, arguments, tmp_path):
    import elmokit as package

    done = elmokit(*arguments())
    assert done.returncode == 0
    assert done.stdout.decode().splitlines() == [str(tmp_path / "run" / "model")]
    assert b"held-out perplexity (full softmax)" in done.stderr
    assert package.load_bilm(tmp_path / "run" / "model").config.encoder.cell_dim == 12


def test_options_stand_above_the_recipe_and_a_run_goes_on(elmokit, arguments, tmp_path):
    assert elmokit(*arguments("--steps", 3)).returncode == 0
    done = elmokit(*arguments("--steps", 7, "--decay-steps", 2))
    assert b"starting at step 3" in done.stderr
    assert steps_of(tmp_path / "run")[-1] == 7


@pytest.mark.parametrize(
    "options",
    [["--steps", "0"], ["--processes", "0"], ["--nodes", "0"], ["--threads", "0"], ["--accelerator", "abacus"]],
)
def test_wrong_options_are_usage_errors(elmokit, arguments, options):
    assert elmokit(*arguments(*options)).returncode == 2


def test_a_recipe_that_does_not_fit_an_earlier_run_is_refused_in_one_line(elmokit, arguments, recipe):
    elmokit(*arguments())
    recipe.write_text(RECIPE.replace("cell_dim = 12", "cell_dim = 16"), encoding="utf-8")
    done = elmokit(*arguments("--steps", 30))
    assert done.returncode == 1
    said = done.stderr.decode().splitlines()[-1]
    assert said.startswith(
        "elmokit: error: the checkpoint belongs to another run: model.encoder.cell_dim was 12, is 16"
    )


def test_two_processes_train_together_and_print_once(program, arguments, tmp_path):
    line = [sys.executable, program, *arguments("--processes", "2", "--accelerator", "cpu")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "run" / "model")]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open(encoding="utf-8")]
    assert [record["step"] for record in records] == [10, 10, 20, 20]


@pytest.mark.slow
def test_torchrun_starts_the_processes_too(program, arguments, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    line = [*launcher, program, *arguments("--processes", "2", "--accelerator", "cpu")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(tmp_path / "run" / "model")]
    assert steps_of(tmp_path / "run")[-1] == 20


@pytest.mark.slow
def test_two_machines_run_the_same_command(program, arguments, tmp_path):
    # The lines of docs/pretraining.md, with this machine in both parts.
    line = [sys.executable, program, *arguments("--nodes", "2", "--accelerator", "cpu")]
    machines = [
        subprocess.Popen(
            line, env={**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29417", "NODE_RANK": str(rank)}
        )
        for rank in range(2)
    ]
    assert [machine.wait(200) for machine in machines] == [0, 0]
    assert steps_of(tmp_path / "run")[-1] == 20


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_says_how_to_go_on_and_ends(program, arguments, elmokit, tmp_path, number, code):
    line = [sys.executable, program, *arguments("--steps", "1000000")]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not metrics.exists() and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    output, said = process.communicate(timeout=30)
    assert process.returncode == code and output == ""
    (step,) = steps_of(tmp_path / "run")
    assert said.splitlines()[-1] == (
        f"elmokit: {number.name}: saved and stopped at step {step:,}; the same command goes on from there"
    )
    done = elmokit(*arguments("--steps", step + 3))
    assert f"starting at step {step:,}".encode() in done.stderr
    assert Path(done.stdout.decode().strip()).is_dir()
