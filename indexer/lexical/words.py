"""Texts to words: Unicode normalisation, case folding, and words by Unicode's segmentation (UAX #29).

What each version of the analyser does is told in analyser.py. All functions take time linear in the text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from itertools import pairwise

import regex

__all__ = [
    "HAN",
    "HANGUL",
    "MAX_WORD_CHARACTERS",
    "PAIRED",
    "RUN",
    "SYLLABLE",
    "WORD",
    "WORD_OR_RUN",
    "WORD_RUN_OR_IDEOGRAPHS",
    "normalised",
    "words_of",
]

MAX_WORD_CHARACTERS = 128
"""Longest word, others are cut: longer ones are base64 and similar, and only enlarge the vocabulary."""

MAX_MARKS = 30
"""Most combining marks per character, as in Unicode's stream-safe format; others are removed. Normalisation sorts
marks, in time quadratic in their number."""

_MARK = r"[\p{M}\uff9e\uff9f]"
_MARKS = regex.compile(rf"(?V1)(?<!{_MARK})({_MARK}{{{MAX_MARKS}}}){_MARK}++")
# All but the zero-width space, which ends a word.
_UNSEEN = regex.compile(r"(?V1)[\p{Default_Ignorable_Code_Point}--\u200b]+")
_VOWEL_SIGNS = regex.compile(
    r"[\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed]+"
)

# `w` makes \b Unicode's word boundary: "can't", "3.14" and "U.S.A" are one word each, and so is every ideograph.
WORD = regex.compile(r"(?V1w)\b\w.*?\b")
_UNSPACED = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{M}\p{N}]]"
WORD_OR_RUN = regex.compile(rf"(?V1w){_UNSPACED}++|\b\w.*?\b")
RUN = regex.compile(rf"(?V1){_UNSPACED}")
_IDEOGRAPHIC = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3005-\u3007\u30fc]"
WORD_RUN_OR_IDEOGRAPHS = regex.compile(rf"(?V1w){_UNSPACED}++|{_IDEOGRAPHIC}++|\b\w.*?\b")
PAIRED = regex.compile(rf"(?V1){_UNSPACED}|{_IDEOGRAPHIC}|\p{{Hangul}}")
HAN = regex.compile(r"(?V1)[\p{Han}\u3005-\u3007]")
HANGUL = regex.compile(r"(?V1)\p{Hangul}++")
SYLLABLE = regex.compile(r"(?V1)\P{M}\p{M}*+|\p{M}++")


def words_of(text: str, version: int) -> Iterator[str]:
    """Yield the words of a text in order, cut to MAX_WORD_CHARACTERS."""
    plain = normalised(text, version)
    if version > 2:
        yield from _words_and_pairs(plain)
        return
    # Looked for once in the text: most texts have none, and a match per word is a third of the time.
    has_runs = version > 1 and not plain.isascii() and RUN.search(plain) is not None
    for word in (WORD if version == 1 else WORD_OR_RUN).findall(plain):
        if has_runs and not word.isascii() and RUN.match(word):
            yield from _pairs(word)
        else:
            yield word[:MAX_WORD_CHARACTERS]


def normalised(text: str, version: int) -> str:
    """Return a text as it is cut into words: in lower case, or case-folded."""
    plain = text.lower() if text.isascii() else (_lowered if version == 1 else _folded)(text)
    return plain.replace("\u2019", "'")


def _words_and_pairs(plain: str) -> Iterator[str]:
    """Yield the words of a normalised text, with the pairs of scripts that have no spaces between words."""
    has_pairs = not plain.isascii() and PAIRED.search(plain) is not None
    for word in (WORD_RUN_OR_IDEOGRAPHS if has_pairs else WORD).findall(plain):
        if not has_pairs or word.isascii() or not PAIRED.match(word):
            yield word[:MAX_WORD_CHARACTERS]
        elif RUN.match(word):
            yield from _pairs(word)
        elif HANGUL.fullmatch(word):
            yield from _adjacent(word)
        elif HANGUL.match(word):
            yield word[:MAX_WORD_CHARACTERS]
        else:
            # Single Han characters are words of their own, single kana hardly ever.
            yield from HAN.findall(word) if len(word) > 1 else ()
            yield from _adjacent(word)


def _adjacent(run: str) -> Iterator[str]:
    """Yield each pair of adjacent characters of a run; the character if there is only one."""
    if len(run) == 1:
        yield run
    for one, two in pairwise(run):
        yield one + two


def _lowered(text: str) -> str:
    return unicodedata.normalize("NFKC", _few_marks(text)).lower()


def _folded(text: str) -> str:
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", _few_marks(text)))
    folded = _VOWEL_SIGNS.sub("", seen).casefold()
    # Case folding can undo the normal form, and removing characters can join marks.
    return unicodedata.normalize("NFKC", _few_marks(folded))


def _few_marks(text: str) -> str:
    kept: str = _MARKS.sub(r"\1", text)
    return kept


def _pairs(run: str) -> Iterator[str]:
    """Yield each pair of adjacent syllables of a run; the syllable if there is only one."""
    syllables = [syllable[:MAX_WORD_CHARACTERS] for syllable in SYLLABLE.findall(run)]
    if len(syllables) == 1:
        yield syllables[0]
    for one, two in pairwise(syllables):
        yield (one + two)[:MAX_WORD_CHARACTERS]
