"""ELMoForManyLangs models: read with their own arithmetic, written, refused where they are damaged."""

import json
import os
import pickle
import resource
import shutil
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from elmokit.config import BiLMConfig, CharCNNConfig, EncoderConfig, WordAndCharConfig, WordEmbeddingConfig
from elmokit.embed.embedder import Embedder
from elmokit.errors import ConfigError, ElmokitError, InputError, WeightsError
from elmokit.model.build import build_bilm
from elmokit.text.characters import Alphabet, token_to_ids
from elmokit.text.token_ids import TokenIds
from elmokit.weights import convert, load_bilm, load_model, save_bilm
from elmokit.weights.manylangs_architecture import PUBLISHED, read_architecture
from tests.manylangs_reference import SPECIAL, MadeUp

SENTENCES = [
    ["的", "人民", "abc", "民的"],
    ["unknown", "龍", "", "abcabcabc人民", "a\u00a0b"],  # words and characters outside; one that is cut
    [],
    ["\u3000", "\u2028", "<bos>", "<S>"[:2]],
    ["abc" + "\r"],
]
VARIANTS = {
    "released": {},
    "clipped": {"encoder": {"cell_clip": 0.2, "proj_clip": 0.1}},
    "unclipped": {"encoder": {"cell_clip": 0, "proj_clip": None}},
    "tanh": {"embedder": {"activation": "tanh", "n_highway": 0}},
    "one layer": {"encoder": {"n_layers": 1}},
    "three layers": {"encoder": {"n_layers": 3}},
    "no words": {"embedder": {"word_dim": 0}},
    "no characters": {"embedder": {"char_dim": 0}},
}


def embedder(path):
    stored = load_model(path)
    return Embedder(stored.bilm, lexicon=stored.lexicon)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("legacy", [True, False])
def test_vectors_are_those_of_its_own_arithmetic(variant, legacy, tmp_path):
    model = MadeUp(**VARIANTS[variant])
    found = embedder(model.write(tmp_path / "m", legacy=legacy)).embed(SENTENCES)
    for sentence, vectors in zip(SENTENCES, found, strict=True):
        if "<bos>" not in sentence:  # there the boundary's, here a word like any other
            np.testing.assert_allclose(vectors, model.layers(sentence), atol=2e-6)


def test_a_word_begins_with_the_row_of_eow_and_ends_with_that_of_bow(tmp_path):
    model = MadeUp(characters=["b", "<pad>", "<eow>", "a", "<oov>", "<bow>", "<eos>", "<bos>"])
    bilm = load_bilm(model.write(tmp_path / "m"))
    characters = bilm.config.tokens.characters
    assert characters.alphabet == "ba"
    rows = token_to_ids("abx", 8, alphabet=Alphabet(characters.alphabet)) - 1
    expected = [model.characters.index(key) for key in ("<eow>", "a", "b", "<oov>", "<bow>", "<pad>", "<pad>", "<pad>")]
    table = model.tensors["char_emb_layer.embedding.weight"]
    assert np.array_equal(bilm.token_encoder.char_cnn.embedding.detach().numpy()[rows], table[expected])


def test_a_word_that_looks_like_a_boundary_of_ours_does_not_take_its_row(tmp_path):
    model = MadeUp()
    assert "<S>" in model.words
    stored = load_model(model.write(tmp_path / "m"))
    assert stored.lexicon.ids(["<S>", "</S>", "<UNK>", "<bos>"]).tolist() == [
        model.words.index(word) for word in ("<bos>", "<eos>", "<oov>", "<S>")
    ]


@pytest.mark.parametrize("path", ["/Users/x/configs/sample.json", r"C:\models\sample.json", "../configs/sample.json"])
def test_the_architecture_is_found_by_its_name_beside_the_weights(path, tmp_path):
    model = MadeUp()
    found = embedder(model.write(tmp_path / "m", config_path=path)).embed([["的"]])
    np.testing.assert_allclose(found[0], model.layers(["的"]), atol=2e-6)


