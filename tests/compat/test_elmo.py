import copy
import inspect
import json

import h5py
import numpy as np
import pytest
import torch
from torch import nn

from elmokit.compat.allennlp import Elmo, ElmoEmbedder, batch_to_ids
from elmokit.config import BiLMConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError, ElmokitError, InputError, WeightsError
from elmokit.model.build import build_bilm
from elmokit.weights import save_bilm

WIDTH = 12
SENTENCES = [["The", "cat", "sat", "."], ["Sparks", "fly"], ["Extraordinarily", "long", "words"]]


def ids(*sentences):
    return batch_to_ids(sentences, max_characters_per_token=WIDTH)


def vectors(elmo, *sentences):
    with torch.no_grad():
        return elmo(ids(*sentences))["elmo_representations"][0]


@pytest.fixture
def bilm(make_bilm):
    return make_bilm(width=WIDTH)


def test_the_constructor_has_the_signature_of_allennlp(files):
    parameters = inspect.signature(Elmo).parameters.values()
    positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [(p.name, p.default) for p in positional] == [
        ("options_file", inspect.Parameter.empty),
        ("weight_file", inspect.Parameter.empty),
        ("num_output_representations", inspect.Parameter.empty),
        ("requires_grad", False),
        ("do_layer_norm", False),
        ("dropout", 0.5),
        ("vocab_to_cache", None),
        ("keep_sentence_boundaries", False),
        ("scalar_mix_parameters", None),
        ("module", None),
    ]
    options, weights = files
    elmo = Elmo(options, weights, 1)
    assert elmo.training
    assert elmo.get_output_dim() == 16
    assert not any(p.requires_grad for p in elmo.bilm.parameters())
    assert all(p.requires_grad for p in elmo.mixes.parameters())


# R01: what TensorFlow computed, state carried row by row through all ten batches.
def test_the_top_layer_is_what_tensorflow_computed_for_ten_batches(published):
    sentences = json.loads((published / "sentences.json").read_text("utf-8"))
    elmo = Elmo(published / "options.json", published / "lm_weights.hdf5", 0).eval()
    embedder = ElmoEmbedder(published / "options.json", published / "lm_weights.hdf5")
    references = [h5py.File(published / f"lm_embeddings_{k}.hdf5") for k in range(3)]
    for i in range(10):
        batch = [sentences[k][i].split() for k in range(3)]
        with torch.no_grad():
            top = elmo.run(batch_to_ids(batch)).bilm.layers[-1][:, 1:-1].numpy()
        layers = embedder.embed_batch(batch)
        for k in range(3):
            expected = np.concatenate(references[k][str(i)][...], axis=-1)
            assert np.abs(top[k, : len(batch[k])] - expected).max() < 1.5e-6
            assert np.abs(layers[k][-1] - expected).max() < 1.5e-6


# R02
def test_repeated_calls_differ_with_state_and_are_equal_after_a_reset(bilm):
    elmo = Elmo(None, None, 1, module=bilm).eval()
    first, second = vectors(elmo, *SENTENCES), vectors(elmo, *SENTENCES)
    elmo.reset_states()
    assert torch.equal(vectors(elmo, *SENTENCES), first)
    assert (first - second)[:, 0].abs().amax(dim=1).min() > 1e-3  # every row


def test_repeated_calls_are_bit_identical_without_state(bilm):
    elmo = Elmo(None, None, 1, module=bilm, stateful=False).eval()
    first = vectors(elmo, *SENTENCES)
    vectors(elmo, ["Something", "else"])
    assert torch.equal(vectors(elmo, *SENTENCES), first)
    carrying = Elmo(None, None, 1, module=bilm).eval()
    assert torch.equal(vectors(carrying, *SENTENCES), first)


# R05
def test_dropout_is_on_while_training_and_eval_equals_no_dropout(bilm):
    elmo = Elmo(None, None, 1, module=bilm, stateful=False)
    plain = Elmo(None, None, 1, module=bilm, stateful=False, dropout=0.0)
    assert not torch.equal(vectors(elmo, *SENTENCES), vectors(elmo, *SENTENCES))
    assert torch.equal(vectors(elmo.eval(), *SENTENCES), vectors(plain, *SENTENCES))


# R18
@pytest.mark.parametrize("width", [10, 50, 100])
def test_ids_of_the_models_own_width_are_taken_and_others_are_refused(make_bilm, width):
    elmo = Elmo(None, None, 1, module=make_bilm(width=width)).eval()
    fitting = batch_to_ids(SENTENCES, max_characters_per_token=width)
    assert elmo(fitting)["elmo_representations"][0].shape == (3, 4, 16)
    for other in (width - 1, width + 1):
        with pytest.raises(InputError, match=f"max_characters_per_token={width}"):
            elmo(batch_to_ids(SENTENCES, max_characters_per_token=other))


