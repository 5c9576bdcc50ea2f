"""`elmokit perplexity` from the command line."""

import json
import math
import subprocess
import sys

import pytest
import torch

from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import Lexicon
from elmokit.train.scoring import Scorer
from elmokit.weights import load_bilm, load_language_model
from elmokit.weights.native import save_language_model

TEXT = "a b new c\n\n苹果\nc c c\n"


@pytest.fixture(scope="session")
def language_model(tiny_model, tmp_path_factory):
    """The folder of a random language model of seven words."""
    folder = tmp_path_factory.mktemp("models") / "lm"
    with torch.random.fork_rng():
        torch.manual_seed(5)
        head = LMHead(7, 8)
    save_language_model(
        load_bilm(tiny_model), folder, head=head, lexicon=Lexicon(["<S>", "</S>", "<UNK>", "a", "b", "c", "苹果"])
    )
    return folder


@pytest.fixture
def files(tmp_path):
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(TEXT, encoding="utf-8")
    second.write_text("a b a b\n", encoding="utf-8")
    return first, second


def test_figures_are_those_of_the_library_for_each_file_and_for_all(elmokit, language_model, files):
    done = elmokit("perplexity", language_model, *files, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    scorer = Scorer(*load_language_model(language_model))
    wanted = [scorer.perplexity([line.split() for line in file.read_text("utf-8").split("\n")]) for file in files]
    assert (found["softmax"], found["vocabulary"]) == ("full", 7)
    assert [record["file"] for record in found["files"]] == [str(file) for file in files]
    for record, figures in zip([*found["files"], found["all"]], [*wanted, wanted[0] + wanted[1]], strict=True):
        assert (record["tokens"], record["unknown"]) == (figures.tokens, figures.unknown)
        assert math.isclose(record["forward"], figures.forward, rel_tol=1e-6)
        assert math.isclose(record["backward"], figures.backward, rel_tol=1e-6)
        assert math.isclose(record["mean"], figures.mean, rel_tol=1e-6)
        assert math.isclose(record["unknown_share"], figures.unknown / figures.tokens)
    assert found["all"]["tokens"] == (4 + 1 + 3 + 3) + 5
    assert found["all"]["unknown"] == 1


def test_the_table_says_which_softmax_and_has_a_line_a_file(elmokit, language_model, files):
    done = elmokit("perplexity", language_model, *files)
    lines = done.stdout.decode().splitlines()
    assert "full softmax over 7 words" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["file", str(files[0]), str(files[1]), "all"]
    assert len(elmokit("perplexity", language_model, files[0]).stdout.decode().splitlines()) == 3
    assert done.stderr == b""


def test_standard_input_and_raw_text_are_read(elmokit, language_model):
    piped = elmokit("perplexity", language_model, "-", "--json", stdin=b"It 's good .\nFine .\n")
    raw = elmokit("perplexity", language_model, "-", "--json", "--text", "--language", "en", stdin=b"It's good. Fine.")
    assert json.loads(piped.stdout)["all"]["tokens"] == 5 + 3
    assert json.loads(raw.stdout)["all"] == json.loads(piped.stdout)["all"]


def test_a_model_without_softmax_a_text_without_tokens_and_a_missing_file_are_named(
    elmokit, language_model, tiny_model, files, tmp_path
):
    (tmp_path / "empty.txt").write_bytes(b"\n \n")
    for arguments, said in [
        ((tiny_model, files[0]), b"without its softmax"),
        ((language_model / "vocab.txt", files[0]), b"vocab.txt is a file of unknown format"),
        (("no-such-model", files[0]), b"built-in models: "),
        ((language_model, tmp_path / "empty.txt"), b"empty.txt has no token"),
        ((language_model, files[0], tmp_path / "missing.txt"), b"missing.txt cannot be read"),
    ]:
        done = elmokit("perplexity", *arguments)
        assert done.returncode == 1
        assert done.stdout == b""
        (line,) = done.stderr.splitlines()
        assert line.startswith(b"elmokit: error: ") and said in line


def test_a_language_is_for_raw_text_only(elmokit, language_model, files):
    assert elmokit("perplexity", language_model, files[0], "--language", "en").returncode == 2


@pytest.mark.parametrize("command", ["perplexity", "score"])
def test_no_training_package_is_loaded(language_model, files, command):
    program = f"""
import sys
sys.argv = ["elmokit", {command!r}, {str(language_model)!r}, {str(files[0])!r}]
from elmokit.cli.main import main
try:
    main()
except SystemExit as end:
    assert not end.code
assert "torch" in sys.modules
print([name for name in ("lightning", "pyarrow", "spacy", "jieba", "h5py._hl.files") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].startswith("["), done.stderr
    assert "lightning" not in done.stdout.splitlines()[-1]
