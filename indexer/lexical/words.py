"""Texts to words: Unicode normalisation, case folding, segmentation (UAX #29), and words of code.

What each version of the analyser does is told in analyser.py. All functions take time linear in the text.

Unicode's segmentation drops the signs of `C++` and `#tag`, and finds no parts in `getUserById`, `snake_case` and
`Node.js`. Only what it lacks is yielded here, besides the words that it finds; most texts have nothing of it.
Addresses of pages and of people and paths of files have too many parts that nobody looks for, so they have none.

`word_places` finds the same words with their places in the text before normalisation. Normalisation changes lengths:
"ﬁ" becomes two characters, a letter with a combining mark one, a soft hyphen none. It never joins characters of
different pieces, which are grapheme clusters with the invisible characters after them. So each piece is normalised by
itself, and every character of the result lies where its piece does.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import regex

from scannery.indexer.lexical import words

__all__ = [
    "MAX_WORD_CHARACTERS",
    "WORD",
    "code_words",
    "normalised",
    "numbered_words",
    "word_places",
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
# The same for ASCII in lower case, in half the time; not for an apostrophe before a vowel, where `regex` ends words.
_ASCII_WORD = re.compile(
    "[a-z0-9_]+(?:[.:',;](?:(?<=[a-z][.:'])(?=[a-z])|(?<=[0-9][.,;'])(?=[0-9]))[a-z0-9_]+)*"
)
_BEFORE_VOWEL = re.compile("'[aeiou]")
_UNSPACED = r"[[\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]&&[\p{L}\p{M}\p{N}]]"
WORD_OR_RUN = regex.compile(rf"(?V1w){_UNSPACED}++|\b\w.*?\b")
RUN = regex.compile(rf"(?V1){_UNSPACED}")
_IDEOGRAPHIC = r"[\p{Han}\p{Hiragana}\p{Katakana}\u3005-\u3007\u30fc]"
WORD_RUN_OR_IDEOGRAPHS = regex.compile(rf"(?V1w){_UNSPACED}++|{_IDEOGRAPHIC}++|\b\w.*?\b")
PAIRED = regex.compile(rf"(?V1){_UNSPACED}|{_IDEOGRAPHIC}|\p{{Hangul}}")
HAN = regex.compile(r"(?V1)[\p{Han}\u3005-\u3007]")
HANGUL = regex.compile(r"(?V1)\p{Hangul}++")
SYLLABLE = regex.compile(r"(?V1)\P{M}\p{M}*+|\p{M}++")


def words_of(text: str, version: int) -> Iterable[str]:
    """Return the words of a text in order, cut to MAX_WORD_CHARACTERS."""
    plain = normalised(text, version)
    if version > 2 and (plain.isascii() or PAIRED.search(plain) is None):
        return [word[:MAX_WORD_CHARACTERS] for word in _pattern_of(plain).findall(plain)]
    return _words_and_pairs(plain) if version > 2 else _words_and_runs(plain, version)


def _words_and_runs(plain: str, version: int) -> Iterator[str]:
    """Yield the words of a normalised text as the first versions have them."""
    # Looked for once in the text: most texts have none, and a match per word is a third of the time.
    has_runs = version > 1 and not plain.isascii() and RUN.search(plain) is not None
    for word in (WORD if version == 1 else WORD_OR_RUN).findall(plain):
        if has_runs and not word.isascii() and RUN.match(word):
            yield from _pairs(word)
        else:
            yield word[:MAX_WORD_CHARACTERS]


def _pattern_of(plain: str) -> re.Pattern[str] | regex.Pattern[str]:
    """Return what the words of a normalised text match if it has no pairs of characters."""
    return _ASCII_WORD if plain.isascii() and _BEFORE_VOWEL.search(plain) is None else WORD


def normalised(text: str, version: int) -> str:
    """Return a text as it is cut into words: in lower case, or case-folded."""
    plain = text.lower() if text.isascii() else (_lowered if version == 1 else _folded)(text)
    return plain.replace("\u2019", "'")


def _words_and_pairs(plain: str) -> Iterator[str]:
    """Yield the words of a normalised text, with the pairs of scripts that have no spaces between words."""
    for word in WORD_RUN_OR_IDEOGRAPHS.findall(plain):
        if word.isascii() or not PAIRED.match(word):
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
    for first, two in pairwise(run):
        yield first + two


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
    for first, two in pairwise(syllables):
        yield (first + two)[:MAX_WORD_CHARACTERS]


_PLUS, _HASH, _AT, _AND = "[+＋]", "[#＃]", "[@＠]", "[&＆]"
_PICTURE = r"[\p{Extended_Pictographic}--[\u00a9\u00ae\u2122\u203c\u2049]]"
_SHADE = r"[\U0001f3fb-\U0001f3ff\ufe0f]"

# C++, notepad++ · C#, F# · .NET, .gitignore · AT&T, R&D, S&P500 · @handle, #tag · emoji, with skin tones, joined; flags
_WHOLE = regex.compile(
    rf"(?<![\w+＋#])\p{{L}}[\p{{L}}\p{{N}}]{{0,15}}+{_PLUS}{{2}}(?!{_PLUS})"
    rf"|(?<![\w+#])\p{{L}}\p{{L}}?+{_HASH}(?![\p{{L}}_#])"
    r"|(?<![\w./\\])\.\p{L}[\w-]{1,40}+"
    rf"|(?<![\w&=?])\p{{L}}{{1,4}}+{_AND}\p{{L}}{{1,4}}+(?![\p{{L}}&;=])"
    rf"|(?<![\w@#&/.])(?:{_AT}|{_HASH})(?=\w*\p{{L}})\w{{1,64}}+"
    rf"|{_PICTURE}{_SHADE}{{0,2}}+(?:\u200d{_PICTURE}{_SHADE}{{0,2}}+){{0,9}}+|\p{{Regional_Indicator}}{{2}}",
    regex.V1,
)
_PICTURES = regex.compile(_PICTURE, regex.V1)

# An address, a path of three names or more, or (in the group) a word that may have parts.
_ADDRESS_OR_JOINED = regex.compile(
    r"(?<!\w)(?:\w{1,20}+://|www\.)\S++"
    r"|(?<![\w.%+@-])[\w.%+-]{1,64}+@[\w-]{1,64}+\.\S++"
    r"|(?<![\w./\\~-])[\w.~-]{0,64}+(?:[/\\]++[\w.~%+-]++){2,}+"
    r"|(?<!\w)(\w[\w.]{2,127}+)",
    regex.V1,
)
_UPPER, _LOWER = r"\p{Lu}\p{M}*+", r"\p{Ll}\p{M}*+"
_BOUNDARY = rf"{_LOWER}{_UPPER}|(?:{_UPPER}){{2}}(?:{_LOWER}){{2}}"
_HAS_PARTS = regex.compile(rf"\w_|_\w|\w\.\w|{_BOUNDARY}")
# IDs, URLs · HTTP in HTTPServer · Server2
_PART = regex.compile(
    rf"(?:(?:{_UPPER}){{2,}}s(?!{_LOWER})|(?:{_UPPER})+(?!{_LOWER})|(?:{_UPPER})?(?:{_LOWER})++)(\p{{N}}*+)"
)
# Where a word may be: at a sign, a full stop inside, or a capital that begins a part. A set first, which is fast.
_SIGN_OF_ASCII = re.compile(
    r"[+#&@_.A-Z](?:(?<=[+#&@_])|(?<=\.)(?=\w)|(?<=[a-z][A-Z])|(?<=[A-Z])(?=[A-Z][a-z][a-z]))", re.ASCII
)
_SIGN = regex.compile(
    rf"[[+＋#＃&＆@＠_.\p{{Lu}}\p{{Regional_Indicator}}]||{_PICTURE}](?:(?<=[^.\p{{Lu}}])|(?<=\.)(?=\w)"
    rf"|(?<={_LOWER}\p{{Lu}})|(?<=\p{{Lu}})(?=\p{{M}}*+{_UPPER}{_LOWER}{_LOWER}))",
    regex.V1,
)
_TO_SPACE = re.compile(r"\S*")


def code_words(text: str) -> Iterator[tuple[str, int, int]]:
    """Yield words as written, each with its first character in the text and one past its last; in linear time."""
    end = 0
    for sign in (_SIGN_OF_ASCII if text.isascii() else _SIGN).finditer(text):
        if sign.start() < end:
            continue
        # The patterns look only at what has no spaces around the sign: most of a text is never looked at.
        start = 1 + max(text.rfind(" ", end, sign.start()), text.rfind("\n", end, sign.start()), end - 1)
        end = _TO_SPACE.match(text, sign.start()).end()  # type: ignore[union-attr]  # it matches everywhere
        yield from _code_words(text, start, end)


def _code_words(text: str, start: int, end: int) -> Iterator[tuple[str, int, int]]:
    for match in _WHOLE.finditer(text, start, end):
        yield match[0], match.start(), match.end()
        # A joined emoji is also found by each of its pictures.
        if not match[0].isascii() and len(match[0].replace("\ufe0f", "")) > 1:
            for picture in _PICTURES.finditer(match[0]):
                yield picture[0], match.start() + picture.start(), match.start() + picture.end()
    for match in _ADDRESS_OR_JOINED.finditer(text, start, end):
        if match[1] is not None and _HAS_PARTS.search(match[1]) is not None:
            yield from _parts(match[1], match.start())


def _parts(word: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yield the parts of a word that begins at `start`; those that end with digits also without them."""
    for match in _PART.finditer(word):
        for end in dict.fromkeys((match.end(), match.start(1))):
            # Single letters are of abbreviations (U.S.).
            if end - match.start() > 1:
                yield word[match.start() : end], start + match.start(), start + end


