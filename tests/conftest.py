"""What all tests share: tiny models, the published fixture, how hypothesis looks for examples."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from elmokit.config import BiLMConfig
from elmokit.model.build import build_bilm

# One thread: products this small gain nothing from two, and lose much where something else runs on the machine.
torch.set_num_threads(1)
settings.register_profile(
    "elmokit",
    deadline=None,
    max_examples=60,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("elmokit")


@pytest.fixture
def tiny_config():
    return BiLMConfig.model_validate(
        {
            "tokens": {
                "kind": "char_cnn",
                "embedding_dim": 4,
                "filters": [(1, 4), (2, 6), (3, 8)],
                "max_characters_per_token": 20,
            },
            "encoder": {"projection_dim": 8, "cell_dim": 16},
            "language": "en",
        }
    )


@pytest.fixture
def tiny_bilm(tiny_config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_bilm(tiny_config).eval()


@pytest.fixture
def published():
    """The folder of AllenNLP's tiny model and the layers that TensorFlow computed for it."""
    folder = Path(__file__).parents[2] / "shared" / "fixtures" / "allennlp"
    if not (folder / "lm_weights.hdf5").is_file():
        pytest.skip("the published fixture is not on this machine (../shared/fixtures/allennlp)")
    return folder
