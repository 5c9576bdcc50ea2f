"""The adaptation benchmark runs on sets of the real ones' layout, and its classifier learns what can be learned."""

import importlib
import io
import json
import random
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights.native import save_language_model

FILE = Path(__file__).parents[2] / "benchmarks" / "adaptation.py"
pytest.importorskip("sklearn", reason="the classifier is scikit-learn's")

GOOD, BAD = ["fine", "good", "warm"], ["dull", "bad", "cold"]
REST = ["a", "the", "film", "plot", "actor", "scene", "is", "was", "and", "of"]


@pytest.fixture
def adaptation(monkeypatch):
    monkeypatch.syspath_prepend(FILE.parent)
    return importlib.import_module("adaptation")


def sentence(draw, words):
    return " ".join([*draw.sample(REST, 2), draw.choice(words), f"x{draw.randrange(10**9)}"])


def add(archive, name, data):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def zipped(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return buffer.getvalue()


@pytest.fixture
def data(tmp_path):
    draw = random.Random(1)
    lines = {
        kind: "\n".join(sentence(draw, words) for _ in range(200)) for kind, words in (("pos", GOOD), ("neg", BAD))
    }
    review = "\n".join(sentence(draw, GOOD + BAD) for _ in range(30))
    with tarfile.open(tmp_path / "nltk.tar.xz", "w:xz") as archive:
        reviews = {f"movie_reviews/neg/cv{i:03}.txt": review for i in range(100)}
        add(archive, "nltk/movie_reviews.zip", zipped({"movie_reviews/README": "no text", **reviews}))
        polarity = {f"sentence_polarity/rt-polarity.{kind}": text for kind, text in lines.items()}
        add(archive, "nltk/sentence_polarity.zip", zipped({"sentence_polarity/README.txt": "none", **polarity}))
    pairs = [(sentence(draw, GOOD), sentence(draw, draw.choice([GOOD, BAD]))) for _ in range(90)]
    rows = "".join(f"{a}\t{b}\t{2 if set(b.split()) & set(BAD) else 0}\n" for a, b in pairs)
    with tarfile.open(tmp_path / "nli-snli-devtest-en.tar.xz", "w:xz") as archive:
        for part in ("dev", "test"):
            add(archive, f"nli-snli-devtest-en/{part}.txt", rows.encode())
    return tmp_path


@pytest.fixture
def model(tmp_path, tiny_bilm):
    torch.manual_seed(0)
    lexicon = Lexicon([*SPECIAL, *REST, *GOOD, *BAD])
    head = LMHead(len(lexicon), tiny_bilm.config.encoder.projection_dim)
    save_language_model(tiny_bilm, tmp_path / "model", head=head, lexicon=lexicon)
    return tmp_path / "model"


@pytest.mark.timeout(280)
def test_one_command_adapts_to_both_domains_and_measures_both_tasks(data, model):
    command = [sys.executable, FILE, "--model", model, "--data", data, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=270)
    for row in json.loads(done.stdout)["rows"]:
        assert row["perplexity after"] < row["perplexity before"]
        assert 55 < np.mean(row["before"] + row["after"]) <= 100


def test_the_text_that_is_adapted_to_holds_no_test_item(adaptation, data, tmp_path):
    for read in adaptation.DOMAINS.values():
        options, task = read(data, tmp_path)
        seen = set(Path(options[0]).read_text("utf-8").splitlines())
        train, development, test = task.parts[0]
        assert seen and not set(train) & set(test) and not set(development) & set(test)
        if read is adaptation.reviews:
            assert not seen & {" ".join(task.sentences[place]) for place in task.items[test].ravel()}


def test_a_repetition_splits_all_items_into_three_parts(adaptation, data, tmp_path):
    _, task = adaptation.reviews(data, tmp_path)
    for parts in task.parts:
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(task.labels)))
