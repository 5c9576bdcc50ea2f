"""Where the library comes from: made with the machine's compiler, at install or at first use, or not at all."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from elmokit.kernel import compiler, library

ROOT = Path(__file__).parents[2]

needs_compiler = pytest.mark.skipif(compiler.compiler() is None, reason="no C compiler on this machine")


@pytest.fixture
def sources(monkeypatch, tmp_path):
    """The package's folder as it is without a library, and an empty cache."""
    folder = tmp_path / "kernel"
    folder.mkdir()
    for source in compiler.SOURCES:
        shutil.copy(compiler.FOLDER / source, folder)
    monkeypatch.setattr(compiler, "FOLDER", folder)
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def script(tmp_path):
    """Makes a program that stands for a compiler."""

    def make(text):
        path = tmp_path / "my cc"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return f"'{path}' -some-flag"

    return make


@needs_compiler
def test_a_library_is_made_whole_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "new" / compiler.library_name()
    compiler.build(target)
    assert ctypes.CDLL(str(target)).elmokit_features() & library.PLAIN
    assert list(target.parent.iterdir()) == [target]


def test_a_failing_compiler_is_quoted_and_leaves_nothing(monkeypatch, tmp_path, script):
    monkeypatch.setenv("CC", script("echo 'lstm.c: error: out of ideas' >&2; echo more >&2; exit 3"))
    target = tmp_path / "new" / compiler.library_name()
    with pytest.raises(OSError, match=r"my cc failed: lstm.c: error: out of ideas$"):
        compiler.build(target)
    assert list(target.parent.iterdir()) == []


def test_a_compiler_that_hangs_is_given_up(monkeypatch, tmp_path, script):
    monkeypatch.setenv("CC", script("exec sleep 60"))
    monkeypatch.setattr(compiler, "TIMEOUT", 0.2)
    with pytest.raises(OSError, match=r"had not ended after 0.2 s"):
        compiler.build(tmp_path / compiler.library_name())


def test_the_named_compiler_comes_first_and_its_absence_is_no_compiler(monkeypatch, script):
    monkeypatch.setenv("CC", script("exit 0"))
    assert compiler.compiler()[1:] == ["-some-flag"]
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert compiler.compiler() is None
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", "/nowhere")
    assert compiler.compiler() is None


def test_other_sources_make_a_library_of_another_name(sources):
    before = compiler.library_name()
    assert before == compiler.library_name()
    (sources / "lstm_path.h").write_text((sources / "lstm_path.h").read_text() + "\n/* changed */\n")
    assert compiler.library_name() != before


def test_without_a_compiler_there_is_no_kernel_and_a_reason(monkeypatch, sources):
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert library._find.__wrapped__("") == (None, "no C compiler was found")


def test_a_cache_that_cannot_be_written_means_no_kernel(monkeypatch, sources, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ELMOKIT_CACHE", str(tmp_path / "file"))
    found, reason = library._find.__wrapped__("")
    assert found is None and "file" in reason


@needs_compiler
def test_the_first_use_makes_the_library_and_the_next_finds_it(monkeypatch, sources, tmp_path):
    first = library._find.__wrapped__("")[0]
    made = tmp_path / "cache" / compiler.library_name()
    assert first is not None and first._library._name == str(made)
    monkeypatch.setenv("CC", "/nowhere/cc")
    assert library._find.__wrapped__("")[0] is not None


@needs_compiler
def test_many_first_uses_at_once_compile_once(monkeypatch, sources):
    built, build = [], compiler.build

    def count(target):
        built.append(target)
        build(target)

    monkeypatch.setattr(compiler, "build", count)
    found = []
    threads = [threading.Thread(target=lambda: found.append(library._find.__wrapped__("")[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1 and len(found) == 4 and None not in found


@needs_compiler
def test_a_library_in_the_package_is_taken_and_a_foreign_one_replaced(sources, tmp_path):
    inside = sources / compiler.library_name()
    inside.write_bytes(b"of another machine")
    found = library._load()
    assert found._name == str(tmp_path / "cache" / inside.name)
    inside.unlink()
    shutil.copy(found._name, inside)
    assert library._load()._name == str(inside)


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "hatch_build.py").is_file(), reason="needs the source tree")
@pytest.mark.parametrize("with_compiler", [pytest.param(True, marks=needs_compiler), False])
def test_a_wheel_is_for_this_platform_with_the_library_and_for_all_without(tmp_path, with_compiler):
    pytest.importorskip("hatchling")
    environment = os.environ | ({} if with_compiler else {"CC": "/nowhere/cc"})
    environment.pop("ELMOKIT_KERNEL", None)
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("elmokit/kernel/")}
    assert {f"elmokit/kernel/{source}" for source in compiler.SOURCES} <= names
    assert (f"elmokit/kernel/{compiler.library_name()}" in names) == with_compiler
    assert sum(name.endswith(compiler.SUFFIX) for name in names) == with_compiler
    tag = wheel.stem.split("-", 2)[2]
    assert tag.startswith("py3-none-") and (tag == "py3-none-any") != with_compiler
