"""Compiles elmokit's native kernel into the wheel where there is a C compiler; called by hatchling.

A wheel with the library is for one platform and every Python 3; without a compiler, or with ELMOKIT_KERNEL=0, the
wheel is for all platforms, and the kernel is made at first use if that finds a compiler. An editable install gets the
library beside its source.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags  # hatchling needs this package, too


class KernelBuildHook(BuildHookInterface[Any]):
    """Adds the library to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and say to hatchling what has become of the wheel.

        Args:
            version: "standard" or "editable".
            build_data: hatchling's account of the wheel, which is changed.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="elmokit-kernel-"))
        if os.environ.get("ELMOKIT_KERNEL") == "0":
            return
        package = Path(self.root, "elmokit", "kernel")
        compiler = _module(package / "compiler.py")
        name = compiler.library_name()
        made = self._folder / name
        try:
            compiler.build(made)
        except OSError as error:
            self.app.display_warning(f"elmokit goes without its native kernel: {error}")
            return
        if version == "editable":
            for old in package.glob(f"lstm-*{compiler.SUFFIX}"):
                old.unlink()
            shutil.copy2(made, package)
            return
        build_data["force_include"][str(made)] = f"elmokit/kernel/{name}"
        build_data["pure_python"] = False
        # Python's own platform on macOS may stand for an older release and for two processors; the library is of these.
        platform = next(platform_tags()) if sys.platform == "darwin" else sysconfig.get_platform()
        build_data["tag"] = f"py3-none-{platform.replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Clean up once the wheel is written."""
        shutil.rmtree(self._folder)


def _module(path: Path) -> ModuleType:
    """A file of the package by itself: the package's dependencies are not there while it is built."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
