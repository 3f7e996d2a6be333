"""The mutation log: the durable order of all upserts and deletes of an index, as a protocol.

What is above it knows sequences and bytes, nothing of files, locks or machines. serving/live/sqlite_log.py is the
implementation for one machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from scannery.indexer import IndexerError

__all__ = ["Answer", "LogEntry", "LogGapError", "LogOpener", "MutationLog", "Turn"]


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


class LogGapError(IndexerError):
    """The records asked for were truncated: a version has them in its segments by now."""


class Turn(Protocol):
    """The right to append. What is appended in a turn becomes durable together, when it ends."""

    @property
    def position(self) -> int:
        """The last sequence."""

    def read(self, after: int) -> Sequence[LogEntry]:
        """Return all entries after a sequence; nobody else appends during the turn."""

    def answer_of(self, request_id: str) -> Answer | None:
        """Return what a request with this id was answered within the last hour, or None."""

    def append(self, data: bytes, *, request_id: str = "", count: int = 0) -> int:
        """Append a batch and return its sequence."""


class MutationLog(Protocol):
    """Batches of mutations, numbered from 1 without gaps. Safe to use from several threads and processes."""

    def turn(self, *, after: int) -> AbstractContextManager[Turn]:
        """Wait for the turn to append.

        Leaving the context makes everything durable, or raises; an exception in it takes everything back.

        Args:
            after: sequences up to this one were used already, whatever the log knows of them.

        Raises:
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
        """Return whether somebody may have appended since this was last asked; costs microseconds."""

    def position(self) -> int:
        """Return the last sequence, 0 if there was none."""

    def acknowledged(self) -> int:
        """Return the last sequence that is known to have been acknowledged, from elsewhere than the entries.

        May be behind, never ahead: where the entries end before it and no version has the rest, some were lost.
        """

    def truncate(self, up_to: int) -> None:
        """Remove the entries up to a sequence, and give back their space."""

    def tidy(self) -> None:
        """Do what has to be done now and then and would hold up a commit; called after commits, outside of a turn."""

    def close(self) -> None:
        """Let go of files."""


class LogOpener(Protocol):
    """Where the log of an index is."""

    def __call__(self, *, create: bool) -> MutationLog:
        """Return the log, opened.

        Raises:
            FileNotFoundError: there is none yet, and `create` is false.
            FormatError, CorruptError, ReadOnlyError, StoreError: it cannot be opened.

        """
