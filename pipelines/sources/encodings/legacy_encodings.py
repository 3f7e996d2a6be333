"""Which encoding from before UTF-8 a text has, by the letters that it gets.

Each encoding is tried, and the text that it makes is compared with the alphabets of languages: common letters cost
little, letters that no word of the language has cost much, as do signs within words and capitals behind small letters.
Of encodings that make the same text, and of nearly equal ones, that which more files have is taken: windows-1252 before
all others. Detectors for web pages take a line of Danish or French for Central European: they know no such order.
"""

from __future__ import annotations

import codecs
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from functools import cache

__all__ = ["likely_encoding"]

_SAMPLE_BYTES = 1 << 13

_LATIN = ("éïèêñ", "äöüßé", "éèàêçâôîùûœëïæü", "ãçáéóêíõúâôà", "óíáéñúü", "èàòùìé", "åøæéóòôü", "äåöéü", "äöåéšž",
          "íáðéúóþöæý", "ëéïèöüóáêç", "óàéèíçúòïü·", "äõüöšž", "łążęśćóńź", "íáéěýžřšůčúňóťď", "áíýčšžéúťľôňóďäŕĺ",
          "áéöóőíüúű", "čšžćđ", "ăâîşţșț", "ıüşğçöâîûi̇", "ėšųįžūąčę", "āīēšūņļžčģķ", "ëç")  # fmt: skip
"""Letters beyond ASCII of English, German, French, Portuguese, Spanish, Italian, Danish and Norwegian, Swedish,
Finnish, Icelandic, Dutch, Catalan, Estonian, Polish, Czech, Slovak, Hungarian, Croatian, Romanian, Turkish, Lithuanian,
Latvian and Albanian; common ones first."""
_CYRILLIC = ("оеаинтсрвлкмдпуяыьгзбчйхжшюцщэфъё", "оанівиертслкдмупязьбгйчхцїжшюєщфґ", "аиоентрсвлдпкмъязубчгйщцжшхюфь",
          "αοιετνσρκπυλμηςγδόίάέωχήβθύφώξζψϊ", "יוהלאתרמבשנדםעחקפכגזטןצסךףץ", "اليمنرتوبعدسفكهقأحجشطصةىخإضذزءغئثظؤآ",
          "านรอกเงมยลวดทสตะปบคหแจพชขใไำๆผโซถฟณธญศษ")  # fmt: skip
"""The same of Russian, Ukrainian, Bulgarian, Greek, Hebrew, Arabic and Thai."""
_LATIN_STEP, _OTHER_STEP = 0.35, 0.11
_FOREIGN, _DAMAGE = -6.0, -12.0
_SIGNS = frozenset("“”‘’„«»–—…€°£§·¿¡ºª®©™•½²³\u00a0،؟؛№")

_COMMON_IN = {
    "gb18030": "的一是了我不在有人他这中大来上国个到说们为子和你地出道也时年",
    "big5": "的一是了我不在有人他這中大來上國個到說們為子和你地出道也時年",
    "cp932": "のにはをたがでてとしれさあるいもなす", "euc_jp": "のにはをたがでてとしれさあるいもなす",
    "euc_kr": "이다는을의가에고하지은서어요를로도",
}  # fmt: skip
_FIRST_LEVEL = {"gb18030": ("gb2312", 0xB0, 0xD7), "big5": ("big5", 0xA4, 0xC6), "cp932": ("cp932", 0x88, 0x97),
                "euc_jp": ("euc_jp", 0xB0, 0xCF)}  # fmt: skip
"""Encoding and first bytes of the characters that texts mostly have."""

_CANDIDATES = {
    "cp1252": 0.0, "cp1250": 1.5, "cp1251": 1.5, "cp1253": 1.5, "cp1254": 1.5, "cp1255": 1.5, "cp1256": 1.5,
    "cp1257": 1.5,
    "cp932": 1.5, "gb18030": 1.5, "big5": 1.5, "euc_kr": 1.5, "euc_jp": 2.0, "koi8_r": 2.0, "koi8_u": 2.5, "cp874": 2.0,
    "iso8859_15": 2.5, "iso8859_2": 2.5, "iso8859_7": 2.5, "iso8859_5": 3.0, "iso8859_6": 3.0, "iso8859_9": 2.5,
    "iso8859_8": 3.0, "mac_roman": 2.5, "cp850": 2.5, "cp866": 2.5, "cp852": 3.5,
}  # fmt: skip
"""Encodings, and what each costs besides its letters: what fewer files have costs more."""


