"""`ElmoModule`: boundaries, number of mixes, dropout, freezing, saving."""

import pytest
import torch

from elmokit.errors import ConfigError
from elmokit.model.elmo import ElmoModule
from elmokit.text.characters import sentences_to_ids

SENTENCES = [["The", "bank", "raised", "rates"], ["Yes"], []]


@pytest.fixture
def batch():
    ids, lengths = sentences_to_ids(SENTENCES, 20)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_there_are_k_mixes_of_the_sentences_with_or_without_boundaries(tiny_bilm, batch, k, keep, norm):
    module = ElmoModule(tiny_bilm, k, keep_sentence_boundaries=keep, do_layer_norm=norm).eval()
    output = module(*batch)
    lengths = [6, 3, 2] if keep else [4, 1, 0]
    assert len(output.representations) == k
    assert output.mask.tolist() == [[position < length for position in range(lengths[0])] for length in lengths]
    for mixed in output.representations:
        assert mixed.shape == (3, lengths[0], module.output_dim)
        assert (mixed[~output.mask] == 0).all()
        assert (mixed[output.mask] != 0).any(dim=-1).all()


def test_a_fresh_mix_is_the_mean_of_the_layers_and_the_layers_differ(tiny_bilm, batch):
    output = ElmoModule(tiny_bilm, 2).eval()(*batch)
    layers = torch.stack(output.bilm.layers)
    for mixed in output.representations:  # mixes of all layers, not one layer each
        torch.testing.assert_close(mixed, layers.mean(dim=0)[:, 1:-1] * output.mask.unsqueeze(-1))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (layers[a] - layers[b]).abs().max() > 0.01


def test_without_boundaries_is_with_boundaries_less_the_ends(tiny_bilm, batch):
    inner = ElmoModule(tiny_bilm).eval()(*batch).representations[0]
    outer = ElmoModule(tiny_bilm, keep_sentence_boundaries=True).eval()(*batch).representations[0]
    for index, tokens in enumerate(SENTENCES):
        assert torch.equal(inner[index, : len(tokens)], outer[index, 1 : 1 + len(tokens)])


def test_dropout_works_in_training_only_and_on_the_representations(tiny_bilm, batch):
    module = ElmoModule(tiny_bilm, dropout=0.5)
    plain = ElmoModule(tiny_bilm, dropout=0.0)(*batch).representations[0]
    output = module(*batch)
    dropped = output.representations[0]
    kept = dropped != 0
    assert 0.3 < kept[output.mask].float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * plain[kept])
    assert torch.equal(torch.stack(output.bilm.layers), torch.stack(tiny_bilm(*batch).layers))
    module.eval()
    assert torch.equal(module(*batch).representations[0], plain)


def test_only_the_mixes_are_trained_unless_the_bilm_is_asked_for(tiny_bilm, batch):
    module = ElmoModule(tiny_bilm, 2)
    sum(x.square().sum() for x in module(*batch).representations).backward()
    assert all(parameter.grad is None for parameter in tiny_bilm.parameters())
    for mix in module.mixes:
        assert mix.weights.grad.abs().min() > 0
        assert mix.gamma.grad.abs() > 0
    module = ElmoModule(tiny_bilm, 2, requires_grad=True)
    sum(x.square().sum() for x in module(*batch).representations).backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in tiny_bilm.parameters())


@pytest.mark.parametrize("keep", [False, True])
def test_gradients_are_those_of_finite_differences(tiny_bilm, batch, keep):
    module = ElmoModule(
        tiny_bilm, 2, dropout=0.0, requires_grad=True, do_layer_norm=True, keep_sentence_boundaries=keep
    ).double()
    parameters = {name: p for name, p in module.named_parameters() if name.endswith(("bias", "weights", "gamma"))}

    def run(*values):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), batch).representations

    assert torch.autograd.gradcheck(run, tuple(parameters.values()), atol=1e-5, fast_mode=True)