# ASCII in one piece, but not its last letter where something else follows, perhaps a mark. Letters of flags are pieces
# of their own: to find the end of a cluster of them, \X looks back to the first one of a run.
_PIECE = regex.compile(
    r"(?V1)[\x00-\x7f]+(?![^\x00-\x7f])|(?:\p{Regional_Indicator}|\X)(?:[\p{Default_Ignorable_Code_Point}--\u200b]++[\p{M}\uff9e\uff9f]*+)*+"
)

WordSpan = tuple[str, int, int]


def word_places(text: str, version: int) -> Iterator[WordSpan]:
    """Yield the words of a text as `words_of` does, each with its first character in the text and one past its last."""
    if text.isascii():
        yield from _located_words(normalised(text, version), version)
        return
    plain, starts, ends = _aligned(text, version)
    for word, start, end in _located_words(plain, version):
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


def _located_words(plain: str, version: int) -> Iterator[WordSpan]:
    """Yield the words of a normalised text with their places in it, as `words_of` finds them."""
    pattern, runs = _patterns(plain, version)
    for match in pattern.finditer(plain):
        word, start = match[0], match.start()
        if runs is None or word.isascii() or not runs.match(word):
            yield word[:MAX_WORD_CHARACTERS], start, match.end()
            continue
        for part, first, last in _place_parts(word):
            yield part, start + first, start + last


