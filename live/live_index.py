"""One index of a process: its version, the mutations of the log after it, and its writes.

Readers see a change by the assignment of `snapshot`, and take no lock. A lock orders the threads that change it: the
writer, the follower of the log, a move to another version.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import ClassVar, Generic, Protocol, TypeVar

from scannery.indexer import (
    NO_SHARDS,
    CorruptError,
    IndexerError,
    Manifest,
    OpenIndex,
    Shards,
    StoreError,
)
from scannery.live.log.mutation_log import (
    Answer,
    LogEntry,
    LogGapError,
    LogHome,
    LogReplacedError,
    MutationLog,
    Request,
)
from scannery.live.memtable import LiveState, begin, entries_for, state_after
from scannery.live.prepare import Deletion, PreparedUpsert
from scannery.live.writing.filtered_write import (
    FilteredWrite,
    blind_upsert,
    columns_mark,
    deletion_in,
    filtered_in,
    upsert_in,
)
from scannery.live.writing.group_commit import Write, Writer, append_group
from scannery.live.writing.resolve import named_by
from scannery.live.writing.totals import RowTotal
from scannery.live.writing.write_views import (
    OWN_ROWS,
    MatchingRows,
    NamedRows,
    RowReader,
    StateMovedError,
    WriteView,
)
from scannery.runtime.errors import (
    ClosedError,
    DeadlineError,
    InvalidRequestError,
    OtherVersionError,
    OverloadedError,
    ReadOnlyError,
    StateGoneError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.runtime.times import WALL_SECONDS

__all__ = ["LiveIndex", "Sequenced"]

_LOG = logging.getLogger(__name__)
RETRY_S = 1.0
READS = 5
"""Times that the rows which a write needs are read, if the index moves to another version meanwhile."""
LOCK_S = 0.1
WAIT_S = 0.02
"""Seconds between two checks of the log by a query that waits for a sequence."""


class Sequenced(Protocol):
    """A snapshot: what one query sees of an index."""

    @property
    def sequence(self) -> int:
        """Sequence of its last mutation."""


SnapshotT = TypeVar("SnapshotT", bound=Sequenced)
ReadT = TypeVar("ReadT")
UsedT = TypeVar("UsedT")


class LiveIndex(Generic[SnapshotT]):
    """A version and the mutations after it. Safe to use from several threads."""

    moves: ClassVar[bool] = True
    """Whether it can move to another version; otherwise that is another object, beside this one."""
    followed_at_s: float = float("-inf")
    """When the follower of logs looked last; an attribute, since ten times a second it is read of each index."""

    def __init__(
        self,
        index: OpenIndex,
        snapshot: Callable[[OpenIndex, int], SnapshotT],
        *,
        home: LogHome,
        shards: Shards | None = None,
        rows: RowReader = OWN_ROWS,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
        on_gap: Callable[[], None] = lambda: None,
        room: Callable[[LiveState, int], None] = lambda state, size_bytes: None,
        seconds: Callable[[], int] = WALL_SECONDS,
    ) -> None:
        """Replay the log.

        Args:
            index: an open version.
            snapshot: makes a snapshot of an open version with its mutations, and the sequence of the last one.
            home: finds the log.
            shards: whose new rows are kept, those of the version that are open; None: all.
            rows: finds the rows that writes need, those of all shards.
            waiting: returns a context manager; inside it, a request waits and leaves its permit to others.
            on_gap: called when this object must move to a later version or, if `replaced`, be created again.
            room: raises OverloadedError if there is no memory for a record of some bytes after a state; it is then not
                written.
            seconds: returns the second since 1970, at which writes see the index.

        Raises:
            CorruptError, FormatError: the log cannot be replayed.
            WrongLogError: the log found is not the one that the index uses.
            LogGapError: there is a later version.

        """
        self._make_snapshot, self._waiting = snapshot, waiting
        self._home, self._rows = home, rows
        self._claimed = False
        self._closed = False
        self.dropped = False
        """Whether it is closed because the index was dropped: writes then fail as for any unknown index."""
        self._on_gap, self._room, self._seconds = on_gap, room, seconds
        self.replaced = False
        """Whether the log or the index was replaced: this object must be created again."""
        self._superseded_version = 0
        """The version after which the log goes on in a later one; 0: none."""
        self._lock = threading.Lock()
        self._applied = threading.Condition()
        self._log: MutationLog | None = None
        self._writer: Writer | None = None
        self._problem = ""
        """Why the log cannot be followed, as it was last logged; empty: it can."""
        self._behind = False
        self._stops = False
        """Whether the last look at the log ended before entries for a later version."""
        self._open_at_s = 0.0
        """Earliest time of the next attempt to open the log."""
        self._shards = shards
        self._state = begin(index, shards)
        try:
            self._state = self._replay(self._state)
        except BaseException:
            self.close()
            raise
        self.snapshot = self._snapshot()

    @property
    def state(self) -> LiveState:
        """The version, its live rows, and the newest rows."""
        return self._state

    @property
    def superseded(self) -> bool:
        """Whether the log goes on in a later version: until this object moves, it follows the log no further."""
        return self._superseded_version == self._state.manifest.version

    @property
    def log_key(self) -> str:
        """Name of its log among those of the root (`log_changes`); empty: there is none yet."""
        return self._home.key

    def is_of(self, manifest: Manifest) -> bool:
        """Return whether a version belongs to this index, and not to another one that took its name."""
        index_id = self._state.manifest.index_id
        return not self.replaced and (index_id is None or index_id == manifest.index_id)

    def retire(self) -> None:
        """Refuse further writes: another index has taken the name, and readers would never see them."""
        if not self.replaced:
            self._problem = f"index {self._state.manifest.index!r} was created again or restored"
            self.replaced = True

    def move(self, index: OpenIndex) -> None:
        """Move atomically to another version, and apply the mutations that it does not hold.

        Raises:
            CorruptError, FormatError, LogGapError: as the constructor; the former version stays.

        """
        state = self._replay(begin(index, self._shards))
        with self._lock:
            self._publish(self._apply_log(state))

    def catch_up(self, *, wait_s: float = LOCK_S, now: bool = False) -> bool:
        """Apply new entries of the log, up to those for a later version; return whether there were any.

        If the log cannot be read, queries continue; the error is logged once, and writes fail with it.

        Args:
            wait_s: seconds to wait while another thread changes the state.
            now: whether entries of a moment ago must be among them (`MutationLog.changed`).

        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            log = None if self.replaced or self.superseded else self._open_log()
            if log is None or not (log.changed(now=now) or self._behind):
                return False
            self._behind = True  # until applying succeeds: `changed` reports each change once
            state = self._apply_log(self._state)
            self._behind = False
            changed = state is not self._state
            if changed:
                self._publish(state)
            if self._stops:
                self._note_superseded(state.manifest.version)
            self._problem = ""
            return changed
        except LogGapError:
            self._note_superseded(self._state.manifest.version)
            return False
        except LogReplacedError as error:
            self._note_replaced(error)
            return False
        except IndexerError as error:
            if error.message != self._problem:
                _LOG.error("index %s: %s", self._state.manifest.index, error)
                self._problem = error.message
            return False
        finally:
            self._lock.release()

    def wait_for(self, sequence: int, deadline: Deadline) -> SnapshotT | None:
        """Return a snapshot that has all mutations up to a sequence; None if it did not become visible within WAIT_S.

        The caller looks for the index again then: it may have moved to another version, or have been replaced.

        Raises:
            InvalidRequestError: the log has no such mutation.
            DeadlineError: the mutation did not become visible in time.

        """
        wait_s = LOCK_S
        if self._log is None:
            wait_s = min(deadline.remaining_s, threading.TIMEOUT_MAX)
            with self._waiting():
                changed = self._look_again(wait_s)
            if not changed:
                raise DeadlineError("the deadline passed while the log of the index was looked for")
        self.catch_up(wait_s=wait_s, now=True)
        if self.snapshot.sequence < sequence:
            self._check_exists(sequence)
            if deadline.remaining_s <= 0:
                raise DeadlineError(
                    f"min_sequence: mutation {sequence} is not visible yet; this snapshot has {self.snapshot.sequence}"
                )
            with self._waiting(), self._applied:
                self._applied.wait(min(WAIT_S, deadline.remaining_s))
        snapshot = self.snapshot
        return snapshot if snapshot.sequence >= sequence else None

    def _look_again(self, wait_s: float) -> bool:
        """Have the next look search for a log that another process may have begun a moment ago.

        Returns False if another thread still looks after `wait_s` seconds: it may have looked too early.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        self._home.look_again()
        self._lock.release()
        return True

    def past(self, index: OpenIndex, sequence: int, deadline: Deadline) -> SnapshotT:
        """Return the snapshot of any version of this index with the mutations up to a sequence.

        A process that keeps no rows needs no log for it.

        Raises:
            LogGapError: the log does not have all of them.
            CorruptError, FormatError, StoreError: the log cannot be read.
            DeadlineError: the deadline passed.

        """
        if self._shards is NO_SHARDS:
            return self.without_rows(index, sequence)
        with self._lock:
            log = self._open_log()
        state = begin(index, self._shards)
        while state.sequence < sequence:
            deadline.check()
            entries = log.read(state.sequence) if log is not None else ()
            applied = [entry for entry in entries if entry.sequence <= sequence]
            if not applied:
                raise LogGapError(
                    f"the log of index {index.manifest.index!r} does not have mutation {sequence}"
                )
            state = state_after(state, applied)
        return self._snapshot_of(state)

    def without_rows(self, index: OpenIndex, sequence: int) -> SnapshotT:
        """Return a snapshot of any version of this index at a sequence, for a process that keeps no rows."""
        return self._make_snapshot(index, sequence)

    def upsert(self, prepared: PreparedUpsert, request: Request, deadline: Deadline) -> Answer:
        """Write a batch; return when it is durable and visible here. Raises as `Writer.submit`."""
        if not prepared.needs_state:
            return self._submit(blind_upsert(prepared, request), deadline)

        def read(local: LiveState) -> tuple[WriteView, RowTotal | None]:
            total = None
            if prepared.max_rows is not None:
                selection = MatchingRows(where=prepared.seen, limit=0, until_sequence=None, whole=False)
                rows = self._rows.count(selection, local, deadline)
                total = RowTotal(prepared.max_rows, prepared.seen, rows, local)
            return self._rows.named(named_by(prepared, local), local, deadline), total

        return self._write(read, lambda pair: upsert_in(pair[0], prepared, request, pair[1]), deadline)

    def delete(self, deletion: Deletion, request: Request, deadline: Deadline) -> Answer:
        """Delete; return when that is durable and visible here. Raises as `Writer.submit`."""
        named = NamedRows(
            ids=deletion.ids, document_ids=deletion.document_ids, whole=deletion.seen is not None
        )
        return self._write(
            lambda local: self._rows.named(named, local, deadline),
            lambda view: deletion_in(view, deletion, request),
            deadline,
        )

    def write_filtered(self, write: FilteredWrite, request: Request, deadline: Deadline) -> Answer:
        """Delete or change a batch of the datapoints that a filter allows. Raises as `Writer.submit`.

        A batch without any such datapoint writes nothing, and is answered with the last sequence.
        """
        answer = self._write(
            lambda local: self._rows.matching(write.selection, local, deadline),
            lambda view: filtered_in(view, write, request, deadline),
            deadline,
        )
        write.answered(answer.sequence)
        return answer

    def count_filtered(self, write: FilteredWrite, deadline: Deadline) -> tuple[int, int]:
        """Return how many datapoints further batches would delete or change, and in the state of which sequence.

        Raises as the rows are read.
        """

        def count(local: LiveState) -> tuple[int, int]:
            return self._rows.count(write.selection, local, deadline), local.sequence

        return self._read(count, lambda result: result)

    def mark_columns(self, deadline: Deadline) -> None:
        """Tell the log of the columns of the open version: no process writes for those before, once this returns.

        Otherwise, rows that a process of the version before writes would lack what the new columns hold, as vectors of
        their texts. An index without a log gets none by this. Raises as `Writer.submit`.
        """
        if self._state.sequence:
            self._submit(columns_mark(self._state.manifest), deadline)

    def check_writable(self) -> None:
        """Check before any work that a write can be accepted.

        Raises:
            ReadOnlyError: the store is a bucket, and there is no folder for a log; or the index is a mirror.
            OverloadedError: the rows in memory or the log exceed their limit until they are sealed, or there is no room
                for more in memory.
            ClosedError: the engine is closed.
            UnknownIndexError: the index was dropped.

        """
        if self._closed:
            raise self._closed_error()
        self.check_changeable()
        if not self._home.writable:
            raise ReadOnlyError(
                f"index {self._state.manifest.index!r} takes no writes: its store is a bucket, and the log of live "
                "updates needs a local folder (--log)"
            )
        state = self._state
        self._room(state, 0)
        live = state.manifest.spec.live
        if state.unsealed_rows >= live.max_rows or state.unsealed_bytes >= live.max_bytes:
            raise OverloadedError(
                f"{state.unsealed_rows} new rows in memory and {state.log_bytes >> 20} MiB of log wait to be sealed "
                "(in a cluster, `scannery maintain` does this)",
                retry_after_s=RETRY_S,
            )

    def check_changeable(self) -> None:
        """Raise ReadOnlyError if it is a mirror: only what follows the mirrored index changes it."""
        if (mirror := self._state.manifest.mirror) is not None:
            raise ReadOnlyError(
                f"index {self._state.manifest.index!r} cannot be changed: it follows {mirror.index!r}"
            )

    def log_entries(self, after: int) -> Iterator[LogEntry]:
        """Yield the entries of the log after a sequence, in order; none if there is no log.

        Raises:
            LogGapError: the log begins later.
            CorruptError, StoreError: it cannot be read.

        """
        with self._lock:
            log = self._open_log()
        while log is not None and (entries := log.read(after)):
            after = entries[-1].sequence
            yield from entries

    def close(self) -> None:
        """Finish the running write and close the log."""
        with self._applied:
            self._closed, writer = True, self._writer
        if writer is not None:
            writer.close()
        with self._lock:
            log, self._log = self._log, None
        if log is not None:
            log.close()

    def _write(
        self, read: Callable[[LiveState], ReadT], write: Callable[[ReadT], Write], deadline: Deadline
    ) -> Answer:
        """Return the response to a write that needs rows.

        Args:
            read: from the newest state of this process to what the write reads.
            write: from what was read to the write.
            deadline: of the request.

        Raises:
            OverloadedError: the index moved to another version between each reading and the write.
            ServingError, IndexerError: as `read`, `write` and `Writer.submit`.

        """
        return self._read(read, lambda view: self._submit(write(view), deadline))

    def _read(self, read: Callable[[LiveState], ReadT], use: Callable[[ReadT], UsedT]) -> UsedT:
        """Return what `use` makes of what is read from the newest state; read again if it is an old one by then."""
        for _ in range(READS - 1):
            with suppress(StateMovedError, StateGoneError):
                return use(read(self._state.at(self._seconds())))
            self.catch_up(now=True)
        try:
            return use(read(self._state.at(self._seconds())))
        except StateMovedError:
            raise OverloadedError("the index moves to other versions", retry_after_s=RETRY_S) from None

    def _submit(self, write: Write, deadline: Deadline) -> Answer:
        self.check_writable()
        self._room(self._state, write.size_bytes)
        with self._applied:
            if self._closed:
                raise self._closed_error()
            if self._writer is None:
                self._writer = Writer(self._state.manifest.index, self._commit, waiting=self._waiting)
        try:
            return self._writer.submit(write, deadline)
        except ClosedError:
            raise self._closed_error() from None

    def _closed_error(self) -> Exception:
        if self.dropped:
            return UnknownIndexError(
                f"index: index {self._state.manifest.index!r} was dropped", field="index"
            )
        return ClosedError("the engine is closed")

    def _commit(self, group: Sequence[Write]) -> None:
        version = self._state.manifest.version
        try:
            answers = self._append_group(group)
        except LogGapError as error:
            self._note_superseded(version)
            raise OtherVersionError("the index moves to another version", retry_after_s=RETRY_S) from error
        except LogReplacedError as error:
            self._note_replaced(error)
            raise StoreError(f"{error}; the new one is opened next") from error
        for number, write in enumerate(group):
            answer = answers[number]
            if isinstance(answer, Exception):
                write.outcome.set_exception(answer)
            else:
                write.outcome.set_result(answer)
        if (log := self._log) is not None:
            log.tidy()

    def _append_group(self, group: Sequence[Write]) -> dict[int, Answer | Exception]:
        """Append and publish the writes of a group; return the response to each, by its place in the group."""
        with self._lock:
            log = self._writable_log()
            manifest = self._state.manifest
        answers: dict[int, Answer | Exception] = {}
        with ExitStack() as stack:
            # The transaction first: waiting for the log's lock must not stop other threads from following the log.
            transaction = stack.enter_context(
                log.transaction(after=manifest.log_sequence, index_id=manifest.index_id)
            )
            with self._lock:
                with stack.pop_all():  # leaving this block commits
                    state = append_group(self._state.at(self._seconds()), transaction, group, answers)
                # The group is durable; it becomes visible before callers get their responses.
                self._publish(state)
        return answers

    def _writable_log(self) -> MutationLog:
        if self._closed:
            raise ClosedError("the engine is closed")
        if self.replaced:
            raise LogReplacedError(self._problem)
        if self._log is None or not self._claimed:
            self._log = self._home.claim(self._log, self._state.manifest)
            self._claimed = True
        return self._log

    def _note_superseded(self, version: int) -> None:
        self._superseded_version = version
        self._on_gap()

    def _note_replaced(self, error: LogReplacedError) -> None:
        if not self.replaced:
            _LOG.error("index %s: %s", self._state.manifest.index, error)
        self.replaced, self._problem = True, error.message
        self._on_gap()

    def _open_log(self) -> MutationLog | None:
        """Return the log, None if there is none; a log that another process created is checked first."""
        if self._log is None and not self._closed and time.monotonic() >= self._open_at_s:
            log = self._home.open()
            try:
                if log is not None:
                    self._home.check(log, self._state.manifest)
            except BaseException:
                assert log is not None
                log.close()
                self._open_at_s = time.monotonic() + RETRY_S
                raise
            self._log = log
        return self._log

    def _replay(self, state: LiveState) -> LiveState:
        """Return the state of a version after all mutations of the log; CorruptError if acknowledged ones are lost."""
        before, self._open_at_s = self._log, 0.0
        log = self._open_log()
        if log is before:  # otherwise `_open_log` has just checked it
            self._home.check(log, state.manifest)
        # Read before the entries: other processes may append meanwhile.
        acknowledged = log.acknowledged() if log is not None else 0
        state = self._apply_log(state)
        if self._stops:
            self._note_superseded(state.manifest.version)
        elif state.sequence < acknowledged:
            raise CorruptError(
                f"the log of index {state.manifest.index!r} ends at sequence {state.sequence}, but {acknowledged} was "
                "acknowledged: its end is damaged or was cut off"
            )
        return state

    def _apply_log(self, state: LiveState) -> LiveState:
        """Return the state after all further entries of the log, up to those for a later version."""
        self._stops = False
        if self._log is None:
            return state
        # Reading starts after the version: its mutations may be truncated, and a log that is behind it has no entries.
        while entries := self._log.read(state.sequence):
            try:
                state = state_after(state, entries)
            except LogGapError:
                # Those before were acknowledged, and the version for what follows may not be there yet.
                state = state_after(state, entries_for(entries, state.manifest.version))
                self._stops = True
                break
        return state

    def _publish(self, state: LiveState) -> None:
        self._state = state
        self.snapshot = self._snapshot()
        with self._applied:
            self._applied.notify_all()

    def _snapshot(self) -> SnapshotT:
        return self._snapshot_of(self._state)

    def _snapshot_of(self, state: LiveState) -> SnapshotT:
        return self._make_snapshot(state.opened(), state.sequence)

    def _check_exists(self, sequence: int) -> None:
        log = self._log
        try:
            last = max(log.position() if log else 0, self.snapshot.sequence)
        except StoreError:
            return  # unknown now; the query waits until its deadline
        if sequence > last:
            raise InvalidRequestError.at(
                "min_sequence",
                f"index {self._state.manifest.index!r} has mutations up to {last}, got {sequence}",
            )
