"""`elmokit convert`."""

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from elmokit.cli.main import app
from elmokit.errors import InputError, WeightsError
from elmokit.model.lm_head import LMHead
from elmokit.text.lexicon import SPECIAL, Lexicon
from elmokit.weights import load_bilm, load_language_model, save_bilm
from elmokit.weights.native import save_language_model
from tests.manylangs_reference import MadeUp


def convert(*arguments):
    result = CliRunner().invoke(app, ["convert", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def test_a_model_goes_to_hdf5_and_back(tiny_bilm, tmp_path):
    save_bilm(tiny_bilm, tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b" / "weights.hdf5")
    convert(tmp_path / "b" / "weights.hdf5", tmp_path / "c")
    found = load_bilm(tmp_path / "c").state_dict()
    for name, tensor in tiny_bilm.state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=1e-7, rtol=0)


def test_a_model_goes_to_the_format_that_is_asked_for(tmp_path):
    MadeUp().write(tmp_path / "a")
    convert(tmp_path / "a", tmp_path / "b")
    convert(tmp_path / "b", tmp_path / "c", "--format", "manylangs")
    assert (tmp_path / "c" / "word.dic").is_file()
    a, c = (load_bilm(tmp_path / name).state_dict() for name in "ac")
    assert all(torch.equal(a[name], c[name]) for name in a)


def test_what_is_there_is_not_written_over(tiny_bilm, tmp_path):
    save_bilm(tiny_bilm, tmp_path / "a")
    before = (tmp_path / "a" / "model.safetensors").read_bytes()
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "a"), str(tmp_path / "a")])
    assert isinstance(result.exception, InputError)
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == before


def test_options_of_other_weights_are_not_written_over(tiny_bilm, tmp_path):
    save_bilm(tiny_bilm, tmp_path / "a.hdf5")
    save_bilm(tiny_bilm, tmp_path / "a.hdf5")
    with pytest.raises(WeightsError, match=r"belongs to other weights than b\.hdf5"):
        save_bilm(tiny_bilm, tmp_path / "b.hdf5")
    save_bilm(tiny_bilm, tmp_path / "b.hdf5", options_file=tmp_path / "b.json")


def test_half_the_size_keeps_softmax_and_words(tiny_bilm, tmp_path):
    lexicon = Lexicon([*SPECIAL, "word"])
    save_language_model(tiny_bilm, tmp_path / "a", head=LMHead(4, 8), lexicon=lexicon)
    convert(tmp_path / "a", tmp_path / "b", "--dtype", "float16")
    assert {t.dtype for t in load_file(tmp_path / "b" / "model.safetensors").values()} == {torch.float16}
    assert load_language_model(tmp_path / "b")[2].words == lexicon.words
