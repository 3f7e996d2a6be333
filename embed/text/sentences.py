"""Sentences of a text with their places in it, also of transcripts and of scripts without spaces.

Sentences end at punctuation, blank lines, lines of a list, headings, and turns of a speaker. A full stop ends none
after an abbreviation ("Dr. Who"), an initial, the number of a list, in a number, and before a lower-case letter. Time
marks (transcripts.py) belong to no sentence at its edges, and may lie within one; speakers' names belong to none.

Everything takes time linear in the text.

Words that end with a full stop inside of a sentence, by language.

Where a language is not known, those of English are taken, with what all languages share.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import regex

from scannery.embed.text.language import language_of
from scannery.embed.text.transcripts import Marks, find_marks

__all__ = ["MAX_SENTENCE_CHARACTERS", "Sentence", "sentences_of"]


class Abbreviations(NamedTuple):
    """The abbreviations of a language, in lower case, without their full stop."""

    inside: frozenset[str]
    """A sentence never ends after them: "Dr. Who"."""
    numbered: frozenset[str]
    """A sentence does not end between them and a number: "No. 5"."""
    ambiguous: frozenset[str]
    """A sentence ends after them if a word follows that often begins one: "Acme Inc. The shares", "Acme Inc. Tokyo"."""


_INSIDE = {
    "": "dr prof mr mrs ms vs cf st mt viz ed eds al",
    "english": "messrs rev hon gen lt col sgt capt gov sen rep pres supt approx fig figs dept est e.g i.e eg ie jan "
               "feb mar apr jun jul aug sept oct nov dec mon tue wed thu fri ph.d m.d",
    "german": "hr fr frl dipl ing z.b d.h u.a o.ä bzw ca evtl ggf inkl exkl sog vgl nr str geb gest jh jhd phil med "
              "jur s.o s.u i.d.r v.chr n.chr bspw zzgl mind max min tel abs art",
    "french": "m mm mme mmes mlle me c.-à-d p.ex env av apr boul ste",
    "spanish": "sr sra srta sres d dña ud uds p.ej a.c d.c ee.uu pág núm tel avda",
    "italian": "sig sig.ra dott dott.ssa avv ing arch geom on p.es ecc.mo a.c d.c",
    "portuguese": "sr sra srs dra exmo p.ex a.c d.c pág núm av",
    "dutch": "dhr mw mevr drs ir bijv d.w.z o.a m.b.t t.o.v nl resp ca blz nr jl",
    "russian": "т.е т.н т.к т.о напр см ср г гг ул пр просп им акад проф руб тыс млн млрд стр рис гл обл р",
    "ukrainian": "т.зв напр див ім вул проф акад тис млн млрд рис",
    "polish": "np tzn tzw tj ul al im św dr hab inż mgr prof ks wg ok r w godz",
    "czech": "např tzn tzv tj sv ul nám ing mgr bc ks cca popř resp mj",
    "swedish": "t.ex d.v.s bl.a s.k m.m kl nr f.d",
    "danish": "f.eks bl.a dvs ca nr kl hr fr",
    "norwegian": "f.eks bl.a dvs ca nr kl hr fr",
    "turkish": "örn bkz vb sn doç prof av",
}  # fmt: skip


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NUMBERED = _set(
    "no nos nr p pp vol fig figs ch chap sec art eq ex abs kap bd s ss pág núm с рис стр гл ст n° č čl str"
)
_AMBIGUOUS = _set(
    "inc ltd co corp jr sr bros u.s u.k u.n e.u d.c b.c a.d a.m p.m u.s.a etc usw uvm u.s.w ecc т.д т.п др itd itp "
    "atd o.s.v osv enz gmbh mbh cie s.a s.p.a"
)

ORDINAL_LANGUAGES = _set("german danish norwegian finnish czech polish hungarian turkish serbian lithuanian")
"""Languages that write "3rd" as "3."."""

SENTENCE_STARTERS = _set(
    "the a an in on at he she it they we i you this that these those but and so if as when after for from his her its "
    "their there however der die das ein eine er sie es wir ich im am auf aber und doch dies diese nach le la les un "
    "une il elle ils elles nous on ce cette mais et dans en el los las una ellos pero y o os uma ele ela eles mas "
    "e gli lo uno ma в на он она они это но и а как de het een hij zij maar"
)
"""Words that begin sentences more often than they follow an abbreviation with a capital."""


@lru_cache(maxsize=64)
def abbreviations_of(language: str | None) -> Abbreviations:
    """Return the abbreviations of a language, such as `german`; of English if there is no list of it."""
    words = f"{_INSIDE['']} {_INSIDE.get(language or '', _INSIDE['english'])}"
    return Abbreviations(_set(words), _NUMBERED, _AMBIGUOUS)


MAX_SENTENCE_CHARACTERS = 400
"""Longer sentences are cut: a snippet is to be read at a glance."""

WRAPPED_CHARACTERS = 50
"""A line of at least this length, without punctuation at its end, goes on in the next one."""

# The look-behind lets a match start only at the first of a run of marks: a long run would take quadratic time.
_STOP = regex.compile(
    r"(?<![.!?…؟।॥։۔።])[.!?…؟।॥։۔።]++[\"'”’»)\]*_]*+(?:\s++|$)|[。！？｡．]++[”’」』）)\"]*+\s*+"
)
_LINE_BREAK = regex.compile(r"[^\S\n]*+\n\s*+")
_NEW_ITEM = regex.compile(r"[-–—*•·#>|+](?:\s|\|)|#{1,6}\s|\||\(?\d{1,3}[.)]\s")
_OPENING = frozenset("\"'“”‘’«»„‚([{*_¿¡-–—")
_INITIALS = regex.compile(r"(?:\p{L}\.)+\p{L}")
_WORD_BEFORE = 24
"""Characters before a full stop that are looked at."""
_CUTS = tuple(
    regex.compile(pattern)
    for pattern in (r"\n\s*+", r"[;:；：—–]\s++|[；：]", r"[,،、，]\s++|[、，]", r"\s++", r"\X")
)
"""Where a sentence that is too long is cut, the best first."""


class Sentence(NamedTuple):
    """A sentence: `text[start:end]`, without space at its edges."""

    start: int
    end: int
    spoken: str
    """What is said in it, on one line: without time marks."""


def sentences_of(text: str, language: str | None = None) -> list[Sentence]:
    """Return the sentences of a text, in order; they do not overlap. A text of space and marks has none.

    Args:
        text: the text.
        language: an English name in lower case, such as `german`; None: found by the text.

    """
    marks = find_marks(text)
    breaks = _Breaks(text, marks, language)
    labels = set(marks.turn_positions)
    sentences = []
    for start, end in pairwise([*breaks.positions(), len(text)]):
        if start in labels:
            continue
        for first, last in _short_enough(text, *_trimmed(text, start, end, marks), marks):
            spoken = " ".join(marks.spoken(text, first, last).split())
            if any(map(str.isalnum, spoken)):
                sentences.append(Sentence(first, last, spoken))
    return sentences


class _Breaks:
    """Where sentences of one text begin."""

    def __init__(self, text: str, marks: Marks, language: str | None) -> None:
        self._text, self._marks, self._language = text, marks, language
        self._is_cased = text.lower() != text
        """Texts without any capital say nothing by lower-case letters."""

    def positions(self) -> list[int]:
        """Return the positions in order, from 0 on."""
        marks = self._marks
        # What a turn's label has before its end is the speaker's name, which is dropped.
        positions = {0, *marks.turn_positions, *marks.label_ends}
        latest = 0
        for match in _STOP.finditer(self._text):
            if self._ends_sentence(match, latest):
                latest = match.end()
                positions.add(latest)
        if marks.cue_ends_s is None:  # lines of cues are cut anywhere
            positions.update(self._line_breaks())
        positions.discard(len(self._text))
        return sorted(positions)

    def _ends_sentence(self, match: regex.Match[str], latest: int) -> bool:
        mark, following = match[0].strip(), self._following(match.end())
        is_lower = self._is_cased and following[:1].islower()
        if not following or mark[0] in "。！？｡":
            return True
        if mark[0] == "．":  # also the full-width decimal point
            return not following[0].isdigit()
        if mark[0] != "." or mark.startswith(".."):
            return not is_lower
        word = self._word_before(match.start())
        if is_lower or (word.isdigit() and self._is_first(match.start() - len(word), latest)):
            return False
        return not self._is_inside(word, following)

    def _is_first(self, position: int, latest: int) -> bool:
        """Return whether a line or a sentence begins here, as with the number of a list."""
        before = self._text[max(0, position - 8, latest) : position]
        return not before.rpartition("\n")[2].strip() and ("\n" in before or position - latest < 8)

    def _is_inside(self, word: str, following: str) -> bool:
        """Return whether a full stop after a word is part of the sentence."""
        lower = word.lower()
        if word.isdigit():
            return len(word) <= 2 and self._known_language in ORDINAL_LANGUAGES
        if len(word) == 1 and word.isalpha() and word != "I":
            return True
        if lower in self._abbreviations.inside:
            return True
        if lower in self._abbreviations.numbered:
            return following[0].isdigit()
        if lower in self._abbreviations.ambiguous or _INITIALS.fullmatch(word):
            return following.split(maxsplit=1)[0].lower() not in SENTENCE_STARTERS
        return False

    def _word_before(self, position: int) -> str:
        before = self._text[max(0, position - _WORD_BEFORE) : position]
        if not before or before[-1].isspace():
            return ""
        return before.split()[-1].lstrip("\"'“”‘’«»„‚([{*_")

    def _following(self, position: int) -> str:
        """Return some characters of what is said next, without marks and opening quotes; "" at the end."""
        text, hidden = self._text, self._marks.hidden
        end = min(len(text), position + 256)
        while position < end:
            range_number = bisect_right(hidden, (position, len(text) + 1)) - 1
            if range_number >= 0 and hidden[range_number][0] <= position < hidden[range_number][1]:
                position = hidden[range_number][1]
                end = max(end, min(len(text), position + 256))
            elif text[position].isspace() or text[position] in _OPENING:
                position += 1
            else:
                return text[position : position + 16]
        return ""

    def _line_breaks(self) -> Iterator[int]:
        text, line_start = self._text, 0
        for match in _LINE_BREAK.finditer(text):
            start, end = match.span()
            if start > line_start and self._is_line_end(match, start - line_start):
                yield end
            line_start = end

    def _is_line_end(self, match: regex.Match[str], length: int) -> bool:
        end = match.end()
        if match[0].count("\n") > 1 or _NEW_ITEM.match(self._text, end):
            return True
        following = self._following(end)
        if self._is_cased and following[:1].islower():
            return False
        return length < WRAPPED_CHARACTERS

    @cached_property
    def _known_language(self) -> str:
        return self._language or language_of(self._text)

    @cached_property
    def _abbreviations(self) -> Abbreviations:
        return abbreviations_of(self._known_language)


def _trimmed(text: str, start: int, end: int, marks: Marks) -> tuple[int, int]:
    """Return a span without space and hidden marks at its edges; an empty one if it has nothing else."""
    hidden = marks.hidden
    while start < end:
        range_number = bisect_right(hidden, (start, len(text) + 1)) - 1
        if range_number >= 0 and hidden[range_number][1] > start:
            start = hidden[range_number][1]
        elif text[start].isspace():
            start += 1
        else:
            break
    while start < end:
        range_number = bisect_right(hidden, (end - 1, len(text) + 1)) - 1
        if range_number >= 0 and hidden[range_number][1] >= end:
            end = hidden[range_number][0]
        elif text[end - 1].isspace():
            end -= 1
        else:
            break
    return start, max(start, end)


def _short_enough(text: str, start: int, end: int, marks: Marks) -> Iterator[tuple[int, int]]:
    """Yield a span, in parts if it is too long."""
    while end - start > MAX_SENTENCE_CHARACTERS:
        cut = _cut(text, start)
        yield _trimmed(text, start, cut, marks)
        start, end = _trimmed(text, cut, end, marks)
    yield start, end


def _cut(text: str, start: int) -> int:
    """Return where to cut a span that is too long."""
    least, last = start + MAX_SENTENCE_CHARACTERS // 2, start + MAX_SENTENCE_CHARACTERS
    # One character more is looked at, to see whether the last match ends before it. A part of the text, since \X would
    # look back to the first of a run of flags.
    part = text[least : last + 1]
    for pattern in _CUTS:
        ends = [least + int(match.end()) for match in pattern.finditer(part)]
        if ends := [end for end in ends if end <= last]:
            return ends[-1]
    return last
