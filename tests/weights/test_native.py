import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordEmbeddingConfig
from elmokit.errors import ConfigError, InputError, WeightsError
from elmokit.model.lm_head import AdaptiveHead, LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import load_bilm, load_language_model, load_model, save_bilm
from elmokit.weights.layouts import Mix, StoredModel
from elmokit.weights.native import save_language_model, write


def test_a_directory_holds_the_config_and_the_parameters_by_name(make_bilm, assert_same, tmp_path):
    bilm = make_bilm(language="en")
    save_bilm(bilm, tmp_path / "new" / "model")
    folder = tmp_path / "new" / "model"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert BiLMConfig.from_json((folder / "config.json").read_text("utf-8")) == bilm.config
    assert set(load_file(folder / "model.safetensors")) == set(bilm.state_dict())
    loaded = load_bilm(folder)
    assert not loaded.training
    assert all(parameter.requires_grad and parameter.is_contiguous() for parameter in loaded.parameters())
    assert_same(loaded, bilm)


@pytest.mark.parametrize(
    ("tokens", "encoder"),
    [
        (WordEmbeddingConfig(num_words=7), None),
        (None, EncoderConfig(projection_dim=4, cell_dim=4, num_layers=1)),
        (
            CharCNNConfig(embedding_dim=2, filters=((1, 5),), num_highways=0),
            EncoderConfig(projection_dim=5, cell_dim=6),
        ),
    ],
)
def test_every_shape_comes_back_bit_identical(tokens, encoder, make_bilm, assert_same, tmp_path):
    bilm = make_bilm(tokens, encoder)
    save_bilm(bilm, tmp_path / "m")
    assert_same(load_bilm(tmp_path / "m"), bilm)


def test_float16_halves_the_size_and_loads_as_rounded_float32(make_bilm, assert_same, tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path / "half", dtype="float16")
    stored = load_file(tmp_path / "half" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    loaded = load_bilm(tmp_path / "half")
    for name, tensor in bilm.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.half().float())
    save_bilm(loaded, tmp_path / "again", dtype="float16")
    assert_same(load_bilm(tmp_path / "again"), loaded)


def test_a_number_beyond_float16_is_refused_by_name(make_bilm, tmp_path):
    bilm = make_bilm()
    with torch.no_grad():
        bilm.token_encoder.embedding[0, 0] = 1e6
    with pytest.raises(WeightsError, match=r"'token_encoder\.embedding'.*float16"):
        save_bilm(bilm, tmp_path / "half", dtype="float16")
    assert not (tmp_path / "half").exists()


