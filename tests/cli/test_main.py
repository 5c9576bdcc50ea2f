"""The command itself: exit codes, one line an error, and help that loads nothing heavy."""

import subprocess
import sys

import pytest

import elmokit as package
from elmokit.cli.main import main
from elmokit.errors import WeightsError

HEAVY = ["torch", "spacy", "jieba", "pyarrow", "lightning", "h5py", "rich", "huggingface_hub"]


@pytest.mark.parametrize(
    "statement",
    [
        "import elmokit",
        "import elmokit; elmokit.BiLMConfig",
        "import elmokit.text.sentences, elmokit.text.tokens, elmokit.text.batching, elmokit.text.characters",
        "import elmokit.cli.main",
        "sys.argv = ['elmokit', '--help']; from elmokit.cli.main import main; main()",
        "sys.argv = ['elmokit', '--version']; from elmokit.cli.main import main; main()",
        "sys.argv = ['elmokit', 'embed', '--help']; from elmokit.cli.main import main; main()",
    ],
)
def test_the_door_and_help_load_nothing_heavy(statement):
    program = f"""
import sys
try:
    exec({statement!r})
except SystemExit as end:
    assert end.code == 0, end.code
print()
print([name for name in {HEAVY} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_names_package_and_torch(elmokit):
    done = elmokit("--version")
    assert done.returncode == 0
    assert done.stdout.decode().startswith(f"elmokit {package.__version__}, torch 2.")


def test_help_lists_the_commands(elmokit):
    done = elmokit("--help")
    assert done.returncode == 0
    assert {"embed", "models"} <= {line.split()[0] for line in done.stdout.decode().splitlines() if line.strip()}


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["embed"], ["embed", "in.txt", "--bad"], ["embed", "in.txt", "--pooling", "max"],
     ["embed", "in.txt", "--language", "zh"], ["embed", "in.txt", "--json"],
     ["embed", "in.txt", "--max-tokens-per-batch", "0"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2_and_no_traceback(elmokit, arguments):
    done = elmokit(*arguments)
    assert done.returncode == 2
    assert b"Usage: " in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


def test_an_error_is_one_line_and_ends_with_1(elmokit, tmp_path):
    done = elmokit("embed", tmp_path / "in.txt", "--model", "no-such-model")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("elmokit: error: ")
    assert "'no-such-model'" in line
    assert done.stdout == b""


def test_debug_lets_the_error_through_for_its_traceback(monkeypatch):
    monkeypatch.setattr("sys.argv", ["elmokit", "--debug", "embed", "in.txt", "--model", "no-such-model"])
    with pytest.raises(WeightsError, match="no-such-model"):
        main()
