"""Files packed with Zstandard."""

import os

import pytest
import zstandard

from elmokit.errors import InputError
from elmokit.text.sentences import read_lines

TEXT = "".join(f"{'行' * (number % 90)} {number}\n" for number in range(20_000))


def packed(text):
    return zstandard.compress(text.encode())


def test_frames_one_after_the_other_read_like_one_plain_file(tmp_path):
    path = tmp_path / "in.zst"
    middle = TEXT.index("\n", len(TEXT) // 2) - 2  # within a line
    path.write_bytes(packed(TEXT[:middle]) + packed("") + packed(TEXT[middle:]))
    places = []
    assert list(read_lines(path, on_read=places.append)) == TEXT.splitlines()
    assert places == sorted(places) and places[-1] == path.stat().st_size
    path.write_bytes(b"")
    assert list(read_lines(path)) == []


@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_a_file_that_ends_within_a_frame_is_an_error(tmp_path, cut):
    path = tmp_path / "in.zst"
    for content in (packed(os.urandom(5000).hex()), packed("first\n") + packed(os.urandom(5000).hex())):
        path.write_bytes(content[:-cut])
        with pytest.raises(InputError, match=r"in\.zst is damaged or cut short"):
            list(read_lines(path))


@pytest.mark.parametrize("content", [b"this is plain text\n", packed("text") + b"and more"])
def test_what_is_no_frame_is_an_error(tmp_path, content):
    path = tmp_path / "in.zst"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"in\.zst is damaged or cut short"):
        list(read_lines(path))


def test_a_packed_file_under_another_name_is_named_so(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(packed("text"))
    with pytest.raises(InputError, match=r"ends in \.zst"):
        list(read_lines(path))
