"""`elmokit finetune`, as typed: figures before and after, options, refusals and a signal."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from elmokit.config import BiLMConfig
from elmokit.model.build import build_bilm
from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import load_language_model
from elmokit.weights.native import save_language_model

WORDS = "the cat sees a small red house and quickly eats it".split()  # noqa: SIM905
CONFIG = {
    "tokens": {"kind": "char_cnn", "embedding_dim": 4, "filters": [(1, 4), (3, 8)], "max_characters_per_token": 12},
    "encoder": {"projection_dim": 8, "cell_dim": 12},
    "language": "en",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The directory of a random language model."""
    folder = tmp_path_factory.mktemp("models") / "base"
    lexicon = Lexicon([*SPECIAL, *WORDS])
    with torch.random.fork_rng():
        torch.manual_seed(1)
        bilm, head = build_bilm(BiLMConfig.model_validate(CONFIG)), LMHead(len(lexicon), 8)
    save_language_model(bilm, folder, head=head, lexicon=lexicon)
    return folder


@pytest.fixture
def arguments(model, tmp_path):
    """A function from further options to a whole command line, without the program's name."""
    lines = [" ".join(WORDS[(a * b) % 11] for b in range(1, 4 + a % 7)) for a in range(400)]
    for part, size in (("one", 200), ("two", 300), ("test", 100)):
        (tmp_path / f"{part}.txt").write_text("\n".join(lines[-size:]), encoding="utf-8")
    options = ["--held-out", tmp_path / "test.txt", "--tokenized", "--steps", "20", "--rows", "4"]
    options += ["--learning-rate", "0.01", "--cache", tmp_path / "cache"]
    texts = [tmp_path / "one.txt", tmp_path / "tw*.txt"]
    return lambda *more: ["finetune", model, *texts, "-o", tmp_path / "new", *options, *more]


def test_figures_before_and_after_are_printed_and_the_folder_is_a_model(elmokit, arguments, tmp_path):
    done = elmokit(*arguments())
    assert done.returncode == 0
    title, columns, before, after, folder = done.stdout.decode().splitlines()
    assert title.startswith("held-out perplexity by the full softmax over 14 words") and "forward" in columns
    first, second = (float(line.split()[-1]) for line in (before, after))
    assert second < first and folder == str(tmp_path / "new")
    measured = elmokit("perplexity", tmp_path / "new", tmp_path / "test.txt", "--json")
    assert json.loads(measured.stdout)["all"]["mean"] == pytest.approx(second, rel=1e-3)


def test_json_names_everything(elmokit, arguments, tmp_path):
    (tmp_path / "two.txt").write_text("the zebra eats the zebra\n" * 50, encoding="utf-8")
    found = json.loads(elmokit(*arguments("--json", "--add-words", 5)).stdout)
    assert (found["added"], found["vocabulary"], found["unknown"]) == (1, 15, 0)
    assert found["after"]["mean"] < found["before"]["mean"]
    assert "zebra" in load_language_model(tmp_path / "new")[2]


def test_raw_text_is_the_default(elmokit, arguments, model, tmp_path):
    (tmp_path / "raw.txt").write_text("The cat sees it. It eats the house.\n" * 900, encoding="utf-8")
    line = ["finetune", model, tmp_path / "raw.txt", "-o", tmp_path / "raw", "--steps", 2, "--rows", 4]
    done = elmokit(*line, "--held-out-share", 0.5, "--cache", tmp_path / "cache")
    assert done.returncode == 0, done.stderr
    assert b"1,800 sentences, 9,000 tokens" in done.stderr


@pytest.mark.parametrize(
    "options",
    [["--steps", "0"], ["--layer-decay", "0.5"], ["--add-words", "-1"], ["--patience", "0"], ["--dropout", "1"]],
)
def test_wrong_options_are_usage_errors(elmokit, arguments, options):
    assert elmokit(*arguments(*options)).returncode == 2


def test_a_model_without_softmax_is_refused_in_one_line(elmokit, arguments, tiny_model):
    line = arguments()
    line[1] = tiny_model
    done = elmokit(*line)
    assert done.returncode == 1
    assert done.stderr.decode().splitlines()[-1].startswith("elmokit: error: ")
    assert b"without its softmax" in done.stderr


def test_a_signal_saves_and_the_same_command_goes_on(arguments, elmokit, tmp_path):
    code = "from elmokit.cli.main import main; main()"
    line = [sys.executable, "-c", code, *arguments("--steps", "1000000", "--evaluate-every", "5", "--patience", "9999")]
    process = subprocess.Popen([str(part) for part in line], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "new" / "metrics.jsonl"
    end = time.monotonic() + 100
    while not (metrics.exists() and '"step": 5,' in metrics.read_text("utf-8")) and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, said = process.communicate(timeout=30)
    assert process.returncode == 143 and output == ""
    assert "saved and stopped at step" in said.splitlines()[-1]
    (step,) = (int(path.stem.removeprefix("step-")) for path in (tmp_path / "new" / "checkpoints").glob("*.ckpt"))
    done = elmokit(*arguments("--steps", step + 3))
    assert f"starting at step {step:,}".encode() in done.stderr
    assert done.returncode == 0 and done.stdout.decode().splitlines()[-1] == str(tmp_path / "new")
