r"""Time and speaker marks in transcripts, found without changing the text.

Recognised: cues of WebVTT, SRT, SBV and of Whisper's text (`[00:00.000 --> 00:05.000]`), with voice tags `<v Name>` or
names before the words (`Name: …`); `[hh:mm:ss]` and `[mm:ss]` marks anywhere (also escaped for Markdown,
`\[04:02\]`); speaker turns `**Name:** …` at the start of a line; lines with times and names (transcripts.py).
Captions that roll up are said once (rolling_captions.py).

Lines of transcripts that begin with a time or with a speaker's name, in the forms that transcription tools write.

`FORMS` is the table of them. A line alone proves nothing: "10:15 was too late" is prose. So a form counts only where
its lines are many enough, where their times rise, and where they are no times of day (`_is_transcript`).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import NamedTuple

from scannery.embed.text.rolling_captions import Cue, CueLine, repeated_spans

__all__ = ["NAME", "TRANSCRIPT_VERSION", "Label", "Marks", "find_marks", "rising", "spoken_text"]


CLOCK = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})(?:[.,](\d{1,3}))?"
_CLOCK_HINT = re.compile(r":[0-9]{2}")
_MOST_BEFORE_CLOCK = 200
"""Characters of a line before the end of its time, at most."""
NAME = r"[^\W\d_][\w.'’-]{0,39}(?:[ ][\w.'’&-]{1,40}){0,5}"
"""A name of at most six words. Words are bounded, and no two adjacent parts match the same characters."""

_TIME = r"(?:(?P<h>\d{1,3}):)?(?P<m>\d{1,3}):(?P<s>\d{2})(?:[.,](?P<f>\d{1,3})|[:;]\d\d)?(?![\d:])"
_UNTIL = r"(?:[ \t]{0,3}[-–—][ \t]{0,3}\d{1,3}(?::\d\d){1,2}(?:[.,]\d{1,3}|[:;]\d\d)?(?![\d:]))?"
_BOLD = r"(?:\*\*?|__?)?"
_BEGIN = rf"^[ \t]{{0,8}}(?:(?:[-*•]|\#{{1,6}})[ \t]{{1,3}})?{_BOLD}"
_ROLE = r"(?:[ ]?\([^()\n\d:]{1,40}\))?"
_LINE_END = rf"{_BOLD}[ \t\r]{{0,8}}$"


_ABOVE = {"is_header": True}
_NAME = {"begins_with_name": True}
_NAME_ABOVE = _ABOVE | _NAME
_DAY = {"may_be_of_day": True}


class _Form(NamedTuple):
    """A form of lines."""

    pattern: re.Pattern[str]
    """Groups: `mark` is the notation to hide, `name` the speaker if there is one, `h`, `m`, `s`, `f` the time."""
    least_share: float
    """Least share of such lines among those that are not blank."""
    is_header: bool = False
    """Whether the line has no spoken words: those are in the lines below."""
    begins_with_name: bool = False
    """Whether the name stands before the time."""
    may_be_of_day: bool = False
    """Whether times of day are written like that, as in the programme of a conference."""


_NAMED = rf"(?:[\[<]?(?P<name>{NAME})[\]>]?{_ROLE}{_BOLD}:{_BOLD}(?=\s|$)|(?P<alone>{NAME})(?=[ \t\r]{{0,8}}\n[^\s]))?"
_GAP = r"[ \t]{0,8}"
_TURN = rf"{_BEGIN}\[?(?P<name>{NAME})\]?{_ROLE}:?{_BOLD}"
_BRACKETED = rf"{_BOLD}[\[(]{_TIME}{_UNTIL}[\])]:?"
_BARE = rf"(?P<mark>{_TIME}{_UNTIL}{_BOLD}{_GAP}[-–—|:]?[ \t]{{1,8}})(?=\S)"
FORMS = tuple(
    _Form(re.compile(pattern, re.MULTILINE), share, **kind)
    for pattern, share, kind in (
        # "Speaker 1 (01:00):", "**Jane Doe** [0:03]" above the words (Rev)
        (rf"{_TURN}(?P<mark>{_GAP}[-–|@,]?{_GAP}{_BRACKETED}){_LINE_END}", 1 / 60, _NAME_ABOVE),
        # "Jane Doe  0:03", "**Jane** - 00:01:02" above the words (Otter, Teams)
        (
            rf"{_TURN}(?P<mark>[ \t|,]{_GAP}[-–|@,]?{_GAP}{_BOLD}{_TIME}{_UNTIL}:?){_LINE_END}",
            1 / 60,
            _NAME_ABOVE | _DAY,
        ),
        # "Jane Doe (00:12): words", "Speaker 1: [00:12] words" (Rev, Sonix)
        (rf"{_TURN}(?P<mark>{_GAP}{_BRACKETED}){_BOLD}:?[ \t]+(?=\S)", 1 / 60, _NAME),
        # "[00:12:34] Jane: words", "**[00:12] Jane:** words", "[00:12 - 00:15] words" (Descript, Trint)
        (rf"{_BEGIN}(?P<mark>\\?[\[<]{_TIME}{_UNTIL}\\?[\]>]{_GAP}[-–]?{_GAP}){_NAMED}", 1 / 60, {}),
        # "(00:12) Jane: words"
        (rf"{_BEGIN}(?P<mark>\({_TIME}{_UNTIL}\){_GAP}[-–]?{_GAP}){_NAMED}", 1 / 12, _DAY),
        # "00:12" above the words (video sites)
        (rf"{_BEGIN}(?P<mark>{_TIME}{_UNTIL}){_LINE_END}", 1 / 60, _ABOVE | _DAY),
        # "00:12:34 Jane: words", "0:12 - words"
        (rf"{_BEGIN}{_BARE}{_NAMED}", 1 / 4, _DAY),
    )
)
"""Forms of lines with times. `_is_transcript` tells what makes them count."""

_SPEAKER = re.compile(
    r"^[ \t]{0,8}\[?(?P<name>(?:speaker|spk)[ _]?[a-z0-9]{1,3})\]?:(?=\s)", re.MULTILINE | re.IGNORECASE
)
# With the line break in front: a pattern that begins with a letter of its own is looked for much faster.
_LABEL = re.compile(rf"\n[ \t]{{0,8}}(?P<name>{NAME}){_ROLE}:(?=[ \t]+\S)")
_ALONE = re.compile(rf"\n[ \t]{{0,8}}(?P<name>{NAME})[ \t\r]{{0,8}}(?=\n[^\s])")
"""Below the line of a time, above the words."""
_VERSE = re.compile(r"^[ \t]{0,8}\d{1,3}:\d[ \t]", re.MULTILINE)
_PARTICLES = frozenset(("al", "and", "bin", "da", "de", "del", "den", "der", "di", "du", "el", "la", "le", "speaker",
                        "the", "van", "von", "y"))  # fmt: skip

_LATEST_BEGIN_S = 3600
"""Lines of logs begin with times of day; a recording begins before its second hour."""
_MORNING_S = 300
"""A time in minutes and seconds: what begins later, in steps of five, may be hours and minutes of a day."""


class Label(NamedTuple):
    """The begin of a line: a time, a speaker, or both."""

    start: int
    end: int
    """One past the last character of the time and the name."""
    mark: tuple[int, int] | None
    """Span of the time, which is hidden."""
    time_s: float | None
    name: str | None


def labels_of(text: str) -> list[Label]:
    """Return the labels of a text in order, if it is a transcript; in time linear in its length."""
    by_start: dict[int, Label] = {}
    if starts := _lines_with_clocks(text):
        line_count = sum(1 for line in text.split("\n") if line and not line.isspace())
        for form in FORMS:
            for label in _of_form(text, form, starts, line_count):
                by_start.setdefault(label.start, label)
    # Looked for in the text first: a pattern for the begin of lines looks at each character.
    for start, end, name in [*_speakers_of(text), *(_names_of_lines(text) if by_start else ())]:
        by_start.setdefault(start, Label(start, end, None, None, name))
    return sorted(by_start.values())


def _speakers_of(text: str) -> list[tuple[int, int, str]]:
    """Return the lines that begin with "Speaker 1:", if there are two or more: start, end of the name, name."""
    # Looked for in the text first: a pattern for the begin of lines looks at each character.
    speakers = [*_SPEAKER.finditer(text)] if "peaker" in text or "PEAKER" in text else []
    return [(match.start(), match.end(), match["name"]) for match in speakers] if len(speakers) > 1 else []


def _names_of_lines(text: str) -> list[tuple[int, int, str]]:
    """Return the lines of a transcript that begin with a name that comes again: start, end of the name, name."""
    below = "\n" + text
    named = [
        match
        for match in _ALONE.finditer(below)
        if below[max(0, match.start() - 2) : match.start()].strip()[-1:].isdecimal()
    ]
    named += _LABEL.finditer(below)
    repeated = repeated_names([match["name"] for match in named])
    return [(match.start(), match.end() - 1, match["name"]) for match in named if match["name"] in repeated]


def _lines_with_clocks(text: str) -> list[int]:
    """Return where the lines begin that have a time near their begin."""
    starts, end = [], 0
    for hint in _CLOCK_HINT.finditer(text):
        if hint.start() < end or not text[hint.start() - 1].isdecimal():
            continue
        start = text.rfind("\n", end, hint.start()) + 1 or end
        end = text.find("\n", hint.end()) + 1 or len(text)
        if hint.end() - start <= _MOST_BEFORE_CLOCK:
            starts.append(start)
    return starts


def repeated_names(names: Sequence[str]) -> set[str]:
    """Return those of some words that are there again and again, as names of speakers are; of two speakers or more."""
    repeated = {name for name, count in Counter(names).items() if count > 1 and _is_name(name)}
    return repeated if len(repeated) > 1 else set()


def names_of(names: Sequence[str | None], count: int) -> list[str | None]:
    """Return those of some words before colons that are names of speakers; None for others.

    Names are so if half of the lines have one, or those that are there again and again, of two speakers or more.

    Args:
        names: of each line that may have one.
        count: of lines.

    """
    likely = [name if name is not None and _is_name(name) else None for name in names]
    certain = [name for name in likely if name is not None]
    if 2 * len(certain) >= count:
        return likely
    repeated = repeated_names(certain)
    return [name if name in repeated else None for name in likely]


def seconds_of(hours: str | None, minutes: str, seconds: str, fraction: str | None) -> float | None:
    """Return a time of a recording; None if its parts make none."""
    if int(seconds) > 59 or (hours is not None and int(minutes) > 59):
        return None
    whole = int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def rising(times: Sequence[float]) -> list[int]:
    """Return the indices of a longest non-decreasing subsequence, so that a mistyped time drops only itself."""
    tails: list[float] = []
    ends: list[int] = []
    before: list[int] = []
    for i, time in enumerate(times):
        at = bisect_right(tails, time)
        before.append(ends[at - 1] if at else -1)
        tails[at : at + 1] = [time]
        ends[at : at + 1] = [i]
    kept = []
    i = ends[-1] if ends else -1
    while i >= 0:
        kept.append(i)
        i = before[i]
    return kept[::-1]


def _of_form(text: str, form: _Form, starts: Sequence[int], line_count: int) -> Iterable[Label]:
    matches = [match for start in starts if (match := form.pattern.match(text, start))]
    if form.is_header:
        matches = [match for match in matches if _is_followed(text, match.end(), form)]
    if form.begins_with_name:
        matches = [match for match in matches if _is_name(match["name"])]
    timed = [(match, time_s) for match in matches if (time_s := _time_of(match)) is not None]
    if not _is_transcript(text, form, timed, line_count):
        return
    groups = [match.groupdict() for match, _ in timed]
    names: Sequence[str | None] = [group.get("name") for group in groups]
    if not form.is_header:
        alone = repeated_names([group["alone"] for group in groups if group.get("alone")])
        names = [group["alone"] if group.get("alone") in alone else name
                 for group, name in zip(groups, names_of(names, len(timed)), strict=True)]  # fmt: skip
    for (match, time_s), name in zip(timed, names, strict=True):
        end = match.end() if name is not None or form.is_header else match.end("mark")
        yield Label(match.start(), end, match.span("mark"), time_s, name)


def _time_of(match: re.Match[str]) -> float | None:
    return seconds_of(*match.group("h", "m", "s", "f"))


def _is_followed(text: str, end: int, form: _Form) -> bool:
    """Return whether the line below a header has words."""
    below = text.find("\n", end) + 1
    while below and text[below : below + 1] in ("\n", "\r"):
        below += 1
    return 0 < below < len(text) and form.pattern.match(text, below) is None


def _is_transcript(
    text: str, form: _Form, timed: Sequence[tuple[re.Match[str], float]], line_count: int
) -> bool:
    """Return whether lines of a form make a transcript of the text.

    They do if there are two or more and at least the form's share of all lines, and if four of five times rise. A
    single header counts as the first line. Where times may be those of a day, they must begin within an hour; those
    without hours also before the fifth minute, or with seconds that are not in steps of five. The numbers of verses
    (1:1, 1:2) are none.
    """
    if not timed or len(timed) < form.least_share * line_count:
        return False
    times = [time_s for _, time_s in timed]
    if len(times) == 1:
        first = timed[0][0]
        return (
            form.is_header
            and "name" in form.pattern.groupindex
            and not text[: first.start()].strip("\ufeff \t\r\n")
        )
    if 5 * len(rising(times)) < 4 * len(times):
        return False
    if not form.may_be_of_day:
        return True
    has_hours = any(match["h"] for match, _ in timed)
    of_day = not has_hours and times[0] >= _MORNING_S and all(time_s % 5 == 0 for time_s in times)
    return times[0] < _LATEST_BEGIN_S and not of_day and (has_hours or _VERSE.search(text) is None)


def _is_name(name: str) -> bool:
    """Return whether words before a colon can be a name: they have capitals, but for particles (and other scripts)."""
    return all(not word[0].islower() or word in _PARTICLES for word in name.split())


TRANSCRIPT_VERSION = 2
"""Raise it when other times, speakers or spoken words are found in a text: builds then embed transcripts again."""

# Every pattern takes time linear in the text: repeats are bounded or end where the next match could begin, and two
# adjacent parts never match the same characters.
CUE_CLOCK = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{1,2})(?:[.,](\d{1,3}))?"
ARROW = r"[ \t]*(?:-->[ \t]*|,(?=\d{1,2}:\d\d:\d\d\.\d{3}[ \t\r]*$))"
TIMING = re.compile(
    rf"^[ \t]*(?:{CUE_CLOCK}{ARROW}{CUE_CLOCK}[^\n]*\n?|\\?\[{CUE_CLOCK}[ \t]*-->[ \t]*{CUE_CLOCK}\\?\][ \t]*)",
    re.MULTILINE,
)
SBV_HINT = re.compile(r",[0-9]{1,2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}")
HEADER = re.compile(r"\ufeff?WEBVTT(?!\S)")
# Only after a blank line: inside a cue, these are spoken words.
VTT_BLOCK = re.compile(r"\n[ \t\r]*\n(?:NOTE|STYLE|REGION)(?!\S)")
BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
VOICE = re.compile(r"<v(?:\.[^\s<>]*)?[ \t]+([^<>\s][^<>\n]{0,199})>")
TAG = re.compile(
    r"</?(?:v|c|b|i|u|ruby|rt|lang|font)(?:[.\s][^<>\n]{0,200})?>|<\d[\d:.]*>|\{\\[^{}\n]{0,50}\}"
)
MARK = re.compile(rf"\\?\[{CLOCK}\\?\][ \t]*")
TURN = re.compile(r"^[ \t]*\*\*([^*\n]{1,80}?)(?::\*\*|\*\*:)", re.MULTILINE)
CUE_NAME = re.compile(
    rf"(?:[-–][ \t]?)?(?:\[(?P<tag>(?i:speaker)[ _]\w{{1,3}})\](?!:)|[\[<]?(?P<name>{NAME})[\]>]?:)(?=\s)"
)
CUE_LINE = re.compile(r"[^\n]+")


@dataclass(frozen=True)
class Marks:
    """Marks of one text. Positions are characters, times are seconds; every list is in the order of the text."""

    hidden: list[tuple[int, int]] = field(default_factory=list)
    """Spans of notation, which are not embedded."""

    time_positions: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    """Times in seconds: from `time_positions[i]` on, the recording is at `times_s[i]`."""

    cue_ends_s: list[float] | None = None
    """End of each cue; None if the text has no cues."""

    turn_positions: list[int] = field(default_factory=list)
    speakers: list[str] = field(default_factory=list)
    """Speakers: from `turn_positions[i]` on, `speakers[i]` speaks."""

    label_ends: list[int] = field(default_factory=list)
    """One past the last character of each speaker's mark."""

    def spoken(self, text: str, start: int, end: int) -> str:
        """Return `text[start:end]` without the hidden spans; in cues, with HTML character codes decoded."""
        first = bisect_right(self.hidden, (start, -1))
        if first and self.hidden[first - 1][1] > start:
            first -= 1
        pieces, at = [], start
        while first < len(self.hidden) and self.hidden[first][0] < end:
            pieces.append(text[at : self.hidden[first][0]])
            at = self.hidden[first][1]
            first += 1
        speech = "".join([*pieces, text[at:end]]) if pieces else text[start:end]
        return unescape(speech) if self.cue_ends_s is not None and "&" in speech else speech

    def time_range(self, start: int, end: int) -> tuple[float | None, float | None]:
        """Return start and end of `text[start:end]` in seconds of the recording; None where there is no mark."""
        if not self.times_s:
            return None, None
        first = bisect_right(self.time_positions, start) - 1
        last = bisect_right(self.time_positions, end - 1) - 1
        begins = self.times_s[first] if first >= 0 else None
        if self.cue_ends_s is not None:
            return begins, self.cue_ends_s[last] if last >= 0 else None
        return begins, self.times_s[last + 1] if last + 1 < len(self.times_s) else None

    def speakers_of(self, start: int, end: int) -> tuple[str, ...]:
        """Return the distinct speakers of `text[start:end]`, in order of appearance."""
        first = max(0, bisect_right(self.turn_positions, start) - 1)
        last = bisect_right(self.turn_positions, end - 1)
        return tuple(dict.fromkeys(self.speakers[first:last]))