def test_given_mix_parameters_are_frozen_with_gamma_in_every_mix(tiny_bilm, batch):
    module = ElmoModule(tiny_bilm, 2, scalar_mix_parameters=[1.0, 0.0, -1.0]).eval()
    output = module(*batch)
    assert not any(parameter.requires_grad for parameter in module.parameters())
    shares = torch.softmax(torch.tensor([1.0, 0.0, -1.0]), dim=0)
    expected = sum(share * layer for share, layer in zip(shares, output.bilm.layers, strict=True))[:, 1:-1]
    for mixed in output.representations:
        torch.testing.assert_close(mixed, expected * output.mask.unsqueeze(-1))


def test_the_penalty_is_summed_over_the_mixes(tiny_bilm):
    module = ElmoModule(tiny_bilm, 3)
    with torch.no_grad():
        for index, mix in enumerate(module.mixes):
            mix.weights.fill_(float(index))
    penalty = module.penalty(0.5)
    assert penalty.item() == pytest.approx(0.5 * (3 * 1 + 3 * 4))
    penalty.backward()
    assert torch.equal(module.mixes[2].weights.grad, torch.full((3,), 2.0))
    assert ElmoModule(tiny_bilm, 0).penalty(0.5).item() == 0


def test_saving_and_loading_keeps_the_mixes_and_they_can_be_set_by_name(tiny_bilm, batch, tmp_path):
    module = ElmoModule(tiny_bilm, 2).eval()
    fresh = module(*batch).representations[1]
    state = module.state_dict()
    assert {"mixes.0.weights", "mixes.0.gamma", "mixes.1.weights", "mixes.1.gamma"} < set(state)
    state["mixes.1.weights"] = torch.tensor([3.0, 0.0, -3.0])
    state["mixes.1.gamma"] = torch.tensor(2.0)
    module.load_state_dict(state)
    expected = module(*batch).representations
    assert (expected[1] - fresh).abs().max() > 0.01
    torch.save(module.state_dict(), tmp_path / "module.pt")
    other = ElmoModule(tiny_bilm, 2).eval()
    other.load_state_dict(torch.load(tmp_path / "module.pt"))
    assert other.mixes[1].weights.tolist() == [3.0, 0.0, -3.0]
    assert other.mixes[1].gamma.item() == 2.0
    for a, b in zip(other(*batch).representations, expected, strict=True):
        assert torch.equal(a, b)


def test_trainable_parameters_alone_carry_the_mixes_too(tiny_bilm):
    trained = {name for name, parameter in ElmoModule(tiny_bilm, 2).named_parameters() if parameter.requires_grad}
    assert trained == {"mixes.0.weights", "mixes.0.gamma", "mixes.1.weights", "mixes.1.gamma"}


def test_state_is_passed_on_to_the_bilm(tiny_bilm, batch):
    module = ElmoModule(tiny_bilm).eval()
    first = module(*batch)
    again, carried = module(*batch), module(*batch, first.bilm.state)
    assert torch.equal(first.representations[0], again.representations[0])
    assert (carried.representations[0] != first.representations[0]).any()


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("tokens", [0, 1, 2])
@pytest.mark.parametrize("norm", [False, True])
def test_batches_of_nothing_give_nothing_and_no_nan(tiny_bilm, rows, tokens, norm):
    module = ElmoModule(tiny_bilm, do_layer_norm=norm).eval()
    output = module(torch.zeros(rows, tokens, 20, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    assert output.representations[0].shape == (rows, max(tokens - 2, 0), 16)
    assert output.mask.shape == (rows, max(tokens - 2, 0))
    kept = ElmoModule(tiny_bilm, do_layer_norm=norm, keep_sentence_boundaries=True).eval()
    output = kept(torch.zeros(rows, tokens, 20, dtype=torch.long), torch.zeros(rows, dtype=torch.long))
    assert (output.representations[0] == 0).all()


def test_a_negative_number_of_mixes_is_refused(tiny_bilm):
    with pytest.raises(ConfigError, match="is -1, expected 0 or more"):
        ElmoModule(tiny_bilm, -1)


def test_mix_parameters_of_another_number_are_refused(tiny_bilm):
    with pytest.raises(ConfigError, match="2 mix weights were given for 3 layers"):
        ElmoModule(tiny_bilm, scalar_mix_parameters=[1.0, 2.0])