def _patterns(
    plain: str, version: int
) -> tuple[re.Pattern[str] | regex.Pattern[str], regex.Pattern[str] | None]:
    """Return what words of a text match, and what those match that are cut into pairs; None: there are none."""
    if version == 1 or plain.isascii():
        return _pattern_of(plain), None
    if version == 2:
        return words.WORD_OR_RUN, words.RUN if words.RUN.search(plain) else None
    if words.PAIRED.search(plain) is None:
        return words.WORD, None
    return words.WORD_RUN_OR_IDEOGRAPHS, words.PAIRED


def _place_parts(word: str) -> Iterator[WordSpan]:
    """Yield the parts of a word in a script without spaces between words."""
    if words.RUN.match(word):
        syllables = words.SYLLABLE.findall(word)
        yield from _place_pairs(
            [syllable[:MAX_WORD_CHARACTERS] for syllable in syllables], map(len, syllables)
        )
    elif words.HANGUL.fullmatch(word):
        yield from _place_pairs(word, [1] * len(word))
    elif words.HANGUL.match(word):
        yield word[:MAX_WORD_CHARACTERS], 0, len(word)
    else:
        if len(word) > 1:
            yield from ((match[0], match.start(), match.end()) for match in words.HAN.finditer(word))
        yield from _place_pairs(word, [1] * len(word))


