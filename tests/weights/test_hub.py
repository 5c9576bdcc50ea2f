import sys
import zipfile

import pytest
from hub_server import hub_serving

from elmokit.config import BiLMConfig
from elmokit.errors import DownloadError, InputError, MissingExtraError, WeightsError
from elmokit.weights import load_bilm, push, save_bilm
from elmokit.weights.card import write_card
from elmokit.weights.hub import licence_of, snapshot

pytest.importorskip("huggingface_hub", reason="needs the extra hub")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with hub_serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        for name in ("ELMOKIT_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "here").mkdir()
        monkeypatch.chdir(tmp_path / "here")
        yield hub


@pytest.fixture
def saved(make_bilm, tmp_path):
    """The folder of a native model."""
    save_bilm(make_bilm(language="en"), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("name", ["hf://owner/model", "owner/model", "hf://owner/model@main", "owner/model@main"])
def test_a_repository_loads_by_its_name(name, hub, saved, make_bilm, assert_same):
    hub.add("owner/model", saved)
    assert_same(load_bilm(name), make_bilm(language="en"))


def test_a_revision_is_another_model(hub, saved, make_bilm, tmp_path):
    save_bilm(make_bilm(language="fi"), tmp_path / "other")
    hub.add("owner/model", saved)
    hub.add("owner/model", tmp_path / "other", revision="v2")
    assert load_bilm("owner/model").config.language == "en"
    assert load_bilm("hf://owner/model@v2").config.language == "fi"
    with pytest.raises(DownloadError, match="no such revision"):
        load_bilm("hf://owner/model@v3")


def test_a_repository_may_hold_hdf5_or_one_archive_beside_its_card(hub, make_bilm, assert_same, tmp_path):
    save_bilm(make_bilm(), tmp_path / "hdf5" / "weights.hdf5")
    hub.add("owner/hdf5", tmp_path / "hdf5")
    assert_same(load_bilm("owner/hdf5"), make_bilm())
    (tmp_path / "zip").mkdir()
    with zipfile.ZipFile(tmp_path / "zip" / "model.zip", "w") as archive:
        for path in (tmp_path / "hdf5").iterdir():
            archive.write(path, path.name)
    (tmp_path / "zip" / "README.md").write_text("# A model\n")
    (tmp_path / "zip" / ".gitattributes").write_text("")
    hub.add("owner/zip", tmp_path / "zip")
    assert_same(load_bilm("owner/zip"), make_bilm())


def test_offline_gives_what_is_in_the_cache_and_names_what_is_not(hub, saved, monkeypatch):
    hub.add("owner/model", saved)
    load_bilm("owner/model")
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    before = list(hub.requests)
    load_bilm("owner/model")
    load_bilm("hf://owner/model")
    with pytest.raises(DownloadError, match=r"owner/other is not in the cache: ELMOKIT_OFFLINE"):
        load_bilm("hf://owner/other")
    assert hub.requests == before


def test_a_second_load_fetches_no_file_again(hub, saved):
    hub.add("owner/model", saved)
    load_bilm("owner/model")
    first = sum("GET /owner/model/resolve" in request for request in hub.requests)
    load_bilm("owner/model")
    assert first == 2
    assert sum("GET /owner/model/resolve" in request for request in hub.requests) == first


def test_a_path_that_exists_is_no_repository(hub, saved, make_bilm, tmp_path):
    hub.add("owner/model", saved)
    save_bilm(make_bilm(language="fi"), tmp_path / "here" / "owner" / "model")
    assert load_bilm("owner/model").config.language == "fi"
    with pytest.raises(WeightsError, match="there is no file, directory"):
        load_bilm("owner/modle")  # a slip of the pen in the name of a folder here
    assert hub.requests == []


def test_what_is_nowhere_is_one_clear_error(hub, monkeypatch):
    with pytest.raises(WeightsError, match=r"no file or directory 'who/what'.*no such repository"):
        load_bilm("who/what")
    with pytest.raises(DownloadError, match="no such repository"):
        load_bilm("hf://who/what")
    with pytest.raises(InputError, match="expected hf://owner/name"):
        load_bilm("hf://what")
    with hub_serving() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.endpoint)
    with pytest.raises(DownloadError, match="could not be fetched"):
        load_bilm("hf://who/what")


def test_without_the_extra_the_install_line_is_named(hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'elmokit\[hub\]'"):
        snapshot("owner/model")
    with pytest.raises(WeightsError, match=r"no file or directory 'owner/model'.*pip install 'elmokit\[hub\]'"):
        load_bilm("owner/model")


def test_a_pushed_model_comes_back_the_same_with_its_card(hub, saved, make_bilm, assert_same):
    hub.token = "hf_secret"
    write_card(saved, licence="apache-2.0", name="me/mine")
    (saved / ".hidden").write_text("")
    assert push(saved, "me/mine") == f"{hub.endpoint}/me/mine"
    assert sorted(hub.repositories["me/mine"]["main"]) == ["README.md", "config.json", "model.safetensors"]
    assert hub.private["me/mine"] is not True
    assert_same(load_bilm("hf://me/mine"), make_bilm(language="en"))
    push(saved, "me/mine")  # again, into the same


def test_a_private_repository_is_made_on_request(hub, saved):
    write_card(saved, licence="mit")
    push(saved, "me/mine", private=True)
    assert hub.private["me/mine"] is True


def test_nothing_is_pushed_without_a_card_with_a_licence(hub, saved):
    with pytest.raises(InputError, match=r"README\.md is missing"):
        push(saved, "me/mine")
    for text in (
        "# Mine\nlicense: mit\n",
        "---\nlanguage: en\n---\nlicense: mit\n",
        "---\nlicense:\nlanguage: en\n---\n",
    ):
        (saved / "README.md").write_text(text)
        with pytest.raises(InputError, match="names no licence"):
            push(saved, "me/mine")
    assert hub.requests == []


@pytest.mark.parametrize("name", ["mine", "me/mine/too", "me/mine@v1", "/mine", "me/", "../mine", ""])
def test_a_name_that_is_none_is_refused(name, hub, saved):
    write_card(saved, licence="mit")
    with pytest.raises(InputError, match="expected owner/name"):
        push(saved, name)
    assert hub.requests == []


def test_a_folder_without_a_model_is_not_pushed(hub, tmp_path):
    (tmp_path / "README.md").write_text("---\nlicense: mit\n---\n")
    with pytest.raises(InputError, match="no folder that save_bilm"):
        push(tmp_path, "me/mine")


def test_a_push_that_is_not_allowed_or_offline_is_one_clear_error(hub, saved, monkeypatch):
    write_card(saved, licence="mit")
    hub.token = "another"
    with pytest.raises(DownloadError, match="me/mine"):
        push(saved, "me/mine")
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    with pytest.raises(DownloadError, match="ELMOKIT_OFFLINE"):
        push(saved, "me/mine")


def test_a_card_says_what_the_files_say(saved, make_bilm):
    text = write_card(saved, licence="CC-BY-4.0", name="me/mine", language="fi").read_text()
    front = text.split("---\n")[1]
    assert front.splitlines()[:3] == ["language: fi", "license: cc-by-4.0", "library_name: elmokit"]
    count = sum(parameter.numel() for parameter in make_bilm().parameters())
    assert f"| parameters | {count:,} |" in text
    assert "| layers | 3, each 10 wide: two directions of 5 |" in text
    assert 'elmokit.load("me/mine")' in text
    assert licence_of(saved / "README.md") == "cc-by-4.0"
    with pytest.raises(InputError, match="exists"):
        write_card(saved, licence="mit")


def test_a_card_of_a_model_that_names_no_language_names_none(make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path / "m" / "weights.hdf5")
    assert BiLMConfig(tokens=make_bilm().config.tokens).language is None
    assert "language: " not in write_card(tmp_path / "m", licence="mit").read_text().split("---\n")[1]


@pytest.mark.parametrize("licence", ["", "my licence", "mit\nlicense: x", "a/b", "ü"])
def test_a_licence_that_is_no_identifier_is_refused(licence, saved):
    with pytest.raises(InputError, match="identifier"):
        write_card(saved, licence=licence)
    assert not (saved / "README.md").exists()
