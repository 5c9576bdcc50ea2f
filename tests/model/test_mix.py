"""The scalar mix by itself."""

import pytest
import torch

from elmokit.errors import ConfigError
from elmokit.model.mix import ScalarMix, normalize


@pytest.fixture
def layers():
    torch.manual_seed(0)
    return [torch.randn(2, 4, 6) * scale + scale for scale in (1, 3, 10)]


def test_a_fresh_mix_is_the_mean_of_the_layers(layers):
    torch.testing.assert_close(ScalarMix(3)(layers), torch.stack(layers).mean(dim=0))


def test_given_weights_go_through_the_softmax(layers):
    mixed = ScalarMix(3, initial=[100.0, 0.0, 0.0])(layers)
    torch.testing.assert_close(mixed, layers[0])
    torch.testing.assert_close(ScalarMix(3, initial=[7.0, 7.0, 7.0])(layers), torch.stack(layers).mean(dim=0))


def test_weights_and_gamma_are_learned_or_frozen_together(layers):
    mix = ScalarMix(3)
    mix(layers).square().sum().backward()
    assert mix.weights.grad.abs().min() > 0
    assert mix.gamma.grad.abs() > 0
    frozen = ScalarMix(3, initial=[1.0, 2.0, 3.0], trainable=False)
    assert not frozen(layers).requires_grad


def test_the_penalty_is_lambda_times_the_square_of_the_weights():
    mix = ScalarMix(3, initial=[1.0, 2.0, -3.0])
    penalty = mix.penalty(0.1)
    assert penalty.item() == pytest.approx(1.4)
    penalty.backward()
    torch.testing.assert_close(mix.weights.grad, torch.tensor([0.2, 0.4, -0.6]))


@pytest.mark.parametrize("initial", [[], [1.0], [1.0] * 4])
def test_given_weights_of_another_number_are_refused(initial):
    with pytest.raises(ConfigError, match=f"{len(initial)} mix weights were given for 3 layers"):
        ScalarMix(3, initial=initial)


@pytest.mark.parametrize("number", [0, 1, 2, 4])
def test_layers_of_another_number_are_refused(layers, number):
    with pytest.raises(ConfigError, match=f"weights for 3 layers, but {number} were given"):
        ScalarMix(3)((layers * 2)[:number])


def test_layer_norm_without_a_mask_is_refused(layers):
    with pytest.raises(ConfigError, match="needs the mask"):
        ScalarMix(3, do_layer_norm=True)(layers)


def test_layer_norm_has_one_mean_and_variance_over_real_tokens_and_leaves_the_rest_zero(layers):
    mask = torch.tensor([[True] * 4, [True, False, False, False]])
    for layer in layers:
        normal = normalize(layer, mask)
        values = normal[mask]
        assert abs(float(values.mean())) < 1e-6
        assert float(values.var(correction=0)) == pytest.approx(1, abs=1e-5)
        assert (normal[~mask] == 0).all()
        dirty = torch.where(mask.unsqueeze(-1), layer, 999.0)
        torch.testing.assert_close(normalize(dirty, mask), normal)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_layer_norm_stays_finite_in_every_precision(dtype):
    layer = (torch.randn(40, 50, 64) * 30 + 100).to(dtype)  # its sum is beyond float16
    normal = normalize(layer, torch.ones(40, 50, dtype=torch.bool))
    assert normal.dtype == dtype
    assert normal.double().std() == pytest.approx(1, abs=0.02)
    constant = torch.zeros(2, 3, 4, dtype=dtype)
    assert (normalize(constant, torch.ones(2, 3, dtype=torch.bool)) == 0).all()


@pytest.mark.parametrize("shape", [(2, 3, 4), (0, 3, 4), (2, 0, 4)])
def test_layer_norm_of_no_token_at_all_is_zero_and_not_nan(shape):
    assert (normalize(torch.randn(shape), torch.zeros(shape[:2], dtype=torch.bool)) == 0).all()
