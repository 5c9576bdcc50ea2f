"""ELMo as a part of a network: mixes, dropout, gradients, saving."""

import pytest
import torch

from elmokit.errors import ConfigError
from elmokit.model.elmo import ElmoModule
from elmokit.model.mix import ScalarMix
from elmokit.text.characters import sentences_to_ids


@pytest.fixture
def inputs(tiny_bilm):
    ids, lengths = sentences_to_ids([["a", "bank"], ["the", "river", "bank"]], 20)
    return torch.from_numpy(ids), torch.from_numpy(lengths)


def test_a_fresh_mix_is_the_mean_of_layers_that_differ(tiny_bilm, inputs):
    output = ElmoModule(tiny_bilm, 2, keep_sentence_boundaries=True).eval()(*inputs)
    layers = torch.stack(output.bilm.layers)
    for representation in output.representations:
        torch.testing.assert_close(representation, layers.mean(0), atol=1e-6, rtol=0)
    assert min((layers[0] - layers[1]).abs().max(), (layers[1] - layers[2]).abs().max()) > 0.01


@pytest.mark.parametrize("count", [0, 1, 5])
def test_there_are_as_many_representations_as_were_asked_for(tiny_bilm, inputs, count):
    output = ElmoModule(tiny_bilm, count).eval()(*inputs)
    assert len(output.representations) == count
    assert output.mask.sum() == 5


def test_a_negative_number_of_representations_is_refused(tiny_bilm):
    with pytest.raises(ConfigError, match="-1, expected 0 or more"):
        ElmoModule(tiny_bilm, -1)


def test_dropout_acts_in_training_alone(tiny_bilm, inputs):
    module = ElmoModule(tiny_bilm, dropout=0.5)
    module.eval()
    still = module(*inputs).representations[0]
    assert torch.equal(still, module(*inputs).representations[0])
    assert torch.equal(still, ElmoModule(tiny_bilm, dropout=0.0).train()(*inputs).representations[0])
    module.train()
    zeros = (module(*inputs).representations[0] == 0).float().mean()
    assert zeros > (still == 0).float().mean() + 0.2


def test_only_the_mixes_learn_unless_the_language_model_is_to(tiny_bilm, inputs):
    module = ElmoModule(tiny_bilm, dropout=0.0)
    module(*inputs).representations[0].square().sum().backward()
    learned = {name for name, p in module.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert learned == {"mixes.0.weights", "mixes.0.gamma"}
    module = ElmoModule(tiny_bilm, dropout=0.0, requires_grad=True)
    module(*inputs).representations[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in module.parameters())


def test_gradients_are_those_of_finite_differences(tiny_bilm, inputs):
    module = ElmoModule(tiny_bilm, dropout=0.0, requires_grad=True, do_layer_norm=True).double()
    parameters = {name: p for name, p in module.named_parameters() if name.endswith(("bias", "weights", "gamma"))}

    def run(*values):
        return torch.func.functional_call(module, dict(zip(parameters, values, strict=True)), inputs).representations[0]

    assert torch.autograd.gradcheck(run, tuple(parameters.values()), atol=1e-5, fast_mode=True)


def test_given_mix_weights_are_kept_and_frozen(tiny_bilm, inputs):
    module = ElmoModule(
        tiny_bilm, scalar_mix_parameters=[-9e10, 1.0, -9e10], dropout=0.0, keep_sentence_boundaries=True
    )
    output = module(*inputs)
    torch.testing.assert_close(output.representations[0], output.bilm.layers[1])
    assert not any(p.requires_grad for p in module.parameters())


def test_mix_weights_of_the_wrong_number_are_refused(tiny_bilm):
    with pytest.raises(ConfigError, match="2 mix weights were given for 3 layers"):
        ElmoModule(tiny_bilm, scalar_mix_parameters=[0.0, 1.0])


def test_mix_weights_are_saved_restored_and_readable_by_name(tiny_bilm, inputs):
    module = ElmoModule(tiny_bilm, dropout=0.0)
    module.mixes[0].weights.data = torch.tensor([3.0, 0.0, -3.0])
    module.mixes[0].gamma.data.fill_(2.0)
    state = module.state_dict()
    assert state["mixes.0.weights"].tolist() == [3, 0, -3] and state["mixes.0.gamma"] == 2
    other = ElmoModule(tiny_bilm, dropout=0.0)
    other.load_state_dict(state)
    assert torch.equal(other(*inputs).representations[0], module(*inputs).representations[0])


def test_the_penalty_is_lambda_times_the_squared_weights(tiny_bilm):
    module = ElmoModule(tiny_bilm, 2)
    module.mixes[0].weights.data = torch.tensor([1.0, 2.0, 0.0])
    module.mixes[1].weights.data = torch.tensor([0.0, 0.0, 3.0])
    penalty = module.penalty(0.1)
    assert penalty.item() == pytest.approx(0.1 * (5 + 9))
    penalty.backward()
    assert module.mixes[0].weights.grad.tolist() == pytest.approx([0.2, 0.4, 0.0])
    assert ElmoModule(tiny_bilm, 0).penalty(0.1) == 0


def test_a_mix_with_layer_norm_needs_the_mask_and_any_mix_its_number_of_layers():
    layers = [torch.randn(1, 2, 3)] * 2
    with pytest.raises(ConfigError, match="needs the mask"):
        ScalarMix(2, do_layer_norm=True)(layers)
    with pytest.raises(ConfigError, match="3 layers, but 2 were given"):
        ScalarMix(3)(layers)
