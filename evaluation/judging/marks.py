"""Who marked what and when: a line for each mark, and for each that was taken back.

    {"query-id": "a1", "corpus-id": "hedgerow-007", "score": 2, "by": "Ana", "at": "2026-11-30T09:12:44Z"}

`score` null: this person's last mark of the pair is taken back. `by` empty: the file of judgements was changed without
the console, by hand or by `scannery judge`; null then takes back all marks of the pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Mark", "PairMarks", "marks_of", "read_marks"]

Pair = tuple[str, str]
"""Query and document, by their ids."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One mark of one person."""

    level: int | None
    """Level of relevance; None: takes back the last mark of the same person."""
    by: str
    """Name of the person; empty: the file of judgements was changed without the console."""
    at: str
    """Time in UTC, ISO 8601."""

    def record(self, pair: Pair) -> dict[str, Any]:
        """Return the line of the file."""
        return {
            "query-id": pair[0],
            "corpus-id": pair[1],
            "score": self.level,
            "by": self.by,
            "at": self.at,
        }


@dataclass(frozen=True, kw_only=True)
class PairMarks:
    """What people say of one pair of a question and a document."""

    level: int | None
    """Level that counts: that of the file of judgements; None: it has none."""
    marks: Sequence[Mark]
    """Last mark of each person that was not taken back, the newest last."""

    @property
    def differ(self) -> bool:
        """Whether people disagree."""
        return len({mark.level for mark in self.marks}) > 1


def marks_of(history: Iterable[Mark]) -> list[Mark]:
    """Return the marks of a pair that stand, in their order; `history`: all lines of the pair."""
    standing: list[Mark] = []
    for mark in history:
        if mark.level is not None:
            standing.append(mark)
        elif not mark.by:
            standing.clear()
        else:
            last = next((i for i in reversed(range(len(standing))) if standing[i].by == mark.by), None)
            standing = [each for i, each in enumerate(standing) if i != last]
    return standing


def read_marks(path: Path) -> tuple[dict[Pair, list[Mark]], int]:
    """Return all lines of each pair in their order, and the number of lines that are no marks.

    A last line without its line feed is unfinished, and does not count.
    """
    pairs: dict[Pair, list[Mark]] = {}
    data = path.read_bytes() if path.exists() else b""
    records = _records([line for line in data.split(b"\n")[:-1] if line.strip()])
    wrong = 0
    for record in records:
        if _is_mark(record):
            mark = Mark(level=record["score"], by=record["by"], at=record["at"])
            pairs.setdefault((record["query-id"], record["corpus-id"]), []).append(mark)
        else:
            wrong += 1
    return pairs, wrong


def _records(lines: Sequence[bytes]) -> list[Any]:
    """Return the values of JSON lines; None for one that is wrong."""
    try:
        # Ten times as fast as line by line.
        records: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines):
            return records
    except (ValueError, RecursionError):
        pass
    return [_record(line) for line in lines]


def _record(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_mark(record: Any) -> bool:
    return (
        isinstance(record, dict)
        and all(isinstance(record.get(key), str) for key in ("query-id", "corpus-id", "by", "at"))
        and "score" in record
        and (record["score"] is None or type(record["score"]) is int)
    )
