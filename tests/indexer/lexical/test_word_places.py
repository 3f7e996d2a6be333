"""Where words are in a text: the places of normalised words in what was written."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import Analyser, LexicalSpec
from scannery.indexer.lexical.words import WORD, word_places, words_of

TEXTS = [
    "Volcanoes, don’t erupt: U.S.A 3.14",
    "Eﬃcient ﬁnance ﬁ",
    "cafe\u0301 caf\u00e9 naïve",
    "ＦＵＬＬ Ｗｉｄｔｈ ｶﾞｷﾞ",
    "👩‍👩‍👧 family 👍🏽 thumbs e\u0301👍",
    "soft\u00adhyphen word\u2060joiner zero\u200bwidth",
    "東京大学は日本の大学です。ラーメン",
    "한국어 단어 각",
    "ภาษาไทยง่าย ພາສາລາວ မြန်မာ",
    "שָׁלוֹם عَرَبِيّ",
    "ΟΔΟΣ Σίσυφος STRASSE straße",
    "\u0130stanbul ﷺ ½ ㎏ ²",
    "\r\né\r\n",
]


def places(text: str, version: int = 3) -> list[tuple[str, str]]:
    return [(word, text[start:end]) for word, start, end in word_places(text, version)]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_the_analyser(text: str, version: int) -> None:
    assert [word for word, _ in places(text, version)] == list(words_of(text, version))


ALPHABET = (
    "aZéß ’'.3\u0301\u00ad\u200b\u2060ﬁＡ東京かガﾞ한ᄀ\u1161\u11a8กิ👩\u200d\u0645\u064e\u05d1\u05b8ΣςI\u0307"
)


@pytest.mark.system
@given(st.text(alphabet=ALPHABET, max_size=30), st.sampled_from([1, 2, 3]))
@settings(max_examples=300)
def test_places_are_of_the_words(text: str, version: int) -> None:
    found = list(word_places(text, version))
    for word, start, end in found:
        assert 0 <= start < end <= len(text)
        # What lies there has the word, alone or within a piece that cannot be divided.
        again = "".join(words_of(text[start:end], version))
        assert again and any(char in again for char in word)


@pytest.mark.system
@given(st.text(alphabet="abeoxzAE019__..::,,;;'' \n\r\t\"-+#&@/!\x0b\x0c\x1c\x1f\x00\x7f()", max_size=20))
@settings(max_examples=1000)
def test_words_of_ascii_are_those_of_unicode(text: str) -> None:
    assert words_of(text, 3) == WORD.findall(text.lower())
    assert [word for word, _ in places(text)] == WORD.findall(text.lower())


@pytest.mark.parametrize("first", [chr(code) for code in range(128)])
def test_signs_between_letters_are_those_of_unicode(first: str) -> None:
    for second in map(chr, range(128)):
        for before, after in ("ab", "12", "_x", " e", "a1"):
            text = f"{before}{first}{second}{after}".lower()
            assert words_of(text, 3) == WORD.findall(text)


@pytest.mark.parametrize(
    ("text", "word", "written"),
    [
        ("the ﬁnal", "final", "ﬁnal"),
        ("un cafe\u0301 noir", "café", "cafe\u0301"),
        ("ein Ｗｏｒｔ hier", "wort", "Ｗｏｒｔ"),
        ("👍🏽👍🏽 thumbs up", "thumbs", "thumbs"),
        ("a soft\u00adhyphen here", "softhyphen", "soft\u00adhyphen"),
        ("die STRASSE, straße", "strasse", "STRASSE"),
        ("die straße", "strasse", "straße"),
        ("私は東京へ", "東京", "東京"),
        ("ﾊﾞｽで", "バス", "ﾊﾞｽ"),
        ("don’t", "don't", "don’t"),
    ],
)
def test_a_word_lies_where_it_was_written(text: str, word: str, written: str) -> None:
    assert (word, written) in places(text)


@pytest.mark.parametrize("language", ["english", "german", "none"])
@pytest.mark.parametrize("text", TEXTS)
def test_terms_with_places_are_the_terms(text: str, language: str) -> None:
    spec = LexicalSpec.model_validate(
        {"language": language, "stop_words": ["the"], "analyser": 3, "compounds": ["dampf schiff"]}
    )
    analyser = Analyser(spec)
    assert [term for terms, _, _ in analyser.spans(text) for term in terms] == analyser.terms(text)


def test_a_compound_lies_where_the_whole_word_is() -> None:
    analyser = Analyser(LexicalSpec(language="german", analyser=3, compounds=["dampf schiff"]))
    text = "Das Dampfschiff fährt"
    found = {term: text[start:end] for terms, start, end in analyser.spans(text) for term in terms}
    assert found["schiff"] == found["dampf"] == "Dampfschiff"


@pytest.mark.system
@pytest.mark.parametrize("piece", ["🇩", "👨\u200d", "e\u0301\u0316", "a\u00ad", "漢", "\u200d"])
def test_places_take_linear_time(piece: str) -> None:
    def seconds(count: int) -> float:
        started = time.thread_time()
        list(word_places(piece * count, 3))
        return time.thread_time() - started

    small = min(seconds(2_000) for _ in range(3))
    assert min(seconds(16_000) for _ in range(3)) < 24 * small + 0.01