def spoken_text(text: str) -> str | None:
    """Return a text without its marks; None if it has none."""
    marks = find_marks(text)
    spoken = marks.spoken(text, 0, len(text))
    return None if spoken == text else spoken


def find_marks(text: str) -> Marks:
    """Return the marks in `text`, in time linear in its length."""
    turns = [(m.start(), m.end(), m[1].strip()) for m in TURN.finditer(text)] if "**" in text else []
    if ("-->" in text or SBV_HINT.search(text)) and (timings := list(TIMING.finditer(text))):
        return _cue_marks(text, timings, turns)
    labels = labels_of(text)
    marks = (
        [(m.start(), m.end(), seconds_of(*m.groups())) for m in MARK.finditer(text)] if "[" in text else []
    )
    return _line_marks(labels, marks, turns) if labels or marks or turns else Marks()


def _line_marks(
    labels: Sequence[Label],
    marks: Sequence[tuple[int, int, float | None]],
    turns: Sequence[tuple[int, int, str]],
) -> Marks:
    """Return the marks of a text without cues.

    Args:
        labels: of its lines.
        marks: times in brackets anywhere: start, end and seconds.
        turns: speakers in bold: start, end and name.

    """
    starts = [label.start for label in labels]

    def is_free(position: int) -> bool:
        """Return whether no label has this position: a label says the same, and more."""
        at = bisect_right(starts, position) - 1
        return at < 0 or position >= labels[at].end

    free = [(start, end, time_s) for start, end, time_s in marks if time_s is not None and is_free(start)]
    named = [(label.start, label.end, label.name) for label in labels if label.name is not None]
    speakers = sorted([*named, *(turn for turn in turns if is_free(turn[0]))])
    # A line begins at its time, so that a passage that begins with the speaker's name has it.
    times = [(label.start, label.time_s) for label in labels if label.time_s is not None]
    times = sorted([*times, *((start, time_s) for start, _, time_s in free)])
    kept = rising([time_s for _, time_s in times])
    hidden = [label.mark for label in labels if label.mark is not None]
    return Marks(
        hidden=_merged([*hidden, *((start, end) for start, end, _ in free)]),
        time_positions=[times[i][0] for i in kept],
        times_s=[times[i][1] for i in kept],
        turn_positions=[start for start, _, _ in speakers],
        speakers=[name for _, _, name in speakers],
        label_ends=[end for _, end, _ in speakers],
    )


