"""Captions that roll up: each cue shows again what the cue before it showed, and a new line or new words.

Automatic captions of video sites and of broadcasts are written so, and so are captions that underline one word after
the other. What they repeat was said once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Cue", "CueLine", "repeated_spans"]

_GAP_S = 0.5
"""A cue that begins later than this after the end of the one before does not roll on."""
_MOST_LINES = 16
"""Lines of a cue that are compared: what rolls shows few, and cues of many lines would take quadratic time."""
_FLASH_S = 0.1
"""A cue as short as this cannot be read: it only clears a line."""


class CueLine(NamedTuple):
    """A line of a cue that has words."""

    start: int
    end: int
    source: str
    """Caption as written."""
    words: str
    """Words without tags and runs of white space."""


class Cue(NamedTuple):
    """A cue and its times."""

    start_s: float
    end_s: float
    lines: list[CueLine]


class _Overlap(NamedTuple):
    """What a cue shows again of the one before."""

    spans: list[tuple[int, int]]
    is_sign: bool
    """Whether only captions that roll have this: something new follows, or the cue is no caption to be read."""


def repeated_spans(cues: Sequence[Cue]) -> list[tuple[int, int]]:
    """Return the spans of the text that repeat what the cue before shows, if most cues of the text do so; in order.

    In other texts, a line that is there twice was spoken twice.
    """
    shown = [cue for cue in cues if cue.lines]
    overlaps = [_overlap(before, cue) for before, cue in pairwise(shown)]
    if 2 * sum(overlap.is_sign for overlap in overlaps) < max(1, len(overlaps)):
        return []
    return [span for overlap in overlaps for span in overlap.spans]


def _overlap(before: Cue, cue: Cue) -> _Overlap:
    if not before.start_s <= cue.start_s <= before.end_s + _GAP_S:
        return _Overlap([], False)
    old, new = [line.words for line in before.lines], [line.words for line in cue.lines]
    for size in range(min(len(old), len(new), _MOST_LINES), 0, -1):
        if old[-size:] == new[:size]:
            is_changed = [line.source for line in before.lines[-size:]] != [
                line.source for line in cue.lines[:size]
            ]
            is_sign = size < len(new) or is_changed or cue.end_s - cue.start_s <= _FLASH_S
            return _Overlap([(line.start, line.end) for line in cue.lines[:size]], is_sign)
        last = cue.lines[size - 1]
        if old[-size:-1] == new[: size - 1] and last.source.startswith(old[-1] + " "):
            spans = [(line.start, line.end) for line in cue.lines[: size - 1]]
            return _Overlap([*spans, (last.start, last.start + len(old[-1]))], True)
    return _Overlap([], False)
