"""The mutation log: the durable order of all upserts and deletes of an index, as a protocol.

What is above it knows sequences and bytes, nothing of files, locks or machines. live/log/sqlite_log.py is the
implementation for one machine, live/log/home.py finds the log of an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from scannery.indexer import IndexerError, Manifest

__all__ = [
    "Answer",
    "LogEntry",
    "LogGapError",
    "LogHome",
    "LogIdentity",
    "LogReplacedError",
    "LogTransaction",
    "MutationLog",
    "Request",
    "WrongLogError",
]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One batch of mutations."""

    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request was answered, kept so that a repeated one does nothing."""

    sequence: int
    count: int
    """Datapoints written or deleted."""


@dataclass(frozen=True, slots=True)
class Request:
    """What tells a repeated request from another one."""

    id: str
    """As the caller gave it; empty: it is not remembered."""
    caller: str = ""
    """Name of the principal: callers do not share ids. Empty where credentials are not asked for."""
    digest: bytes = b""
    """Of all that it asks for."""


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Which log it is, and whose."""

    log_id: str | None
    """Random, 32 hex digits; None in a log of early days that was not written to since."""
    index_id: str | None
    """That of the index, as far as it is known to the log."""
    sqlite_version: str | None
    """Of the SQLite that wrote last."""


class LogGapError(IndexerError):
    """The records asked for were truncated: a version has them in its segments by now."""


class LogReplacedError(IndexerError):
    """The log that was opened is not the one that is there now: removed, replaced, or of another index."""


class WrongLogError(IndexerError):
    """The log that is found is not the one that the index has used: of another index, or another log of it.

    Or none is found, where the index has one elsewhere.
    """


class LogTransaction(Protocol):
    """Appends to the log that become durable together, when the transaction ends. There is one at a time."""

    @property
    def position(self) -> int:
        """The last sequence."""

    def read(self, after: int) -> Sequence[LogEntry]:
        """Return all entries after a sequence; no other process appends during the transaction."""

    def answer_of(self, request: Request) -> Answer | None:
        """Return what the request was answered within the last hour, or None.

        Raises:
            InvalidRequestError: another request had its id.

        """

    def append(self, data: bytes, *, request: Request | None = None, count: int = 0) -> int:
        """Append a batch and return its sequence."""


class MutationLog(Protocol):
    """Batches of mutations, numbered from 1 without gaps. Safe to use from several threads and processes."""

    def transaction(
        self, *, after: int, index_id: str | None = None
    ) -> AbstractContextManager[LogTransaction]:
        """Wait for the exclusive lock, and commit at the end; an exception inside rolls back.

        Args:
            after: sequences up to this one were used already, whatever the log knows of them.
            index_id: of the index that is written to; a log without one takes it.

        Raises:
            LogReplacedError: another log has taken its place, or it is of another index.
            ReadOnlyError: the log cannot be written.
            StoreError: it cannot be written now (the disk is full, it does not answer).

        """

    def read(self, after: int, *, max_bytes: int = ...) -> Sequence[LogEntry]:
        """Return the entries after a sequence, in order: at least one if there is any, and then up to `max_bytes`.

        Raises:
            LogGapError: the log begins later.
            CorruptError: an entry is damaged, or one is missing.

        """

    def changed(self) -> bool:
        """Return whether another connection may have appended since this was last asked; costs microseconds.

        Raises:
            LogReplacedError: another log has taken its place.

        """

    def position(self) -> int:
        """Return the last sequence, 0 if there was none."""

    def identity(self) -> LogIdentity:
        """Return which log it is."""

    def acknowledged(self) -> int:
        """Return the last sequence that is known to have been acknowledged, from elsewhere than the entries.

        May be behind, never ahead: where the entries end before it and no version has the rest, some were lost.

        Raises:
            WrongLogError: what knows of it is of another log.

        """

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, and give back their space."""

    def tidy(self) -> None:
        """Do periodic work that would hold up a commit; called after commits, outside of a transaction."""

    def close(self) -> None:
        """Let go of files."""


class LogHome(Protocol):
    """Where the log of an index is, and which one it must be."""

    @property
    def writable(self) -> bool:
        """Whether there is a place for a log at all."""

    def open(self) -> MutationLog | None:
        """Return the log, opened; None if it was never made.

        Raises:
            FormatError, CorruptError, ReadOnlyError, StoreError: it cannot be opened.

        """

    def check(self, log: MutationLog | None, manifest: Manifest) -> None:
        """Compare what was found with what the index must have.

        Raises:
            WrongLogError: it is another log, or none where there must be one.
            CorruptError: less is there than was acknowledged.
            StoreError: the store does not answer.

        """

    def claim(self, log: MutationLog | None, manifest: Manifest) -> MutationLog:
        """Return the log to write to, made if `log` is None; from then on, the index takes no other.

        Raises:
            WrongLogError: the index has another one already.
            FormatError, CorruptError, ReadOnlyError, StoreError: it cannot be opened or created.

        """
