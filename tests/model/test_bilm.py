"""What holds of the biLM whatever its weights: state, independence of neighbours, lengths, gradients, precision."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import InputError
from elmokit.model import lstm
from elmokit.model.bilm import ROWS_A_SHARD, reverse_within, shards
from elmokit.model.build import build_bilm
from elmokit.model.outputs import BiLMState, LSTMState
from elmokit.text.characters import sentences_to_ids

SENTENCES = [
    ["The", "bank", "raised", "its", "rates", "again", "."],
    ["We", "sat", "on", "the", "bank", "."],
    [],
    ["漢字", "", "déjà-vu", "\ud800"],
]


def encode(sentences, width=20):
    ids, lengths = sentences_to_ids(sentences, width)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


@pytest.fixture
def lively(tiny_bilm):
    """Weights large enough that state, neighbours and clips would show."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in tiny_bilm.parameters():
            parameter.normal_(0, 0.5)
    return tiny_bilm


def vectors(output):
    return torch.stack(output.layers)  # (L + 1, B, T, 2 P)


@torch.no_grad()
def test_a_batch_gives_bit_identical_layers_when_repeated_whatever_ran_between(lively):
    first = vectors(lively(*encode(SENTENCES)))
    lively(*encode([["something", "else"]] * 9))
    assert torch.equal(first, vectors(lively(*encode(SENTENCES))))


@torch.no_grad()
@pytest.mark.parametrize("index", range(len(SENTENCES)))
def test_a_sentence_has_the_same_layers_whatever_stands_beside_it(lively, index):
    ids, lengths = encode([SENTENCES[index]])
    alone = vectors(lively(ids, lengths))[:, 0]
    others = [SENTENCES, SENTENCES[::-1], [SENTENCES[index]] * 3, [*SENTENCES, ["long"] * 90], [["a"]] * 70 + SENTENCES]
    for batch in others:
        together = vectors(lively(*encode(batch)))[:, batch.index(SENTENCES[index])]
        assert (together[:, : len(ids[0])] - alone).abs().max() < 1e-5
        assert (together[:, len(ids[0]) :] == 0).all()


@torch.no_grad()
@given(
    st.lists(st.lists(st.text(max_size=9), max_size=7), min_size=1, max_size=4),
    st.lists(st.text(max_size=30), max_size=30),
)
def test_no_neighbour_changes_a_sentence(lively, sentences, long):
    together = vectors(lively(*encode([*sentences, long])))
    for row, tokens in enumerate(sentences):
        alone = vectors(lively(*encode([tokens])))[:, 0]
        assert (together[:, row, : len(tokens) + 2] - alone).abs().max() < 1e-5


@torch.no_grad()
def test_no_direction_sees_the_other_or_what_lies_ahead_of_it(lively):
    ids, lengths = encode([["a", "b", "c", "d"], ["a", "b", "x", "d"]])
    output = lively(ids, lengths)
    for forward, backward in zip(output.forward_layers, output.backward_layers, strict=True):
        changed_forward = ((forward[0] - forward[1]).abs() > 1e-4).any(-1).tolist()
        changed_backward = ((backward[0] - backward[1]).abs() > 1e-4).any(-1).tolist()
        assert changed_forward == [False, False, False, True, True, True]
        assert changed_backward == [True, True, True, True, False, False]


@torch.no_grad()
@given(cuts=st.lists(st.integers(0, 12), max_size=4))
def test_passing_state_on_equals_one_long_run(cuts):
    encoder = seeded_encoder()
    x = torch.randn(3, 12, 5)
    mask = torch.ones(3, 12, dtype=torch.bool)
    whole, end = encoder(x, mask)
    state, parts = None, []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), 12], strict=True):
        layers, state = encoder(x[:, start:stop], mask[:, start:stop], state)
        parts.append(torch.stack(layers))
    torch.testing.assert_close(torch.cat(parts, dim=2), torch.stack(whole), atol=1e-6, rtol=0)
    torch.testing.assert_close(state.hidden, end.hidden, atol=1e-6, rtol=0)
    torch.testing.assert_close(state.cell, end.cell, atol=1e-6, rtol=0)


def seeded_encoder():
    torch.manual_seed(4)
    encoder = lstm.ProjectedLSTM(
        EncoderConfig(projection_dim=5, cell_dim=9, num_layers=3, cell_clip=0.4, proj_clip=0.2)
    )
    for parameter in encoder.parameters():
        torch.nn.init.normal_(parameter, 0, 0.6)
    return encoder


