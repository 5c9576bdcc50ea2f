import pytest
import torch

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig
from elmokit.model.build import build_bilm
from elmokit.weights import save_bilm


@pytest.fixture
def make_bilm():
    """Makes seeded biLMs in eval mode, lively enough that state shows."""

    def make(*, width=12, num_layers=2, seed=0):
        torch.manual_seed(seed)
        config = BiLMConfig(
            tokens=CharCNNConfig(
                embedding_dim=4, filters=((1, 4), (3, 8)), num_highways=1, max_characters_per_token=width
            ),
            encoder=EncoderConfig(projection_dim=8, cell_dim=16, num_layers=num_layers),
        )
        bilm = build_bilm(config).eval()
        with torch.no_grad():
            for parameter in bilm.parameters():
                parameter.normal_(0, 0.4)
        return bilm

    return make


@pytest.fixture
def files(make_bilm, tmp_path):
    """Options and weights of a small model, as a script names them."""
    save_bilm(make_bilm(), tmp_path / "weights.hdf5")
    return str(tmp_path / "options.json"), str(tmp_path / "weights.hdf5")
