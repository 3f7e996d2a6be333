"""Protocols of the mutation log: the durable order of all upserts and deletes of an index.

Callers see sequences and bytes, and no files, locks or machines. live/log/sqlite_log.py is the implementation for one
machine, live/log/postgres/ the one in a database. live/log/homes.py finds the log of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scannery.indexer import IndexerError, Manifest, StoreError
from scannery.runtime.errors import USAGE, InvalidRequestError

__all__ = [
    "KEEP_ANSWERS_S",
    "Answer",
    "LogEntry",
    "LogGapError",
    "LogHome",
    "LogIdentity",
    "LogRefusedError",
    "LogReplacedError",
    "LogTransaction",
    "LogUnavailableError",
    "MutationLog",
    "Request",
    "WrongLogError",
]

KEEP_ANSWERS_S = 3600.0
"""How long a request is recognised that is repeated."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One record: a batch of mutations, which `records.decode` reads."""

    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a write, kept so that a repeated request writes nothing."""

    sequence: int
    """Sequence of its batch."""
    count: int
    """Datapoints written or deleted."""


@dataclass(frozen=True, slots=True)
class Request:
    """Identity of a write request, by which a repeated request is recognised."""

    id: str
    """Id as the caller gave it; empty: repetitions are not recognised."""
    caller: str = ""
    """Name of the principal: each caller has its own ids. Empty if the server requires no credentials."""
    digest: bytes = b""
    """Hash of the request's content."""

    @property
    def key(self) -> str:
        """The caller and the id."""
        return f"{self.caller}\0{self.id}"  # names of callers cannot contain the separator

    def check_repeated(self, digest: bytes, sequence: int) -> None:
        """Check that the content is that of an earlier request with the same key.

        Args:
            digest: of the earlier request.
            sequence: with which that was answered.

        Raises:
            InvalidRequestError: it is not.

        """
        if digest != self.digest:
            raise InvalidRequestError.at(
                "request_id",
                f"must not be used again for another request within an hour; {self.id!r} was answered with sequence "
                f"{sequence}",
            )


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Ids of a log and its index."""

    log_id: str | None
    """Random, 32 hexadecimal digits; None if only releases without ids wrote to the log."""
    index_id: str | None
    """Id of the index; None if the log does not know it."""
    written_by: str | None
    """Software that wrote last, as "SQLite 3.54.1"; None if it is not known."""


class LogGapError(IndexerError, code="UNAVAILABLE"):
    """A later version is needed: records after the opened one were truncated, or were made for later columns."""


class LogReplacedError(IndexerError, code="UNAVAILABLE"):
    """The opened log was removed or replaced, or belongs to another index."""


class LogRefusedError(StoreError, exit_code=USAGE):
    """The log's server refuses this process (credentials, permissions, version): somebody has to change something."""


class LogUnavailableError(StoreError):
    """The log cannot be reached now, or another writer holds it; try again after `retry_after_s`."""


class WrongLogError(IndexerError, code="FAILED_PRECONDITION"):
    """The log found is not the one that the index uses, or none is found and the index has one elsewhere."""


class LogTransaction(Protocol):
    """Appends to the log that become durable together, when the transaction ends. There is one at a time."""

    @property
    def position(self) -> int:
        """The last sequence."""

    def read(self, after: int) -> Sequence[LogEntry]:
        """Return all entries after a sequence; no other process appends during the transaction."""

    def expect(self, requests: Sequence[Request]) -> None:
        """Prepare `answer_of` for these requests: together they cost as much as one."""

    def answer_of(self, request: Request) -> Answer | None:
        """Return the response that the request got within the last hour, or None.

        Raises:
            InvalidRequestError: a different request used its id.

        """

    def append(self, data: bytes, *, request: Request | None = None, count: int = 0) -> int:
        """Append a batch and return its sequence.

        Args:
            data: the record.
            request: kept with the response, so that a repetition is recognised; None: not kept.
            count: datapoints written or deleted.

        """


