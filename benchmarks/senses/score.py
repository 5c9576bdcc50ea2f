"""How well a model tells senses apart: cos(anchor, same) > cos(anchor, other), ties count one half.

    python benchmarks/senses/score.py en --model small-en

Layer 0 is context-independent: a static vector, which ties on every row. The set is held out: it serves to report, not
to choose between models.
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path

import numpy as np

import elmokit

TIE = 1e-6  # cosines of one and the same static vector differ by rounding


def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosines along the last axis."""
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def accuracy(model: str, rows: list[dict[str, str]]) -> dict[str, dict[str, float]]:
    """Share of rows that come out right, by kind and by layer; the last layer named `mean` is the mean of all."""
    sentences = [row[role].split(" ") for row in rows for role in ("anchor", "same", "other")]
    words = [row["word"] for row in rows for _ in range(3)]
    vectors = []
    for word, tokens, layers in zip(words, sentences, elmokit.load(model).embed(sentences), strict=True):
        own = layers[:, tokens.index(word)]
        vectors.append(np.concatenate([own, own.mean(0, keepdims=True)]))
    anchor, same, other = np.array(vectors).reshape(len(rows), 3, -1, vectors[0].shape[-1]).swapaxes(0, 1)
    difference = cosine(anchor, same) - cosine(anchor, other)  # (rows, layers)
    points = np.where(np.abs(difference) < TIE, 0.5, (difference > 0).astype(float))
    kinds = defaultdict(list)
    for index, row in enumerate(rows):
        kinds[row["kind"]].append(index)
        kinds["all"].append(index)
    names = [f"layer {k}" for k in range(points.shape[1] - 1)] + ["mean"]
    return {
        kind: dict(zip(names, points[index].mean(0).round(4).tolist(), strict=True)) | {"rows": len(index)}
        for kind, index in sorted(kinds.items())
    }


def main() -> None:
    """Print the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("language", choices=["en", "zh"])
    parser.add_argument("--model", help="built-in name or path; default: the built-in model of the language")
    arguments = parser.parse_args()
    file = Path(__file__).with_name(f"{arguments.language}.tsv")
    with file.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    print(json.dumps(accuracy(arguments.model or f"small-{arguments.language}", rows), indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
