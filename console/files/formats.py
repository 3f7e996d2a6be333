"""What reads and writes files: handed in, since the readers of documents are in a room that clients do not import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scannery.client.response.results import Datapoint

__all__ = ["FileFormats", "FilePoints"]


class FilePoints(Protocol):
    """The datapoints of some files."""

    @property
    def ignored(self) -> Sequence[str]:
        """Fields of the records so far that the index has no place for."""

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield file and line of each record, and its datapoint as `upsert_many` takes it."""


@dataclass(frozen=True)
class FileFormats:
    """Functions for files; those that read a folder block, and raise a CodedError where its files are wrong."""

    points: Callable[[Path, Mapping[str, Any]], FilePoints]
    """Datapoints by the spec of an index."""
    check: Callable[[Path, Mapping[str, Any]], Mapping[str, Any]]
    """Report of what a spec makes of a sample, as JSON values `{"report"}`."""
    draft: Callable[[Path], Mapping[str, Any]]
    """Spec that fits the files, and its report, as JSON values `{"spec", "report"}`."""
    line: Callable[[Datapoint], str]
    """Datapoint as a line of JSON, which `points` reads again; without the newline."""