@torch.no_grad()
def test_state_matters_and_a_rows_state_stands_still_beyond_its_length(lively):
    ids, lengths = encode(SENTENCES)
    ids[2], lengths[2] = 0, 0
    first = lively(ids, lengths)
    second = lively(ids, lengths, first.state)
    assert (vectors(second) - vectors(first)).abs().max() > 0.01
    for direction in (first.state.forward, first.state.backward):
        assert (direction.hidden[:, 2] == 0).all()
        assert (direction.cell[:, 2] == 0).all()
        assert (direction.cell[:, [0, 1, 3]] != 0).all()
    alone = lively(*encode([SENTENCES[1]]))
    torch.testing.assert_close(first.state.forward.cell[:, 1], alone.state.forward.cell[:, 0], atol=1e-5, rtol=0)
    torch.testing.assert_close(first.state.backward.cell[:, 1], alone.state.backward.cell[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_state_of_another_number_of_rows_is_refused(lively, rows):
    state = lively(*encode([["a"]] * rows)).state
    with pytest.raises(InputError, match=rf"of {rows} rows, but the batch has 4"):
        lively(*encode(SENTENCES), state)


def test_a_detached_state_has_no_history(lively):
    state = lively(*encode(SENTENCES)).state
    assert state.forward.cell.requires_grad
    detached = state.detach()
    for direction in (detached.forward, detached.backward):
        assert not direction.cell.requires_grad
        assert not direction.hidden.requires_grad
    assert torch.equal(detached.backward.cell, state.backward.cell)


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_sentences_longer_than_one_block_of_steps_give_the_same(lively, steps, monkeypatch):
    whole = vectors(lively(*encode(SENTENCES)))
    monkeypatch.setattr(lstm, "STEPS_AT_ONCE", steps)
    torch.testing.assert_close(vectors(lively(*encode(SENTENCES))), whole, atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("workers", [2, 3, 4, 9])
@pytest.mark.parametrize("carried", [False, True])
def test_rows_shared_out_to_several_workers_give_the_same(lively, workers, carried):
    torch.manual_seed(2)
    sentences = [["w"] * int(length) for length in torch.randint(0, 20, (35,))]
    state = lively(*encode(sentences[::-1])).state if carried else None
    expected = lively(*encode(sentences), state)
    torch.set_num_threads(workers)
    try:
        found = lively(*encode(sentences), state)
    finally:
        torch.set_num_threads(1)
    torch.testing.assert_close(vectors(found), vectors(expected), atol=1e-5, rtol=0)
    for a, b in ((found.state.forward, expected.state.forward), (found.state.backward, expected.state.backward)):
        torch.testing.assert_close(a.hidden, b.hidden, atol=1e-5, rtol=0)
        torch.testing.assert_close(a.cell, b.cell, atol=1e-5, rtol=0)


@given(st.lists(st.integers(0, 40), max_size=60), st.integers(0, 9))
def test_shards_hold_each_row_once_and_are_of_like_size(lengths, number):
    lengths = torch.tensor(lengths, dtype=torch.long)
    parts = shards(lengths, number)
    if parts == [None]:
        assert number < 2 or len(lengths) < 2 * ROWS_A_SHARD
        return
    assert len(parts) <= number
    assert torch.cat(parts).sort().values.tolist() == list(range(len(lengths)))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert min(map(len, parts)) >= ROWS_A_SHARD
    totals = [int(lengths[part].sum()) for part in parts]
    assert max(totals) - min(totals) <= 40


@torch.no_grad()
def test_the_layers_are_the_doubled_tokens_then_both_directions_side_by_side(lively):
    output = lively(*encode(SENTENCES))
    assert len(output.layers) == 3
    assert torch.equal(output.layers[0], torch.cat([output.token_layer] * 2, dim=-1))
    for layer, forward, backward in zip(output.layers[1:], output.forward_layers, output.backward_layers, strict=True):
        assert torch.equal(layer, torch.cat([forward, backward], dim=-1))


@torch.no_grad()
def test_what_lies_beyond_the_lengths_changes_nothing_and_is_zero_in_every_layer(lively):
    ids, lengths = encode(SENTENCES)
    expected = vectors(lively(ids, lengths))
    dirty = ids.clone()
    dirty[2, 2:] = ids[0, 1]  # characters where the length says there is no token
    torch.testing.assert_close(vectors(lively(dirty, lengths)), expected, atol=1e-5, rtol=0)
    assert (expected[:, 2, 2:] == 0).all()


@torch.no_grad()
def test_an_encoder_by_itself_gives_zeros_beyond_the_lengths_whatever_is_there():
    encoder = seeded_encoder()
    mask = torch.tensor([[True] * 4, [True] * 2 + [False] * 2, [False] * 4])
    x = torch.randn(3, 4, 5)
    layers, state = encoder(x, mask)
    clean, clean_state = encoder(x * mask.unsqueeze(-1), mask)
    assert torch.equal(torch.stack(layers), torch.stack(clean))
    assert torch.equal(state.cell, clean_state.cell)
    assert all((layer[~mask] == 0).all() for layer in layers)


@torch.no_grad()
def test_wider_padding_changes_nothing(lively):
    ids, lengths = encode(SENTENCES)
    wider = torch.cat([ids, ids.new_zeros(4, 5, 20)], dim=1)
    found = vectors(lively(wider, lengths))
    torch.testing.assert_close(found[:, :, : ids.shape[1]], vectors(lively(ids, lengths)), atol=1e-5, rtol=0)
    assert (found[:, :, ids.shape[1] :] == 0).all()


@pytest.mark.parametrize(("rows", "tokens"), [(0, 0), (0, 4), (3, 0)])
@pytest.mark.parametrize("grad", [False, True])
def test_batches_without_rows_or_positions_give_empty_layers(tiny_bilm, rows, tokens, grad):
    with torch.set_grad_enabled(grad):
        output = tiny_bilm(torch.zeros(rows, tokens, 20, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    assert vectors(output).shape == (3, rows, tokens, 16)
    assert output.mask.shape == (rows, tokens)
    assert output.state.forward.cell.shape == (2, rows, 16)


@torch.no_grad()
@pytest.mark.parametrize("layers", [1, 4])
def test_an_empty_sentence_has_the_shape_of_the_model(layers):
    tokens = CharCNNConfig(embedding_dim=2, filters=((1, 2),), max_characters_per_token=20)
    bilm = build_bilm(BiLMConfig(tokens=tokens, encoder=EncoderConfig(projection_dim=3, cell_dim=4, num_layers=layers)))
    assert vectors(bilm(*encode([[]]))).shape == (layers + 1, 1, 2, 6)  # the two boundaries


@pytest.mark.parametrize("width", [10, 19, 21, 50])
def test_ids_of_another_width_are_refused_by_name(tiny_bilm, width):
    with pytest.raises(InputError, match=rf"\(4, 9, {width}\), expected \(sentences, tokens, 20\)"):
        tiny_bilm(*encode(SENTENCES, width))


def test_word_ids_are_refused_by_a_character_model(tiny_bilm):
    with pytest.raises(InputError, match=r"\(2, 3\), expected \(sentences, tokens, 20\)"):
        tiny_bilm(torch.ones(2, 3, dtype=torch.long), torch.tensor([3, 3]))


@torch.no_grad()
def test_a_word_level_model_takes_shifted_word_ids_and_leaves_padding_zero():
    bilm = build_bilm(
        BiLMConfig(tokens=WordEmbeddingConfig(num_words=7), encoder=EncoderConfig(projection_dim=3, cell_dim=4))
    )
    ids = torch.tensor([[1, 7, 3], [2, 0, 0]])
    output = bilm(ids, torch.tensor([3, 1]))
    table = bilm.token_encoder.embedding.weight
    assert torch.equal(output.token_layer[0], table[[0, 6, 2]])
    assert torch.equal(output.token_layer[1, 0], table[1])
    assert (vectors(output)[:, 1, 1:] == 0).all()


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(0, 2))
def test_reversing_within_lengths_turns_each_row_round_and_is_its_own_inverse(lengths, spare):
    total = max(lengths, default=0) + spare
    x = torch.arange(len(lengths) * total * 2).view(len(lengths), total, 2)
    turned = reverse_within(x, torch.tensor(lengths, dtype=torch.long))
    for row, found, length in zip(x.tolist(), turned.tolist(), lengths, strict=True):
        assert found == row[:length][::-1] + row[length:]
    assert torch.equal(reverse_within(turned, torch.tensor(lengths, dtype=torch.long)), x)


def test_gradients_are_right_by_finite_differences():
    torch.manual_seed(2)
    tokens = CharCNNConfig(embedding_dim=2, filters=((1, 2), (2, 1)), num_highways=1, max_characters_per_token=5)
    encoder = EncoderConfig(projection_dim=2, cell_dim=3, cell_clip=0.3, proj_clip=0.2)
    bilm = build_bilm(BiLMConfig(tokens=tokens, encoder=encoder)).double()
    for parameter in bilm.parameters():
        torch.nn.init.normal_(parameter, 0, 0.7)
    names = [name for name, _ in bilm.named_parameters()]
    parameters = [parameter.detach().clone().requires_grad_() for parameter in bilm.parameters()]
    for batch in ([["ab", "c"], ["d", "é"]], [["ab", "c"], ["d"], []]):  # full rows, and rows with padding
        ids, lengths = encode(batch, 5)

        def layers(*values, ids=ids, lengths=lengths):
            output = torch.func.functional_call(bilm, dict(zip(names, values, strict=True)), (ids, lengths))
            return torch.stack(output.layers)

        assert torch.autograd.gradcheck(layers, parameters, fast_mode=True)


@torch.no_grad()
def test_double_precision_is_kept_throughout_and_near_single(lively):
    single = vectors(lively(*encode(SENTENCES)))
    output = lively.double()(*encode(SENTENCES))
    assert vectors(output).dtype == output.state.backward.cell.dtype == torch.float64
    torch.testing.assert_close(vectors(output).float(), single, atol=1e-5, rtol=0)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("batch", [SENTENCES, [["two", "full"], ["rows", "here"]]])
def test_a_bfloat16_module_runs_near_the_full_one(tiny_bilm, grad, batch):
    with torch.set_grad_enabled(grad):
        exact = vectors(tiny_bilm(*encode(batch)))
        rounded = vectors(tiny_bilm.to(torch.bfloat16)(*encode(batch)))
    assert rounded.dtype == torch.bfloat16
    assert (rounded - exact).abs().max() < 0.03 * exact.abs().max()


@torch.no_grad()
def test_autocast_keeps_padding_zero_and_cells_in_full_precision(lively):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = lively(*encode(SENTENCES))
    assert output.state.forward.cell.dtype == torch.float32
    for layer in output.layers:
        assert (layer[~output.mask] == 0).all()


def test_every_weight_is_trained_and_a_frozen_model_records_no_graph(tiny_bilm):
    for batch in (SENTENCES, [["two", "full"], ["rows", "here"]]):
        tiny_bilm.zero_grad()
        vectors(tiny_bilm(*encode(batch))).square().sum().backward()
        assert all(parameter.grad.abs().max() > 0 for parameter in tiny_bilm.parameters())
    tiny_bilm.requires_grad_(False)
    assert not vectors(tiny_bilm(*encode(batch))).requires_grad


def test_a_frozen_model_gives_the_same_bits_with_and_without_grad_mode(tiny_bilm):
    tiny_bilm.requires_grad_(False)
    batch = encode([["two", "full"], ["rows", "here"]])
    with_grad_mode = vectors(tiny_bilm(*batch))
    with torch.no_grad():
        assert torch.equal(vectors(tiny_bilm(*batch)), with_grad_mode)


def test_gradients_reach_a_state_that_was_passed_on(lively):
    state = lively.forward_encoder.initial_state(4, like=torch.zeros(()))
    state = BiLMState(*(LSTMState(s.hidden.requires_grad_(), s.cell.requires_grad_()) for s in (state, state)))
    lively.requires_grad_(False)
    vectors(lively(*encode(SENTENCES), state)).sum().backward()
    assert state.forward.cell.grad.abs().max() > 0
    assert state.forward.hidden.grad.abs().max() > 0


def test_dropout_works_on_layer_inputs_in_training_only():
    tokens = CharCNNConfig(embedding_dim=2, filters=((1, 2),), max_characters_per_token=20)
    torch.manual_seed(0)
    bilm = build_bilm(BiLMConfig(tokens=tokens, encoder=EncoderConfig(projection_dim=6, cell_dim=8)), dropout=0.5)
    batch = encode([["a", "b", "c"]])
    assert (vectors(bilm(*batch)) != vectors(bilm(*batch))).any()
    bilm.eval()
    assert torch.equal(vectors(bilm(*batch)), vectors(bilm(*batch)))


def test_dropout_keeps_the_mean_and_follows_a_generator_of_the_callers_own():
    x = torch.ones(200, 200)
    generator = torch.Generator().manual_seed(5)
    dropped = lstm.dropout(x, 0.2, generator)
    assert set(dropped.unique().tolist()) == {0.0, 1.25}
    assert abs(float(dropped.mean()) - 1) < 0.02
    assert torch.equal(dropped, lstm.dropout(x, 0.2, generator.manual_seed(5)))
    assert lstm.dropout(x, 0.0) is x


def test_fresh_weights_are_those_of_bilm_tf():
    tokens = CharCNNConfig(embedding_dim=16, filters=((3, 64),), num_highways=1)
    bilm = build_bilm(BiLMConfig(tokens=tokens, encoder=EncoderConfig(projection_dim=32, cell_dim=48)))
    token_encoder, layer = bilm.token_encoder, bilm.forward_encoder.layers[0]
    assert 0.9 < token_encoder.embedding.abs().max() <= 1
    assert 0.045 < token_encoder.convolutions[0].weight.abs().max() <= 0.05
    assert (token_encoder.highways[0].carry.bias == -2).all()
    assert abs(token_encoder.projection.weight.std() * 64**0.5 - 1) < 0.1
    assert layer.bias.view(4, 48).mean(dim=1).tolist() == [0, 1, 0, 0]
    tanh = tokens.model_copy(update={"activation": "tanh"})
    bilm = build_bilm(BiLMConfig(tokens=tanh, encoder=EncoderConfig(projection_dim=32, cell_dim=48)))
    assert abs(bilm.token_encoder.convolutions[0].weight.std() * (3 * 16) ** 0.5 - 1) < 0.1
