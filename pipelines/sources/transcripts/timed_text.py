"""Timed text (TTML, also called DFXP): paragraphs with the times from and to which they are shown."""

from __future__ import annotations

import re
from typing import Any

from scannery.pipelines.sources.documents.document import DocumentError
from scannery.pipelines.sources.transcripts.segments import Segment, seconds_in

__all__ = ["segments_of_ttml"]

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
    if found := _TICKS.fullmatch(text):
        return int(found[1]) / ticks
    if found := _FRAMES.fullmatch(text):
        hours, minutes, seconds, frame = map(int, found.groups())
        return hours * 3600 + minutes * 60 + seconds + frame / frames
    return seconds_in(text)
