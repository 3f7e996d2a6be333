"""Proof that an audit log is whole, and its records for people.

A chain is whole if each record has the hash that follows from the record before it, numbers have no gap, and each file
begins where the one before it ends. That records at the end were not removed follows only from what was kept elsewhere:
an earlier report (`anchors`), or a line of the server's log.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.serving.audit.chain import ChainFile, chain_files, is_locked
from scannery.serving.audit.records import NO_HASH, Line, hash_of, parsed_line

__all__ = ["Anchor", "ChainReport", "audit_records", "verified"]

MAX_PROBLEMS = 20
"""Problems of a chain that a report names."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record that a chain had at an earlier time."""

    chain: int
    n: int
    hash: str


@dataclass(slots=True)
class ChainReport:
    """What one chain has."""

    chain: int
    files: int = 0
    first: int = 0
    """Number of its first record; 0: it has none."""
    last: int = 0
    """Number of its last record."""
    hash: str = NO_HASH
    """Hash of that record."""
    since: str = ""
    """Time of the first record."""
    until: str = ""
    """Time of the last record."""
    state: str = ""
    """State of its end: `closed`, `written` by a server now, or `open`: the server was killed, or the end is gone."""
    lost: int = 0
    """Calls of which the log says that they have no record."""
    notes: list[str] = field(default_factory=list)
    """What is unusual, and no proof of a change."""
    problems: list[str] = field(default_factory=list)
    """Proofs that it is not whole, the first ones."""


def verified(folder: Path, anchors: Sequence[Anchor] = (), *, archived: bool = False) -> list[ChainReport]:
    """Return a report on each chain of a folder.

    Args:
        folder: of the log.
        anchors: records that must be there.
        archived: whether the first files of a chain may be somewhere else.

    Raises:
        ConfigError: the folder cannot be read.

    """
    chains = _chains(folder)
    reports = []
    # A process takes the first chain that no other one writes: there is none behind a chain that never was.
    for chain in sorted({*range(max(chains, default=-1) + 1)} | {anchor.chain for anchor in anchors}):
        expected = {anchor.n: anchor.hash for anchor in anchors if anchor.chain == chain}
        walk = _Walk(ChainReport(chain), expected, archived=archived)
        for file in chains.get(chain, ()):
            walk.file(file)
        walk.end(folder, is_missing=chain not in chains)
        reports.append(walk.report)
    return reports


def audit_records(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the records of all chains, by their time; lines that are none are left out. Raises ConfigError."""
    chains = [_records(files) for files in _chains(folder).values()]
    yield from heapq.merge(*chains, key=lambda record: str(record.get("time", "")))


class _Walk:
    """Reads a chain from its first file to its last."""

    def __init__(self, report: ChainReport, expected: dict[int, str], *, archived: bool) -> None:
        self.report, self._expected, self._archived = report, expected, archived
        self._number = 0
        """Number of the file before."""
        self._torn = dict[int, int]()
        """Bytes behind the last record, by the number of the file; the next record must tell of them."""
        self._event = ""
        """Event of the last record."""

    def file(self, file: ChainFile) -> None:
        """Read the next file."""
        name = file.path.name
        self.report.files += 1
        if file.number != self._number + 1 and not (self._archived and not self._number):
            self._problem(f"{_range('file', self._number + 1, file.number - 1)} missing before {name}")
        self._number = file.number
        end, size, unread = 0, 0, ""
        with file.path.open("rb") as lines:
            for count, text in enumerate(lines, 1):
                size, where = size + len(text), f"{name}, line {count}"
                line = parsed_line(text[:-1]) if text.endswith(b"\n") else None
                if line is None:
                    unread = unread or where
                    continue
                if unread:
                    self._problem(f"{unread}: it is no record")
                end, unread = size, ""
                self._line(line, where, begins=count == 1)
        if size > end:
            self._torn[file.number] = size - end

    def _line(self, line: Line, where: str, *, begins: bool) -> None:
        report, event = self.report, line.event
        if begins and event.get("event") != "opened":
            self._problem(f"{where}: the file does not begin with its first record")
        if line.chain != report.chain:
            self._problem(f"{where}: it is a record of chain {line.chain}")
        if report.first and event.get("reason") == "start" and self._event != "closed":
            report.notes.append(f"{where}: the server before was killed, or its last records were removed")
        if begins and not report.first:
            report.hash, report.last = str(event.get("previous")), line.n - 1
            if not self._archived and (report.hash, report.last) != (NO_HASH, 0):
                self._problem(f"{where}: {_range('record', 1, report.last)} missing before it")
        try:
            self._check_torn(event)
            report.lost += int(event.get("calls", 0)) if event.get("event") == "lost" else 0
        except (TypeError, ValueError):
            self._problem(f"{where}: no server writes such a record")
        if line.n > report.last + 1:
            self._problem(f"{where}: {_range('record', report.last + 1, line.n - 1)} missing before it")
        elif line.n <= report.last:
            self._problem(f"{where}: record {line.n} stands behind record {report.last}")
        elif hash_of(report.hash, line.content) != line.hash:
            self._problem(f"{where}: record {line.n} was changed, or the one before it")
        if line.n in self._expected and self._expected.pop(line.n) != line.hash:
            self._problem(f"{where}: record {line.n} is another one than at the time of the anchor")
        self._event = str(event.get("event", ""))
        report.first, report.since = report.first or line.n, report.since or line.time
        report.last, report.hash, report.until = line.n, line.hash, line.time

    def _check_torn(self, event: Mapping[str, Any]) -> None:
        """Compare what files have behind their last records with what a record says of it."""
        announced = {int(number): int(size) for number, size in event.get("torn", ())}
        for number, size in self._torn.items():
            if announced.get(number) == size:
                self.report.notes.append(
                    f"file {number}: a crash or a failed write left {size} bytes of a record"
                )
            else:
                self._problem(f"file {number}: {size} bytes behind its last record are no record")
        self._torn.clear()

    def end(self, folder: Path, *, is_missing: bool) -> None:
        """Say how the chain ends."""
        report = self.report
        if is_missing:
            self._problem("all of its files are missing")
        report.state = "closed" if self._event == "closed" else "open"
        if is_locked(folder, report.chain):
            report.state = "written"
        for number, size in self._torn.items():
            if report.state != "written":
                report.notes.append(
                    f"file {number}: {size} bytes of a record at its end, as a crash leaves them"
                )
        for n in sorted(self._expected):
            archived = self._archived and n < report.first
            if not archived:
                self._problem(f"record {n}, which was there at the time of the anchor, is missing")

    def _problem(self, text: str) -> None:
        if len(self.report.problems) < MAX_PROBLEMS:
            self.report.problems.append(text)


def _chains(folder: Path) -> dict[int, list[ChainFile]]:
    try:
        return chain_files(folder)
    except OSError as error:
        raise ConfigError(f"folder: cannot read {folder}: {error.strerror}", field="folder") from error


def _records(files: Sequence[ChainFile]) -> Iterator[Mapping[str, Any]]:
    for file in files:
        with file.path.open("rb") as lines:
            for text in lines:
                line = parsed_line(text.rstrip(b"\n"))
                if line is not None:
                    with suppress(ValueError):
                        yield json.loads(text)


def _range(noun: str, first: int, last: int) -> str:
    return f"{noun} {first} is" if first == last else f"{noun}s {first} to {last} are"