def test_a_batch_of_four_dimensions_gives_four_and_equals_its_rows(bilm):
    flat = ids(*SENTENCES, [], ["a"], ["b", "c"])
    elmo = Elmo(None, None, 2, module=bilm).eval()
    folded = elmo(flat.view(2, 3, *flat.shape[1:]))
    elmo.reset_states()
    unfolded = elmo(flat)
    assert folded["mask"].shape == (2, 3, 4)
    assert torch.equal(folded["mask"].flatten(0, 1), unfolded["mask"])
    for a, b in zip(folded["elmo_representations"], unfolded["elmo_representations"], strict=True):
        assert a.shape == (2, 3, 4, 16)
        assert torch.equal(a.flatten(0, 1), b)


def test_the_mask_is_bool_and_marks_real_tokens_and_the_rest_is_zero(bilm):
    out = Elmo(None, None, 1, module=bilm).eval()(ids(*SENTENCES, []))
    assert set(out) == {"elmo_representations", "mask"}
    assert out["mask"].dtype == torch.bool
    assert out["mask"].sum(dim=1).tolist() == [4, 2, 3, 0]
    assert torch.equal(out["elmo_representations"][0].abs().sum(-1) > 0, out["mask"])


def test_kept_boundaries_stand_around_the_same_vectors(bilm):
    kept = Elmo(None, None, 1, module=bilm, keep_sentence_boundaries=True).eval()(ids(*SENTENCES))
    bare = Elmo(None, None, 1, module=bilm).eval()(ids(*SENTENCES))
    assert kept["mask"].sum(dim=1).tolist() == [6, 4, 5]
    for row, length in enumerate([4, 2, 3]):
        whole, inner = kept["elmo_representations"][0][row], bare["elmo_representations"][0][row]
        assert torch.equal(whole[1 : 1 + length], inner[:length])
        assert whole[[0, length + 1]].abs().sum(dim=1).min() > 0


# R47
def test_representations_are_mixes_and_a_fresh_mix_is_the_mean_of_the_layers(bilm):
    elmo = Elmo(None, None, 2, module=bilm, stateful=False).eval()
    first, second = elmo(ids(*SENTENCES))["elmo_representations"]
    layers = torch.stack(elmo.run(ids(*SENTENCES)).bilm.layers)[:, :, 1:-1]
    assert torch.equal(first, second)
    assert (layers[0] - layers[1]).abs().max() > 0.1
    assert (layers[1] - layers[2]).abs().max() > 0.1
    mask = elmo(ids(*SENTENCES))["mask"]
    torch.testing.assert_close(first[mask], layers.mean(dim=0)[mask])


# R48
@pytest.mark.parametrize("count", [0, 1, 5])
def test_any_number_of_representations_works(bilm, count):
    out = Elmo(None, None, count, module=bilm)(ids(*SENTENCES))
    assert len(out["elmo_representations"]) == count
    assert out["mask"].sum() == 9


def test_a_negative_number_of_representations_is_refused(bilm):
    with pytest.raises(ConfigError, match="expected 0 or more"):
        Elmo(None, None, -1, module=bilm)


# R46
def test_mixes_survive_a_file_of_trainable_parameters_alone(bilm, tmp_path):
    elmo = Elmo(None, None, 2, module=bilm)
    with torch.no_grad():
        elmo.scalar_mix_1.weights.copy_(torch.tensor([3.0, 0.0, -3.0]))
        elmo.scalar_mix_1.gamma.fill_(2.0)
    trainable = {name for name, parameter in elmo.named_parameters() if parameter.requires_grad}
    torch.save({k: v for k, v in elmo.state_dict().items() if k in trainable}, tmp_path / "task.pt")
    again = Elmo(None, None, 2, module=bilm)
    assert not again.load_state_dict(torch.load(tmp_path / "task.pt"), strict=False).unexpected_keys
    assert again.scalar_mix_1.weights.tolist() == [3, 0, -3]
    assert again.scalar_mix_1.gamma.item() == 2
    assert again.scalar_mix_0.weights.tolist() == [0, 0, 0]
    assert torch.equal(vectors(again.eval(), *SENTENCES), vectors(elmo.eval(), *SENTENCES))
    with pytest.raises(AttributeError, match="scalar_mix_2"):
        _ = elmo.scalar_mix_2


