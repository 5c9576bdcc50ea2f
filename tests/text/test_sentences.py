"""Reading text files: nothing split that should not be, nothing lost, and errors that name the line."""

import gzip
import io
import lzma
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import InputError
from elmokit.text.sentences import read_lines, read_token_lines, split_tokens

ODD_SPACES = [
    "\u00a0",
    "\u2028",
    "\u2029",
    "\u0085",
    "\x0b",
    "\x0c",
    "\x1c",
    "\x1d",
    "\x1e",
    "\u3000",
    "\ufeff",
    "a\rb",
]


@pytest.mark.parametrize("odd", ODD_SPACES)
def test_odd_spaces_split_neither_tokens_nor_lines(tmp_path, odd):
    path = tmp_path / "in.txt"
    path.write_bytes(f"x{odd}y z\n{odd} w\n".encode())
    assert list(read_token_lines(path)) == [[f"x{odd}y", "z"], [odd, "w"]]


def test_tokens_are_parted_by_any_run_of_spaces_and_tabs():
    assert split_tokens("  a \t b\t\tc ") == ["a", "b", "c"]
    assert split_tokens(" \t") == []


@given(st.lists(st.lists(st.text(st.characters(exclude_characters="\0\t\n\r ", codec="utf-8"), min_size=1))))
def test_any_tokens_come_back_as_they_were_written(tmp_path_factory, sentences):
    path = tmp_path_factory.mktemp("tokens") / "in.txt"
    # A first token may begin with what reads as a byte order mark: the file has one of its own before it.
    path.write_bytes(b"\xef\xbb\xbf" + "".join(" ".join(tokens) + "\n" for tokens in sentences).encode())
    assert list(read_token_lines(path)) == sentences


def test_an_empty_line_is_an_empty_sentence(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes(b"\na\n\n\r\nb")
    assert list(read_token_lines(path)) == [[], ["a"], [], [], ["b"]]


@pytest.mark.parametrize(("content", "lines"), [(b"", []), (b"\n", [""]), (b"a", ["a"]), (b"a\n", ["a"])])
def test_a_last_line_feed_ends_a_line_and_begins_none(tmp_path, content, lines):
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    assert list(read_lines(path)) == lines


def test_a_byte_order_mark_is_dropped_at_the_start_only(tmp_path):
    path = tmp_path / "in.txt"
    path.write_bytes("\ufeffa\n\ufeffb\n".encode())
    assert list(read_lines(path)) == ["a", "\ufeffb"]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".GZ", gzip.compress)])
def test_packed_files_read_like_plain_ones(tmp_path, suffix, pack):
    path = tmp_path / f"in.txt{suffix}"
    path.write_bytes(pack("你好 世界\n\nb".encode()))
    assert list(read_token_lines(path)) == [["你好", "世界"], [], ["b"]]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_packed_file_that_is_cut_short_is_an_error_that_names_it(tmp_path, suffix, pack):
    path = tmp_path / f"in{suffix}"
    path.write_bytes(pack(os.urandom(1000).hex().encode())[:-20])
    with pytest.raises(InputError, match=path.name):
        list(read_lines(path))
    path.write_bytes(b"this is plain text\n")
    with pytest.raises(InputError, match=path.name):
        list(read_lines(path))


@pytest.mark.parametrize("bad", [b"\xe9t\xe9", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80"])
def test_a_bad_byte_names_file_line_and_place(tmp_path, bad):
    path = tmp_path / "latin.txt"
    path.write_bytes(b"good\n\nab " + bad + b"\n")
    lines = read_lines(path)
    assert [next(lines), next(lines)] == ["good", ""]
    with pytest.raises(InputError, match=r"latin\.txt, line 3: byte 4 is 0x"):
        next(lines)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\x89HDF\r\n\x1a\n\0\0\0", "line 1: byte 1 is 0x89"),
        (b"a\nb\0c\n", "line 2: a NUL byte at byte 2, so this is a binary file"),
        ("text".encode("utf-16"), "UTF-16"),
        ("text".encode("utf-16-le"), "NUL byte"),
        (gzip.compress(b"text", mtime=0), "ends in .gz"),
        (lzma.compress(b"text"), "ends in .xz"),
    ],
)
def test_what_is_no_text_is_named(tmp_path, content, said):
    path = tmp_path / "in.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said):
        list(read_lines(path))


def test_a_missing_file_or_a_directory_is_an_error_that_names_it(tmp_path):
    for path in (tmp_path / "nowhere.txt", tmp_path):
        with pytest.raises(InputError, match=path.name):
            list(read_lines(path))


def test_a_dash_is_standard_input_which_stays_open(monkeypatch):
    stream = io.BytesIO(b"a b\n\xff\n")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    lines = read_token_lines("-")
    assert next(lines) == ["a", "b"]
    with pytest.raises(InputError, match="standard input, line 2"):
        next(lines)
    assert not stream.closed


@pytest.mark.parametrize(("suffix", "pack"), [("", bytes), (".gz", gzip.compress)])
def test_the_place_in_the_stored_file_rises_to_its_size(tmp_path, suffix, pack):
    path = tmp_path / f"in.txt{suffix}"
    path.write_bytes(pack(b"".join(os.urandom(40).hex().encode() + b"\n" for _ in range(2000))))
    places = []
    assert len(list(read_lines(path, on_read=places.append))) == len(places) == 2000
    assert places == sorted(places)
    assert places[0] < places[-1] <= path.stat().st_size
    assert places[-1] > 0.9 * path.stat().st_size


def test_a_pipe_has_no_places(tmp_path):
    read, write = os.pipe()
    os.write(write, b"a\nb\n")
    os.close(write)
    places = []
    try:
        assert list(read_lines(f"/dev/fd/{read}", on_read=places.append)) == ["a", "b"]
    finally:
        os.close(read)
    assert places == []
