import json
import os
import shutil
import subprocess
import urllib.request

import pytest
from file_server import serving
from hub_server import hub_serving

import elmokit as package

NLPL = "http://vectors.nlpl.eu/repository/20/211.zip"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for name in ("ELMOKIT_OFFLINE", "no_proxy", "NO_PROXY", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch):
    """All plain http addresses lead to it."""
    with serving() as server:
        monkeypatch.setenv("http_proxy", server.url(""))
        urllib.request.install_opener(None)
        yield server
    urllib.request.install_opener(None)


def test_list_has_the_built_in_models_first_and_all_published_ones(elmokit):
    plain, as_json = elmokit("models", "list"), elmokit("models", "list", "--json")
    rows = json.loads(as_json.stdout)
    names = [row["name"] for row in rows]
    assert names[: len(package.available_models())] == package.available_models()
    assert "elmo-original" in names
    assert [line.split()[0] for line in plain.stdout.decode().splitlines()] == names
    assert rows[0] | {"language": "en", "format": "native", "place": "built in"} == rows[0]


def test_list_by_language(elmokit):
    rows = json.loads(elmokit("models", "list", "--language", "ja", "--json").stdout)
    assert {row["name"] for row in rows} == {"elmo-ja", "manylangs-ja"}
    assert elmokit("models", "list", "--language", "tlh").stdout == b""


def test_show_of_a_built_in_model(elmokit):
    known = json.loads(elmokit("models", "show", "small-en", "--json").stdout)
    assert known | {"name": "small-en", "language": "en", "layers": 3, "width": 384, "cell": 512} == known
    assert known["parameters"] == sum(p.numel() for p in package.load_bilm("small-en").parameters())


def test_show_of_a_published_model_says_what_is_known_and_what_is_not(elmokit):
    lines = elmokit("models", "show", "elmo-small").stdout.decode().splitlines()
    assert "licence: not known" in lines
    assert "verified: False" in lines
    assert "cached: False" in lines
    assert any(line.strip().startswith("https://allennlp.s3.amazonaws.com/") for line in lines)
    assert "licence: mit" in elmokit("models", "show", "seqvec").stdout.decode().splitlines()


def test_show_of_a_path(elmokit, tiny_model):
    known = json.loads(elmokit("models", "show", tiny_model, "--json").stdout)
    assert known | {"format": "native", "layers": 3, "width": 16, "language": None, "licence": None} == known


@pytest.mark.parametrize("command", ["show", "fetch"])
def test_a_misspelt_name_is_one_line_with_the_nearest_ones(command, elmokit):
    done = elmokit("models", command, "elmo-orginal")
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"did you mean elmo-original" in done.stderr


def test_fetch_prints_a_path_that_loads_and_o_makes_a_copy(elmokit, server, tmp_path):
    package.save_bilm(package.load_bilm("small-en"), tmp_path / "m" / "model.hdf5")
    shutil.make_archive(str(tmp_path / "m"), "zip", tmp_path / "m")
    server.files[NLPL] = (tmp_path / "m.zip").read_bytes()
    path = elmokit("models", "fetch", "nlpl-211").stdout.decode().strip()
    assert package.load_bilm(path).config.output_dim == 384
    copied = elmokit("models", "fetch", "nlpl-211", "-o", "mine")
    assert copied.stdout == b"mine\n"
    assert package.load_bilm("mine/211.zip").config.output_dim == 384
    assert len(server.requests) == 1
    again = elmokit("models", "fetch", "nlpl-211", "-o", "mine")
    assert again.returncode == 1
    assert b"exists" in again.stderr


def test_a_folder_is_copied_as_one(elmokit):
    assert elmokit("models", "fetch", "small-en", "-o", "mine").returncode == 0
    assert package.load_bilm("mine").config == package.load_bilm("small-en").config


def test_two_processes_fetch_once(server, command):
    server.files[NLPL] = b"PK\x03\x04" + bytes(10**6)
    arguments, environment = command
    environment = {**os.environ, **environment, "http_proxy": os.environ["http_proxy"]}
    environment["ELMOKIT_CACHE"] = os.environ["ELMOKIT_CACHE"]
    processes = [
        subprocess.Popen([*arguments, "models", "fetch", "nlpl-211"], stdout=subprocess.PIPE, env=environment)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert len(server.requests) == 1


def test_fetch_offline_is_one_line(elmokit, monkeypatch):
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    done = elmokit("models", "fetch", "nlpl-211")
    assert done.returncode == 1
    assert b"ELMOKIT_OFFLINE forbids the network" in done.stderr


def test_push_and_fetch_by_the_repository(elmokit, tiny_model, monkeypatch):
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    with hub_serving() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        assert elmokit("convert", tiny_model, "mine").returncode == 0
        refused = elmokit("models", "push", "mine", "me/mine")
        assert refused.returncode == 1
        assert b"--licence" in refused.stderr
        done = elmokit("models", "push", "mine", "me/mine", "--licence", "apache-2.0", "--language", "en")
        assert done.stdout.decode() == f"{hub.endpoint}/me/mine\n", done.stderr
        unfetched = elmokit("models", "show", "hf://me/mine")
        assert b"models fetch" in unfetched.stderr
        path = elmokit("models", "fetch", "hf://me/mine").stdout.decode().strip()
        assert package.load_bilm(path).config.output_dim == 16
        known = json.loads(elmokit("models", "show", "hf://me/mine", "--json").stdout)
        assert known["licence"] == "apache-2.0"
