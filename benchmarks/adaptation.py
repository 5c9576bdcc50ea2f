"""What adapting a model to a domain gains: held-out perplexity, and accuracy of a task on frozen vectors.

    python benchmarks/adaptation.py [--model small-en] [--data ../shared/data/tasks] [--write]

The model is adapted to unlabelled text of a domain with `elmokit finetune`; then sentences of a task are embedded with
the model as it was and as it has become, and a logistic regression learns the task from their vectors. Adaptation sees
no text of a test set. README.md says which texts and tasks.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results  # beside this file
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import elmokit

HEADING = "## Adaptation"
PENALTIES = (0.001, 0.01, 0.1)  # inverse strengths, chosen on a development part
SEEDS = 5


@dataclass(frozen=True)
class Task:
    """Sentences with labels.

    Attributes:
        sentences: distinct ones.
        items: (N, 1 or 2) places in `sentences`.
        labels: (N,).
        parts: for each repetition, places of the training, development and test items.
    """

    sentences: list[list[str]]
    items: np.ndarray
    labels: np.ndarray
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]


def reviews(data: Path, folder: Path) -> tuple[list[str], Task]:
    """Film reviews to adapt to, every 80th kept to measure on; the polarity of sentences from other reviews."""
    train, held_out = folder / "reviews.txt", folder / "reviews-held-out.txt"
    texts = [text for name, text in _nltk(data, "movie_reviews") if name.endswith(".txt")]
    for path, chosen in ((held_out, texts[::80]), (train, [t for i, t in enumerate(texts) if i % 80])):
        path.write_text("\n\n".join(_lines(text) for text in chosen), "utf-8")
    sentences, labels = [], []
    for name, text in _nltk(data, "sentence_polarity"):
        if not name.endswith(".txt"):
            lines = _lines(text).split("\n")
            sentences += [line.split() for line in lines]
            labels += [int(name.endswith("pos"))] * len(lines)
    count = len(labels)
    parts = []
    for seed in range(SEEDS):
        order = np.random.default_rng(seed).permutation(count)
        parts.append((order[: count * 6 // 10], order[count * 6 // 10 : count * 8 // 10], order[count * 8 // 10 :]))
    task = Task(sentences, np.arange(count)[:, None], np.array(labels), parts)
    return [str(train), "--held-out", str(held_out), "--steps", "600", "--evaluate-every", "100"], task


def entailment(data: Path, folder: Path) -> tuple[list[str], Task]:
    """SNLI's development set, to adapt to without its labels and to train on with them; its test set to test."""
    with tarfile.open(next(data.glob("nli-snli*.tar.xz"))) as archive:
        rows = {
            part: [line.split("\t") for line in _member(archive, f"{part}.txt").splitlines()]
            for part in ("dev", "test")
        }
    groups: dict[str, list[str]] = {}
    for premise, hypothesis, _ in rows["dev"]:
        groups.setdefault(premise, [premise]).append(hypothesis)
    train = folder / "snli-dev.txt"  # a premise and its hypotheses are one document, so that none is in both parts
    train.write_text("\n\n".join("\n".join(group) for group in groups.values()), "utf-8")
    places: dict[str, int] = {}
    items = np.array([[places.setdefault(s, len(places)) for s in row[:2]] for part in rows.values() for row in part])
    labels = np.array([int(row[2]) for part in rows.values() for row in part])
    count = len(rows["dev"])
    cut, test = count * 8 // 10, np.arange(count, len(labels))  # in file order: a premise's rows stay together
    parts = [(np.arange(cut), np.arange(cut, count), test)]
    return [str(train), "--epochs", "3"], Task([s.split() for s in places], items, labels, parts)


DOMAINS: dict[str, Callable[[Path, Path], tuple[list[str], Task]]] = {
    "film reviews, polarity": reviews,
    "SNLI, entailment": entailment,
}


