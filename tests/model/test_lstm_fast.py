"""The deferred backward pass against the plain step loop."""

import pytest
import torch

from elmokit.config import EncoderConfig
from elmokit.model.lstm import ProjectedLSTM, ProjectedLSTMLayer


def layer_of(**options):
    torch.manual_seed(3)
    layer = ProjectedLSTMLayer(EncoderConfig(**{"projection_dim": 6, "cell_dim": 10, **options}))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.8)  # large enough for both clips to bite
    return layer


@pytest.mark.parametrize("cell_clip", [None, 0.5])
@pytest.mark.parametrize("proj_clip", [None, 0.3])
@pytest.mark.parametrize("cell_dim", [10, 6])
def test_outputs_state_and_every_gradient_equal_the_plain_loop(cell_clip, proj_clip, cell_dim):
    layer = layer_of(cell_clip=cell_clip, proj_clip=proj_clip, cell_dim=cell_dim).double()
    inputs = [torch.randn(3, 7, 6), torch.randn(3, 6) * 0.2, torch.randn(3, cell_dim) * 0.3]
    inputs = [x.double().requires_grad_() for x in inputs]
    mask = torch.ones(3, 7, dtype=torch.bool)
    factors = [torch.randn(3, 7, 6).double(), torch.randn(3, 6).double(), torch.randn(3, cell_dim).double()]
    wanted = [*inputs, *layer.parameters()]

    def gradients(run):
        outputs = run(inputs[0], mask, *inputs[1:])
        return outputs, torch.autograd.grad(sum((x * k).sum() for x, k in zip(outputs, factors, strict=True)), wanted)

    plain, plain_gradients = gradients(layer.plain)
    fast, fast_gradients = gradients(layer)
    assert "LSTMLayerFunction" in str(fast[2].grad_fn)
    for a, b in zip(plain, fast, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    for a, b in zip(plain_gradients, fast_gradients, strict=True):
        assert a.abs().max() > 0
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)


def test_the_clips_of_these_tests_are_active():
    layer = layer_of(cell_clip=0.5, proj_clip=0.3)
    with torch.no_grad():
        outputs, _, cell = layer.plain(
            torch.randn(3, 7, 6), torch.ones(3, 7, dtype=torch.bool), torch.zeros(3, 6), torch.zeros(3, 10)
        )
    assert (outputs.abs() == 0.3).any()
    assert (cell.abs() == 0.5).any()


def test_bfloat16_products_stay_near_full_precision_and_cells_stay_in_it():
    encoder = ProjectedLSTM(EncoderConfig(projection_dim=16, cell_dim=32))
    x, mask = torch.randn(4, 9, 16), torch.ones(4, 9, dtype=torch.bool)
    exact, _ = encoder(x, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded, state = encoder(x, mask)
    assert state.cell.dtype == torch.float32
    for a, b in zip(exact, rounded, strict=True):
        assert 0 < (a - b).abs().max() < 0.02 * a.abs().max()


def test_rows_with_padding_take_the_plain_loop_and_train_too():
    layer = layer_of()
    mask = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [False] * 7])
    outputs, _, _ = layer(torch.randn(3, 7, 6), mask, torch.zeros(3, 6), torch.zeros(3, 10))
    outputs.sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in layer.parameters())
    assert (outputs[~mask] == 0).all()


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gradient_that_others_read_too_is_left_as_it_is(rows):
    torch.manual_seed(3)
    stack = ProjectedLSTM(EncoderConfig(projection_dim=6, cell_dim=9, num_layers=3)).double()
    x = torch.randn(rows, 5, 6).double().requires_grad_()
    mask = torch.ones(rows, 5, dtype=torch.bool)
    wanted = [x, *stack.parameters()]
    layers, _ = stack(x, mask)
    # A skip connection hands the same gradient to the layer and around it, here laid out as the layer itself does.
    found = torch.autograd.grad((layers[-1] ** 2).sum(), wanted)
    plain = x
    for index, layer in enumerate(stack.layers):
        output, _, _ = layer.plain(plain, mask, x.new_zeros(rows, 6), x.new_zeros(rows, 9))
        plain = output + plain if index else output
    for a, b in zip(found, torch.autograd.grad((plain**2).sum(), wanted), strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=0)
