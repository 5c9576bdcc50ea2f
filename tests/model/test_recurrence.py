"""Packed rows, in the native kernel and in torch, against the plain step loop."""

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit import kernel
from elmokit.config import EncoderConfig
from elmokit.model import lstm
from elmokit.model.lstm import ProjectedLSTM, blocks
from elmokit.model.outputs import LSTMState
from elmokit.model.recurrence import Recurrence

ENGINES = ["torch", pytest.param("kernel", marks=pytest.mark.skipif(not kernel.available(), reason=kernel.describe()))]


@pytest.fixture(params=ENGINES)
def engine(request, monkeypatch):
    if request.param == "torch":
        monkeypatch.setenv("ELMOKIT_KERNEL", "0")
    return request.param


def stack_of(seed=3, **options):
    torch.manual_seed(seed)
    stack = ProjectedLSTM(EncoderConfig(**{"projection_dim": 6, "cell_dim": 10, **options})).eval()
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, 0, 0.5)
    return stack


@torch.no_grad()
def plain(stack, x, mask, state):
    """The stack by its layers' plain loops."""
    outputs, hiddens, cells = [], [], []
    for index, layer in enumerate(stack.layers):
        output, hidden, cell = layer.plain(x, mask, state.hidden[index], state.cell[index])
        x = output + x * mask.unsqueeze(-1) if index and stack.config.skip_connections else output
        for values, value in zip((outputs, hiddens, cells), (x, hidden, cell), strict=True):
            values.append(value)
    return outputs, LSTMState(torch.stack(hiddens), torch.stack(cells))


def assert_same(found, expected, tolerance=1e-5):
    layers, state = found
    for mine, theirs in zip(
        [*layers, state.hidden, state.cell], [*expected[0], expected[1].hidden, expected[1].cell], strict=True
    ):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=tolerance)


CLIPS = st.sampled_from([None, 0.3, 3.0])


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=20),
    spare=st.integers(0, 2),
    projection=st.integers(1, 20),
    cell=st.integers(1, 40) | st.none(),  # none: as wide as the output, so that nothing projects
    layers=st.integers(1, 3),
    clips=st.tuples(CLIPS, CLIPS),
    skip=st.booleans(),
    carried=st.booleans(),
    at_once=st.sampled_from([1, 5, 256]),
    seed=st.integers(0, 2**32),
)
def test_packed_rows_are_the_plain_loop(
    engine, lengths, spare, projection, cell, layers, clips, skip, carried, at_once, seed
):
    stack = stack_of(
        seed,
        projection_dim=projection,
        cell_dim=cell or projection,
        num_layers=layers,
        cell_clip=clips[0],
        proj_clip=clips[1],
        skip_connections=skip,
    )
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, 0, 0.7 / max(1, parameter[0].numel()) ** 0.5)
    mask = torch.arange(max(lengths) + spare) < torch.tensor(lengths).unsqueeze(1)
    x = torch.randn(*mask.shape, projection)
    state = stack.initial_state(len(lengths), x)
    if carried:
        state = LSTMState(torch.randn_like(state.hidden) * 0.3, torch.randn_like(state.cell) * 0.3)
    before = state.hidden.clone(), state.cell.clone()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(lstm, "TOKENS_AT_ONCE", at_once)
        found = stack(x, mask, state)
    assert_same(found, plain(stack, x, mask, state))
    assert all((layer[~mask] == 0).all() for layer in found[0])
    assert torch.equal(state.hidden, before[0])  # what was passed in belongs to the caller
    assert torch.equal(state.cell, before[1])


def example(width=6, rows=5, steps=7):
    torch.manual_seed(1)
    lengths = torch.tensor([7, 3, 0, 7, 1])[:rows]
    mask = torch.arange(steps) < lengths.unsqueeze(1)
    return torch.randn(rows, steps, width), mask