def _nltk(data: Path, name: str) -> Iterator[tuple[str, str]]:
    """Name and text of each file of one of NLTK's sets, in order."""
    with tarfile.open(data / "nltk.tar.xz") as archive:
        file = archive.extractfile(f"nltk/{name}.zip")
        assert file is not None
        with zipfile.ZipFile(file) as inner:
            for member in sorted(inner.namelist()):
                if not member.endswith("/") and "README" not in member:
                    yield member, inner.read(member).decode("utf-8", "replace")


def _lines(text: str) -> str:
    """Without empty lines and odd spaces."""
    return "\n".join(" ".join(line.split()) for line in re.split(r"[\r\n]+", text) if line.strip())


def _member(archive: tarfile.TarFile, name: str) -> str:
    file = archive.extractfile(next(m for m in archive.getmembers() if m.name.endswith(f"/{name}")))
    assert file is not None
    return file.read().decode("utf-8")


def adapt(model: str, options: list[str], output: Path) -> dict[str, Any]:
    """The figures of `elmokit finetune`."""
    command = [sys.executable, "-m", "elmokit", "finetune", model, *options, "--tokenized", "-o", str(output), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def accuracy(model: str, task: Task) -> list[float]:
    """Percent right on each repetition's test items, from the mean over words of all layers side by side."""
    layers = np.stack(elmokit.load(model).embed(task.sentences, pooling="mean"))  # (sentences, layers, width)
    vectors = layers.reshape(len(layers), -1)[task.items]  # (N, 1 or 2, features)
    first, last = vectors[:, 0], vectors[:, -1]
    features = first if vectors.shape[1] == 1 else np.concatenate([first, last, abs(first - last), first * last], 1)
    found = []
    for train, development, test in task.parts:
        scaled = StandardScaler().fit(features[train]).transform(features)
        fits = [LogisticRegression(C=c, max_iter=1000).fit(scaled[train], task.labels[train]) for c in PENALTIES]
        best = max(fits, key=lambda fit: fit.score(scaled[development], task.labels[development]))
        found.append(100 * float(best.score(scaled[test], task.labels[test])))
    return found


def markdown(found: dict[str, Any]) -> str:
    """The table and what it stands on."""
    lines = [
        f"{found['date']}, commit {found['commit']}, {found['machine']}; model {found['model']}.",
        "",
        "| domain, task | words read | perplexity before | after | accuracy before | after | test items |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in found["rows"]:
        scores = [f"{np.mean(row[when]):.1f}" + _spread(row[when]) for when in ("before", "after")]
        lines.append(
            f"| {row['domain']} | {row['words']:,} | {row['perplexity before']:.1f} | {row['perplexity after']:.1f} "
            f"| {scores[0]} | {scores[1]} | {row['test items']:,} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: list[float]) -> str:
    return f" (sd {np.std(values, ddof=1):.1f} over {len(values)} splits)" if len(values) > 1 else ""


def main() -> None:
    """Adapt, measure, print."""
    parser = argparse.ArgumentParser(description="What adapting a model to a domain gains.")
    parser.add_argument("--model", default="small-en", help="built-in name or directory of a language model")
    parser.add_argument("--data", type=Path, default=Path("../shared/data/tasks"), help="folder of the task sets")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--write", action="store_true", help=f"also put the table into {results.RESULTS.name}")
    arguments = parser.parse_args()
    rows = []
    for domain, read in DOMAINS.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            options, task = read(arguments.data, folder)
            words = len(Path(options[0]).read_text("utf-8").split())
            figures = adapt(arguments.model, options, folder / "adapted")
            before, after = (accuracy(model, task) for model in (arguments.model, str(folder / "adapted")))
        rows.append(
            {
                "domain": domain,
                "words": words,
                "perplexity before": figures["before"]["mean"],
                "perplexity after": figures["after"]["mean"],
                "before": before,
                "after": after,
                "test items": len(task.parts[0][2]),
            }
        )
    found = {**results.origin(), "model": arguments.model, "rows": rows}
    text = markdown(found)
    print(json.dumps(found, indent=2) if arguments.json else text)  # noqa: T201
    if arguments.write:
        results.write(HEADING, text)


if __name__ == "__main__":
    main()
