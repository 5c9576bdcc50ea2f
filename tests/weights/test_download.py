import hashlib
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from file_server import BODY, serving

from elmokit.errors import DownloadError, WeightsError
from elmokit.weights import load_bilm, save_bilm
from elmokit.weights.download import cached_path

SHA = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    for name in ("ELMOKIT_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def leftovers(cache):
    return [path.name for path in cache.iterdir() if path.suffix in (".partial", ".validator")]


def test_a_file_is_fetched_once(server, cache):
    path = cached_path(server.url(), sha256=SHA.upper())
    assert path.read_bytes() == BODY
    assert path.parent == cache
    assert path.name.endswith("-model.bin")
    assert cached_path(server.url()) == path
    assert len(server.requests) == 1
    assert not leftovers(cache)


def test_a_local_path_comes_back_unchanged(server, tmp_path):
    assert cached_path(tmp_path / "nowhere") == tmp_path / "nowhere"
    assert str(cached_path("some/file.hdf5")) == "some/file.hdf5"
    assert server.requests == []


def test_addresses_with_the_same_base_name_do_not_collide(server):
    server.files |= {"/b/model.bin": b"other", "/b/model.bin?v=2": b"third"}
    paths = {cached_path(server.url(path)) for path in server.files}
    assert {path.read_bytes() for path in paths} == {BODY, b"other", b"third"}


@pytest.mark.parametrize("path", ["/", "/a%2F..%2F..%2Fevil", "/" + "long" * 60, "/%E4%BD%A0/%00.bin"])
def test_no_address_leaves_the_cache(path, server, cache):
    server.files[path] = b"x"
    assert cached_path(server.url(path)).parent == cache


def test_a_broken_transfer_goes_on_where_it_stopped(server, cache):
    server.break_after = [300_000, 400_000]
    assert cached_path(server.url(), sha256=SHA).read_bytes() == BODY
    assert [wanted for _, wanted in server.requests] == [None, "bytes=300000-", "bytes=700000-"]
    assert not leftovers(cache)


def test_a_call_goes_on_where_an_earlier_one_gave_up(server, cache):
    server.break_after = [100_000, 50_000, 25_000]
    with pytest.raises(DownloadError, match=f"175000 of {len(BODY)} bytes.*goes on from there"):
        cached_path(server.url())
    assert cached_path(server.url()).read_bytes() == BODY
    assert server.requests[-1][1] == "bytes=175000-"


def test_a_file_that_changed_meanwhile_is_not_glued_to_its_older_half(server):
    server.break_after = [100_000] * 3
    with pytest.raises(DownloadError):
        cached_path(server.url())
    server.files["/a/model.bin"], server.mark = BODY[::-1], '"v2"'
    assert cached_path(server.url()).read_bytes() == BODY[::-1]


@pytest.mark.parametrize("mark", ['"v1"', 'W/"v1"', None])
def test_a_server_without_ranges_or_a_firm_mark_sends_all_again(mark, server):
    server.mark = mark
    server.ranges = False
    server.break_after = [300_000]
    assert cached_path(server.url()).read_bytes() == BODY


def test_a_server_that_sends_another_range_is_asked_for_all(server):
    server.break_after = [300_000]
    server.wrong_range = True
    assert cached_path(server.url()).read_bytes() == BODY
    assert server.requests[-1][1] is None


def test_a_whole_partial_file_of_a_process_that_died_is_no_obstacle(server, cache):
    server.break_after = [100_000] * 3
    with pytest.raises(DownloadError):
        cached_path(server.url())
    next(cache.glob("*.partial")).write_bytes(BODY)
    assert cached_path(server.url()).read_bytes() == BODY


def test_a_wrong_checksum_names_both_and_leaves_nothing(server, cache):
    with pytest.raises(DownloadError, match=f"{SHA}, expected {'0' * 64}"):
        cached_path(server.url(), sha256="0" * 64)
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_a_cached_file_with_another_checksum_is_fetched_again(server):
    path = cached_path(server.url())
    path.write_bytes(b"damaged")
    assert cached_path(server.url(), sha256=SHA).read_bytes() == BODY


def test_a_missing_file_is_one_clear_error(server, cache):
    with pytest.raises(DownloadError, match=r"/nothing: the server answered 404"):
        cached_path(server.url("/nothing"))
    assert len(server.requests) == 1
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []


def test_no_connection_is_one_clear_error():
    with serving() as closed:
        address = closed.url("/x")
    with pytest.raises(DownloadError, match="could not be fetched"):
        cached_path(address)


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://bucket/x", "http://", "http://[", "http://127.0.0.1:port/x"])
def test_addresses_that_are_none_are_named(url):
    with pytest.raises(DownloadError):
        cached_path(url)


def test_offline_gives_cached_files_and_names_others(server, monkeypatch):
    path = cached_path(server.url())
    monkeypatch.setenv("ELMOKIT_OFFLINE", "1")
    assert cached_path(server.url()) == path
    with pytest.raises(DownloadError, match=r"/other .*ELMOKIT_OFFLINE"):
        cached_path(server.url("/other"))
    with pytest.raises(DownloadError, match="another SHA-256"):
        cached_path(server.url(), sha256="0" * 64)
    assert len(server.requests) == 1
    assert path.read_bytes() == BODY


def test_proxy_variables_are_respected(server, monkeypatch):
    monkeypatch.setenv("http_proxy", server.url(""))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server.files["http://models.example/x.bin"] = b"through the proxy"
    # In a process of its own: urllib looks at the variables once.
    code = "from elmokit.weights.download import cached_path; print(cached_path('http://models.example/x.bin'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert Path(printed.strip()).read_bytes() == b"through the proxy"


def test_a_cache_that_cannot_be_written_is_one_clear_error(server, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DownloadError, match="could not be fetched"):
        cached_path(server.url())


def test_two_processes_fetch_once_and_the_one_shows_a_bar_on_stderr(server):
    server.files["/a/model.bin"] = BODY * 20
    code = f"from elmokit.weights.download import cached_path; print(cached_path({server.url()!r}))"
    terminal = os.environ | {"FORCE_COLOR": "1"}  # rich then takes stderr for one
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=terminal, text=True
        )
        for _ in range(2)
    ]
    outputs, bars = zip(*(process.communicate(timeout=60) for process in processes), strict=True)
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert Path(outputs[0].strip()).read_bytes() == server.files["/a/model.bin"]
    assert len(server.requests) == 1
    assert sorted("model.bin" in bar for bar in bars) == [False, True]


