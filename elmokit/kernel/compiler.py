"""Making the shared library of the recurrence from lstm.c with the machine's C compiler.

Called by hatch_build.py when elmokit is built or installed, which loads this file by itself, and by `library` at first
use where that found no compiler. Only the standard library is needed. A library is named by what it is made from, so
one that does not belong to the sources beside this file is never loaded.
"""

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent
SOURCES: Final = ("lstm.c", "lstm_path.h")
FLAGS: Final = ("-std=gnu11", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-ffp-contract=fast")
SUFFIX: Final = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
TIMEOUT: Final = 300.0  # seconds; it takes about two


def library_name() -> str:
    """What the library of these sources is called on this kind of machine."""
    made_from = hashlib.sha256(" ".join((*FLAGS, sys.platform, platform.machine())).encode())
    for source in SOURCES:
        made_from.update((FOLDER / source).read_bytes())
    return f"lstm-{made_from.hexdigest()[:16]}{SUFFIX}"


def compiler() -> list[str] | None:
    """The command of the C compiler: `CC`, or what is usual; None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    if named:
        return named if shutil.which(named[0]) else None
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def build(target: Path) -> None:
    """Compile the library; under its name it is always whole.

    Raises:
        OSError: there is no compiler, it failed, or the file cannot be written.
    """
    command = compiler()
    if command is None:
        raise OSError("no C compiler was found")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".lstm-") as folder:
        made = Path(folder, target.name)
        try:
            subprocess.run(
                [*command, *FLAGS, str(FOLDER / SOURCES[0]), "-o", str(made), "-lm"],
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
            raise OSError(f"the C compiler {command[0]} failed: {lines[0]}") from error
        except subprocess.TimeoutExpired as error:
            raise OSError(f"the C compiler {command[0]} had not ended after {TIMEOUT:g} s") from error
        made.replace(target)
