"""Vocabularies and their files."""

import pytest

from elmokit.errors import InputError
from elmokit.text.lexicon import Lexicon

WORDS = ["<S>", "</S>", "<UNK>", "the", "苹果", "a\u00a0b", "\u2028", "\x1d"]


def test_a_word_outside_has_the_id_of_unknown():
    assert Lexicon(WORDS).ids(["the", "苹果", "nowhere", ""]).tolist() == [3, 4, 2, 2]


def test_a_file_gives_back_every_word_whatever_unicode_calls_a_line_end(tmp_path):
    Lexicon(WORDS).write(tmp_path / "vocab.txt")
    assert Lexicon.read(tmp_path / "vocab.txt").words == tuple(WORDS)


def test_windows_line_ends_are_no_part_of_words(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("\r\n".join(WORDS[:5]).encode() + b"\r\n")
    assert Lexicon.read(tmp_path / "vocab.txt").words == tuple(WORDS[:5])


def test_a_bad_byte_is_named_with_file_and_line(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"<S>\n</S>\n\xff\xfe\n")
    with pytest.raises(InputError, match=r"vocab\.txt, line 3"):
        Lexicon.read(tmp_path / "vocab.txt")


def test_missing_special_words_and_repeated_words_are_named():
    with pytest.raises(InputError, match="<UNK>"):
        Lexicon(["<S>", "</S>", "the"])
    with pytest.raises(InputError, match="'the' is in the vocabulary twice"):
        Lexicon([*WORDS, "the"])


def test_a_word_that_ends_in_a_carriage_return_comes_back_beside_the_one_without(tmp_path):
    words = (*WORDS[:3], "a", "a\r", "\r")
    Lexicon(words).write(tmp_path / "vocab.txt")
    assert Lexicon.read(tmp_path / "vocab.txt").words == words
