"""A tiny model on disk, and two ways to run the command: here, or where that matters in a process of its own."""

import io
import os
import sys
from dataclasses import dataclass

import pytest
import torch

from elmokit.cli.main import main
from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig
from elmokit.model.build import build_bilm
from elmokit.weights import save_bilm


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a random model, two layers, 2 P = 16."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    config = BiLMConfig(
        tokens=CharCNNConfig(embedding_dim=4, filters=((1, 4), (2, 6))),
        encoder=EncoderConfig(projection_dim=8, cell_dim=16),
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        save_bilm(build_bilm(config), folder)
    return folder


@dataclass
class Done:
    """What a run of the command left."""

    returncode: int
    stdout: bytes
    stderr: bytes


@pytest.fixture
def elmokit(monkeypatch, capfdbinary):
    """Call it with arguments to run the command in this process."""

    def run(*arguments, stdin=b""):
        monkeypatch.setattr("sys.argv", ["elmokit", *map(str, arguments)])
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capfdbinary.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Done(end.value.code or 0, *capfdbinary.readouterr())

    return run


@pytest.fixture(scope="session")
def command():
    """Arguments and environment to run the command in a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return [sys.executable, "-c", "from elmokit.cli.main import main; main()"], environment
