"""Where a table goes in RESULTS.md."""

import importlib
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def results(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("results")


def test_results_go_under_their_heading_and_leave_the_others_alone(results, tmp_path):
    path = tmp_path / "RESULTS.md"
    results.write("## Pretraining", "first\n", path)
    assert path.read_text() == "# Results\n\n## Pretraining\n\nfirst\n"
    path.write_text("# Results\n\n## Embedding\n\nfast\n\n## Pretraining\n\nfirst\n\n## Tasks\n\ngood\n")
    results.write("## Pretraining", "second\n", path)
    assert path.read_text() == "# Results\n\n## Embedding\n\nfast\n\n## Pretraining\n\nsecond\n\n## Tasks\n\ngood\n"


def test_a_result_says_when_where_and_with_which_code_it_was_measured(results):
    origin = results.origin()
    assert set(origin) == {"date", "commit", "machine"}
    assert "cores" in origin["machine"]