def test_only_the_language_models_head_may_stand_beside_the_parameters(make_bilm, assert_same, tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": torch.zeros(3, 5), "lm_head.bias": torch.zeros(3)}, tmp_path / "model.safetensors"
    )
    assert_same(load_bilm(tmp_path), bilm)
    save_file(tensors | {"lm_headless": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"unused: 'lm_headless' \(3,\)"):
        load_bilm(tmp_path)


def test_all_findings_come_in_one_error_with_both_shapes(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["token_encoder.projection.bias"]
    tensors["forward_encoder.layers.0.bias"] = torch.zeros(2, 2, 2, 2)
    tensors["backward_encoder.layers.0.bias"] = torch.zeros(28, dtype=torch.int64)
    tensors["stranger"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_bilm(tmp_path)
    message = str(caught.value)
    assert "missing: 'token_encoder.projection.bias' (5,)" in message
    assert "unused: 'stranger' (1,)" in message
    assert "'forward_encoder.layers.0.bias' is (2, 2, 2, 2), expected (28,)" in message
    assert "'backward_encoder.layers.0.bias' is I64" in message


def test_a_config_of_another_model_names_both_shapes(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path / "a")
    save_bilm(make_bilm(encoder=EncoderConfig(projection_dim=6, cell_dim=8)), tmp_path / "b")
    with pytest.raises(WeightsError, match=r"is \(5,\), expected \(6,\)"):
        load_bilm((tmp_path / "b" / "config.json", tmp_path / "a" / "model.safetensors"))


def test_nan_names_its_tensor(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["token_encoder.embedding"][5, 1] = np.nan
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"'token_encoder\.embedding'.*NaN"):
        load_bilm(tmp_path)


def test_a_config_that_is_none_is_named(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path)
    (tmp_path / "config.json").write_text('{"tokens": {"kind": "bpe"}}', "utf-8")
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_bilm(tmp_path)


def test_a_gigantic_config_is_refused_before_memory_is_taken(make_bilm, tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path)
    for change in ({"num_layers": 10**9}, {"cell_dim": 10**12}, {"cell_dim": 10**18}):
        encoder = EncoderConfig(**(bilm.config.encoder.model_dump() | change))
        config = bilm.config.model_copy(update={"encoder": encoder})
        (tmp_path / "config.json").write_text(config.to_json(), "utf-8")
        with pytest.raises(WeightsError):
            load_bilm(tmp_path)


def test_the_loaded_tensors_do_not_hang_on_the_file(make_bilm, assert_same, tmp_path):
    bilm = make_bilm()
    save_bilm(bilm, tmp_path)
    loaded = load_bilm(tmp_path)
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.write(b"\0" * (tmp_path / "model.safetensors").stat().st_size)
    assert_same(loaded, bilm)


def test_a_failed_save_leaves_what_was_there(make_bilm, assert_same, tmp_path):
    good, bad = make_bilm(), make_bilm()
    save_bilm(good, tmp_path / "m")
    with torch.no_grad():
        bad.token_encoder.embedding.fill_(torch.inf)
    with pytest.raises(WeightsError, match="embedding"):
        save_bilm(bad, tmp_path / "m")
    assert_same(load_bilm(tmp_path / "m"), good)
    (tmp_path / "file").write_text("")
    with pytest.raises(WeightsError, match="cannot be written"):
        save_bilm(good, tmp_path / "file" / "m")


def test_arguments_of_the_other_format_are_refused(make_bilm, tmp_path):
    with pytest.raises(InputError, match="options"):
        save_bilm(make_bilm(), tmp_path / "m", options_file=tmp_path / "o.json")
    with pytest.raises(InputError, match="float32 only"):
        save_bilm(make_bilm(), tmp_path / "m.hdf5", dtype="float16")
    assert list(tmp_path.iterdir()) == []


def test_a_language_model_keeps_its_softmax_and_words(make_bilm, assert_same, tmp_path):
    bilm, head, lexicon = make_bilm(), LMHead(6, 5), Lexicon([*SPECIAL, "the", "of", "\u2028"])
    save_language_model(bilm, tmp_path, head=head, lexicon=lexicon)
    assert_same(load_bilm(tmp_path), bilm)
    same, same_head, same_lexicon = load_language_model(tmp_path)
    assert_same(same, bilm)
    assert same_lexicon.words == lexicon.words
    for name, tensor in head.state_dict().items():
        assert torch.equal(same_head.state_dict()[name], tensor)


def test_a_language_model_with_the_words_of_another_names_both_counts(make_bilm, tmp_path):
    save_language_model(make_bilm(), tmp_path, head=LMHead(3, 5), lexicon=Lexicon(SPECIAL))
    Lexicon([*SPECIAL, "one", "more"]).write(tmp_path / "vocab.txt")
    with pytest.raises(WeightsError, match=r"has 5 words, but its softmax has 3 rows"):
        load_language_model(tmp_path)
    (tmp_path / "vocab.txt").unlink()
    with pytest.raises(WeightsError, match=r"without its words.*vocab\.txt"):
        load_language_model(tmp_path)


def test_a_model_without_a_softmax_is_no_language_model(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path)
    Lexicon(SPECIAL).write(tmp_path / "vocab.txt")
    with pytest.raises(WeightsError, match="without its softmax"):
        load_language_model(tmp_path)


def test_an_adaptive_softmax_comes_back(make_bilm, tmp_path):
    lexicon = Lexicon([*SPECIAL, *map(str, range(10_500))])
    head = AdaptiveHead(len(lexicon), 16)
    assert len(head.softmax.tail) == 2
    bilm = make_bilm(encoder=EncoderConfig(projection_dim=16, cell_dim=8))
    save_language_model(bilm, tmp_path, head=head, lexicon=lexicon)
    _, same, words = load_language_model(tmp_path)
    assert words.words == lexicon.words
    for name, tensor in head.state_dict().items():
        assert torch.equal(same.state_dict()[name], tensor)


def test_a_word_level_model_keeps_its_words_without_a_softmax(make_bilm, assert_same, tmp_path):
    bilm, lexicon = make_bilm(WordEmbeddingConfig(num_words=4)), Lexicon([*SPECIAL, "word"])
    write(StoredModel(bilm, lexicon), tmp_path)
    stored = load_model(tmp_path)
    assert_same(stored.bilm, bilm)
    assert stored.lexicon.words == lexicon.words
    assert load_model(tmp_path, words=False).lexicon is None
    with pytest.raises(WeightsError, match="without its softmax"):
        load_language_model(tmp_path)
    Lexicon([*SPECIAL, "one", "two"]).write(tmp_path / "vocab.txt")
    with pytest.raises(WeightsError, match="has 5 words, but its table of words has 4 rows"):
        load_model(tmp_path)
    assert_same(load_bilm(tmp_path), bilm)


def test_mixes_come_back_in_order(make_bilm, assert_same, tmp_path):
    mixes = tuple(Mix((0.1 * k, -3.0, 1e-7), 1.7 + k) for k in range(12))
    write(StoredModel(make_bilm(), mixes=mixes), tmp_path)
    found = load_model(tmp_path).mixes
    assert [np.float32(mix.weights).tolist() for mix in mixes] == [list(mix.weights) for mix in found]
    assert [float(np.float32(mix.gamma)) for mix in mixes] == [mix.gamma for mix in found]
    assert_same(load_bilm(tmp_path), make_bilm())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mixes.0.gamma": None}, "missing: 'mixes.0.gamma'"),
        ({"mixes.0.weights": torch.zeros(4)}, r"'mixes.0.weights' is \(4,\), expected \(3,\)"),
        ({"mixes.7.gamma": torch.zeros(())}, "unused: 'mixes.7.gamma'"),
        ({"mixes.x": torch.zeros(())}, "unused: 'mixes.x'"),
        ({"mixes.": torch.zeros(())}, "unused: 'mixes.'"),
        ({"mixes.0.gamma": torch.tensor(torch.inf)}, "infinite"),
    ],
)
def test_a_mix_that_is_none_is_named(change, said, make_bilm, tmp_path):
    write(StoredModel(make_bilm(), mixes=(Mix((0.0, 0.0, 0.0), 1.0),)), tmp_path)
    tensors = {**load_file(tmp_path / "model.safetensors"), **change}
    save_file({name: t for name, t in tensors.items() if t is not None}, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=said):
        load_bilm(tmp_path)


@pytest.mark.parametrize("shape", [(2**40, 0), (0, 5), ()])
def test_a_softmax_of_impossible_sizes_takes_no_memory(shape, make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    head = {"lm_head.weight": torch.empty(shape), "lm_head.bias": torch.empty(shape)}
    save_file(tensors | head, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.safetensors"):
        load_language_model(tmp_path)
