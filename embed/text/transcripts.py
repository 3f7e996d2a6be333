r"""Time and speaker marks in transcripts, found without changing the text.

Recognised: WebVTT and SRT cues, `[hh:mm:ss]` and `[mm:ss]` marks anywhere (also escaped for Markdown, `\[04:02\]`),
speaker turns `**Name:** …` at the start of a line, and WebVTT voice tags `<v Name>`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import unescape

__all__ = ["Marks", "find_marks", "spoken_text"]

CLOCK = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})(?:[.,](\d{1,3}))?"
# Every pattern takes time linear in the text: repeats are bounded or end where the next match could begin, and two
# adjacent parts never match the same characters.
TIMING = re.compile(rf"^[ \t]*{CLOCK}[ \t]*-->[ \t]*{CLOCK}[^\n]*\n?", re.MULTILINE)
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
    if "-->" in text and TIMING.search(text):
        return _cue_marks(text, turns)
    marks = [(m, _seconds(*m.groups())) for m in MARK.finditer(text)] if "[" in text else []
    marks = [(m, t) for m, t in marks if t is not None]
    kept = _rising([t for _, t in marks if t is not None])
    return Marks(
        hidden=[m.span() for m, _ in marks],
        time_positions=[marks[i][0].start() for i in kept],
        times_s=[t for i in kept if (t := marks[i][1]) is not None],
        turn_positions=[start for start, _, _ in turns],
        speakers=[name for _, _, name in turns],
        label_ends=[end for _, end, _ in turns],
    )


def _cue_marks(text: str, turns: list[tuple[int, int, str]]) -> Marks:
    timings = list(TIMING.finditer(text))
    cues = [_cue_start(text, m.start()) for m in timings]
    hidden = [(start, m.end()) for start, m in zip(cues, timings, strict=True)]
    hidden += _blocks(text, [m.start() for m in timings])
    hidden += [m.span() for m in TAG.finditer(text)]
    # A voice tag is valid until the end of its cue or the next tag; cues without one keep the last speaker.
    turns = sorted(turns + [(m.start(), m.end(), m[1].strip()) for m in VOICE.finditer(text)])
    spans = [m.groups() for m in timings]
    return Marks(
        hidden=_merged(hidden),
        time_positions=[m.start() for m in timings],
        times_s=[_seconds(*groups[:4]) or 0.0 for groups in spans],
        cue_ends_s=[_seconds(*groups[4:]) or 0.0 for groups in spans],
        turn_positions=[start for start, _, _ in turns],
        speakers=[name for _, _, name in turns],
        label_ends=[end for _, end, _ in turns],
    )


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


def _seconds(hours: str | None, minutes: str, seconds: str, fraction: str | None) -> float | None:
    if int(seconds) > 59 or (hours is not None and int(minutes) > 59):
        return None
    whole = int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds)
    return whole + (int(fraction) / 10 ** len(fraction) if fraction else 0.0)


def _rising(times: list[float]) -> list[int]:
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
