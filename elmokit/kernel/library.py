"""The native recurrence as Python objects: loading the library, laying out weights, running a layer.

Arrays go in and come out in place, as plain pointers through ctypes, which lets other threads run meanwhile: the
library knows neither Python's nor torch's inside, and one file serves all versions of both. It lies in the package
where a compiler was there at install, else in the platform's cache, where the first use puts it.
"""

import ctypes
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import platformdirs
from filelock import FileLock

from elmokit.errors import ConfigError
from elmokit.kernel import compiler

Format = Literal["float32", "bfloat16", "int8"]
Floats = np.ndarray[Any, np.dtype[np.float32]]

FORMATS: Final[tuple[Format, ...]] = ("float32", "bfloat16", "int8")
PLAIN, AVX2, AVX512, AVX512_BF16, AVX512_VNNI, AVX_VNNI = (1 << bit for bit in range(6))  # as in lstm.c
PATHS: Final = {  # the features that each may use, by what ELMOKIT_KERNEL may say
    "plain": PLAIN,
    "avx2": PLAIN | AVX2 | AVX_VNNI,
    "avx512": PLAIN | AVX2 | AVX_VNNI | AVX512 | AVX512_BF16 | AVX512_VNNI,
}
ALIGNMENT: Final = 64  # bytes


@dataclass(frozen=True)
class Packed:
    """The recurrent weights of a layer as a kernel reads them; keep it as long as the weights stay the same.

    Attributes:
        memory: holds them.
        address: where they begin.
        cell_dim: D.
        hidden_dim: P.
    """

    memory: np.ndarray[Any, np.dtype[np.uint8]]
    address: int
    cell_dim: int
    hidden_dim: int


