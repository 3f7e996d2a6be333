"""The words of a text as words.py finds them, with their places in the text before normalisation.

Normalisation changes lengths: "ﬁ" becomes two characters, a letter with a combining mark one, a soft hyphen none. It
never joins characters of different pieces, which are grapheme clusters with the invisible characters after them. So
each piece is normalised by itself, and every character of the result lies where its piece does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate

import regex

from scannery.indexer.lexical import words
from scannery.indexer.lexical.words import MAX_WORD_CHARACTERS, normalised

__all__ = ["word_places"]

# ASCII in one piece, but not its last letter where something else follows, perhaps a mark. Letters of flags are pieces
# of their own: to find the end of a cluster of them, \X looks back to the first one of a run.
_PIECE = regex.compile(
    r"(?V1)[\x00-\x7f]+(?![^\x00-\x7f])|(?:\p{Regional_Indicator}|\X)(?:[\p{Default_Ignorable_Code_Point}--\u200b]++[\p{M}\uff9e\uff9f]*+)*+"
)

Place = tuple[str, int, int]


def word_places(text: str, version: int) -> Iterator[Place]:
    """Yield the words of a text as `words_of` does, each with its first character in the text and one past its last."""
    if text.isascii():
        yield from _places(normalised(text, version), version)
        return
    plain, starts, ends = _aligned(text, version)
    for word, start, end in _places(plain, version):
        yield word, starts[start], ends[end - 1]


def _aligned(text: str, version: int) -> tuple[str, list[int], list[int]]:
    """Return a text as it is cut into words, and for each of its characters the place of its piece in the text."""
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for match in _PIECE.finditer(text):
        start, end = match.span()
        piece = match[0]
        if piece.isascii():
            parts.append(normalised(piece, version))
            starts += range(start, end)
            ends += range(start + 1, end + 1)
        else:
            part = _short(piece, version) if end - start <= 8 else normalised(piece, version)
            parts.append(part)
            starts += [start] * len(part)
            ends += [end] * len(part)
    joined = "".join(parts)
    # Lower case depends on the neighbours in version 1: a sigma at the end of a word.
    whole = normalised(text, version)
    return (whole if len(whole) == len(joined) else joined), starts, ends


_short = lru_cache(maxsize=1 << 14)(normalised)


def _places(plain: str, version: int) -> Iterator[Place]:
    """Yield the words of a normalised text with their places in it, as `words_of` finds them."""
    pattern, runs = _patterns(plain, version)
    for match in pattern.finditer(plain):
        word, start = match[0], match.start()
        if runs is None or word.isascii() or not runs.match(word):
            yield word[:MAX_WORD_CHARACTERS], start, match.end()
            continue
        for part, first, last in _parts(word):
            yield part, start + first, start + last


def _patterns(plain: str, version: int) -> tuple[regex.Pattern[str], regex.Pattern[str] | None]:
    """Return what words of a text match, and what those match that are cut into pairs; None: there are none."""
    if version == 1 or plain.isascii():
        return words.WORD, None
    if version == 2:
        return words.WORD_OR_RUN, words.RUN if words.RUN.search(plain) else None
    if words.PAIRED.search(plain) is None:
        return words.WORD, None
    return words.WORD_RUN_OR_IDEOGRAPHS, words.PAIRED


def _parts(word: str) -> Iterator[Place]:
    """Yield the parts of a word in a script without spaces between words."""
    if words.RUN.match(word):
        syllables = words.SYLLABLE.findall(word)
        yield from _pairs([syllable[:MAX_WORD_CHARACTERS] for syllable in syllables], map(len, syllables))
    elif words.HANGUL.fullmatch(word):
        yield from _pairs(word, [1] * len(word))
    elif words.HANGUL.match(word):
        yield word[:MAX_WORD_CHARACTERS], 0, len(word)
    else:
        if len(word) > 1:
            yield from ((match[0], match.start(), match.end()) for match in words.HAN.finditer(word))
        yield from _pairs(word, [1] * len(word))


def _pairs(parts: Sequence[str], sizes: Iterable[int]) -> Iterator[Place]:
    """Yield each pair of adjacent parts of given sizes; the part if there is only one."""
    edges = [0, *accumulate(sizes)]
    if len(parts) == 1:
        yield parts[0], 0, edges[1]
    for i in range(len(parts) - 1):
        yield (parts[i] + parts[i + 1])[:MAX_WORD_CHARACTERS], edges[i], edges[i + 2]