def test_without_the_architecture_it_is_that_of_the_released_models(tmp_path):
    path = "/Users/x/cnn_50_100_512_4096_sample.json"
    folder = MadeUp().write(tmp_path / "m", config_path=path, architecture=None)
    with pytest.warns(UserWarning, match="cnn_50_100_512_4096_sample"):
        assert read_architecture(folder / "config.json", folder)[0] == PUBLISHED
    config = PUBLISHED.config("ab", 71_222, source=folder)
    assert (config.characters.num_filters, config.characters.max_characters_per_token) == (2048, 50)
    assert config.encoder == EncoderConfig(projection_dim=512, cell_dim=4096, cell_clip=3, proj_clip=3)
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in build_bilm(config).state_dict().items()}
    assert shapes["token_encoder.projection.weight"] == (512, 2148)
    assert shapes["token_encoder.embedding.weight"] == (71_222, 100)
    assert shapes["forward_encoder.layers.1.weight_ih"] == (16_384, 512)
    with pytest.warns(UserWarning, match="not beside it"), pytest.raises(WeightsError, match="misshaped"):
        load_bilm(folder)


@pytest.mark.parametrize("inside", ["", "zh.model/"])
def test_a_zip_is_read_like_its_directory(inside, tmp_path):
    model = MadeUp()
    folder = model.write(tmp_path / "m")
    with zipfile.ZipFile(tmp_path / "179.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, inside + path.name)
    found = embedder(tmp_path / "179.zip").embed([["的", "人民"]])
    np.testing.assert_allclose(found[0], model.layers(["的", "人民"]), atol=2e-6)


@pytest.mark.parametrize(("name", "rows"), [("char.dic", 16), ("word.dic", 11)])
def test_a_dictionary_of_another_model_is_told_with_both_counts(name, rows, tmp_path):
    folder = MadeUp().write(tmp_path / "m")
    lines = (folder / name).read_bytes().split(b"\n")
    (folder / name).write_bytes(b"\n".join(lines[1:]))  # the highest number is in the first line
    with pytest.raises(WeightsError, match=rf"{name} has {rows - 1} entries, but .* has {rows} rows.*different models"):
        load_bilm(folder)


@pytest.mark.parametrize("variant", ["released", "tanh", "no words", "no characters"])
def test_it_goes_to_our_format_and_back_bit_by_bit(variant, tmp_path, assert_same):
    model = MadeUp(**VARIANTS[variant])
    folder = model.write(tmp_path / "m")
    convert(folder, tmp_path / "native")
    convert(tmp_path / "native", tmp_path / "again", format="manylangs")
    first, native, again = (load_model(path) for path in (folder, tmp_path / "native", tmp_path / "again"))
    assert_same(first.bilm, native.bilm)
    assert_same(first.bilm, again.bilm)
    if model.architecture["token_embedder"]["word_dim"]:
        assert first.lexicon.words == native.lexicon.words == again.lexicon.words
        numbered = [f"{word}\t{number}\n" for number, word in enumerate(model.words)]
        assert (tmp_path / "again" / "word.dic").read_bytes() == "".join(numbered).encode()
    written = {}
    for name in ("token_embedder.pkl", "encoder.pkl"):
        written |= torch.load(tmp_path / "again" / name, weights_only=True)
    assert written.keys() == model.tensors.keys()
    for name, tensor in written.items():
        assert np.array_equal(tensor.numpy(), model.tensors[name]), name
    architecture = json.loads((tmp_path / "again" / "architecture.json").read_text())
    for part, values in architecture.items():
        for key, value in values.items():
            of_characters = key in ("filters", "n_highway", "max_characters_per_token")
            assert value == model.architecture[part][key] or (of_characters and variant == "no characters")


def test_the_characters_are_written_in_its_own_order(tmp_path, make_bilm):
    tokens = CharCNNConfig(embedding_dim=3, filters=((1, 4), (2, 6)), alphabet="ba的")
    save_bilm(make_bilm(tokens), tmp_path / "m", format="manylangs")
    keys = ["b", "a", "的", *SPECIAL]
    lines = "".join(f"{key}\t{number}\n" for number, key in enumerate(keys))
    assert (tmp_path / "m" / "char.dic").read_bytes() == lines.encode()
    assert not (tmp_path / "m" / "word.dic").exists()


@pytest.mark.parametrize(
    ("tokens", "encoder", "reason"),
    [
        (CharCNNConfig(filters=((1, 4),)), None, "UTF-8 bytes"),
        (CharCNNConfig(filters=((1, 5),), alphabet="a"), None, "no projection behind its filters"),
        (WordEmbeddingConfig(num_words=5), None, "word vectors that no projection"),
        (CharCNNConfig(filters=((1, 4),), alphabet="a"), {"cell_dim": 5}, "no projection in its LSTMs"),
        (CharCNNConfig(filters=((1, 4),), alphabet="a"), {"skip_connections": False}, "no skip connections"),
        (CharCNNConfig(filters=((1, 4),), alphabet="\n"), None, "line break"),
    ],
)
def test_what_its_format_cannot_hold_is_told_and_nothing_is_written(tokens, encoder, reason, tmp_path, make_bilm):
    bilm = make_bilm(tokens, EncoderConfig.model_validate({"projection_dim": 5, "cell_dim": 7} | (encoder or {})))
    with pytest.raises(WeightsError, match=reason):
        save_bilm(bilm, tmp_path / "m", format="manylangs")
    assert not list(tmp_path.rglob("*.*"))


def test_a_model_of_words_is_not_written_without_them(tmp_path):
    bilm = load_bilm(MadeUp().write(tmp_path / "m"))
    with pytest.raises(InputError, match="reads words"):
        save_bilm(bilm, tmp_path / "again", format="manylangs")
    with pytest.raises(ConfigError, match="vocabulary"):
        Embedder(bilm)
    with pytest.raises(InputError, match="float32 only"):
        save_bilm(bilm, tmp_path / "again", format="manylangs", dtype="float16")
    with pytest.raises(InputError, match="expected one of native"):
        save_bilm(bilm, tmp_path / "again", format="efml")
    with pytest.raises(WeightsError, match="cannot hold"):
        save_bilm(bilm, tmp_path / "again.hdf5")


def changed(folder, part, **values):
    path = folder / "sample.json"
    content = json.loads(path.read_text())
    content[part] |= values
    path.write_text(json.dumps(content))


def without(folder, name, key):
    kept = [line for line in (folder / name).read_bytes().split(b"\n") if not line.startswith(key.encode() + b"\t")]
    (folder / name).write_bytes(b"\n".join(kept))


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (lambda m: (m / "token_embedder.pkl").unlink(), "there is no file .*token_embedder.pkl"),
        (lambda m: (m / "config.json").unlink(), "there is no file .*config.json"),
        (lambda m: (m / "char.dic").unlink(), "there is no file .*char.dic"),
        (lambda m: (m / "word.dic").write_bytes(b""), r"word.dic, line 1 is b''"),
        (lambda m: (m / "word.dic").write_bytes(b"a\t0\nb 1\n"), r"word.dic, line 2 is b'b 1'"),
        (lambda m: (m / "word.dic").write_bytes(b"a\t0\nb\t0\n"), "line 2 .*no line has"),
        (lambda m: (m / "word.dic").write_bytes(b"a\t0\na\t1\n"), "2 lines, but only 1 different"),
        (lambda m: (m / "word.dic").write_bytes(b"a\t0\nb\t99\n"), "2 lines, numbered to 99"),
        (lambda m: (m / "word.dic").write_bytes(b"a\t0\n\xff\t1\n"), "line 2 .*UTF-8"),
        (lambda m: without(m, "char.dic", "<oov>"), "lines, numbered"),
        (lambda m: changed(m, "token_embedder", name="lstm"), "token_embedder.name"),
        (lambda m: changed(m, "token_embedder", char_dim=0, word_dim=0), "describes no biLM"),
        (lambda m: changed(m, "encoder", dim=5), "no projection in its LSTMs"),
        (lambda m: changed(m, "encoder", n_layers=3), "missing.*forward_layer_2"),
        (lambda m: changed(m, "encoder", n_layers=10**6), "layers of one kind"),
        (lambda m: changed(m, "token_embedder", word_dim=3), "misshaped.*word_emb_layer.*projection"),
        (lambda m: (m / "sample.json").write_text("[]"), "not as ELMoForManyLangs"),
        (lambda m: (m / "config.json").write_text('{"config_path": "' + "x" * 5000 + '"}'), "misshaped"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*not beside it")
def test_a_damaged_model_is_told_with_what_is_wrong(damage, finding, tmp_path):
    folder = MadeUp().write(tmp_path / "m")
    damage(folder)
    with pytest.raises(ElmokitError, match=f"(?s){finding}"):
        load_bilm(folder)


@pytest.mark.parametrize(
    ("words", "characters", "finding"),
    [
        (["<bos>", "<eos>", "x"], None, "no dictionary of words"),
        (None, ["ab", *SPECIAL], "'ab' is no single character"),
        (None, ["a", *SPECIAL[1:]], "lacks <bos>"),
        (None, SPECIAL, "alphabet"),
    ],
)
def test_dictionaries_of_another_kind_are_refused(words, characters, finding, tmp_path):
    parts = {name: value for name, value in (("words", words), ("characters", characters)) if value}
    with pytest.raises(ElmokitError, match=finding):
        load_bilm(MadeUp(**parts).write(tmp_path / "m"))


class Evil:
    def __reduce__(self):
        return os.mkdir, (self.target,)


@pytest.mark.parametrize("legacy", [True, False, None])
@pytest.mark.parametrize("name", ["token_embedder.pkl", "encoder.pkl"])
def test_a_pickle_runs_nothing(name, legacy, tmp_path):
    folder = MadeUp().write(tmp_path / "m")
    evil = Evil()
    evil.target = str(tmp_path / "made")
    if legacy is None:
        (folder / name).write_bytes(pickle.dumps({"a": evil}))
    else:
        torch.save({"projection.weight": evil}, folder / name, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(WeightsError, match=name):
        load_bilm(folder)
    assert not (tmp_path / "made").exists()


def test_the_encoders_file_alone_leads_to_the_model(tmp_path, assert_same):
    folder = MadeUp().write(tmp_path / "m")
    assert_same(load_bilm(folder / "encoder.pkl"), load_bilm(folder))


def test_a_storage_that_claims_more_than_the_file_has_takes_no_memory(tmp_path):
    model = MadeUp(words=[f"w{number}" for number in range(20_000)] + ["<bos>", "<eos>", "<oov>"])
    folder = model.write(tmp_path / "m")
    path = folder / "token_embedder.pkl"
    count = model.tensors["word_emb_layer.embedding.weight"].size.to_bytes(4, "little")
    assert path.read_bytes().count(b"J" + count) == 1  # of the storage, in the old format
    path.write_bytes(path.read_bytes().replace(b"J" + count, b"J" + (2**31 - 1).to_bytes(4, "little")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WeightsError, match="token_embedder"):
        load_bilm(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000  # KB, of the 8 GB that it claims


def test_ids_hold_a_word_and_its_characters_or_are_refused(tmp_path):
    stored = load_model(MadeUp().write(tmp_path / "m"))
    ids = TokenIds(stored.bilm.config.tokens, stored.lexicon)(["<S>", "的", "龍"])
    assert ids.shape == (3, 9)
    assert ids[:, 0].tolist() == [2, 5, 1]
    with pytest.raises(InputError, match=r"expected \(sentences, tokens, 9\)"):
        stored.bilm.token_encoder(torch.ones(1, 3, 8, dtype=torch.long))


def test_padding_has_no_vector_and_does_not_change_others(tmp_path):
    stored = load_model(MadeUp().write(tmp_path / "m"))
    ids = torch.from_numpy(TokenIds(stored.bilm.config.tokens, stored.lexicon)(["的", "abc"]))
    alone = stored.bilm.token_encoder(ids.unsqueeze(0))
    padded = stored.bilm.token_encoder(torch.nn.functional.pad(ids, (0, 0, 0, 2)).unsqueeze(0))
    torch.testing.assert_close(padded[:, :2], alone, atol=1e-6, rtol=0)
    assert not padded[:, 2:].any()


def test_the_configuration_has_its_json(tmp_path):
    config = load_bilm(MadeUp().write(tmp_path / "m")).config
    assert isinstance(config.tokens, WordAndCharConfig)
    assert BiLMConfig.from_json(config.to_json()) == config


FILES = ["config.json", "sample.json", "char.dic", "word.dic", "token_embedder.pkl", "encoder.pkl"]


@pytest.fixture(params=[True, False], ids=["legacy", "zip"])
def whole(request, tmp_path):
    return MadeUp().write(tmp_path / "whole", legacy=request.param)


def load(folder):
    try:
        bilm = load_bilm(folder)
    except ElmokitError:
        return
    assert all(bool(torch.isfinite(parameter).all()) for parameter in bilm.parameters())


def copy_of(whole):
    target = whole.with_name("damaged")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(whole, target)
    return target


@pytest.mark.filterwarnings("ignore")
@given(
    st.sampled_from(FILES),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(1, 255)), min_size=1, max_size=6),
)
def test_flipped_bytes(whole, name, flips):
    folder = copy_of(whole)
    data = bytearray((folder / name).read_bytes())
    for place, change in flips:
        data[place % len(data)] ^= change
    (folder / name).write_bytes(data)
    load(folder)


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(FILES), st.floats(0, 1), st.binary(max_size=60))
def test_cut_files_and_foreign_endings(whole, name, share, ending):
    folder = copy_of(whole)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[: int(share * len(data))] + ending)
    load(folder)


@pytest.mark.filterwarnings("ignore")
@given(st.data())
def test_renamed_and_reshaped_tensors(whole, data):
    folder = copy_of(whole)
    path = folder / data.draw(st.sampled_from(FILES[-2:]))
    tensors = dict(torch.load(path, weights_only=True))
    name = data.draw(st.sampled_from(sorted(tensors)))
    tensor = tensors.pop(name)
    shapes = [tensor.shape, (tensor.numel(),), (1, *tensor.shape), tuple(tensor.shape)[::-1], (0,), ()]
    shape = data.draw(st.sampled_from(shapes))
    tensor = tensor.reshape(shape) if shape not in ((0,), ()) else torch.zeros(shape)
    tensor = tensor.to(data.draw(st.sampled_from([torch.float16, torch.float64, torch.int32, torch.bool])))
    if data.draw(st.booleans()):
        tensor = tensor.expand(2**40, *tensor.shape)
    tensors[data.draw(st.sampled_from([name, "x", "projection.bias"]))] = tensor
    torch.save(tensors, path)
    load(folder)


@pytest.mark.filterwarnings("ignore")
@given(st.sampled_from(["encoder", "token_embedder"]), st.data())
def test_changed_values_of_the_architecture(whole, part, data):
    folder = copy_of(whole)
    content = json.loads((folder / "sample.json").read_text())
    key = data.draw(st.sampled_from(sorted(content[part])))
    values = st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=3), st.just([[1, 2]]), st.just([]))
    content[part][key] = data.draw(values)
    (folder / "sample.json").write_text(json.dumps(content))
    load(folder)
