"""Words of code and of networks, whole with their signs and by their parts: C++, .NET, AT&T, @handle, getUserById.

Unicode's segmentation drops the signs of `C++` and `#tag`, and finds no parts in `getUserById`, `snake_case` and
`Node.js`. Only what it lacks is yielded here, besides the words that it finds; most texts have nothing of it.
Addresses of pages and of people and paths of files have too many parts that nobody looks for, so they have none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import regex

__all__ = ["code_words"]

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
