"""The form of the sense sets in benchmarks/senses, and that no cheap cue gives their answers away.

Reads the two files only; no model is loaded. What a row means and how it is scored stands in the README beside them.
"""

import csv
import unicodedata
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "senses"
LANGUAGES = ("en", "zh")
LEAST_WORDS = {"en": 60, "zh": 50}
PUNCTUATION = {"en": set(".,?!"), "zh": set("。，？！")}


class Row(NamedTuple):
    word: str
    sense_a: str
    sense_b: str
    anchor: str
    same: str
    other: str
    kind: str

    @property
    def sentences(self):
        return (self.anchor, self.same, self.other)


def lines_of(language):
    with (FOLDER / f"{language}.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def rows_of(language):
    return [Row(*line) for line in lines_of(language)[1:]]


def share_answered(differences):
    """The share of rows a guess gets right that takes the larger value; a tie is half right."""
    return sum((d > 0) + (d == 0) / 2 for d in differences) / len(differences)


def mean(values):
    return sum(values) / len(values)


@pytest.fixture(params=LANGUAGES)
def language(request):
    return request.param


@pytest.fixture
def rows(language):
    return rows_of(language)


def test_each_file_has_a_header_and_seven_filled_columns(language):
    header, *lines = lines_of(language)
    assert header == list(Row._fields)
    assert [line for line in lines if len(line) != 7 or not all(cell and cell == cell.strip() for cell in line)] == []


def test_each_file_is_normalised_utf8_with_plain_line_ends(language):
    data = (FOLDER / f"{language}.tsv").read_bytes()
    assert b"\r" not in data
    assert data.endswith(b"\n")
    assert unicodedata.is_normalized("NFC", data.decode("utf-8"))


def test_there_are_enough_rows_and_words_and_no_word_rules(language, rows):
    counts = Counter(row.word for row in rows)
    assert len(rows) >= 130
    assert len(counts) >= LEAST_WORDS[language]
    assert max(counts.values()) <= 4


def test_the_word_is_a_token_exactly_once_in_every_sentence(rows):
    wrong = [(row.word, s) for row in rows for s in row.sentences if s.lower().split(" ").count(row.word.lower()) != 1]
    assert wrong == []
    assert [(row.word, s) for row in rows for s in row.sentences if row.word not in s.split(" ")] == []


def test_no_sentence_is_used_twice(rows):
    counts = Counter(s.lower().replace(" ", "") for row in rows for s in row.sentences)
    assert [s for s, n in counts.items() if n > 1] == []


def test_sentences_are_five_to_fifteen_tokens_and_end_in_punctuation_of_their_own(language, rows):
    marks = PUNCTUATION[language]
    for s in (s for row in rows for s in row.sentences):
        tokens = s.split(" ")
        assert 5 <= len(tokens) <= 15, s
        assert tokens[-1] in marks, s
        assert all(token in marks or not marks & set(token) for token in tokens), s
        assert all(tokens), f"two spaces in a row: {s}"


def test_chinese_sentences_hold_nothing_but_chinese_and_full_width_punctuation():
    for s in (s for row in rows_of("zh") for s in row.sentences):
        assert all(c in PUNCTUATION["zh"] or unicodedata.name(c).startswith("CJK UNIFIED") for c in s if c != " "), s


def test_kind_agrees_with_the_parts_of_speech_named_in_the_senses(rows):
    for row in rows:
        assert row.sense_a != row.sense_b, row
        named = [sense.replace("（", "(").replace("）", ")").partition("(")[2] for sense in (row.sense_a, row.sense_b)]
        assert row.kind == ("pos" if any(named) else "sense"), row
        if row.kind == "pos":
            assert all(named), row
            assert named[0] != named[1], row


def test_each_sense_is_asked_for_as_often_as_the_one_it_is_set_against(rows):
    asked = Counter((row.word, row.sense_a, row.sense_b) for row in rows)
    assert all(asked[word, b, a] == n for (word, a, b), n in asked.items())


def context(row, sentence):
    """Lower-case token types of a sentence without the word and punctuation."""
    return {token for token in sentence.lower().split(" ") if token[0].isalnum()} - {row.word.lower()}


def frequent(rows):
    """The file's function words: types in at least one sentence of fifty, wherever they are not the word asked for."""
    counts = Counter(token for row in rows for s in row.sentences for token in context(row, s))
    return {token for token, n in counts.items() if n >= 0.02 * 3 * len(rows)}


def overlap_gaps(rows, ignored):
    """Token types shared by anchor and same less those shared by anchor and other, a number a row."""
    gaps = []
    for row in rows:
        anchor, same, other = (context(row, s) - ignored for s in row.sentences)
        gaps.append(len(anchor & same) - len(anchor & other))
    return gaps


@pytest.mark.parametrize("kinds", [("sense", "pos"), ("sense",), ("pos",)])
def test_anchor_shares_no_more_words_with_same_than_with_other(rows, kinds):
    chosen = [row for row in rows if row.kind in kinds]
    for ignored in (set(), frequent(rows)):
        gaps = overlap_gaps(chosen, ignored)
        assert -0.1 <= mean(gaps) <= 0
        assert 0.45 <= share_answered(gaps) <= 0.5


def test_neither_length_nor_place_nor_neighbours_answer(rows):
    def place(row, sentence):
        return sentence.split(" ").index(row.word)

    def neighbours(row, sentence):
        tokens, at = ["", *sentence.lower().split(" ")], place(row, sentence) + 1
        return tokens[at - 1], tokens[at + 1]

    cues = {
        "length": lambda row, s: -abs(len(row.anchor.split(" ")) - len(s.split(" "))),
        "place": lambda row, s: -abs(place(row, row.anchor) - place(row, s)),
        "neighbours": lambda row, s: sum(map(str.__eq__, neighbours(row, row.anchor), neighbours(row, s))),
    }
    for name, cue in cues.items():
        gaps = [cue(row, row.same) - cue(row, row.other) for row in rows]
        assert abs(mean(gaps)) <= 0.1, name
        assert 0.45 <= share_answered(gaps) <= 0.55, name


def test_jieba_finds_the_chinese_word_as_one_token_nearly_everywhere():
    jieba = pytest.importorskip("jieba", reason="jieba is not installed")
    jieba.setLogLevel("ERROR")
    found = [row.word in jieba.lcut(s.replace(" ", "")) for row in rows_of("zh") for s in row.sentences]
    assert mean(found) >= 0.95
