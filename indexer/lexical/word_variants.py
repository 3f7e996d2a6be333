"""Words that a word of a query may stand for: those one edit away, those that begin so.

The dictionary of an index has stems. So words are made and stemmed, which finds them whatever their endings: "eruptin"
is an edit from "eruption", whose stem is "erupt". With two edits there are too many words: the stem of the word is
compared with those of the dictionary.

Letters are counted without the accents that stems lack.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import regex

from scannery.indexer.lexical import term_patterns
from scannery.indexer.lexical.analyser import Analyser, QueryWord

__all__ = ["beginning_pattern", "may_have_typo", "neighbours", "two_edits_pattern"]

EDIT_LETTERS: Final = 4
"""Least letters of a word that may have an edit."""
TWO_EDITS_LETTERS: Final = 8
"""Least letters of a word that may have two."""
MAX_LETTERS: Final = 32
"""Most letters of a word that is expanded; with MAX_ALPHABET, it bounds the words that are made to some 8,500."""
MAX_ALPHABET: Final = 128
"""Most letters of a script that are put into words. Of more, as in Ethiopic, letters are only left out and swapped."""
MAX_BLOCKS: Final = 2
"""Most blocks of 128 characters that the letters of a word are from: others are no words of a language."""
MIN_PREFIX_LETTERS: Final = 2
"""Least letters of the beginning of a word: with one, a tenth of the dictionary would be one term."""
MIN_STEM_LETTERS: Final = 3
"""Least letters of a stem that is shorter than the beginning of its word."""
_ALPHABETS: Final = {
    "arabic": "ءآأؤإئابةتثجحخدذرزسشصضطظعغفقكلمنهوىي",
    "greek": "αβγδεζηθικλμνξοπρστυφχψω",
    "hindi": "अआइईउऊऋएऐऑओऔकखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसहािीुूृेैॉोौ्ँंः़",
    "russian": "абвгдежзийклмнопрстуфхцчшщъыьэюя",
}
"""Letters of languages whose blocks of characters have as many others: half as many words are made."""
_LETTERS: Final = regex.compile(r"[\p{L}\p{M}]+")


def may_have_typo(analyser: Analyser, word: QueryWord) -> bool:
    """Return whether a word that no row has may be another one with an error."""
    plain = analyser.plain_word(word.text)
    return not word.in_code and EDIT_LETTERS <= len(plain) <= MAX_LETTERS and bool(_LETTERS.fullmatch(plain))


@lru_cache(maxsize=64)
def neighbours(analyser: Analyser, word: str) -> tuple[str, ...]:
    """Return the stems of the words that are an edit from a word, and have its first letter."""
    plain = analyser.plain_word(word)
    return tuple(sorted(analyser.distinct_stems({*_edited(plain, _alphabet(analyser, plain))} - {plain})))


def two_edits_pattern(analyser: Analyser, word: QueryWord) -> str | None:
    """Return the pattern of the terms that are two edits from the stem of a word; None: it is too short."""
    is_long = len(analyser.plain_word(word.text)) >= TWO_EDITS_LETTERS
    is_usable = EDIT_LETTERS <= len(word.terms[0]) <= MAX_LETTERS
    return term_patterns.similar(word.terms[0], 2) if is_long and is_usable else None


def beginning_pattern(analyser: Analyser, word: QueryWord) -> str | None:
    """Return the pattern of the terms of all words that begin as a word does; None: it is too short or long."""
    plain, stem = analyser.plain_word(word.text), word.terms[0]
    if word.in_code or not MIN_PREFIX_LETTERS <= len(plain) <= MAX_LETTERS:
        return None
    # Stems of some languages have other letters than the words, as Serbian ones.
    if not stem.startswith(plain[:2]):
        return term_patterns.prefix(stem) if len(stem) >= MIN_PREFIX_LETTERS else None
    return term_patterns.any_of([term_patterns.prefix(plain), *_shorter_stems(analyser, plain)])


@lru_cache(maxsize=256)
def _shorter_stems(analyser: Analyser, beginning: str) -> tuple[str, ...]:
    """Return the stems that are no longer than the beginning of their words, and differ from it by an ending."""
    letters = _alphabet(analyser, beginning)
    longer = [beginning + first + second for first in letters for second in ("", *letters)]
    stems = {
        stem for stem in analyser.distinct_stems(longer) if MIN_STEM_LETTERS <= len(stem) <= len(beginning)
    }
    return tuple(sorted(stem for stem in stems - {beginning} if beginning.startswith(stem[:-1])))


def _edited(word: str, letters: str) -> Iterator[str]:
    for at in range(1, len(word) + 1):
        before, after = word[:at], word[at:]
        yield from [before + letter + after for letter in letters]
        if after:
            yield before + after[1:]
            yield from [before + letter + after[1:] for letter in letters]
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]


def _alphabet(analyser: Analyser, word: str) -> str:
    """Return the letters of a word's script, as stems have them: of the blocks of 128 characters with its letters."""
    blocks = sorted({ord(letter) >> 7 for letter in word})
    letters = "".join(_letters_of(analyser, block) for block in blocks) if len(blocks) <= MAX_BLOCKS else ""
    return letters if len(letters) <= MAX_ALPHABET else ""


@lru_cache(maxsize=256)
def _letters_of(analyser: Analyser, block: int) -> str:
    characters = map(chr, range(block << 7, (block + 1) << 7))
    letters = [
        letter
        for letter in characters
        if _LETTERS.fullmatch(letter) and analyser.plain_word(letter) == letter
    ]
    of_language = [letter for letter in letters if letter in _ALPHABETS.get(analyser.language, "")]
    return "".join(of_language or letters)
