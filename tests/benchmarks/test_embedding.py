"""The embedding benchmark runs, and what it compares computes the same."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from elmokit import kernel
from elmokit.config import BiLMConfig

FILE = Path(__file__).parents[2] / "benchmarks" / "embedding.py"
LINES = ["The bank raised its rates .", "a", "We sat on the bank of a river .", "déjà-vu 漢字 !"] * 12


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILE.parent)
        return importlib.import_module("embedding")


def test_both_ways_of_working_give_the_same_vectors(benchmark):
    sentences = [line.split() for line in LINES]
    own = benchmark.elmokit_of(benchmark.SIZES["tiny"], dtype="float32")()(sentences)
    plain = benchmark.plain_of(benchmark.SIZES["tiny"])()(sentences)
    for one, other in zip(own, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_operations_of_the_original_size_are_those_that_are_known(benchmark):
    config = BiLMConfig.model_validate(benchmark.SIZES["original"].model)
    once, many = (benchmark.operations(config, [["word"] * count]) for count in (1, 100_000))
    assert abs(many / 1e6 - 151) < 1  # of the recurrent layers alone
    assert 36 < (once - 3 * many) / 1e6 < 40  # a token and its boundaries, and the CNN for the one


@pytest.mark.parametrize("size", ["small", "medium", "original"])
def test_a_bert_has_about_as_many_parameters(benchmark, size):
    width, layers, _, pieces = benchmark.SIZES[size].bert
    bert = (pieces + 512) * width + layers * 12 * width**2
    bilm = benchmark.bilm_of(benchmark.SIZES[size])
    assert 0.9 < bert / sum(parameter.numel() for parameter in bilm.parameters()) < 1.1


def test_one_command_measures_and_prints_json(tmp_path):
    contenders = ["elmokit", "elmokit-bfloat16", "plain"]
    contenders += ["elmokit-int8"] if kernel.available() else []
    contenders += ["bert"] if importlib.util.find_spec("transformers") else []
    (tmp_path / "text.txt").write_text("\n".join(LINES), "utf-8")
    command = [sys.executable, FILE, "--size", "tiny", "--turns", "2", "--threads", "1", "--json"]
    command += ["--text", tmp_path / "text.txt", "--only", *contenders]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=280).stdout)
    assert [row["contender"] for row in found["rows"]] == contenders
    for row in found["rows"]:
        assert row["tokens per second"] > 0
        assert 0 < row["latency ms"] <= row["latency p99 ms"]
        assert 50 < row["peak MB"] < 3000
    assert found["rows"][2]["x plain"] == 1
    assert set(found["products"]) == {"float32", "bfloat16"}
