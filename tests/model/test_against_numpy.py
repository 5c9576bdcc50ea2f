"""The network against the plain float64 loop of `numpy_bilm`, on random models of every option."""

import numpy as np
import numpy_bilm
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig
from elmokit.model import char_cnn, lstm
from elmokit.model.build import build_bilm
from elmokit.model.elmo import ElmoModule
from elmokit.text.characters import sentences_to_ids

CLIPS = st.sampled_from([None, 0.05, 0.3, 3.0])


@st.composite
def configurations(draw):
    width = draw(st.integers(3, 12) | st.sampled_from([50, 100]))
    filters = draw(st.lists(st.tuples(st.integers(1, min(width, 7)), st.integers(1, 3)), min_size=1, max_size=3))
    num_filters = sum(count for _, count in filters)
    projection = draw(st.integers(1, 5) | st.just(num_filters))  # equal: there is no projection of characters
    return BiLMConfig(
        tokens=CharCNNConfig(
            embedding_dim=draw(st.integers(1, 3)),
            filters=tuple(filters),
            num_highways=draw(st.integers(0, 2)),
            activation=draw(st.sampled_from(["relu", "tanh"])),
            max_characters_per_token=width,
        ),
        encoder=EncoderConfig(
            projection_dim=projection,
            cell_dim=draw(st.integers(1, 7) | st.just(projection)),  # equal: there is no projection of cells
            num_layers=draw(st.integers(1, 4)),
            cell_clip=draw(CLIPS),
            proj_clip=draw(CLIPS),
            skip_connections=draw(st.booleans()),
        ),
    )


TOKENS = st.text(max_size=6) | st.sampled_from(
    ["", "<S>", "</S>", "\ud800", "a\udc80b", "x" * 120, "漢" * 40, "\u00a0"]
)
# None is a row of length 0.
BATCHES = st.lists(st.none() | st.lists(TOKENS, max_size=4), min_size=1, max_size=4)


def random_bilm(config, *, seed, gain, dtype=torch.float32):
    """Every weight and bias drawn anew, with variance gain^2 / fan-in."""
    bilm = build_bilm(config).eval().to(dtype)
    numbers = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in bilm.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 1
            parameter.copy_(torch.from_numpy(numbers.normal(0, gain / np.sqrt(fan_in), parameter.shape)))
    return bilm


def encode(batch, width):
    """Ids and lengths of a batch in which None is a row without positions."""
    ids, lengths = sentences_to_ids([row or [] for row in batch], width)
    for index, row in enumerate(batch):
        if row is None:
            ids[index], lengths[index] = 0, 0
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def arrays(bilm):
    return {name: value.numpy() for name, value in bilm.state_dict().items()}


def assert_rows_agree(output, rows, tolerance):
    """Values within the tolerance, relative to the largest where that is above 1; exact zeros beyond each row."""
    for layer, values in enumerate(output.layers):
        for index, row in enumerate(rows):
            expected, found = row.layers[layer], values[index].detach().double().numpy()
            length = len(expected)
            scale = max(1.0, np.abs(expected).max(initial=0))
            np.testing.assert_allclose(found[:length] / scale, expected / scale, rtol=0, atol=tolerance)
            assert (found[length:] == 0).all()
            assert output.mask[index].tolist() == [position < length for position in range(len(found))]


def assert_states_agree(state, rows, tolerance):
    for direction, found in enumerate((state.forward, state.backward)):
        for index, row in enumerate(rows):
            for layer, (hidden, cell) in enumerate(row.state[direction]):
                for mine, theirs in ((found.hidden, hidden), (found.cell, cell)):
                    mine = mine[layer, index].detach().double().numpy()
                    np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


