"""A small corpus and recipe for the training tests."""

import itertools
import json
import multiprocessing
import random
import socket

import numpy as np
import pytest

from elmokit.train.corpus import Corpus, Sentences
from elmokit.train.recipe import Recipe
from elmokit.train.run import train

WORDS = "the a cat dog sees eats likes small big red house tree in on near and quickly often Apple 苹果 3.14".split()  # noqa: SIM905  one line is easier to read


@pytest.fixture
def text(tmp_path):
    """A file of 600 token lines in 60 documents, in which a word has two followers."""
    draw = random.Random(1)
    lines = []
    for _ in range(60):
        for _ in range(10):
            places = itertools.accumulate(draw.choices((1, 2), k=draw.randint(3, 12)), initial=draw.randrange(20))
            lines.append(" ".join(WORDS[place % len(WORDS)] for place in places))
        lines.append("")
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture
def recipe_of():
    """A function from files and options of `training` and `corpus` to a recipe of a tiny model."""

    def make(*files, corpus=None, weights=None, tokens=None, **training):
        weights = weights or [1.0] * len(files)
        return Recipe.model_validate(
            {
                "model": {
                    "tokens": {
                        "kind": "char_cnn",
                        "embedding_dim": 4,
                        "filters": [(1, 4), (3, 8)],
                        "max_characters_per_token": 12,
                        **(tokens or {}),
                    },
                    "encoder": {"projection_dim": 8, "cell_dim": 12},
                    "language": "en",
                },
                "corpus": {
                    "sources": [
                        {"files": str(file), "weight": weight} for file, weight in zip(files, weights, strict=True)
                    ],
                    "tokenized": True,
                    "held_out": 0.1,
                    **(corpus or {}),
                },
                "training": {
                    "rows": 4,
                    "window": 5,
                    "steps": 30,
                    "num_samples": 10,
                    "warmup_steps": 3,
                    "learning_rate": 0.01,
                    **training,
                },
            }
        )

    return make


@pytest.fixture
def corpus_of():
    """A function from lists of type ids to a corpus whose types have their own id as characters."""

    def make(sentences, sources=None, weights=(1.0,)):
        lengths = [len(sentence) for sentence in sentences]
        part = Sentences(
            tokens=np.concatenate(sentences).astype(np.uint32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            sources=np.array(sources or [0, len(sentences)]),
        )
        num_types = int(part.tokens.max()) + 1
        characters = np.arange(num_types, dtype=np.int16)[:, None].repeat(4, 1)
        return Corpus(part, part, tuple(map(str, range(num_types))), characters, weights)

    return make


PROGRAM = """
import os
os.environ.update(environment)
from elmokit.train.run import train
train(recipe, **options)
"""


@pytest.fixture
def run(tmp_path):
    """A function that trains in this process, in a folder of a given name."""

    def start(recipe, name="run", **options):
        return train(recipe, tmp_path / name, root=tmp_path, cache=tmp_path / "cache", threads=1, **options)

    return start


@pytest.fixture(scope="session")
def server():
    """A process that has loaded what training needs, from which others are made in no time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["elmokit.train.run"])
    return context


@pytest.fixture
def start(server, tmp_path):
    """A function that starts a run in real processes, as a launcher would, and returns them; the first is rank 0."""
    started = []

    def begin(recipe, name="run", *, processes=1, nodes=1):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        own = []
        for node, local in itertools.product(range(nodes), range(processes)):
            places = {"NODE_RANK": node, "LOCAL_RANK": local, "WORLD_SIZE": nodes * processes}
            environment = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            environment |= {key: str(value) for key, value in places.items()}
            options = {"processes": processes, "nodes": nodes, "root": tmp_path, "cache": tmp_path / "cache"}
            options |= {"folder": tmp_path / name, "threads": 1}
            values = {"environment": environment, "recipe": recipe, "options": options}
            own.append(server.Process(target=exec, args=(PROGRAM, values)))
            own[-1].start()
        started.extend(own)
        return own

    yield begin
    for process in started:
        process.kill()
        process.join()


@pytest.fixture
def ends():
    """A function that waits for processes to end and gives their exit codes."""

    def wait(processes, seconds=60):
        for process in processes:
            process.join(seconds)
        return [process.exitcode for process in processes]

    return wait


@pytest.fixture
def weights_of(tmp_path):
    """A function from the name of a run to the tensors of its model."""
    from safetensors.torch import load_file

    return lambda name: load_file(tmp_path / name / "model" / "model.safetensors")


@pytest.fixture
def log_of(tmp_path):
    """A function from the name of a run to what it logged."""
    return lambda name: [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").open(encoding="utf-8")]
