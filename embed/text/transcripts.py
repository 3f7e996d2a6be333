r"""Time and speaker marks in transcripts, found without changing the text.

Recognised: cues of WebVTT, SRT, SBV and of Whisper's text (`[00:00.000 --> 00:05.000]`), with voice tags `<v Name>` or
names before the words (`Name: …`); `[hh:mm:ss]` and `[mm:ss]` marks anywhere (also escaped for Markdown,
`\[04:02\]`); speaker turns `**Name:** …` at the start of a line; lines with times and names (transcript_lines.py).
Captions that roll up are said once (rolling_captions.py).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import unescape

from scannery.embed.text.rolling_captions import Cue, CueLine, repeated_spans
from scannery.embed.text.transcript_lines import (
    CLOCK,
    NAME,
    Label,
    labels_of,
    names_of,
    rising,
    seconds_of,
)

__all__ = ["TRANSCRIPT_VERSION", "Marks", "find_marks", "spoken_text"]

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
    """From `time_positions[i]` on, the recording is at `times_s[i]`."""

    cue_ends_s: list[float] | None = None
    """End of each cue; None if the text has no cues."""

    turn_positions: list[int] = field(default_factory=list)
    speakers: list[str] = field(default_factory=list)
    """From `turn_positions[i]` on, `speakers[i]` speaks."""

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
        found = "".join([*pieces, text[at:end]]) if pieces else text[start:end]
        return unescape(found) if self.cue_ends_s is not None and "&" in found else found

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
    return _line_marks(labels, marks, turns)


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
    hidden += repeated_spans([Cue(*time_s, own) for time_s, own in zip(times, lines, strict=True)])
    # A voice tag is valid until the end of its cue or the next tag; cues without one keep the last speaker.
    turns = turns + [(m.start(), m.end(), m[1].strip()) for m in VOICE.finditer(text)]
    turns = sorted(turns or _cue_names([line for own in lines for line in own], len(timings)))
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