def test_given_mix_parameters_are_frozen_with_gamma(bilm):
    elmo = Elmo(None, None, 1, module=bilm, scalar_mix_parameters=[-9e3, 1.0, -9e3], stateful=False).eval()
    assert not any(parameter.requires_grad for parameter in elmo.parameters())
    out = elmo.run(ids(*SENTENCES))
    only = out.bilm.layers[1][:, 1:-1] * out.mask.unsqueeze(-1)
    torch.testing.assert_close(out.representations[0], only)
    with pytest.raises(ConfigError, match="2 mix weights were given for 3 layers"):
        Elmo(None, None, 1, module=bilm, scalar_mix_parameters=[1.0, 2.0])


def test_layer_norm_is_over_all_tokens_and_boundaries_of_the_batch(bilm):
    elmo = Elmo(None, None, 1, module=bilm, do_layer_norm=True, stateful=False).eval()
    out = elmo.run(ids(*SENTENCES))
    normal = []
    for layer in out.bilm.layers:
        values = layer[out.bilm.mask].double()
        normal.append((layer.double() - values.mean()) / values.var(unbiased=False).add(1e-12).sqrt())
    expected = torch.stack(normal).mean(dim=0)[:, 1:-1] * out.mask.unsqueeze(-1)
    torch.testing.assert_close(out.representations[0].double(), expected, atol=1e-5, rtol=0)


def test_the_language_model_is_trained_when_asked_and_not_otherwise(make_bilm):
    for requires_grad in (False, True):
        elmo = Elmo(None, None, 1, requires_grad, module=make_bilm(width=WIDTH), dropout=0.0)
        for _ in range(3):  # carried state is cut from the graph, or the second backward would fail
            elmo(ids(*SENTENCES))["elmo_representations"][0].square().sum().backward()
        assert all((p.grad is not None) == requires_grad for p in elmo.bilm.parameters())
        assert elmo.scalar_mix_0.weights.grad is not None


def test_gradients_do_not_reach_an_earlier_batch(make_bilm):
    bilm = make_bilm(width=WIDTH)
    elmo = Elmo(None, None, 1, True, module=bilm, dropout=0.0)
    elmo(ids(["before"]))
    elmo(ids(["now"]))["elmo_representations"][0].sum().backward()
    carried = bilm.token_encoder.embedding.grad.abs().sum(dim=1) > 0
    assert carried[ord("n")]
    assert not carried[ord("b")]


def test_state_is_in_no_state_dict_and_a_deep_copy_goes_on_by_itself(bilm):
    elmo = Elmo(None, None, 1, module=bilm).eval()
    keys = set(elmo.state_dict())
    vectors(elmo, *SENTENCES)
    assert set(elmo.state_dict()) == keys
    other = copy.deepcopy(elmo)
    second = vectors(elmo, *SENTENCES)
    assert torch.equal(vectors(other, *SENTENCES), second)
    elmo.reset_states()
    assert not torch.equal(vectors(other, *SENTENCES), second)


def test_state_follows_the_model_to_another_precision_and_out_of_inference_mode(make_bilm):
    elmo = Elmo(None, None, 1, True, module=make_bilm(width=WIDTH), dropout=0.0)
    with torch.inference_mode():
        elmo(ids(*SENTENCES))
    elmo(ids(*SENTENCES))["elmo_representations"][0].sum().backward()
    assert elmo.double()(ids(*SENTENCES))["elmo_representations"][0].dtype == torch.float64


# R44; the two processes are in test_distributed.py.
def test_a_replica_of_data_parallel_is_refused_unless_stateless(bilm):
    for stateful in (True, False):
        elmo = Elmo(None, None, 0, module=bilm, stateful=stateful).eval()
        replica = elmo._replicate_for_data_parallel()  # what nn.DataParallel does for each GPU
        replica.bilm = bilm
        if stateful:
            with pytest.raises(ConfigError, match="DistributedDataParallel"):
                replica(ids(*SENTENCES))
        else:
            assert replica(ids(*SENTENCES))["mask"].sum() == 9


# R58
def test_an_exported_model_gives_equal_tensors_and_vectors(files, tmp_path):
    elmo = Elmo(*files, 1, True)
    with torch.no_grad():
        for name, parameter in elmo.bilm.named_parameters():
            if not name.endswith("bias"):
                parameter.mul_(1.01)
    save_bilm(elmo.bilm, tmp_path / "tuned" / "weights.hdf5")
    again = Elmo(tmp_path / "tuned" / "options.json", tmp_path / "tuned" / "weights.hdf5", 1)
    for (name, a), (_, b) in zip(elmo.bilm.named_parameters(), again.bilm.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-7 if name.endswith("bias") else 0, rtol=0)
    torch.testing.assert_close(vectors(again.eval(), *SENTENCES), vectors(elmo.eval(), *SENTENCES), atol=1e-6, rtol=0)