def test_a_frozen_stack_is_packed_and_one_in_training_is_not(engine, monkeypatch):
    stack = stack_of()
    x, mask = example()
    calls = []
    packed = ProjectedLSTM._packed
    monkeypatch.setattr(ProjectedLSTM, "_packed", lambda *arguments: calls.append(1) or packed(*arguments))
    layers, _ = stack(x, mask)
    assert layers[0].requires_grad
    assert not calls
    stack.requires_grad_(False)
    layers, _ = stack(x, mask)
    assert not layers[0].requires_grad
    assert calls
    calls.clear()
    stack.train().dropout = 0.5
    stack(x, mask)
    assert not calls
    stack.dropout = 0.0
    assert stack(x.requires_grad_(), mask)[0][0].requires_grad
    assert not calls


@torch.no_grad()
@pytest.mark.parametrize("change", ["in place", "by data", "another tensor", "another place", "dtype and back"])
def test_weights_that_change_are_noticed(engine, change):
    stack = stack_of()
    x, mask = example()
    stack(x, mask)
    layer = stack.layers[1]
    new = torch.randn(layer.weight_hh.shape) * 0.5
    if change == "in place":
        layer.weight_hh.copy_(new)
    elif change == "by data":
        layer.weight_hh.data.copy_(new)
    elif change == "another tensor":
        layer.weight_hh = torch.nn.Parameter(new)
    elif change == "another place":
        layer.weight_hh.data = new
    else:
        stack.to(torch.float16).to(torch.float32)
    assert_same(stack(x, mask), plain(stack, x, mask, stack.initial_state(len(x), x)))


@torch.no_grad()
def test_copies_lay_out_weights_of_their_own(engine):
    stack = stack_of()
    x, mask = example()
    expected = stack(x, mask)
    copies = copy.deepcopy(stack), pickle.loads(pickle.dumps(stack))
    for parameter in stack.parameters():
        parameter.zero_()
    stack(x, mask)
    del stack
    for other in copies:
        assert_same(other(x, mask), expected, 0)


@torch.no_grad()
def test_bfloat16_products_stay_near_and_cells_stay_in_full_precision(engine):
    stack = stack_of(projection_dim=32, cell_dim=64)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, 0, 0.15)
    x, mask = example(32)
    exact, _ = stack(x, mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        by_autocast, state = stack(x, mask)
    assert state.cell.dtype == torch.float32
    by_weights, _ = stack.to(torch.bfloat16)(x.bfloat16(), mask)
    for rounded in (by_autocast, by_weights):
        for a, b in zip(exact, rounded, strict=True):
            assert 0 < (a - b).abs().max() < 0.03 * a.abs().max()


@pytest.mark.skipif(not kernel.available(), reason=kernel.describe())
@torch.no_grad()
def test_int8_stays_near_and_is_not_float32():
    stack = stack_of(projection_dim=32, cell_dim=64)
    for parameter in stack.parameters():
        torch.nn.init.normal_(parameter, 0, 0.15)
    x, mask = example(32)
    exact, _ = stack(x, mask)
    for layer in stack.layers:
        layer.recurrence = Recurrence("int8")
    for a, b in zip(exact, stack(x, mask)[0], strict=True):
        assert 0 < (a - b).abs().max() < 0.1 * a.abs().max()


@given(st.lists(st.integers(1, 30), max_size=30).map(lambda sizes: sorted(sizes, reverse=True)), st.integers(1, 100))
def test_blocks_of_steps_are_within_the_limit_and_as_long_as_can_be(sizes, limit):
    found = list(blocks(sizes, limit))
    assert [size for block in found for size in block] == sizes
    for block, following in zip(found, [*found[1:], [limit + 1]], strict=False):
        assert len(block) == 1 or sum(block) <= limit
        assert sum(block) + following[0] > limit


@torch.no_grad()
def test_the_gates_of_a_long_row_are_never_all_there(monkeypatch):
    stack = stack_of()
    seen = []
    call = Recurrence.__call__
    monkeypatch.setattr(
        Recurrence,
        "__call__",
        lambda self, gates, *rest, **more: seen.append(len(gates)) or call(self, gates, *rest, **more),
    )
    monkeypatch.setattr(lstm, "TOKENS_AT_ONCE", 100)
    stack(torch.randn(1, 5000, 6), torch.ones(1, 5000, dtype=torch.bool))
    assert max(seen) == 100
    assert sum(seen) == 2 * 5000
