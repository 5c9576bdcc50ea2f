"""TensorFlow's tensor bundle (checkpoint format V2), read without TensorFlow: `PREFIX.index` and `PREFIX.data-*`.

The index is a table of LevelDB's kind (tensorflow/core/lib/io/table_format.txt): sorted keys in blocks, each key
without what it shares with the one before it, a block of where the blocks are, a footer with a magic number. A key is a
variable's name, its value a protobuf message (tensorflow/core/protobuf/tensor_bundle.proto) that says where in the data
files its numbers are. Blocks and numbers carry masked CRC-32C sums, which are checked.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from elmokit.weights.crc32c import crc32c, masked
from elmokit.weights.files import TENSOR_BUNDLE, TENSOR_BUNDLE_MAGIC, check_expansion, reading
from elmokit.weights.layouts import StoredTensor

FOOTER: Final = 48  # two handles, padding, 8 bytes of magic
LARGEST_INDEX: Final = 2**20  # bilm-tf's has some KB
DATA: Final = "the data of a TensorFlow checkpoint"
FIXED: Final = {1: 8, 5: 4}  # bytes of the wire types of a fixed length
HEADER: Final = b""  # the key of the header
# Types by their numbers in tensorflow/core/framework/types.proto.
TYPES: Final = {1: "f4", 2: "f8", 3: "i4", 4: "u1", 5: "i2", 6: "i1", 9: "i8", 10: "?", 19: "f2"}


def read_bundle(index: Path) -> dict[str, StoredTensor]:
    """All tensors of a bundle, unread.

    Args:
        index: the file `PREFIX.index`; the data files lie beside it.

    Raises:
        WeightsError: a file is missing or damaged, or uses what no training of bilm-tf writes.
    """
    with reading(index, TENSOR_BUNDLE):
        size = index.stat().st_size
        if size > LARGEST_INDEX:
            raise ValueError(f"{size} bytes are too many")
        entries = dict(_entries(index.read_bytes(), index))
        header = _Message(entries.pop(HEADER, b""))
        num_shards, swapped = header.number(1), header.number(2) != (sys.byteorder == "big")
        prefix = index.name.removesuffix(".index")
        return {
            key.decode("utf-8"): _stored_tensor(_Message(value), index.with_name(prefix), num_shards, swapped=swapped)
            for key, value in entries.items()
        }


def _stored_tensor(entry: "_Message", prefix: Path, num_shards: int, *, swapped: bool) -> StoredTensor:
    kind, shard, offset, size = (entry.number(field) for field in (1, 3, 4, 5))
    dims = tuple(_Message(dim).number(1) for dim in _Message(entry.message(2)).messages(2))
    name = TYPES.get(kind)
    if name is None or entry.messages(7):  # strings, or a variable in slices: bilm-tf has none among its weights
        return StoredTensor(dims, "in slices" if name else f"TensorFlow's type {kind}", False, _unreadable)
    dtype = np.dtype(name).newbyteorder("S" if swapped else "=")
    path = prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{num_shards:05d}")
    with reading(path, DATA):
        if size != math.prod(dims) * dtype.itemsize or offset + size > path.stat().st_size:
            raise ValueError(f"no {size} bytes of shape {dims} at {offset}")

    def read() -> Tensor:
        with reading(path, DATA):
            values = np.fromfile(path, np.uint8, size, offset=offset)
            if masked(crc32c(values)) != entry.number(6):
                raise ValueError(f"wrong checksum at {offset}")
        with np.errstate(over="ignore"):  # becomes infinite, and is reported as such
            return torch.from_numpy(values.view(dtype).reshape(dims).astype(np.float32, copy=False))

    return StoredTensor(dims, str(dtype), dtype.kind == "f", read)


def _unreadable() -> Tensor:
    raise AssertionError("a tensor of this kind is refused before it is read")


def _entries(data: bytes, path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a table."""
    footer = data[-FOOTER:]
    if len(data) < FOOTER or not footer.endswith(TENSOR_BUNDLE_MAGIC):
        raise ValueError("no footer of a table")
    _, place = _handle(footer, 0)  # of the block about blocks, which is empty
    index, _ = _handle(footer, place)
    end = total = 0
    for _, value in _block(data, *index):
        (offset, size), _ = _handle(value, 0)
        if offset < end:
            raise ValueError("overlapping blocks")
        end = offset + size
        for key, entry in _block(data, offset, size):
            total += len(key)
            check_expansion(total, len(data), source=path)
            yield key, entry


def _block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block of a table."""
    block, trailer = data[offset : offset + size], data[offset + size : offset + size + 5]
    if len(block) != size or len(trailer) != 5 or size < 4:
        raise ValueError(f"no block of {size} bytes at {offset}")
    if masked(crc32c(np.frombuffer(block + trailer[:1], np.uint8))) != int.from_bytes(trailer[1:], "little"):
        raise ValueError(f"wrong checksum at {offset}")
    if trailer[0]:  # Snappy: TensorFlow 1.1 alone wrote it, and bilm-tf asks for 1.2
        raise ValueError(f"compressed block at {offset}; load and save it with TensorFlow 1.2 or later")
    end = size - 4 - 4 * int.from_bytes(block[-4:], "little")  # of the entries; the restart points follow
    place, key = 0, b""
    while place < end:
        shared, place = _varint(block, place)
        own, place = _varint(block, place)
        length, place = _varint(block, place)
        if shared > len(key) or place + own + length > end:
            raise ValueError(f"no entry at {offset + place}")
        key = key[:shared] + block[place : place + own]
        yield key, block[place + own : place + own + length]
        place += own + length


def _handle(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """The (offset, size) of a block, and where the next thing begins."""
    offset, place = _varint(data, place)
    size, place = _varint(data, place)
    return (offset, size), place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where the next thing begins."""
    value = 0
    for shift, byte in enumerate(data[place : place + 10]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError(f"no number at {place}")


class _Message:
    """A protobuf message: its fields by their numbers, their types left to the asker."""

    def __init__(self, data: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        place = 0
        while place < len(data):
            tag, place = _varint(data, place)
            value: int | bytes
            if tag & 7 == 0:
                value, place = _varint(data, place)
            elif tag & 7 == 2:
                length, place = _varint(data, place)
                value, place = data[place : place + length], place + length
            elif tag & 7 in FIXED:
                length = FIXED[tag & 7]
                value, place = int.from_bytes(data[place : place + length], "little"), place + length
            else:
                raise ValueError(f"no field at {place}")
            if place > len(data):
                raise ValueError("a field that is cut off")
            self._fields.setdefault(tag >> 3, []).append(value)

    def number(self, field: int) -> int:
        """The last number of a field, 0 where it is left out."""
        value = self._fields.get(field, [0])[-1]
        if not isinstance(value, int):
            raise ValueError(f"field {field} is no number")
        return value

    def message(self, field: int) -> bytes:
        """The last message in a field, an empty one where it is left out."""
        return (self.messages(field) or [b""])[-1]

    def messages(self, field: int) -> list[bytes]:
        """All messages in a field."""
        messages = [value for value in self._fields.get(field, []) if isinstance(value, bytes)]
        if len(messages) != len(self._fields.get(field, [])):
            raise ValueError(f"field {field} is a number")
        return messages
