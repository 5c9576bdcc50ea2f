"""The pretraining benchmark runs, and what it compares computes the same."""

import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.model.lm_head import LogUniformSampler
from elmokit.train.stream import Stream

FILE = Path(__file__).parents[2] / "benchmarks" / "pretraining.py"


@pytest.fixture(scope="module")
def benchmark():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FILE.parent)
        return importlib.import_module("pretraining")


@pytest.fixture
def tiny(benchmark):
    return benchmark.SIZES["tiny"]


def test_plain_autograd_has_the_loss_and_gradients_of_elmokit(benchmark, tiny):
    torch.manual_seed(0)
    corpus = benchmark.corpus_of(tiny, steps=4)
    model, loss = benchmark.plain(tiny, corpus, lstm="plain")
    model.eval()
    plain = loss(0)
    batch = Stream(corpus, rows=tiny.rows, window=tiny.window, seed=1).batch(0)
    forward, backward, _ = model(batch, None, LogUniformSampler(tiny.words, tiny.negatives, seed=1).draw(0))
    own = (forward + backward) / 2
    torch.testing.assert_close(plain, own, atol=1e-5, rtol=0)
    parameters = list(model.parameters())
    for a, b in zip(torch.autograd.grad(plain, parameters), torch.autograd.grad(own, parameters), strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_torchs_lstm_has_the_loss_of_the_plain_loop_where_nothing_is_clipped(benchmark, tiny):
    torch.manual_seed(0)
    corpus = benchmark.corpus_of(tiny, steps=4)
    (model, loss), (other, other_loss) = (benchmark.plain(tiny, corpus, lstm=lstm) for lstm in ("plain", "torch"))
    for name, parameter in model.named_parameters():
        place, _, kind = name.rpartition(".")
        if ".layers." not in name:
            other.get_parameter(name).data.copy_(parameter)
        elif kind == "bias":
            other.get_parameter(f"{place}.bias_ih_l0").data.copy_(parameter)
            other.get_parameter(f"{place}.bias_hh_l0").data.zero_()
        else:
            other.get_parameter(f"{place}.{kind}_l0").data.copy_(parameter)
    model.eval(), other.eval()
    for step in range(2):  # the second one goes on from the state of the first
        torch.testing.assert_close(loss(step), other_loss(step), atol=1e-5, rtol=0)


def test_the_text_of_the_small_size_repeats_words_as_english_does(benchmark):
    size = benchmark.SIZES["small"]
    corpus = benchmark.corpus_of(size, steps=6)
    stream = Stream(corpus, rows=size.rows, window=size.window, seed=1)
    distinct = np.mean([len(stream.batch(step).characters) for step in range(4)])
    assert 1400 < distinct < 1600
    lengths = (stream.batch(0).characters != stream.batch(0).characters[0, -1]).sum(1)  # two markers included
    assert 7 < lengths.float().mean() < 10
    assert lengths.max() < 25


def test_both_models_have_as_many_parameters(benchmark):
    pytest.importorskip("transformers", reason="BERT is transformers'")
    size = benchmark.SIZES["small"]
    model, _ = benchmark.plain(size, benchmark.corpus_of(size, steps=3), lstm="plain")
    for part in (model.bilm, benchmark.bert(size)):
        assert abs(benchmark.parameters(part) / 1e6 - 13.6) < 0.15


def run(*options):
    command = [sys.executable, FILE, "--size", "tiny", "--seconds", "0.1", "--turns", "2", "--threads", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout


def test_one_command_measures_and_prints_json():
    contenders = ["elmokit-adamw", "plain"]
    if importlib.util.find_spec("transformers"):
        contenders.append("bert-32")
    found = json.loads(run("--json", "--only", *contenders))
    assert [row["contender"] for row in found["rows"]] == contenders
    assert found["torch"] == torch.__version__
    for row in found["rows"]:
        assert row["words per second"] > 0
        assert row["lowest"] <= row["words per second"] <= row["highest"]
        assert 50 < row["peak MB"] < 3000
    assert found["rows"][0]["elmokit-adamw is faster by"] == 1
