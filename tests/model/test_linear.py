"""Products are torch's, whatever library makes them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.model.linear import linear


@given(st.integers(0, 40), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.booleans(), st.booleans())
def test_a_product_is_torchs(rows, width, columns, biased, turned, inference):
    torch.manual_seed(0)
    x = torch.randn(width, rows).t() if turned else torch.randn(rows, width)
    weight = torch.randn(width, columns).t() if turned else torch.randn(columns, width)
    bias = torch.randn(columns) if biased else None
    with torch.inference_mode(inference):
        found = linear(x, weight, bias)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_stay_what_they_are(dtype):
    x, weight = torch.randn(4, 3, dtype=dtype), torch.randn(5, 3, dtype=dtype)
    assert torch.equal(linear(x, weight), torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("wanted", ["x", "weight", "bias", "x weight bias"])
def test_gradients_are_torchs(wanted):
    torch.manual_seed(0)
    values = {"x": torch.randn(40, 33), "weight": torch.randn(17, 33), "bias": torch.randn(17)}
    leaves = [values[name].requires_grad_() for name in wanted.split()]
    upstream = torch.randn(40, 17)
    found = torch.autograd.grad(linear(**values), leaves, upstream)
    plain = torch.nn.functional.linear(values["x"], values["weight"], values["bias"])
    expected = torch.autograd.grad(plain, leaves, upstream)
    for a, b in zip(found, expected, strict=True):
        assert b.abs().max() > 1
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-5)


def test_autocast_is_obeyed():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(torch.randn(4, 3), torch.randn(5, 3)).dtype == torch.bfloat16
