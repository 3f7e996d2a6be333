"""Patterns of terms: texts that stand for some terms of a dictionary, which then count as one term of a query.

    volcan        the term itself
    volc*         all terms that begin so
    artifci~2     all terms with the same first letter that differ by at most two edits
    tv|televis    the terms of several patterns

An edit inserts, removes or replaces a letter, or swaps two that are side by side. No term has one of the signs: the
analyser cuts words at them. So patterns go where terms go, to the leaves of a cluster too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = [
    "alternatives_of",
    "any_of",
    "matches",
    "patterns_among",
    "prefix",
    "prefix_of",
    "similar",
    "similar_of",
]

_PREFIX, _SIMILAR, _OR = "*", "~", "|"
_SIGNS = frozenset(_PREFIX + _SIMILAR + _OR)


def prefix(text: str) -> str:
    """Return the pattern of all terms that begin with a text."""
    return text + _PREFIX


def similar(word: str, edits: int) -> str:
    """Return the pattern of all terms that differ from a word by at most a number of edits, 0 to 9."""
    return f"{word}{_SIMILAR}{edits}"


def any_of(patterns: Iterable[str]) -> str:
    """Return the pattern of the terms of some patterns, of which each counts once."""
    return _OR.join(dict.fromkeys(patterns))


def alternatives_of(pattern: str) -> list[str]:
    """Return the patterns that `any_of` joined."""
    return pattern.split(_OR)


def patterns_among(terms: Sequence[str]) -> list[int]:
    """Return the positions of the patterns that are no terms themselves."""
    if _SIGNS.isdisjoint("".join(terms)):  # nearly always
        return []
    return [position for position, term in enumerate(terms) if not _SIGNS.isdisjoint(term)]


def matches(pattern: str, term: str) -> bool:
    """Return whether a term is one of those that a pattern stands for."""
    return any(_matches_one(each, term) for each in alternatives_of(pattern))


def _matches_one(pattern: str, term: str) -> bool:
    if (begun := prefix_of(pattern)) is not None:
        return term.startswith(begun)
    if (like := similar_of(pattern)) is not None:
        from scannery.indexer.kernels import term_kernels  # compiles on import: only where it is needed

        word, edits = like
        return term[:1] == word[0] and term_kernels.is_similar(word, term, edits)
    return term == pattern


def prefix_of(pattern: str) -> str | None:
    """Return the text of a pattern that `prefix` made; None: it is another one."""
    return pattern[:-1] if len(pattern) > 1 and pattern.endswith(_PREFIX) else None


def similar_of(pattern: str) -> tuple[str, int] | None:
    """Return the word and the edits of a pattern that `similar` made; None: it is another one."""
    word, sign, edits = pattern[:-2], pattern[-2:-1], pattern[-1:]
    return (word, int(edits)) if word and sign == _SIMILAR and edits in "0123456789" else None