def test_a_process_that_is_killed_leaves_the_next_one_its_half(server, cache):
    server.hold = threading.Event()
    code = f"from elmokit.weights.download import cached_path; cached_path({server.url()!r})"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not any(path.stat().st_size for path in cache.glob("*.partial")):
        assert process.poll() is None
    process.kill()
    process.wait()
    server.hold.set()
    assert cached_path(server.url(), sha256=SHA).read_bytes() == BODY
    start = int(server.requests[-1][1].removeprefix("bytes=").rstrip("-"))
    assert 0 < start <= len(BODY) // 2


def test_a_file_that_does_not_fit_the_disk_is_refused_before_it_is_fetched(server, cache):
    free = shutil.disk_usage(cache.parent).free
    server.claim = 2 * free
    with pytest.raises(DownloadError, match=r"bytes free, but [\d,]+ are still to come.*ELMOKIT_CACHE"):
        cached_path(server.url())
    assert len(server.requests) == 1
    assert not any(path.stat().st_size for path in cache.glob("*.partial"))


def test_models_load_from_addresses(server, make_bilm, assert_same, tmp_path):
    save_bilm(make_bilm(), tmp_path / "m" / "weights.hdf5")
    for path in (tmp_path / "m").iterdir():
        server.files[f"/{path.name}"] = path.read_bytes()
    assert_same(load_bilm((server.url("/options.json"), server.url("/weights.hdf5"))), make_bilm())


def test_a_page_in_place_of_a_model_does_not_stay_in_the_cache(server, make_bilm, tmp_path):
    save_bilm(make_bilm(), tmp_path / "weights.hdf5")
    names = {"/m/options.json": "options.json", "/m/weights.hdf5": "weights.hdf5"}
    server.files = dict.fromkeys(names, b"<html>please log in</html>")
    pair = tuple(server.url(path) for path in names)
    with pytest.raises(WeightsError, match="call again to fetch it anew"):
        load_bilm(pair)
    server.files = {path: (tmp_path / name).read_bytes() for path, name in names.items()}
    server.mark = '"v2"'
    assert load_bilm(pair).config == make_bilm().config
