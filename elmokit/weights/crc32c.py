"""CRC-32C, the checksum of TensorFlow's checkpoints (Castagnoli et al. 1993, RFC 3720), fast enough for gigabytes.

A byte at a time, but of many stretches of the data at once; then their sums are put together two by two. A sum moves on
by n zero bytes through a linear map over bits, and that of 2 n is the map of n twice.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

POLYNOMIAL: Final = np.uint32(0x82F63B78)  # bits reversed
STRETCH_BITS: Final = 10  # a stretch has 2 ** 10 bytes
AT_ONCE: Final = 2**14  # stretches, which stay in a processor's cache


def crc32c(data: npt.NDArray[np.uint8]) -> int:
    """The checksum of bytes (N,)."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ (table & np.uint32(1)) * POLYNOMIAL
    rest = len(data) % 2**STRETCH_BITS
    crc = 0xFFFFFFFF
    steps = table.tolist()
    for byte in data[:rest].tolist():
        crc = steps[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    if len(data) > rest:
        stretches = data[rest:].reshape(-1, 2**STRETCH_BITS)
        sums = np.zeros(len(stretches), dtype=np.uint32)
        sums[0] = crc
        for start in range(0, len(stretches), AT_ONCE):
            part = sums[start : start + AT_ONCE]
            for column in np.ascontiguousarray(stretches[start : start + AT_ONCE].T):
                part[:] = table[(part ^ column) & 0xFF] ^ (part >> 8)
        crc = _joined(sums, table)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """The checksum as TensorFlow stores it, lest a checksum be taken of bytes that hold their own."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _joined(sums: npt.NDArray[np.uint32], table: npt.NDArray[np.uint32]) -> int:
    """The sum of all stretches from that of each."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    moved = table[bits & 0xFF] ^ (bits >> 8)  # where one zero byte takes each bit
    for _ in range(STRETCH_BITS):
        moved = _apply(moved, moved)
    while len(sums) > 1:
        if len(sums) % 2:
            sums = np.concatenate([np.zeros(1, np.uint32), sums])  # zeros before the data change nothing
        sums = _apply(moved, sums[::2]) ^ sums[1::2]
        moved = _apply(moved, moved)
    return int(sums[0])


def _apply(moved: npt.NDArray[np.uint32], sums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """A map, given by where it takes each bit, of many sums."""
    result = np.zeros_like(sums)
    for place, image in enumerate(moved):
        result ^= (sums >> np.uint32(place) & 1) * image
    return result
