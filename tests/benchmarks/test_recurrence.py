"""The benchmark of the recurrence, at a size that is done at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elmokit import kernel

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "recurrence.py"


@pytest.mark.skipif(not SCRIPT.is_file(), reason="needs the source tree")
def test_each_way_is_timed_at_each_shape():
    command = [
        sys.executable,
        str(SCRIPT),
        "--shapes",
        "8/16",
        "16/32",
        "--rows",
        "1",
        "7",
        "--seconds",
        "0.01",
        "--json",
    ]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [(row["shape"], row["rows"]) for row in found["rows"]] == [(p, n) for p in ("8/16", "16/32") for n in (1, 7)]
    ways = ["torch", *(kernel.FORMATS if kernel.available() else ())]
    assert all(list(row["tokens"]) == ways and min(row["tokens"].values()) > 0 for row in found["rows"])
    assert found["kernel"] == kernel.describe()
