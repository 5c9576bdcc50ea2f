import re
import urllib.request
import zipfile

import pytest
from file_server import serving

from elmokit import available_models, load
from elmokit.errors import DownloadError, WeightsError
from elmokit.weights import convert, load_bilm, save_bilm
from elmokit.weights.card import listed, show
from elmokit.weights.catalog import PublishedFile, PublishedModel, fetch_published, published


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that is the proxy of this process too, so that plain http addresses of any host come to it."""
    with serving() as server:
        monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
        for name in ("ELMOKIT_OFFLINE", "no_proxy", "NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", server.url(""))
        urllib.request.install_opener(None)  # urllib looks at the variables once
        yield server
    urllib.request.install_opener(None)


@pytest.fixture
def files(make_bilm, tmp_path):
    """The bytes of options.json and weights.hdf5."""
    save_bilm(make_bilm(), tmp_path / "files" / "weights.hdf5")
    return {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}


def model_of(server, names=("options.json", "weights.hdf5"), **facts):
    files = tuple(PublishedFile(name=name, urls=(server.url(f"/{name}"),)) for name in names)
    given = {"name": "mine", "title": "", "language": "en", "format": "hdf5", "page": "http://page", "reason": ""}
    return PublishedModel(**given | {"files": files} | facts)


def test_every_model_says_what_it_is_and_where_that_was_read():
    models = published()
    assert {"elmo-small", "elmo-medium", "elmo-original", "elmo-original-5.5b"} <= set(models)
    assert {"elmo-pt", "elmo-ja", "elmo-pubmed", "seqvec", "nlpl-211", "manylangs-zhs"} <= set(models)
    assert sum(name.startswith("manylangs-") for name in models) == 45
    for name, model in models.items():
        assert re.fullmatch(r"[a-z0-9][a-z0-9.-]+", name)
        assert model.name == name
        assert re.fullmatch(r"[a-z]{2,3}|protein", model.language)
        assert model.format in {"hdf5", "manylangs", "tf-checkpoint", "tf-hub"}
        assert model.page.startswith("http")
        assert model.title
        assert model.reason
        assert not model.verified
        assert model.files or model.note, "how else is it to be had?"
        assert len({file.name for file in model.files}) == len(model.files)
        for file in model.files:
            assert file.urls
            assert all(re.fullmatch(r"https?://[\w.~-]+/[\w./~-]+", url) and "//" not in url[8:] for url in file.urls)
            assert file.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", file.sha256)
    assert not set(models) & set(available_models())


def test_addresses_are_those_of_the_sources():
    def urls(name):
        return [url for file in published()[name].files for url in file.urls]

    host, name = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo/", "2x4096_512_2048cnn_2xhighway"
    assert f"{host}{name}/elmo_{name}_options.json" in urls("elmo-original")
    assert f"{host}{name}/elmo_{name}_weights.hdf5" in urls("elmo-original")
    assert urls("manylangs-ar") == ["http://vectors.nlpl.eu/repository/11/136.zip"]
    assert urls("manylangs-zh") == ["http://vectors.nlpl.eu/repository/11/179.zip"]
    assert urls("seqvec") == ["https://rostlab.org/~deepppi/seqvec.zip"]


def test_a_pair_loads_by_name_from_the_second_address_when_the_first_is_dead(server, files, make_bilm, assert_same):
    dead, alive, _ = (url.removesuffix("options.json") for url in published()["seqvec-pair"].files[0].urls)
    server.files |= {f"{alive}{name}": data for name, data in files.items()}
    assert_same(load_bilm("seqvec-pair"), make_bilm())
    assert [path for path, _ in server.requests] == [
        f"{folder}{name}" for name in ("options.json", "weights.hdf5") for folder in (dead, alive)
    ]
    assert_same(load("seqvec-pair").bilm, make_bilm())
    assert len(server.requests) == 4


def test_an_archive_loads_by_name(server, files, make_bilm, assert_same, tmp_path):
    with zipfile.ZipFile(tmp_path / "211.zip", "w") as archive:
        archive.writestr("options.json", files["options.json"])
        archive.writestr("model.hdf5", files["weights.hdf5"])
    server.files["http://vectors.nlpl.eu/repository/20/211.zip"] = (tmp_path / "211.zip").read_bytes()
    assert_same(load_bilm("nlpl-211"), make_bilm())
    convert("nlpl-211", tmp_path / "native")
    assert_same(load_bilm(tmp_path / "native"), make_bilm())


def test_what_was_fetched_once_loads_offline_and_shows_its_facts(server, files, make_bilm, assert_same, monkeypatch):
    folder = published()["elmo-original"].path
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    assert_same(load_bilm("elmo-original"), make_bilm())
    known = show("elmo-original")
    assert known["cached"]
    assert known["files_here"]["layers"] == 3
    assert known["files_here"]["format"] == "hdf5"
    assert next(row for row in listed() if row["name"] == "elmo-original")["place"] == "cached"
    with pytest.raises(DownloadError, match="ELMOKIT_OFFLINE"):
        load_bilm("elmo-small")


def test_a_web_page_in_place_of_a_file_does_not_stay(server, files):
    model = model_of(server)
    server.files["/options.json"] = b"\n <!DOCTYPE html><html>moved</html>"
    with pytest.raises(DownloadError, match=r"gave a web page in place of options\.json"):
        fetch_published(model)
    server.files |= {f"/{name}": data for name, data in files.items()}
    server.mark = '"v2"'
    assert sorted(path.name for path in fetch_published(model).iterdir() if path.suffix != ".lock") == sorted(files)


def test_a_known_checksum_is_compared(server, files):
    server.files["/options.json"] = b"{}"
    wrong = PublishedFile(name="options.json", urls=(server.url("/options.json"),), sha256="0" * 64)
    with pytest.raises(DownloadError, match="SHA-256"):
        fetch_published(model_of(server).model_copy(update={"files": (wrong,)}))


def test_when_no_address_works_all_are_named(server):
    dead = PublishedFile(name="m.zip", urls=(server.url("/a/m.zip"), server.url("/b/m.zip")))
    with pytest.raises(DownloadError, match=r"/a/m\.zip: .* 404 .*; .*/b/m\.zip: .* 404"):
        fetch_published(model_of(server).model_copy(update={"files": (dead,)}))


def test_what_only_a_hand_can_fetch_names_the_page(server):
    with pytest.raises(DownloadError, match=r"see https://github\.com/Andy-jqa/bioelmo .*load it by its path"):
        load_bilm("bioelmo")
    assert server.requests == []


@pytest.mark.parametrize(
    ("wrong", "meant"), [("elmo-orginal", "elmo-original"), ("smal-en", "small-en"), ("Manylangs_fi", "manylangs-fi")]
)
def test_a_misspelt_name_gets_the_nearest_ones(wrong, meant, server):
    for ask in (load_bilm, show):
        with pytest.raises(WeightsError, match=f"did you mean .*{meant}"):
            ask(wrong)
    assert server.requests == []


def test_a_path_that_exists_goes_before_a_name(server, make_bilm, assert_same, tmp_path, monkeypatch):
    save_bilm(make_bilm(), tmp_path / "here" / "seqvec")
    monkeypatch.chdir(tmp_path / "here")
    assert_same(load_bilm("seqvec"), make_bilm())
    assert "name" not in show("seqvec")
    assert server.requests == []
