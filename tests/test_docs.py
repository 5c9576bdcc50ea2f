"""Every Python block of the README and the docs runs, and so does every example."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import elmokit
from tests.manylangs_reference import MadeUp

ROOT = Path(__file__).parents[1]
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if "```" in page.read_text("utf-8")
]
COMMANDS = re.compile(r"^(?:echo .*\| )?elmokit (\w+)", re.MULTILINE)


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(*arguments, cwd, stdin=None):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        arguments, cwd=cwd, input=stdin, capture_output=True, text=True, encoding="utf-8", env=environment, check=False
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if not code:
        pytest.skip("no Python on this page")
    elmokit.save_bilm(elmokit.load_bilm("small-en"), tmp_path / "weights.hdf5")
    MadeUp().write(tmp_path / "zhs.model")
    files = f'options_file, weight_file = "{tmp_path / "options.json"}", "{tmp_path / "weights.hdf5"}"\n'
    found = run(sys.executable, "-c", files + code, cwd=tmp_path)
    assert found.returncode == 0, found.stderr


def test_the_shell_lines_of_the_readme_run(tmp_path):
    (tmp_path / "sentences.txt").write_text("A bank account .\nThe bank of the river .\n", encoding="utf-8")
    (tmp_path / "letter.txt").write_text("Dear all. It's done.\n", encoding="utf-8")
    (shell,) = [block for block in blocks(ROOT / "README.md", "sh") if "elmokit embed" in block]
    lines = [line for line in shell.splitlines() if "elmokit train" not in line]  # minutes; tests/train runs that
    for line in lines:
        script = f'PATH="{Path(sys.executable).parent}:$PATH"; set -e; {line}'
        found = run("bash", "-c", script, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
    assert (tmp_path / "vectors.h5").stat().st_size > 0
    assert (tmp_path / "vectors.npz").stat().st_size > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_a_page_names_exists(page):
    from elmokit.cli.main import app

    names = {c.name for c in app.registered_commands} | {g.name for g in app.registered_groups}
    assert {name for block in blocks(page, "sh") for name in COMMANDS.findall(block)} <= names


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example, tmp_path):
    assert example.read_text("utf-8").count("\n") <= 60
    found = run(sys.executable, str(example), cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip()