def _cue_marks(text: str, timings: Sequence[re.Match[str]], turns: list[tuple[int, int, str]]) -> Marks:
    starts = [_cue_start(text, m.start()) for m in timings]
    blocks = _blocks(text, [m.start() for m in timings])
    times = [_cue_times(m) for m in timings]
    edges = sorted([*starts[1:], *(start for start, _ in blocks), len(text)])
    lines = [_cue_lines(text, m.end(), _next(edges, m.end() - 1, len(text))) for m in timings]
    hidden = [(start, m.end()) for start, m in zip(starts, timings, strict=True)]
    hidden += blocks
    hidden += [m.span() for m in TAG.finditer(text)]
    hidden += repeated_spans(
        [Cue(*time_s, cue_lines) for time_s, cue_lines in zip(times, lines, strict=True)]
    )
    # A voice tag is valid until the end of its cue or the next tag; cues without one keep the last speaker.
    turns = turns + [(m.start(), m.end(), m[1].strip()) for m in VOICE.finditer(text)]
    turns = sorted(turns or _cue_names([line for cue_lines in lines for line in cue_lines], len(timings)))
    return Marks(
        hidden=_merged(hidden),
        time_positions=[m.start() for m in timings],
        times_s=[start_s for start_s, _ in times],
        cue_ends_s=[end_s for _, end_s in times],
        turn_positions=[start for start, _, _ in turns],
        speakers=[name for _, _, name in turns],
        label_ends=[end for _, end, _ in turns],
    )


