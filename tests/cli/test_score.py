"""`elmokit score` from the command line."""

import json
import math
import subprocess

import pytest
import torch

from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import Lexicon
from elmokit.train.scoring import Scorer
from elmokit.weights import load_bilm, load_language_model
from elmokit.weights.native import save_language_model

TEXT = "a ___ new c\n\n苹果 ___\n"
SENTENCES = [line.split() for line in TEXT.splitlines()]


@pytest.fixture(scope="session")
def language_model(tiny_model, tmp_path_factory):
    """The folder of a random language model of seven words."""
    folder = tmp_path_factory.mktemp("models") / "lm"
    with torch.random.fork_rng():
        torch.manual_seed(6)
        head = LMHead(7, 8)
    save_language_model(
        load_bilm(tiny_model), folder, head=head, lexicon=Lexicon(["<S>", "</S>", "<UNK>", "a", "b", "c", "苹果"])
    )
    return folder


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def records(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_json_has_a_record_a_line_with_the_figures_of_the_library(elmokit, language_model, file):
    found = records(elmokit("score", language_model, file, "--json"))
    wanted = list(Scorer(*load_language_model(language_model)).score(SENTENCES))
    assert [[token["token"] for token in record["tokens"]] for record in found] == SENTENCES
    for record, sentence in zip(found, wanted, strict=True):
        for token, score in zip(record["tokens"], sentence.tokens, strict=True):
            assert token["unknown"] == score.unknown == (score.token in ("new", "___"))
            for name in ("forward", "backward", "combined"):
                assert math.isclose(token[name], getattr(score, name), abs_tol=1e-5)
        for name in ("start", "end", "forward", "backward", "combined"):
            assert math.isclose(record[name], getattr(sentence, name), abs_tol=1e-5)


def test_the_table_has_a_line_a_token_and_marks_unknown_words(elmokit, language_model, file):
    done = elmokit("score", language_model, file)
    assert done.returncode == 0, done.stderr
    tables = done.stdout.decode().split("\n\n")
    assert len(tables) == 3
    lines = tables[0].splitlines()
    assert lines[0].split() == ["forward", "backward", "combined"]
    assert [line.split()[0] for line in lines[1:]] == [*SENTENCES[0], "(start)", "(end)", "(sentence)"]
    assert [("<UNK>" in line) for line in lines[1:5]] == [False, True, True, False]
    assert all(len(line.split()) == 4 + ("<UNK>" in line) for line in lines[1:5])


def test_blanks_get_the_words_of_the_library(elmokit, language_model, file):
    found = records(elmokit("score", language_model, file, "--blank", "___", "--top", 3, "--json"))
    wanted = list(Scorer(*load_language_model(language_model)).fill(SENTENCES, "___", top=3))
    assert [record["tokens"] for record in found] == SENTENCES
    assert [len(record["blanks"]) for record in found] == [1, 0, 1]
    for record, sentence in zip(found, wanted, strict=True):
        for blank, filled in zip(record["blanks"], sentence.blanks, strict=True):
            assert blank["position"] == filled.position
            for name in ("forward", "backward", "combined"):
                candidates = getattr(filled, name)
                assert [word["word"] for word in blank[name]] == [candidate.word for candidate in candidates]
                assert len(candidates) == 3
    lines = elmokit("score", language_model, file, "--blank", "___", "--top", 3).stdout.decode().splitlines()
    assert lines[0] == "sentence 1, token 2"
    assert "sentence 2 has no blank" in lines
    (combined,) = (candidate.word for candidate in wanted[0].blanks[0].combined[:1])
    assert lines[2].split()[4] == combined


def test_standard_input_is_the_default_and_output_is_utf_8_whatever_the_locale(command, language_model):
    start, environment = command
    done = subprocess.run(
        [*start, "score", language_model],
        input="苹果\n".encode(),
        capture_output=True,
        env={**environment, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().splitlines()[1].startswith("苹果")


def test_a_bad_byte_is_named_and_no_traceback_is_shown(elmokit, language_model):
    done = elmokit("score", language_model, "-", stdin=b"a\n\xff\n")
    assert done.returncode == 1
    assert done.stderr.startswith(b"elmokit: error: standard input, line 2: byte 1")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("arguments", [[], ["--blank"], ["--top", "0"]])
def test_wrong_usage_ends_with_2(elmokit, language_model, arguments):
    done = elmokit("score", *([language_model, "-"] if arguments else []), *arguments)
    assert done.returncode == 2
