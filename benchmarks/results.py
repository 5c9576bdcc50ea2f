"""What every figure in RESULTS.md stands on: date, commit and machine; and putting a table under its heading."""

import datetime
import os
import platform
import subprocess
from pathlib import Path

RESULTS = Path(__file__).with_name("RESULTS.md")


def origin() -> dict[str, str]:
    """When, with which code and on what something is measured."""
    return {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": _commit(), "machine": _machine()}


def write(heading: str, text: str, path: Path = RESULTS) -> None:
    """Put the text under its heading (`## ...`), in place of what stood there."""
    before = path.read_text("utf-8") if path.exists() else "# Results\n"
    head, _, rest = before.partition(f"\n{heading}\n")
    _, mark, after = rest.partition("\n## ")
    path.write_text(f"{head.rstrip()}\n\n{heading}\n\n{text}{mark}{after}", "utf-8")


def _machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return f"{(models or [platform.processor() or platform.machine()])[0]}, {os.cpu_count()} cores, {platform.system()}"


def _commit() -> str:
    """Of the checkout that this file is in."""
    git = ["git", "-C", str(RESULTS.parent)]
    found = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changes = subprocess.run(
        [*git, "status", "--porcelain", "../elmokit"], capture_output=True, text=True, check=False
    ).stdout
    return (found.stdout.strip() or "unknown") + (" with changes" if changes else "")
