"""Segments of a transcript, made of words or whole, and the WebVTT that they become.

Timed text (TTML, also called DFXP): paragraphs with the times from and to which they are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from scannery.pipelines.sources.documents.document import DocumentError

__all__ = ["Segment", "as_webvtt", "of_words", "seconds_in", "segments_of_ttml"]


_PAUSE_S, _LONG_S = 2.0, 10.0
"""Words after a pause begin a segment, and so does a sentence after this time."""
_CLOCK = re.compile(r"(?:(\d{1,4}):)?(\d{1,3}):(\d{1,2}(?:[.,]\d+)?)")
_ISO = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "": 1.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|s)?")


class Segment(NamedTuple):
    """Words that are spoken together, by one speaker."""

    start_s: float
    end_s: float
    text: str
    speaker: str | None = None


def seconds_in(value: object) -> float | None:
    """Return the seconds in a number, a text (`1.5`, `1.5s`, `00:01,500`, `PT1.5S`) or an object of Google's API."""
    if isinstance(value, dict) and value and set(value) <= {"seconds", "nanos"}:
        seconds, nanos = seconds_in(value.get("seconds", 0)), seconds_in(value.get("nanos", 0))
        return None if seconds is None or nanos is None else seconds + nanos / 1e9
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (
            float(value) if 0 <= value < 1e12 else None
        )  # of an integer, the size first: a huge one is no float
    return _seconds_in_text(value.strip()) if isinstance(value, str) and len(value) <= 40 else None


def _seconds_in_text(text: str) -> float | None:
    if match := _NUMBER.fullmatch(text):
        return float(match[1]) * _UNITS[match[2] or ""]
    if match := _CLOCK.fullmatch(text):
        return int(match[1] or 0) * 3600 + int(match[2]) * 60 + float(match[3].replace(",", "."))
    if text != "PT" and (match := _ISO.fullmatch(text)):
        return int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + float(match[3] or 0)
    return None


def of_words(words: Iterable[Segment]) -> list[Segment]:
    """Return words as segments: a new one for each speaker, after a pause, and at sentences after ten seconds.

    Args:
        words: in order; each with the space in front of it, if it has one.

    """
    runs: list[list[Segment]] = []
    end_s, mark = 0.0, ""
    for word in words:
        first = runs[-1][0] if runs else None
        if (
            first is None
            or (word.speaker or first.speaker) != first.speaker
            or word.start_s - end_s > _PAUSE_S
            or (word.start_s - first.start_s > _LONG_S and mark in ".!?。！？")
            or word.start_s - first.start_s > 2 * _LONG_S
        ):
            runs.append([word])
            end_s, mark = word.end_s, word.text.rstrip()[-1:]
        else:
            runs[-1].append(word)
            end_s, mark = max(end_s, word.end_s), word.text.rstrip()[-1:] or mark
    return [_joined(run) for run in runs]


def _joined(words: Sequence[Segment]) -> Segment:
    return words[0]._replace(
        end_s=max(word.end_s for word in words), text="".join(word.text for word in words)
    )


def as_webvtt(segments: Sequence[Segment]) -> str:
    """Return segments as WebVTT, which has times and speakers; an empty text for none."""
    cues = [cue for segment in segments if (cue := _cue(segment))]
    return "WEBVTT\n\n" + "\n\n".join(cues) if cues else ""


def _cue(segment: Segment) -> str | None:
    text = " ".join(segment.text.split()).replace("-->", "→")
    if not text:
        return None
    speaker = " ".join((segment.speaker or "").translate({60: None, 62: None}).split())[:200]
    voice = f"<v {speaker}>" if speaker else ""
    end_s = max(segment.start_s, segment.end_s)
    return f"{_clock(segment.start_s)} --> {_clock(end_s)}\n{voice}{text}"


def _clock(seconds: float) -> str:
    milliseconds = min(max(0, round(seconds * 1000)), 3_599_999_999)
    minutes, remainder = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{remainder // 1000:02}.{remainder % 1000:03}"


_TICKS = re.compile(r"(\d{1,18})t")
_FRAMES = re.compile(r"(\d{1,6}):(\d\d):(\d\d):(\d{2,3})")


def segments_of_ttml(data: bytes) -> list[Segment]:
    """Return the paragraphs with times.

    Raises:
        DocumentError: it is no XML.

    """
    from lxml import etree

    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, recover=True)
    try:
        root = etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise DocumentError("malformed", f"not TTML: {error!s:.200}") from error
    if root is None:
        raise DocumentError("malformed", "not TTML: no element")
    ticks, frames = (_number(root, name) for name in ("tickRate", "frameRate"))
    names = {
        next((value for key, value in agent.items() if key.endswith("}id")), ""): " ".join(
            " ".join(agent.itertext()).split()
        )
        for agent in root.iter("{*}agent")
    }
    segments = []
    for paragraph in root.iter("{*}p"):
        start_s = _seconds(paragraph.get("begin"), ticks, frames)
        if start_s is None:
            continue
        end_s = _seconds(paragraph.get("end"), ticks, frames)
        duration_s = _seconds(paragraph.get("dur"), ticks, frames)
        agent = next((value for key, value in paragraph.items() if key.endswith("}agent")), "")
        segments.append(
            Segment(start_s, start_s + (duration_s or 0.0) if end_s is None else end_s, _words(paragraph),
                    names.get(agent) or agent or None)
        )  # fmt: skip
    return segments


def _words(paragraph: Any) -> str:
    for line_break in paragraph.iter("{*}br"):
        line_break.text = " "
    return "".join(paragraph.itertext())


def _number(root: Any, name: str) -> float:
    text = next((value for key, value in root.items() if key.endswith("}" + name)), "")
    return float(text) if text.isdecimal() and float(text) else 30.0


def _seconds(text: str | None, ticks: float, frames: float) -> float | None:
    if text is None:
        return None
    if match := _TICKS.fullmatch(text):
        return int(match[1]) / ticks
    if match := _FRAMES.fullmatch(text):
        hours, minutes, seconds, frame = map(int, match.groups())
        return hours * 3600 + minutes * 60 + seconds + frame / frames
    return seconds_in(text)