def likely_encoding(sample: bytes) -> str:
    """Return the encoding of a text that is not UTF-8, in the name that Python gives it.

    Args:
        sample: whole lines of the text; those without letters beyond ASCII say nothing.

    """
    cut = sample[:_SAMPLE_BYTES]
    whole = cut[: cut.rfind(b"\n")] if len(sample) > _SAMPLE_BYTES and b"\n" in cut else cut
    scores: dict[str, float] = {}
    for encoding, cost in _CANDIDATES.items():
        text = codecs.getincrementaldecoder(encoding)("replace").decode(whole)
        scores[encoding] = (_wide_score(text, encoding) if encoding in _COMMON_IN else _score(text)) - cost
    return max(scores, key=lambda encoding: scores[encoding])


def _score(text: str) -> float:
    """Return how well a text fits the language that it fits best, as the sum over its letters."""
    counts: Counter[str] = Counter()
    fit = 0.0
    for (before, character, behind), count in _letter_contexts(text):
        counts[character if character == "İ" else character.lower()] += count
        fit += count * _fit(before, character, behind)
    return fit + max(
        sum(count * _weight(weights, character) for character, count in counts.items())
        for weights in _alphabets()
    )


def _letter_contexts(text: str) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Yield each character beyond ASCII with the letters before and behind it, where there are any, and how often."""
    for (before, character, behind), count in Counter(
        zip(" " + text, text, text[1:] + " ", strict=False)
    ).items():
        if character > "\x7f":
            yield (before if before.isalpha() else "", character, behind if behind.isalpha() else ""), count


def _fit(before: str, character: str, behind: str) -> float:
    """Return what the place of a character in its word costs."""
    if unicodedata.combining(character):
        return -6.0 if before and before < "\u0250" else 0.0
    if not character.isalpha():
        is_within = bool(before and behind) and character not in "’·\u00ad\u200d"
        return -6.0 if is_within or (before and character in "¿¡") else 0.0
    is_latin = character < "\u0250"
    if not is_latin:
        # No word has letters of two scripts; a final sigma is at the end of its word.
        is_mixed = (
            any(neighbour and neighbour < "\u0250" for neighbour in (before, behind))
            and character not in "ªº"
        )
        cost = -4.0 if is_mixed or (character == "ς" and behind) else 0.0
    else:
        cost = -2.0 if before > "\x7f" and behind > "\x7f" else 0.0
    if character.isupper() and before:
        cost -= 4.0 if before.islower() else 0.5
    if character.isupper() and not before and not behind and is_latin:
        cost -= 1.0
    return cost


def _weight(weights: Mapping[str, float], character: str) -> float:
    if (weight := weights.get(character)) is not None:
        return weight
    if character in _SIGNS:
        return -1.0
    if unicodedata.combining(character) or unicodedata.category(character) == "Mn":
        return -0.8
    return _DAMAGE if character == "\ufffd" or unicodedata.category(character) == "Cc" else _FOREIGN


@cache
def _alphabets() -> list[dict[str, float]]:
    alphabets = [(_LATIN, _LATIN_STEP), (_CYRILLIC, _OTHER_STEP)]
    return [
        {letter: -0.5 - step * rank for rank, letter in enumerate(letters)}
        for group, step in alphabets
        for letters in group
    ]


def _wide_score(text: str, encoding: str) -> float:
    """Return how well a text of two-byte characters fits; twice as much a character as a letter of one byte costs."""
    common = frozenset(_COMMON_IN[encoding])
    has_spaces = encoding not in ("gb18030", "big5")
    return sum(
        count * (_wide_weight(character, encoding, common) - (0.0 if has_spaces or before or behind else 1.0))
        for (before, character, behind), count in _letter_contexts(text)
    )


def _wide_weight(character: str, encoding: str, common: Collection[str]) -> float:
    is_kana, is_half_width = "\u3040" <= character < "\u3100", "\uff61" <= character < "\uffa0"
    if character in common:
        weight = -0.5
    elif character == "\ufffd":
        weight = _DAMAGE
    elif is_half_width or (is_kana and encoding not in ("cp932", "euc_jp")):
        weight = _FOREIGN
    elif is_kana or unicodedata.category(character)[0] in "PZ" or "\uff01" <= character <= "\uff5e":
        weight = -1.5
    elif encoding == "euc_kr":
        weight = -2.5 if "가" <= character <= "힣" else _FOREIGN
    else:
        weight = -2.2 if _is_of_first_level(character, encoding) else 2 * _FOREIGN
    return weight


def _is_of_first_level(character: str, encoding: str) -> bool:
    name, first, last = _FIRST_LEVEL[encoding]
    try:
        encoded = character.encode(name)
    except UnicodeEncodeError:
        return False
    return len(encoded) == 2 and first <= encoded[0] <= last