class MutationLog(Protocol):
    """Batches of mutations, numbered from 1 without gaps. Safe to use from several threads and processes."""

    def transaction(
        self, *, after: int, index_id: str | None = None
    ) -> AbstractContextManager[LogTransaction]:
        """Wait for the exclusive lock, and commit at the end; an exception inside rolls back.

        Args:
            after: sequences up to this one are in use, whether the log has them or not.
            index_id: id of the index that is written to; a log without one adopts it.

        Raises:
            LogReplacedError: the log was replaced, or belongs to another index.
            ReadOnlyError: the log cannot be written.
            StoreError: it cannot be written now (the disk is full or does not respond), or it is unknown whether it
                was: the message says which.

        """

    def read(self, after: int, *, max_bytes: int = ...) -> Sequence[LogEntry]:
        """Return the entries after a sequence, in order, until they have `max_bytes`; none only if there are none.

        Raises:
            LogGapError: the log begins later.
            CorruptError: an entry is damaged or missing.
            LogReplacedError: the log was replaced, or lost entries that were read before.

        """

    def changed(self, *, now: bool = False) -> bool:
        """Return whether another connection may have appended since the last call; takes microseconds.

        Args:
            now: whether what was appended a moment ago must count; it may then take as long as a query.

        Raises:
            LogReplacedError: the log was replaced.

        """

    def position(self) -> int:
        """Return the last sequence, 0 if there is none."""

    def identity(self) -> LogIdentity:
        """Return the ids of the log and its index."""

    def acknowledged(self) -> int:
        """Return the last acknowledged sequence, from a source other than the entries.

        It may be too low, never too high: if the entries end before it and no version has the rest, some were lost.

        Raises:
            WrongLogError: that source belongs to another log.

        """

    def truncated(self) -> int:
        """Return the sequence up to which entries were removed."""

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, and free their space; never the reverse."""

    def size_bytes(self) -> int:
        """Return the size of the log in bytes."""

    def copy_to(self, path: Path, *, after: int = 0) -> None:
        """Write a consistent copy of the log to a new file, a database of SQLite, while others append.

        Args:
            path: of the file.
            after: entries up to this sequence are left out.

        Raises:
            CorruptError: an entry is damaged or missing.

        """

    def tidy(self) -> None:
        """Do periodic work that would hold up a commit; called after commits, outside of a transaction. Logs errors."""

    def close(self) -> None:
        """Close the log's files."""


class LogHome(Protocol):
    """Finds the log of an index, and checks that it is the right one."""

    key: str
    """Name of the log among those of its root (`log_changes`); empty: there is none yet."""

    @property
    def writable(self) -> bool:
        """Whether there is a place for a log."""

    @property
    def where(self) -> str:
        """The place of the log, for messages; without credentials."""

    def open(self) -> MutationLog | None:
        """Return the opened log; None if it does not exist.

        Raises:
            FormatError, CorruptError, ReadOnlyError, StoreError: it cannot be opened.

        """

    def look_again(self) -> None:
        """Have `open` find a log that was created a moment ago: it may not have looked since it found none."""

    def check(self, log: MutationLog | None, manifest: Manifest) -> None:
        """Check that the log is the one that the index uses; None: that the index has none.

        Raises:
            WrongLogError: the index uses another log.
            CorruptError: acknowledged mutations are missing.
            StoreError: the store does not respond.

        """

    def claim(self, log: MutationLog | None, manifest: Manifest) -> MutationLog:
        """Return the log to write to, created if `log` is None, and register it as the only one of the index.

        Raises:
            WrongLogError: the index uses another log.
            FormatError, CorruptError, ReadOnlyError, StoreError: it cannot be opened or created.

        """

    def check_absent(self) -> None:
        """Check that nothing is left of a log of the index.

        Raises:
            AlreadyExistsError: there is; the message says what to do with it.

        """

    def place(self, copy: Path, *, log_id: str, index_id: str) -> int:
        """Make a copy of a log (`MutationLog.copy_to`) that of the index, and return its last sequence.

        Args:
            copy: a file that is not used elsewhere.
            log_id: id of the new log.
            index_id: id of the index.

        """

    def remove(self, log_id: str | None) -> bool:
        """Remove the log of an index that was dropped; return whether this place had it.

        Args:
            log_id: id of the registered log; None: none was registered.

        """
