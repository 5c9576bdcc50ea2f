from collections.abc import Callable
from typing import Any

import pytest
import torch

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig
from elmokit.model.bilm import BiLM
from elmokit.model.build import build_bilm


@pytest.fixture
def make_bilm() -> Callable[..., BiLM]:
    """A seeded biLM of the given parts; every parameter is random, biases too."""

    def make(tokens: Any = None, encoder: Any = None, language: str | None = None) -> BiLM:
        config = BiLMConfig(
            tokens=tokens or CharCNNConfig(embedding_dim=3, filters=((1, 4), (2, 6)), num_highways=1),
            encoder=encoder or EncoderConfig(projection_dim=5, cell_dim=7),
            language=language,
        )
        bilm = build_bilm(config).eval()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in bilm.named_parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
                if name.endswith("encoder.bias") or (".layers." in name and name.endswith(".bias")):
                    cell = len(parameter) // 4
                    parameter[cell : 2 * cell] += 1
        return bilm

    return make


@pytest.fixture
def assert_same() -> Callable[[BiLM, BiLM], None]:
    """Equal configurations and bit-identical parameters."""

    def check(a: BiLM, b: BiLM) -> None:
        assert a.config == b.config
        first, second = a.state_dict(), b.state_dict()
        assert list(first) == list(second)
        for name in first:
            assert first[name].dtype == second[name].dtype == torch.float32
            assert torch.equal(first[name], second[name]), name

    return check