class Kernel:
    """The library with the instruction sets that it may use."""

    def __init__(self, library: ctypes.CDLL, features: int) -> None:
        """Args:
        library: of lstm.c.
        features: of those that the CPU has.
        """
        self._library = library
        self._features = features

    @property
    def description(self) -> str:
        """One line for people."""
        if self._features & AVX512:
            more = [name for bit, name in ((AVX512_BF16, "bf16"), (AVX512_VNNI, "VNNI")) if self._features & bit]
            name = "AVX-512"
        elif self._features & AVX2:
            name, more = "AVX2", ["VNNI"] if self._features & AVX_VNNI else []
        else:
            name, more = "plain C", []
        return f"native kernel, {name}" + (f" ({', '.join(more)})" if more else "")

    def pack(self, weight_hh: Floats, weight_hr: Floats | None, *, dtype: Format = "float32") -> Packed:
        """Lay out a layer's weights.

        Args:
            weight_hh: (4 D, P), contiguous, finite; gate order i, f, g, o.
            weight_hr: (P, D), or None where there is no projection and P is D.
            dtype: what they are rounded to. int8 has a scale for each row of a matrix.
        """
        rows, hidden_dim = weight_hh.shape
        cell_dim = rows // 4
        assert rows == 4 * cell_dim > 0 < hidden_dim
        assert weight_hr is not None or cell_dim == hidden_dim
        size = (self._features, FORMATS.index(dtype), cell_dim, hidden_dim)
        length = self._library.elmokit_packed_bytes(*size, weight_hr is not None)
        memory = np.empty(length + ALIGNMENT, np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        projection = None if weight_hr is None else _address(weight_hr, (hidden_dim, cell_dim))
        self._library.elmokit_pack(*size, _address(weight_hh, (rows, hidden_dim)), projection, address)
        return Packed(memory, address, cell_dim, hidden_dim)

    def run(
        self,
        packed: Packed,
        gates: Floats,
        *,
        batch_sizes: Sequence[int] | np.ndarray[Any, Any],
        cell_clip: float | None,
        proj_clip: float | None,
        hidden: Floats,
        cell: Floats,
        out: Floats,
        rows: range | None = None,
    ) -> None:
        """Run a layer over rows sorted by falling length, on this thread and without the interpreter's lock.

        Calls with other rows may work on the same arrays at the same time. All arrays are contiguous float32.

        Args:
            packed: what `pack` of this kernel gave.
            gates: (N, 4 D) input products with bias, the rows of a step after those of the step before.
            batch_sizes: rows of each step, never rising, N in all.
            cell_clip: bound of the cell, if any.
            proj_clip: bound of the projection, if any; nothing without a projection.
            hidden: (B, P) at the start; at each row's end afterwards.
            cell: (B, D), likewise.
            out: (N, P), is filled in.
            rows: of the batch, those that this call works on; `range(k, B, n)` is a fair share of n. All if None.

        Raises:
            MemoryError: there is no room for the hidden states of a step.
        """
        sizes = np.ascontiguousarray(batch_sizes, dtype=np.int64)
        rows = range(len(hidden)) if rows is None else rows
        total, dim, width = len(gates), packed.cell_dim, packed.hidden_dim
        assert sizes.sum() == total, f"{sizes.sum()} rows in all steps, {total} in the gates"
        assert bool((sizes[1:] <= sizes[:-1]).all())
        assert not len(sizes) or len(hidden) >= sizes[0] >= sizes[-1] >= 0
        assert not rows or len(hidden) > rows[-1] >= rows[0] >= 0
        failed = self._library.elmokit_run(
            packed.address,
            _address(gates, (total, 4 * dim)),
            sizes.ctypes.data,
            len(sizes),
            rows.start,
            rows.step,
            len(rows),
            math.inf if cell_clip is None else cell_clip,
            math.inf if proj_clip is None else proj_clip,
            _address(hidden, (len(hidden), width), written=True),
            _address(cell, (len(hidden), dim), written=True),
            _address(out, (total, width), written=True),
        )
        if failed:
            raise MemoryError(f"no room for the hidden states of {len(rows)} rows")


def available() -> Kernel | None:
    """The native kernel of this machine, or None where torch has to do; what is found stays found.

    `ELMOKIT_KERNEL` set to 0 turns it off; plain, avx2 and avx512 choose a path.

    Raises:
        ConfigError: `ELMOKIT_KERNEL` says something else, or names a path that this CPU cannot run.
    """
    return _find(os.environ.get("ELMOKIT_KERNEL", ""))[0]


def describe() -> str:
    """One line on what is in use, for people.

    Raises:
        ConfigError: as in `available`.
    """
    kernel, reason = _find(os.environ.get("ELMOKIT_KERNEL", ""))
    return f"no native kernel: {reason}" if kernel is None else kernel.description


@cache
def _find(wanted: str) -> tuple[Kernel | None, str]:
    """The kernel that `ELMOKIT_KERNEL` asks for, or None and the reason."""
    if wanted == "0":
        return None, "ELMOKIT_KERNEL is 0"
    if wanted not in ("", "1", *PATHS):
        raise ConfigError(f"ELMOKIT_KERNEL is {wanted!r}; expected 0, 1, {', '.join(PATHS)}, or unset it")
    try:
        library = _load()
    except OSError as error:
        return None, str(error)
    features: int = library.elmokit_features()
    runnable = [path for path, bit in zip(PATHS, (PLAIN, AVX2, AVX512), strict=True) if features & bit]
    if wanted in PATHS and wanted not in runnable:
        raise ConfigError(
            f"ELMOKIT_KERNEL is {wanted!r}, which this CPU cannot run; it can run {', '.join(runnable)}; or unset it"
        )
    return Kernel(library, features & PATHS.get(wanted, ~0)), ""


def _load() -> ctypes.CDLL:
    """The library of the package, or that of the cache, which is made if it is not there.

    Raises:
        OSError: it cannot be made or loaded.
    """
    name = compiler.library_name()
    installed = compiler.FOLDER / name
    if installed.is_file():
        try:
            return _typed(ctypes.CDLL(str(installed)))
        except OSError:
            pass  # of another system, such as another C library: one made here fits
    cached = _cache_folder() / name
    if not cached.is_file():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{cached}.lock"):
            if not cached.is_file():  # else another process has made it meanwhile
                compiler.build(cached)
    return _typed(ctypes.CDLL(str(cached)))


def _cache_folder() -> Path:
    """Where a library made at first use is kept: `ELMOKIT_CACHE`, or the platform's usual place."""
    named = os.environ.get("ELMOKIT_CACHE")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("elmokit")


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """With the signatures of lstm.c."""
    small, large, real, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
    shape = [small, small, large, large]
    library.elmokit_features.argtypes = []
    library.elmokit_features.restype = small
    library.elmokit_packed_bytes.argtypes = [*shape, large]
    library.elmokit_packed_bytes.restype = large
    library.elmokit_pack.argtypes = [*shape, pointer, pointer, pointer]
    library.elmokit_pack.restype = None
    library.elmokit_run.argtypes = [pointer, pointer, pointer, *[large] * 4, real, real, pointer, pointer, pointer]
    library.elmokit_run.restype = ctypes.c_int
    return library


def _address(array: Floats, shape: tuple[int, ...], *, written: bool = False) -> int:
    """Of an array that is as it must be: a pointer knows no shape."""
    assert array.dtype == np.float32, f"{array.dtype}, not float32"
    assert array.shape == shape, f"{array.shape}, not {shape}"
    assert array.flags.c_contiguous
    assert array.flags.writeable or not written
    return array.ctypes.data
