"""What there should be: the log as a list, the versions as dictionaries, and what comes of both.

An actor that has version V open and the log up to a sequence must show the rows of V, with all later entries of the log
applied on top. Answers say which version and sequence they are of, so each is compared with just that state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.model.rows import Row

__all__ = ["Entry", "Rows", "Version", "World", "after_build"]

Rows = dict[str, Row]
CACHED_STATES = 64


@dataclass(frozen=True)
class Entry:
    """One mutation of the log, resolved: what goes, then what comes."""

    rows: tuple[Row, ...] = ()
    removed_ids: tuple[str, ...] = ()
    removed_documents: tuple[str, ...] = ()

    def applied(self, rows: Rows) -> Rows:
        """Return some rows after this mutation."""
        after = dict(rows)
        for identifier in self.removed_ids:
            after.pop(identifier, None)
        if self.removed_documents:
            gone = set(self.removed_documents)
            after = {name: row for name, row in after.items() if row.document_id not in gone}
        after.update((row.id, row) for row in self.rows)
        return after


@dataclass(frozen=True)
class Version:
    """A version: its rows, and the sequence up to which they hold the log."""

    rows: Rows
    log_sequence: int


@dataclass
class World:
    """The model. Versions that garbage collection removes stay here: somebody may have them open."""

    log: dict[int, Entry] = field(default_factory=dict)
    position: int = 0
    versions: dict[int, Version] = field(default_factory=dict)
    stored: set[int] = field(default_factory=set)
    """Versions that have not been collected."""
    answers: dict[str, tuple[int, int]] = field(default_factory=dict)
    """First answer by request id: sequence, and datapoints written or deleted."""
    _states: OrderedDict[tuple[int, int], Rows] = field(default_factory=OrderedDict)

    @property
    def current(self) -> int:
        """The highest version."""
        return max(self.stored)

    @property
    def now(self) -> Rows:
        """What whoever has seen everything shows."""
        return self.state(self.current, self.position)

    def add_version(self, number: int, rows: Rows, log_sequence: int) -> None:
        """Take note of a version that was committed."""
        self.versions[number] = Version(rows, log_sequence)
        self.stored.add(number)

    def append(self, entry: Entry) -> int:
        """Append to the log and return the sequence."""
        self.position += 1
        self.log[self.position] = entry
        return self.position

    def state(self, version: int, sequence: int) -> Rows:
        """Return the rows of a version with the log up to a sequence applied; not to be changed."""
        start = self.versions[version].log_sequence
        key = (version, max(sequence, start))
        known = self._states.get(key)
        if known is None:
            first = next((n for n in range(key[1], start, -1) if (version, n) in self._states), start)
            known = self._states.get((version, first), self.versions[version].rows)
            for number in range(first + 1, key[1] + 1):
                known = self.log[number].applied(known)
            self._states[key] = known
            if len(self._states) > CACHED_STATES:
                self._states.popitem(last=False)
        return known

    def copied(self) -> World:
        """Return an independent copy."""
        return World(dict(self.log), self.position, dict(self.versions), set(self.stored), dict(self.answers))

    def forget(self, used: Iterable[int]) -> None:
        """Drop versions that are gone and that nobody uses, and the log that no version needs."""
        keep = self.stored | set(used)
        self.versions = {number: version for number, version in self.versions.items() if number in keep}
        first = min(version.log_sequence for version in self.versions.values())
        self.log = {number: entry for number, entry in self.log.items() if number > first}
        self._states = OrderedDict(
            (key, rows) for key, rows in self._states.items() if key[0] in self.versions
        )


def after_build(
    rows: Mapping[str, Row],
    records: Sequence[Row],
    *,
    full: bool = False,
    deletes: Iterable[str] = (),
    newer_than: int | None = None,
    whole: bool = False,
) -> Rows:
    """Return what a build makes of the rows of its parent.

    A document of the input takes the place of all rows of that document, and of rows with its ids; one that is there
    just so already stays, with its revisions. What live updates wrote after the sequence `newer_than` stays, and
    records with its ids do not come; where each record is a whole document, nor do those documents.
    """
    newer = [row for row in rows.values() if newer_than is not None and row.revision > newer_than]
    newer_ids = {row.id for row in newer}
    newer_documents = {row.document_id for row in newer} if whole else set()
    documents: dict[str, Rows] = {}
    for record in records:
        own = documents.setdefault(record.document_id, {})
        if record.id not in newer_ids and record.document_id not in newer_documents:
            own[record.id] = record
    gone = set(deletes)
    documents = {name: own for name, own in documents.items() if name not in gone}
    old: dict[str, Rows] = {}
    for row in rows.values():
        old.setdefault(row.document_id, {})[row.id] = row
    same = {name for name, own in documents.items() if own and _same(own, old.get(name, {}))}
    changed = {
        name: own for name, own in documents.items() if name not in same and name not in newer_documents
    }
    # A record that goes, with its document or because of a newer one, takes its id from whatever had it all the same.
    ids = {record.id for record in records if record.document_id not in same}
    removed = gone | changed.keys() | ((old.keys() - documents.keys()) if full else set())
    after = {
        name: row
        for name, row in rows.items()
        if name in newer_ids or (row.document_id not in removed and name not in ids)
    }
    for own in changed.values():
        after.update(own)
    return after


def _same(one: Rows, other: Rows) -> bool:
    return one.keys() == other.keys() and all(row.same_content(other[name]) for name, row in one.items())
