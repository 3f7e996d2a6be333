"""Phrases: words in order, next to each other or nearly so, by the words of the analyser."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scannery.indexer import LexicalSpec, Phrase, PhraseFinder, analyser_of
from scannery.indexer.lexical import phrases
from scannery.indexer.lexical.words import numbered_words, word_places, words_of


def has(phrase: str, text: str, slop: int = 0, **rules: Any) -> bool:
    parsed = Phrase.of(analyser_of(LexicalSpec(**{"analyser": 4, **rules})), phrase, slop)
    assert parsed is not None
    return PhraseFinder(parsed).is_in(text)


@pytest.mark.parametrize(
    ("phrase", "text", "expected"),
    [
        ("plate boundary", "At a plate boundary, magma rises.", True),
        ("plate boundary", "Plates' BOUNDARIES are long.", True),  # forms of the same words
        ("plate boundary", "plate. Boundary", True),  # signs are no words
        ("plate boundary", "the boundary plate", False),
        ("plate boundary", "the plate of a boundary", False),
        ("plate", "plates", True),
        ("new new york", "new york, new new york", True),
        ("new new york", "new york new york", False),
        ("C++ templates", "a C++ template", True),
        ("C++ templates", "C templates", False),
        ("get user", "getUser", False),  # a word of code is one word
        ("call getUserById", "Call getUserById(3)", True),
        ("call user", "Call getUserById(3)", True),  # its parts stand where it stands
        ("AT&T phone", "an AT&T phone", True),
        ("AT&T phone", "at t phone", False),
        ("party time", "party 🎉 time", False),
        ("party 🎉 time", "Party 🎉 time", True),
        ("😀 👩‍👩‍👧 x", "😀👩‍👩‍👧 x", True),
        ("use tag now", "use #tag now", True),
        ("京都", "東京都", True),
        ("東京都", "東京と京都", False),
        ("東京 大学", "東京大学へ", True),
        ("국어 사전", "한국어 사전", True),
        ("한국 사전", "한국어 사전", False),
        ("ภาษาไทย", "เรียนภาษาไทยง่าย", True),
        ("ภาษาไทย", "ไทยภาษา", False),
        ("naive cafe", "un naïve café", True),
        ("naïve café", "NAIVE CAFE", True),
    ],
)
def test_words_stand_next_to_each_other(phrase: str, text: str, expected: bool) -> None:
    assert has(phrase, text) == expected


@pytest.mark.parametrize(
    ("phrase", "text", "slop", "expected"),
    [
        ("plate boundary", "the plate of the boundary", 2, True),
        ("plate boundary", "the plate of the boundary", 1, False),
        ("a b c", "a x b y c", 2, True),
        ("a b c", "a x b y c", 1, False),
        ("a b c", "a x b a b y c", 1, True),  # a later beginning is nearer
        ("b a", "a b", 5, False),
        ("東 都", "東京都", 1, True),
    ],
)
def test_slop_is_the_words_between_in_all(phrase: str, text: str, slop: int, expected: bool) -> None:
    assert has(phrase, text, slop, language="none") == expected


def test_stop_words_count_and_are_compared() -> None:
    rules: dict[str, Any] = {"stop_words": ["to", "or", "the", "of", "in"]}
    assert has("to sleep", "to sleep", **rules) and not has("to sleep", "the sleep", **rules)
    assert has("king of England", "The king of England", **rules)
    assert not has("king of England", "the king in England", **rules)
    assert not has("king England", "the king of England", **rules)
    assert has("king England", "the king of England", 1, **rules)
    analyser = analyser_of(LexicalSpec(**rules))
    assert Phrase.of(analyser, "to the") is None and Phrase.of(analyser, "?!") is None


def test_parts_of_compounds_stand_for_themselves() -> None:
    rules: dict[str, Any] = {"language": "german", "compounds": ["dampf schiff markt"]}
    assert has("schiff fahren", "Dampfschiff fahren", **rules)
    assert has("Dampfschiff fahren", "Dampfschiffe fahren", **rules)
    assert not has("Dampfschiff fahren", "Schiff fahren", **rules)
    assert not has("Dampfschiff fahren", "Dampf schiff fahren", **rules)


def test_few_words_of_many_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phrases, "MAX_KEPT_WORDS", 100)
    phrase = Phrase.of(analyser_of(LexicalSpec(analyser=4)), "plate boundary")
    assert phrase is not None
    finder = PhraseFinder(phrase)
    for start in range(0, 1000, 50):
        numbers = " ".join(map(str, range(start, start + 50)))
        assert finder.is_in(f"plate {numbers} plate boundary") and not finder.is_in(
            f"plate {numbers} boundary"
        )
        assert len(finder._matches) <= 100


def test_equal_phrases_are_equal() -> None:
    analyser = analyser_of(LexicalSpec(analyser=4))
    assert Phrase.of(analyser, "Plate boundaries") == Phrase.of(analyser, "plates, boundary")
    assert Phrase.of(analyser, "plate boundary") != Phrase.of(analyser, "plate boundary", 1)
    assert Phrase.of(analyser, "plate boundary") != Phrase.of(analyser, "boundary plate")


WORDS = [
    "plate",
    "Plates",
    "boundary",
    "a",
    "of",
    "café",
    "cafe",
    "straße",
    "волна",
    "волны",
    "3.14",
    "don't",
    "C++",
    "#tag",
]


def naively(phrase: list[str], text: list[str], slop: int, rules: dict[str, Any]) -> bool:
    """Return whether words of a text, in order and near enough, stand for those of a phrase: all choices are tried."""
    analyser = analyser_of(LexicalSpec(**rules))

    def stands(word: str, wanted: str) -> bool:
        """Return whether a word has all terms of another: with its signs, if this has them."""
        signed = set(analyser.terms(word))
        return all(not signed.isdisjoint([term]) for term in analyser.terms(wanted)) or (
            wanted.isalpha() and not signed.isdisjoint(analyser.terms(wanted))
        )

    for chosen in combinations(range(len(text)), len(phrase)):
        if chosen[-1] - chosen[0] - (len(phrase) - 1) <= slop and all(
            stands(text[at], wanted) for at, wanted in zip(chosen, phrase, strict=True)
        ):
            return True
    return False


@pytest.mark.system
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=4),
    st.lists(st.sampled_from(WORDS), max_size=9),
    st.integers(0, 3),
    st.sampled_from(["english", "german", "russian", "none"]),
    st.sampled_from([" ", ", ", "\n", " — "]),
)
@settings(max_examples=600, deadline=None)
def test_phrases_are_found_as_by_trying_all_words(
    phrase: list[str], text: list[str], slop: int, language: str, space: str
) -> None:
    rules = {"language": language, "analyser": 4}
    assert has(" ".join(phrase), space.join(text), slop, **rules) == naively(phrase, text, slop, rules)


@pytest.mark.system
@given(st.text("東京都大学", min_size=1, max_size=4), st.text("東京都大学x ", max_size=12))
def test_characters_of_chinese_are_found_as_substrings(phrase: str, text: str) -> None:
    assert has(phrase, text) == (phrase in text)


ALPHABET = "aZéß ’'.3_\u0301\u00ad\u200b\u2060ﬁＡ東京かガﾞ한ᄀ\u1161\u11a8กิ👩\u200d#@+&BcΣςI½"


@pytest.mark.system
@given(st.text(alphabet=ALPHABET, max_size=30), st.sampled_from([1, 2, 3, 4]))
@settings(max_examples=300)
def test_each_word_has_a_number(text: str, version: int) -> None:
    words, numbers = numbered_words(text, version)
    base = list(words_of(text, version))
    assume(
        base == [word for word, _, _ in word_places(text, version)]
    )  # not where signs that are removed join letters
    assert sorted(words[: len(base)]) == sorted(base) and len(words) == len(numbers)
    assert {*numbers} == {*range(len({*numbers}))}
    assert list(numbers[: len(base)]) == sorted(numbers[: len(base)])
    again = [*numbered_words(f"{text}\nend", version)[1]]
    assert set(numbers) <= set(again)