def _cue_times(timing: re.Match[str]) -> tuple[float, float]:
    groups = timing.groups()
    parts = groups[:8] if groups[1] is not None else groups[8:]
    return seconds_of(*parts[:4]) or 0.0, seconds_of(*parts[4:]) or 0.0


def _cue_lines(text: str, start: int, end: int) -> list[CueLine]:
    lines = []
    for m in CUE_LINE.finditer(text, start, end):
        source = m[0].strip()
        words = " ".join(TAG.sub("", source).split())
        if words:
            at = text.index(source, m.start())
            lines.append(CueLine(at, at + len(source), source, words))
    return lines


def _cue_names(lines: Sequence[CueLine], count: int) -> list[tuple[int, int, str]]:
    """Return the speakers that `count` cues name before the words, as Zoom writes them: start, end and name."""
    matches = [(line, m) for line in lines if (m := CUE_NAME.match(line.source))]
    names = names_of([m["tag"] or m["name"] for _, m in matches], count)
    return [
        (line.start, line.start + m.end(), name)
        for (line, m), name in zip(matches, names, strict=True)
        if name is not None
    ]


def _cue_start(text: str, timing: int) -> int:
    """Return the start of the cue whose timing line starts at `timing`: there, or at the identifier line above.

    A number directly above a timing line is an identifier; other words are one only after a blank line.
    """
    if timing == 0:
        return 0
    line = text.rfind("\n", 0, timing - 1) + 1
    name = text[line:timing].strip()
    if not name or "-->" in name:
        return timing
    above = text[text.rfind("\n", 0, max(0, line - 1)) + 1 : line]
    return line if name.isdecimal() or not above.strip() else timing


def _blocks(text: str, timings: list[int]) -> list[tuple[int, int]]:
    """Return the spans of the header and of all blocks other than cues; each ends at a blank or a timing line."""
    header = HEADER.match(text)
    starts = [0] if header else []
    starts += [m.end() - len(m[0].lstrip()) for m in VTT_BLOCK.finditer(text)]
    ends = sorted([m.end() for m in BLANK_LINE.finditer(text)] + timings) if starts else []
    return [(start, _next(ends, start, len(text))) for start in starts]


def _next(ends: list[int], start: int, default: int) -> int:
    at = bisect_right(ends, start)
    return ends[at] if at < len(ends) else default


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
