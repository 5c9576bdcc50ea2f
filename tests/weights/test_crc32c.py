import numpy as np
import pytest

from elmokit.weights.crc32c import AT_ONCE, STRETCH_BITS, crc32c, masked


def bit_by_bit(data):
    """The definition: division by the polynomial, lowest bit first."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_the_sums_of_rfc_3720(data, expected):
    assert crc32c(np.frombuffer(data, np.uint8)) == expected


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 3 * 1024, 5 * 1024 + 7, 9000])
def test_any_length_is_summed_as_the_definition_says(length):
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == bit_by_bit(data.tolist())


def test_more_stretches_than_are_taken_at_once_are_put_together():
    data = np.zeros((AT_ONCE + 3) * 2**STRETCH_BITS + 5, dtype=np.uint8)
    data[-9:] = np.frombuffer(b"123456789", np.uint8)
    changed = data.copy()
    changed[17] = 1
    # A sum is linear: where a single bit changed, both differ as the same change among zeros does.
    alone = np.zeros_like(data)
    alone[17] = 1
    assert crc32c(changed) ^ crc32c(data) == crc32c(alone) ^ crc32c(np.zeros_like(data))
    assert crc32c(changed) != crc32c(data)


def test_the_mask_is_tensorflows():
    assert masked(0) == 0xA282EAD8
    assert masked(0x8000) == 0xA282EAD9
