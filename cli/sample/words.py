"""Words that two texts have in common: the test for "found without a matching word"."""

from __future__ import annotations

import re

__all__ = ["content_words", "shared_words"]

WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+")

# Function words, which carry no topic. The list is short on purpose: a word that it lacks counts as shared, so a
# missing word can only refute the claim "no word in common".
STOP_WORDS = frozenset(
    WORD.findall("""
    a about after all also am an and any are as at be been before but by can could did do does each for from
    had has have he her him his how i if in into is it its me my no not of off on one or other our out over
    own she should so some such than that the their them then there these they this those through to too
    under until up us was we were what when where which while who whom whose why will with would you your
    """)
)

SAME_OPENING = 5
"""Words that begin with the same 5 letters count as equal: volcano, volcanic; parent, parenting."""

# Longest first; a stem must keep three letters, so that "king" and "bed" stay whole.
SUFFIXES = (
    "nesses", "ness", "ings", "ing", "edly", "ies", "ied", "ers", "est", "ed", "er", "es", "ly", "s", "y", "e"
)  # fmt: skip


def content_words(text: str) -> list[str]:
    """Return the distinct words of `text` that carry meaning, lower-case, in order of appearance."""
    words = (word.split("'")[0].split("’")[0] for word in WORD.findall(text.lower()))
    return list(dict.fromkeys(word for word in words if word not in STOP_WORDS and len(word) > 1))


def shared_words(query: str, text: str) -> list[str]:
    """Return the content words of `query` that `text` has too, inflections included, in the query's order.

    Deliberately generous, since it backs the claim that no word is shared: words match when their stems or their
    first five letters are equal.

    >>> shared_words("How do volcanoes form?", "A volcanic island, forming still.")
    ['volcanoes', 'form']
    >>> shared_words("electric cars and the climate", "Battery-powered vehicles cut emissions.")
    []
    """
    theirs = {key for word in content_words(text) for key in _keys(word)}
    return [word for word in content_words(query) if theirs.intersection(_keys(word))]


def _keys(word: str) -> set[str]:
    keys = {_stem(word)}
    if len(word) >= SAME_OPENING:
        keys.add(word[:SAME_OPENING] + "…")  # the mark keeps an opening from matching a stem of five letters
    return keys


def _stem(word: str) -> str:
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            stem = word[: -len(suffix)]
            return stem[:-1] if len(stem) > 3 and stem[-1] == stem[-2] else stem
    return word