def test_swapped_files_are_named(files):
    options, weights = files
    with pytest.raises(WeightsError, match="swapped"):
        Elmo(weights, options, 1)


def test_files_and_modules_exclude_each_other(bilm, files):
    for arguments in [(*files, 1, False, False, 0.5, None, False, None, bilm), (files[0], None, 1), (None, None, 1)]:
        with pytest.raises(ConfigError, match="module"):
            Elmo(*arguments)


def test_a_model_of_whole_words_is_refused():
    config = BiLMConfig(tokens=WordEmbeddingConfig(num_words=5), encoder=EncoderConfig(projection_dim=4, cell_dim=8))
    with pytest.raises(ConfigError, match="whole words"):
        Elmo(None, None, 1, module=build_bilm(config))


# R09, R10
def test_tokens_may_be_objects_with_text_and_strings_in_place_of_sentences_are_refused():
    class Token:
        def __init__(self, text):
            self.text = text

    objects = [[Token(word) for word in sentence] for sentence in SENTENCES]
    assert torch.equal(batch_to_ids(objects), batch_to_ids(SENTENCES))
    for wrong in (["I am here"], "I am here", ["I", "am"], [["a"], "b"], [b"a"], [[1]], [1], [[["a"]]]):
        with pytest.raises(InputError):
            batch_to_ids(wrong)


def test_ids_have_the_layout_of_allennlp():
    batch = batch_to_ids([["ab", "é"], [""]])
    assert batch.shape == (2, 2, 50)
    assert batch.dtype == torch.int64
    assert batch[0, 0, :5].tolist() == [259, 98, 99, 260, 261]
    assert batch[0, 1, :5].tolist() == [259, 0xC3 + 1, 0xA9 + 1, 260, 261]
    assert batch[1, 0, :3].tolist() == [259, 260, 261]
    assert batch[1, 1].tolist() == [0] * 50
    assert batch_to_ids([]).shape == (0, 0, 50)
    assert batch_to_ids([[]]).shape == (1, 0, 50)


@pytest.mark.parametrize("sentences", [[], [[]], [[], []]])
def test_empty_batches_and_sentences_give_empty_tensors(bilm, sentences):
    for training in (False, True):
        out = Elmo(None, None, 1, module=bilm).train(training)(ids(*sentences))
        assert out["elmo_representations"][0].shape == (len(sentences), 0, 16)
        assert out["mask"].shape == (len(sentences), 0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (SENTENCES, "of type list"),
        (torch.zeros(3, 4, dtype=torch.long), r"shape \(3, 4\)"),
        (torch.zeros(1, 1, 1, 3, WIDTH, dtype=torch.long), "expected"),
        (torch.zeros(3, 4, WIDTH), "float32"),
        (torch.full((3, 4, WIDTH), 262), "262"),
        (torch.full((3, 4, WIDTH), -1), "-1"),
        (ids(["a", "b", "c"])[:, [0, 1, 2]] * torch.tensor([1, 0, 1])[:, None], "row 0 .* padding"),
        (ids(["a"], ["b", "c"]).flip(1), "row 0 .* padding"),
    ],
)
def test_what_is_no_batch_of_ids_is_refused_with_a_reason(bilm, wrong, said):
    with pytest.raises(ElmokitError, match=said):
        Elmo(None, None, 1, module=bilm)(wrong)


def test_ids_may_be_of_any_integer_type(bilm):
    elmo = Elmo(None, None, 1, module=bilm, stateful=False).eval()
    expected = elmo(ids(*SENTENCES))["elmo_representations"][0]
    for dtype in (torch.int32, torch.int16):
        assert torch.equal(elmo(ids(*SENTENCES).to(dtype))["elmo_representations"][0], expected)


def test_the_module_works_inside_a_network_that_is_trained(bilm):
    torch.manual_seed(0)
    elmo = Elmo(None, None, 1, module=bilm, dropout=0.0)
    head = nn.Linear(elmo.get_output_dim(), 2)
    optimizer = torch.optim.Adam([p for p in [*elmo.parameters(), *head.parameters()] if p.requires_grad], lr=0.1)
    losses = []
    for _ in range(25):
        out = elmo(ids(*SENTENCES))
        loss = nn.functional.cross_entropy(head(out["elmo_representations"][0])[:, 0], torch.tensor([0, 1, 0]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
