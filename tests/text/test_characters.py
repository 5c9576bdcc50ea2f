"""Character ids, against the rules stated once more."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import InputError
from elmokit.text.characters import Alphabet, check_tokens, sentences_to_ids, token_to_ids


def expected(body, width):
    ids = [258, *body, 259]
    return [value + 1 for value in ids + [260] * (width - len(ids))]


ANY = st.text(st.characters(exclude_categories=()))  # lone surrogates too


@given(ANY.filter(lambda token: token not in ("<S>", "</S>")), st.sampled_from([3, 10, 50, 100]))
def test_a_token_is_its_first_bytes_between_markers(token, width):
    assert token_to_ids(token, width).tolist() == expected(list(token.encode("utf-8", "ignore"))[: width - 2], width)


@pytest.mark.parametrize(
    ("token", "body"),
    [
        ("", []),
        ("a\u00a0b", [97, 0xC2, 0xA0, 98]),
        (" \t", [32, 9]),
        ("\0", [0]),
        ("\U0001f600", [0xF0, 0x9F, 0x98, 0x80]),
        ("\ud800", []),
        ("</s>", [60, 47, 115, 62]),
        ("\u2028", [0xE2, 0x80, 0xA8]),
        ("\ud800x\udfff", [120]),  # lone surrogates vanish
        ("苹果", [0xE8, 0x8B, 0xB9, 0xE6, 0x9E, 0x9C]),
        ("<s>", [60, 115, 62]),  # not the boundary, which is upper case
    ],
)
def test_odd_tokens_have_a_defined_result(token, body):
    assert token_to_ids(token, 50).tolist() == expected(body, 50)


def test_the_cut_is_by_bytes_even_inside_a_character():
    assert token_to_ids("é" * 40, 50).tolist() == expected(list(("é" * 40).encode()[:48]), 50)
    assert token_to_ids("aé", 4).tolist() == expected([97, 0xC3], 4)


def test_the_boundary_tokens_are_the_boundaries():
    assert token_to_ids("<S>", 10).tolist() == expected([256], 10)
    assert token_to_ids("</S>", 10).tolist() == expected([257], 10)


def test_sentences_have_boundaries_in_place_and_zeros_beyond():
    ids, lengths = sentences_to_ids([["ab"], [], ["c", "d"]], 6)
    assert ids.shape == (3, 4, 6)
    assert lengths.tolist() == [3, 2, 4]
    assert ids[0, 0].tolist() == expected([256], 6)
    assert ids[0, 2].tolist() == expected([257], 6)
    assert (ids[1, 2:] == 0).all()


def test_no_sentences_are_an_empty_batch():
    ids, lengths = sentences_to_ids([], 6)
    assert ids.shape == (0, 0, 6) and lengths.shape == (0,)


@pytest.mark.parametrize("wrong", ["i am here", b"bytes", 3, None, 2.5, {"a", "b"}, {"a": 1}, {"a": 1}.keys()])
def test_what_is_no_list_of_tokens_is_refused_and_named(wrong):
    with pytest.raises(InputError, match=r"sentence 7 is .*expected a list of tokens"):
        check_tokens(wrong, 7)


@pytest.mark.parametrize("batch", ["i am here", ["i am here"], ["i", "am"], [["fine"], "not fine"], [b"i am here"]])
def test_a_batch_with_strings_in_place_of_sentences_is_never_split_into_characters(batch):
    with pytest.raises(InputError, match=r"is the string .*expected a list of tokens.*embed_text"):
        sentences_to_ids(batch, 50)


@pytest.mark.parametrize("wrong", [[["nested"]], ["a", 3], [None], [b"a"]])
def test_what_is_no_token_is_refused_by_its_place(wrong):
    with pytest.raises(InputError, match=f"token {len(wrong) - 1} of sentence 2"):
        check_tokens(wrong, 2)


def test_objects_with_a_text_are_tokens():
    class Token:
        def __init__(self, text):
            self.text = text

    assert check_tokens([Token("a"), "b", Token("")], 0) == ["a", "b", ""]
    assert check_tokens((word for word in "ab"), 0) == ["a", "b"]
    assert check_tokens(np.array(["a", "bc"]), 0) == ["a", "bc"]
    ids, _ = sentences_to_ids([[Token("<S>"), Token("é")]], 6)
    assert ids[0, 1:3].tolist() == [expected([256], 6), expected([0xC3, 0xA9], 6)]


def test_tokens_of_spacy_are_tokens_and_one_of_its_documents_is_no_batch():
    document = pytest.importorskip("spacy").blank("en")("Don't stop.")
    assert check_tokens(document, 0) == ["Do", "n't", "stop", "."]
    assert sentences_to_ids([document], 50)[1].tolist() == [6]
    with pytest.raises(InputError, match="sentence 0 is of type Token"):
        sentences_to_ids(document, 50)


ALPHABET = Alphabet("的a😀")


@pytest.mark.parametrize(
    ("token", "symbols"),
    [
        ("的a", [0, 1]),
        ("😀", [2]),  # one code point, whatever its bytes or UTF-16 units
        ("国a", [8, 1]),  # outside
        ("\ud800", [8]),
        ("", []),
        ("的" * 9, [0] * 4),  # cut between code points
        ("<S>", [3]),
        ("</S>", [4]),
    ],
)
def test_code_points_come_first_then_markers_then_what_is_outside(token, symbols):
    ids = [5, *symbols, 6, *[7] * (4 - len(symbols))]  # before the shift, in a width of 6
    assert token_to_ids(token, 6, alphabet=ALPHABET).tolist() == [number + 1 for number in ids]


def test_a_batch_of_code_points_has_its_boundaries_and_zeros_behind():
    ids, lengths = sentences_to_ids([["的"], []], 4, alphabet=ALPHABET)
    assert lengths.tolist() == [3, 2]
    assert ids.tolist() == [
        [[6, 4, 7, 8], [6, 1, 7, 8], [6, 5, 7, 8]],
        [[6, 4, 7, 8], [6, 5, 7, 8], [0, 0, 0, 0]],
    ]
