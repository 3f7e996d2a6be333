"""One index of a process: its version, what the log has after it, and the way in for writes.

Everything that changes does so by one assignment, of `snapshot`. A lock orders those who change it (the writer, whoever
follows the log, a move to another version); readers never take it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from scannery.indexer import CorruptError, IndexerError, OpenIndex
from scannery.serving.deadline import Deadline
from scannery.serving.encoding import EncoderPool
from scannery.serving.errors import (
    ClosedError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    ReadOnlyError,
)
from scannery.serving.live.log import Answer, LogEntry, LogGapError, LogOpener, MutationLog, Turn
from scannery.serving.live.memtable import LiveState, apply, begin
from scannery.serving.live.parsing import Deletion
from scannery.serving.live.preparing import PreparedUpsert
from scannery.serving.live.records import Mutation, decode, encode, rows_fit
from scannery.serving.live.resolving import look_ahead, resolve_deletion, resolve_upsert
from scannery.serving.live.writer import Write, Writer
from scannery.serving.masks import MaskCache
from scannery.serving.snapshot import Snapshot
from scannery.serving.turns import waiting

__all__ = ["LiveIndex", "state_after"]

_LOG = logging.getLogger(__name__)
RETRY_S = 1.0
LOCK_S = 0.1
WAIT_S = 0.02
"""Between two looks at the log by a query that waits for a sequence."""


class LiveIndex:
    """A version and its mutations. Safe to use from several threads."""

    def __init__(
        self,
        index: OpenIndex,
        encoders: EncoderPool,
        *,
        open_log: LogOpener | None,
        on_gap: Callable[[], None] = lambda: None,
    ) -> None:
        """Take an open version, and what opens its log; None: it takes no writes.

        Raises:
            CorruptError, FormatError: the log cannot be replayed.
            LogGapError: there is a later version by now.

        """
        self._encoders = encoders
        self._open_log = open_log
        self._on_gap = on_gap
        self._masks = MaskCache()
        self._lock = threading.Lock()
        self._applied = threading.Condition()
        self._log: MutationLog | None = None
        self._writer: Writer | None = None
        self._trouble = ""
        self._behind = False
        self._state = self._replayed(begin(index))
        self.snapshot = self._snapshot()

    @property
    def state(self) -> LiveState:
        """Version, rows that are alive, and the newest rows."""
        return self._state

    def move(self, index: OpenIndex) -> None:
        """Go over to another version, with the mutations that it does not hold; nobody sees anything in between.

        Raises:
            CorruptError, FormatError, LogGapError: as when it is made; the version before stays.

        """
        state = self._replayed(begin(index))
        with self._lock:
            self._publish(self._caught_up(state))

    def catch_up(self, *, wait_s: float = LOCK_S) -> bool:
        """Apply what the log has and this does not; return whether there was anything.

        A log that cannot be read is no reason to stop answering: it is said once, and writes say it too. While
        somebody else is at it, waits no longer than `wait_s`.
        """
        if not self._lock.acquire(timeout=wait_s):
            return False
        try:
            log = self._opened()
            if log is None or not (log.changed() or self._behind):
                return False
            self._behind = True  # until it has worked: the log says only once that it changed
            state = self._caught_up(self._state)
            self._behind = False
            found = state is not self._state
            if found:
                self._publish(state)
            self._trouble = ""
            return found
        except LogGapError:
            self._on_gap()
            return False
        except IndexerError as error:
            if error.message != self._trouble:
                _LOG.error("index %s: %s", self._state.manifest.index, error)
                self._trouble = error.message
            return False
        finally:
            self._lock.release()

    def wait_for(self, sequence: int, deadline: Deadline) -> Snapshot:
        """Return a snapshot that has all mutations up to a sequence.

        Raises:
            InvalidRequestError: there is no such mutation.
            DeadlineError: it did not come in time.

        """
        snapshot = self.snapshot
        while snapshot.sequence < sequence:
            if not self.catch_up() and self.snapshot.sequence < sequence:
                self._check_exists(sequence)
                if deadline.remaining_s <= 0:
                    raise DeadlineError(
                        f"min_sequence: mutation {sequence} is not visible yet; this snapshot has {snapshot.sequence}"
                    )
                with waiting(), self._applied:
                    self._applied.wait(min(WAIT_S, deadline.remaining_s))
            snapshot = self.snapshot
        return snapshot

    def upsert(self, prepared: PreparedUpsert, request_id: str, deadline: Deadline) -> Answer:
        """Write a batch; return when it is durable and visible here. Raises as `Writer.submit`."""

        def resolve(state: LiveState) -> tuple[Mutation, bytes, int]:
            if not prepared.needs_state:
                return prepared.mutation, prepared.encoded, prepared.mutation.rows.num_rows
            mutation = resolve_upsert(prepared, state)
            return mutation, encode(mutation), mutation.rows.num_rows

        look_ahead(prepared, self._state)
        size_bytes = prepared.mutation.rows.nbytes if prepared.needs_state else len(prepared.encoded)
        return self._submit(Write(request_id, size_bytes, prepared.needs_state, resolve), deadline)

    def delete(self, deletion: Deletion, request_id: str, deadline: Deadline) -> Answer:
        """Delete; return when that is durable and visible here. Raises as `Writer.submit`."""

        def resolve(state: LiveState) -> tuple[Mutation, bytes, int]:
            mutation, count = resolve_deletion(deletion, state)
            return mutation, encode(mutation), count

        return self._submit(Write(request_id, 0, True, resolve), deadline)

    def check_writable(self) -> None:
        """Raise what a write would raise, before anything is done for it.

        Raises:
            ReadOnlyError: the store is a bucket, and there is no folder for a log.
            OverloadedError: the newest rows wait to be sealed.

        """
        if self._open_log is None:
            raise ReadOnlyError(
                f"index {self._state.manifest.index!r} takes no writes: its store is a bucket, and the log of live "
                "updates needs a local folder (--log)"
            )
        live = self._state.manifest.spec.live
        if self._state.memory_rows >= live.max_rows or self._state.memory_bytes >= live.max_bytes:
            raise OverloadedError(
                f"{self._state.memory_rows} new rows in memory wait to be sealed", retry_after_s=RETRY_S
            )

    def close(self) -> None:
        """Let go of the log; a write that runs is finished."""
        if self._writer is not None:
            self._writer.close()
        with self._lock:
            log, self._log, self._open_log = self._log, None, None
        if log is not None:
            log.close()

    def _submit(self, write: Write, deadline: Deadline) -> Answer:
        self.check_writable()
        with self._applied:
            if self._writer is None:
                self._writer = Writer(self._state.manifest.index, self._commit)
        return self._writer.submit(write, deadline)

    def _commit(self, group: Sequence[Write]) -> None:
        with self._lock:
            log = self._opened(create=True)
            after = self._state.manifest.log_sequence
        if log is None:
            raise ClosedError("the engine is closed")
        answers: dict[int, Answer | Exception] = {}
        try:
            with ExitStack() as turns:
                # The turn first: whoever waits for it must not keep others from following the log.
                turn = turns.enter_context(log.turn(after=after))
                with self._lock:
                    with turns.pop_all():  # leaving it commits
                        state = self._appended(turn, group, answers)
                    # Durable from here on, and visible before anybody hears of it.
                    self._publish(state)
        except LogGapError as error:
            self._on_gap()
            raise OverloadedError("the index moves to another version", retry_after_s=RETRY_S) from error
        for number, write in enumerate(group):
            answer = answers[number]
            if isinstance(answer, Exception):
                write.outcome.set_exception(answer)
            else:
                write.outcome.set_result(answer)
        self._tidy(log)

    def _appended(
        self, turn: Turn, group: Sequence[Write], answers: dict[int, Answer | Exception]
    ) -> LiveState:
        """Append what the writes come to, and return the state after them; `answers` gets that of each write."""
        if turn.position < self._state.manifest.log_sequence:
            raise LogGapError("the index has moved to a version that the log does not reach")
        state = state_after(self._state, turn.read(self._state.sequence))
        pending: list[tuple[int, Mutation]] = []
        for number, write in enumerate(group):
            known = turn.answer_of(write.request_id) if write.request_id else None
            if known is not None:
                answers[number] = known
                continue
            if write.needs_state:
                state, pending = apply(state, pending), []
            try:
                mutation, data, count = write.resolve(state)
                # The index may have moved to another version since it was prepared.
                mutation = rows_fit(mutation, state.manifest, sequence=turn.position + 1)
            except Exception as error:  # noqa: BLE001  it is this request's alone
                answers[number] = error
                continue
            sequence = turn.append(data, request_id=write.request_id, count=count)
            pending.append((sequence, mutation))
            answers[number] = Answer(sequence, count)
        return apply(state, pending)

    def _tidy(self, log: MutationLog) -> None:
        try:
            log.tidy()
        except (IndexerError, ReadOnlyError) as error:
            _LOG.warning("index %s: %s", self._state.manifest.index, error)

    def _opened(self, *, create: bool = False) -> MutationLog | None:
        if self._log is None and self._open_log is not None:
            try:
                self._log = self._open_log(create=create)
            except FileNotFoundError:
                return None
        return self._log

    def _replayed(self, state: LiveState) -> LiveState:
        log = self._opened()
        # First: others may append meanwhile.
        acknowledged = log.acknowledged() if log is not None else 0
        state = self._caught_up(state)
        if state.sequence < acknowledged:
            raise CorruptError(
                f"the log of index {state.manifest.index!r} ends at sequence {state.sequence}, but {acknowledged} was "
                "acknowledged: its end is damaged or was cut off"
            )
        return state

    def _caught_up(self, state: LiveState) -> LiveState:
        if self._log is None:
            return state
        # What a version holds may be truncated already, and a log that is behind has nothing for it.
        while entries := self._log.read(state.sequence):
            state = state_after(state, entries)
        return state

    def _publish(self, state: LiveState) -> None:
        self._state = state
        self.snapshot = self._snapshot()
        with self._applied:
            self._applied.notify_all()

    def _snapshot(self) -> Snapshot:
        return Snapshot(self._state.opened(), self._encoders, self._masks, self._state.sequence)

    def _check_exists(self, sequence: int) -> None:
        log = self._log
        last = max(log.position() if log else 0, self.snapshot.sequence)
        if sequence > last:
            raise InvalidRequestError.at(
                "min_sequence",
                f"index {self._state.manifest.index!r} has mutations up to {last}, got {sequence}",
            )


def state_after(state: LiveState, entries: Sequence[LogEntry]) -> LiveState:
    """Return the state after some entries of the log.

    Raises:
        CorruptError, FormatError: one cannot be read, or does not fit the version.

    """
    manifest = state.manifest
    return apply(
        state,
        [
            (
                entry.sequence,
                rows_fit(decode(entry.data, sequence=entry.sequence), manifest, sequence=entry.sequence),
            )
            for entry in entries
        ],
    )
