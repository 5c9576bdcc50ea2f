"""Raw text to tokens: nothing lost, sentences where a reader would end them, no text too long or too odd."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elmokit.errors import InputError
from elmokit.text.tokens import Tokenizer

pytest.importorskip("spacy")
pytest.importorskip("jieba")


@pytest.fixture(scope="module", params=["en", "zh"])
def tokenizer(request):
    return TOKENIZERS[request.param]


TOKENIZERS = {"en": Tokenizer("en"), "zh": Tokenizer("zh")}
TRICKY = st.sampled_from(
    [*"。！？!?；…”’」』）》】〉.,;:'\"()&=%/-_ \t\n\r", "http://a.b/?c=1", "don't", "U.K.", "你好", "\x00"]
)


def squeezed(text):
    """All but white space, lone surrogates as they are defined to come out."""
    return "".join(re.sub("[\ud800-\udfff]", "\ufffd", text).split())


@given(st.text(st.characters()) | st.lists(TRICKY | st.characters(), max_size=40).map("".join))
def test_tokens_hold_every_character_but_white_space(text):
    for tokenizer in TOKENIZERS.values():
        sentences = tokenizer.sentences(text)
        assert squeezed("".join(token for sentence in sentences for token in sentence)) == squeezed(text)
        assert all(sentence and all(token.strip() for token in sentence) for sentence in sentences)


def test_english_is_split_into_sentences_and_penn_like_tokens():
    assert TOKENIZERS["en"].sentences(
        "I don't know Mr. Smith. It's 10,000 dollars, he said!\nReally? A (good) one."
    ) == [
        ["I", "do", "n't", "know", "Mr.", "Smith", "."],
        ["It", "'s", "10,000", "dollars", ",", "he", "said", "!"],
        ["Really", "?"],
        ["A", "(", "good", ")", "one", "."],
    ]


def test_chinese_is_split_into_sentences_and_words():
    assert TOKENIZERS["zh"].sentences("他说：“我来到北京！”然后走了。（真的吗？）。好……是；走吧") == [
        ["他", "说", "：", "“", "我", "来到", "北京", "！", "”"],
        ["然后", "走", "了", "。"],
        ["（", "真的", "吗", "？", "）", "。"],
        ["好", "…", "…"],
        ["是", "；"],
        ["走", "吧"],
    ]


def test_an_address_does_not_end_a_chinese_sentence():
    assert len(TOKENIZERS["zh"].sentences("看http://a.b/c?d=1的网页。好!")) == 2


@pytest.mark.parametrize("text", ["", " \n\t\u3000\u2028\n", "\r\n"])
def test_a_text_of_white_space_has_no_sentence(tokenizer, text):
    assert tokenizer.sentences(text) == []


def test_lone_surrogates_and_control_characters_have_a_defined_result(tokenizer):
    assert tokenizer.sentences("\ud800") == [["\ufffd"]]
    assert "".join(tokenizer.sentences("a \x00 \x01\x7f\u200b b")[0]) == "a\x00\x01\x7f\u200bb"


def test_a_text_of_more_than_a_million_characters_is_tokenised(tokenizer):
    text = "word number one. " * 60_000 + "字词。" * 10_000
    assert len(text) > 1_000_000
    assert sum(len(token) for sentence in tokenizer.sentences(text) for token in sentence) == len(squeezed(text))


@pytest.mark.parametrize("piece", ["!", "a", "_", '"', "http://", "中", "。", "😀", "-", "1,"])
def test_what_hangs_together_without_a_space_takes_no_time_to_speak_of(tokenizer, piece):
    start = time.monotonic()
    tokens = [token for sentence in tokenizer.sentences(piece * 20_000) for token in sentence]
    assert "".join(tokens) == piece * 20_000
    assert time.monotonic() - start < 20  # minutes where time grows with the square


def test_nothing_is_printed_or_left_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    Tokenizer("zh").sentences("我来到北京")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_new_words_do_not_stay_in_memory():
    tokenizer = TOKENIZERS["en"]
    import spacy

    strings = spacy.blank("en").vocab.strings  # a fresh store, to know that words are kept without a memory zone
    before = len(strings)
    strings.add("neverseenbefore")
    assert len(strings) == before + 1
    for text in (f"word{number} other{number}" for number in range(100)):
        tokenizer.sentences(text)
    kept = tokenizer._sentences.__closure__
    pipeline = next(cell.cell_contents for cell in kept if hasattr(cell.cell_contents, "vocab"))
    assert "word50" not in pipeline.vocab.strings


def test_english_is_the_language_of_a_model_that_names_none():
    assert Tokenizer(None).sentences("I can't.") == [["I", "ca", "n't", "."]]


@pytest.mark.parametrize("language", ["qq", "english", " "])
def test_a_language_without_rules_is_an_error_that_names_it(language):
    with pytest.raises(InputError, match=f"no tokeniser for language '{language}'"):
        Tokenizer(language)


def test_anything_but_a_string_is_refused(tokenizer):
    for text in (["a", "b"], b"abc", None):
        with pytest.raises(InputError, match="expected one string"):
            tokenizer.sentences(text)