@settings(max_examples=150)
@given(configurations(), BATCHES, st.data())
def test_the_network_is_the_plain_loop_on_any_model_and_batch(config, batch, data):
    draw = data.draw
    half_sure, wild = (torch.float32, 0.7, 1e-5), (torch.float64, 2.5, 1e-9)  # rounding errors grow with the weights
    dtype, gain, tolerance = draw(st.sampled_from([half_sure, wild]))
    bilm = random_bilm(config, seed=draw(st.integers(0, 2**32)), gain=gain, dtype=dtype)
    width = config.tokens.max_characters_per_token
    following = draw(st.lists(st.none() | st.lists(TOKENS, max_size=3), min_size=len(batch), max_size=len(batch)))
    with pytest.MonkeyPatch.context() as patch, torch.set_grad_enabled(draw(st.booleans())):
        patch.setattr(lstm, "STEPS_AT_ONCE", draw(st.sampled_from([1, 2, 512])))
        patch.setattr(lstm, "TOKENS_AT_ONCE", draw(st.sampled_from([1, 5, 256])))
        patch.setattr(char_cnn, "TOKENS_AT_ONCE", draw(st.sampled_from([1, 3, 1024])))
        patch.setattr(char_cnn, "TOKENS_A_TASK", draw(st.sampled_from([1, 3, 1024])))
        first = bilm(*encode(batch, width))
        second = bilm(*encode(following, width), first.state)
    rows = numpy_bilm.run(config, arrays(bilm), batch)
    assert_rows_agree(first, rows, tolerance)
    assert_states_agree(first.state, rows, tolerance)
    rows = numpy_bilm.run(config, arrays(bilm), following, [row.state for row in rows])
    assert_rows_agree(second, rows, tolerance)
    assert_states_agree(second.state, rows, tolerance)


@pytest.mark.parametrize("full_rows", [True, False])
def test_the_examples_reach_clips_that_bite_and_stay_equal(full_rows):
    config = BiLMConfig(
        tokens=CharCNNConfig(embedding_dim=3, filters=((1, 3), (2, 3))),
        encoder=EncoderConfig(projection_dim=4, cell_dim=6, cell_clip=0.3, proj_clip=0.05, num_layers=3),
    )
    bilm = random_bilm(config, seed=1, gain=0.7)
    batch = [["a", "few", "words"], ["and", "three", "more"] if full_rows else ["one"]]
    output = bilm(*encode(batch, 50))
    rows = numpy_bilm.run(config, arrays(bilm), batch)
    clipped_cells, clipped_outputs = sum(row.clipped for row in rows)
    assert clipped_cells > 10
    assert clipped_outputs > 10
    assert (output.state.forward.cell.abs() == np.float32(0.3)).any()
    assert_rows_agree(output, rows, 1e-5)


@given(BATCHES, st.booleans(), st.booleans(), st.data())
def test_representations_are_plain_sums_with_given_weights_and_gamma(batch, layer_norm, keep, data):
    config = BiLMConfig(
        tokens=CharCNNConfig(embedding_dim=2, filters=((1, 2), (2, 2))),
        encoder=EncoderConfig(projection_dim=3, cell_dim=5, num_layers=data.draw(st.integers(1, 4))),
    )
    bilm = random_bilm(config, seed=data.draw(st.integers(0, 99)), gain=1.0, dtype=torch.float64)
    number = st.floats(-5, 5, width=32)
    scores = data.draw(st.lists(number, min_size=config.num_layers, max_size=config.num_layers))
    gammas = data.draw(st.tuples(number, number))
    module = ElmoModule(
        bilm, 2, do_layer_norm=layer_norm, keep_sentence_boundaries=keep, scalar_mix_parameters=scores
    ).eval()
    for mix, gamma in zip(module.mixes, gammas, strict=True):
        mix.gamma.fill_(gamma)
    output = module(*encode(batch, 50))
    rows = numpy_bilm.run(config, arrays(bilm), batch)
    for values, gamma in zip(output.representations, gammas, strict=True):
        for found, expected in zip(values, numpy_bilm.mix(rows, scores, gamma, layer_norm=layer_norm), strict=True):
            expected = expected if keep else expected[1:-1]
            np.testing.assert_allclose(found[: len(expected)], expected, rtol=0, atol=1e-5)
            assert (found[len(expected) :] == 0).all()