def _place_pairs(parts: Sequence[str], sizes: Iterable[int]) -> Iterator[WordSpan]:
    """Yield each pair of adjacent parts of given sizes; the part if there is only one."""
    edges = [0, *accumulate(sizes)]
    if len(parts) == 1:
        yield parts[0], 0, edges[1]
    for i in range(len(parts) - 1):
        yield (parts[i] + parts[i + 1])[:MAX_WORD_CHARACTERS], edges[i], edges[i + 2]


def numbered_words(text: str, version: int) -> tuple[Sequence[str], Sequence[int]]:
    """Return the words of a text and of its code, and the number of each in the order of the text, from 0.

    Pairs of characters of scripts without spaces are numbered by their first character. A word of code has the number
    of the first word that it has in it or is part of; signs without a word, as emoji, have their own.
    """
    code = sorted(code_words(text), key=lambda span: (span[1], -span[2])) if version > 3 else []
    aligned = _aligned(text, version) if code and not text.isascii() else None
    plain = normalised(text, version) if aligned is None else aligned[0]
    pattern, runs = _patterns(plain, version)
    if not code and runs is None:
        words = [word[:MAX_WORD_CHARACTERS] for word in pattern.findall(plain)]
        return words, range(len(words))
    located = sorted(_located_words(plain, version), key=lambda span: span[1:])
    anchors = [start for _, start, _ in located]
    anchors += _anchors_of_code(located, code if aligned is None else _in_plain(code, aligned[1]))
    numbers = {anchor: number for number, anchor in enumerate(sorted(set(anchors)))}
    words = [word for word, _, _ in located]
    words += [normalised(word, version)[:MAX_WORD_CHARACTERS] for word, _, _ in code]
    return words, [numbers[anchor] for anchor in anchors]


def _anchors_of_code(located: Sequence[WordSpan], code: Sequence[WordSpan]) -> Iterator[int]:
    """Yield for each word of code where the word begins whose number it has: the first one that it overlaps."""
    ends = [end for _, _, end in located]
    sign, signs_end = 0, 0
    for _, start, end in code:
        first = bisect_right(ends, start)
        if first < len(located) and located[first][1] < end:
            yield located[first][1]
            continue
        if start >= signs_end:
            sign, signs_end = start, end  # pictures of a joined emoji follow, which overlap it
        yield sign


def _in_plain(code: Iterable[WordSpan], piece_starts: Sequence[int]) -> list[WordSpan]:
    """Return words of code with their places in the normalised text, of whose characters the pieces begin there."""
    return [
        (word, _piece_at(start, piece_starts), bisect_left(piece_starts, end)) for word, start, end in code
    ]


def _piece_at(position: int, piece_starts: Sequence[int]) -> int:
    """Return the first character in the normalised text of the piece that a character of the text is in."""
    last = bisect_right(piece_starts, position) - 1
    return bisect_left(piece_starts, piece_starts[last]) if last >= 0 else 0
