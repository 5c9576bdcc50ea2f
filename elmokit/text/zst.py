"""A `.zst` file as a stream of its unpacked bytes, with an error where it is cut short.

The package `zstandard` reads frame by frame and takes a file that ends within one for a whole one; here it is not. Used
by `sentences`.
"""

import io
from typing import IO, Any, Final

from elmokit.errors import require

_BYTES_AT_ONCE: Final = 1024  # what they unpack to is held in memory, at worst 30,000 times as much


class ZstStream(io.RawIOBase):
    """The unpacked bytes of one or more frames."""

    def __init__(self, stored: IO[bytes]) -> None:
        """Args:
        stored: the file as it is, which stays the caller's to close.

        Raises:
            MissingExtraError: zstandard is not installed.
        """
        super().__init__()
        self._zstandard: Any = require("zstandard", extra="train")
        self._stored = stored
        self._frame: Any = None
        self._packed = b""
        self._unpacked = memoryview(b"")

    @classmethod
    def buffered(cls, stored: IO[bytes]) -> io.BufferedReader:
        """The same with lines."""
        return io.BufferedReader(cls(stored), 1 << 16)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401  any object with bytes that can be written
        """Read some bytes; 0 at the end.

        Raises:
            EOFError: the file is damaged or ends within a frame.
        """
        while not self._unpacked:
            self._packed = self._packed or self._stored.read(_BYTES_AT_ONCE)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("it ends within a frame")
                return 0
            self._unpack()
        size = min(len(buffer), len(self._unpacked))
        buffer[:size] = self._unpacked[:size]
        self._unpacked = self._unpacked[size:]
        return size

    def _unpack(self) -> None:
        """Unpack what has been read, up to the end of the frame."""
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        try:
            self._unpacked = memoryview(self._frame.decompress(self._packed))
        except self._zstandard.ZstdError as error:
            raise EOFError(str(error)) from error
        self._packed = b""
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
