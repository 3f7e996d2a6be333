"""Group commit: concurrent writes are appended in one transaction and share its sync.

One thread per index appends. Callers wait for the outcome until their deadline. A write whose caller gave up during the
commit is still written, like any request whose response is lost.

Append a group of writes to the log, inside its transaction.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from scannery.live.log.mutation_log import Answer, LogGapError, LogReplacedError, LogTransaction, Request
from scannery.live.log.records import Mutation, rows_fit
from scannery.live.memtable import LiveState
from scannery.live.writing.write_views import GroupState, WriteView
from scannery.runtime.errors import ClosedError, DeadlineError, OtherVersionError, OverloadedError
from scannery.runtime.retry import Deadline

__all__ = ["Resolved", "Write", "Writer", "append_group"]


MAX_QUEUED = 128
"""Writes; further ones are refused with `retry_after_s` RETRY_S."""
GROUP_BYTES = 32 << 20
"""A group of this size takes no further writes."""
RETRY_S = 0.5
END_S = 10.0
"""Seconds that `close` waits for queued writes."""


Resolved: TypeAlias = tuple[Mutation, bytes, int]
"""A mutation, its record, and the number of datapoints written or deleted."""


@dataclass(frozen=True, slots=True)
class Write:
    """A queued write."""

    request: Request
    size_bytes: int
    """Approximate size of its record."""
    view: WriteView | None
    """What `resolve` reads; None: nothing."""
    columns_version: int | None
    """`Manifest.columns_version` that it was prepared for; None: it has no rows."""
    resolve: Callable[[GroupState], Resolved | None]
    """Function from the group before the write to what is written; None: nothing, and the log stays as it is."""
    outcome: Future[Answer] = field(default_factory=Future)


class Writer:
    """A thread that commits queued writes in groups."""

    def __init__(
        self,
        name: str,
        commit: Callable[[Sequence[Write]], None],
        *,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start the thread.

        Args:
            name: name of the index.
            commit: appends a group and sets the outcome of each write.
            waiting: returns a context manager; inside it, a request waits and leaves its permit to others.

        """
        self._commit = commit
        self._waiting = waiting
        self._queue: queue.Queue[Write | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name=f"scannery-writer-{name}", daemon=True)
        self._closed = False
        self._closing = threading.Lock()
        self._thread.start()

    def submit(self, write: Write, deadline: Deadline) -> Answer:
        """Return the response to a write once it is durable and visible in this process.

        Raises:
            OverloadedError: MAX_QUEUED writes are waiting.
            DeadlineError: nothing was written, or the commit is running; the message says which.
            ServingError, IndexerError: it was not written.

        """
        # Under the lock: a write queued after `close` has emptied the queue would wait until its deadline.
        with self._closing:
            if self._closed:
                raise ClosedError("the engine is closed")
            try:
                self._queue.put_nowait(write)
            except queue.Full:
                raise OverloadedError("too many writes are waiting", retry_after_s=RETRY_S) from None
        timeout_s = deadline.remaining_s
        try:
            # Waiting writes hold no permit: a disk that hangs must not block queries, and more writes share a sync.
            with self._waiting():
                return write.outcome.result(None if timeout_s == float("inf") else timeout_s)
        except CancelledError:
            raise ClosedError("the engine is closed") from None
        except FutureTimeoutError:
            if write.outcome.cancel():
                raise DeadlineError(
                    "the deadline passed before the write was begun; nothing was written"
                ) from None
            raise DeadlineError("the deadline passed while the write was being committed") from None

    def close(self) -> None:
        """Commit the queued writes and end the thread; writes not begun within END_S are refused."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        end_s = time.monotonic() + END_S
        with suppress(queue.Full):  # the disk hangs
            self._queue.put(None, timeout=END_S)
        self._thread.join(max(0.0, end_s - time.monotonic()))
        with suppress(queue.Empty):
            while True:
                write = self._queue.get_nowait()
                if write is not None:
                    write.outcome.cancel()
        if self._thread.is_alive():
            self._queue.put(None)  # the loop above may have removed the end marker

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group, last = self._group(first)
            # Cancelled writes are left out; the others can no longer be cancelled.
            group = [write for write in group if write.outcome.set_running_or_notify_cancel()]
            try:
                self._commit(group)
            except BaseException as error:  # noqa: BLE001  every waiting caller must get an outcome
                for write in group:
                    if not write.outcome.done():
                        write.outcome.set_exception(error)
            if last:
                return

    def _group(self, first: Write) -> tuple[list[Write], bool]:
        """Return queued writes up to GROUP_BYTES, and whether the end marker followed them."""
        group, size_bytes = [first], first.size_bytes
        while size_bytes < GROUP_BYTES:
            try:
                write = self._queue.get_nowait()
            except queue.Empty:
                break
            if write is None:
                return group, True
            group.append(write)
            size_bytes += write.size_bytes
        return group, False


MOVED_RETRY_S = 0.1


def append_group(
    local: LiveState,
    transaction: LogTransaction,
    group: Sequence[Write],
    answers: dict[int, Answer | Exception],
) -> LiveState:
    """Append the writes of a group, add the response to each to `answers`, and return the state after them.

    Args:
        local: the state that readers see.
        transaction: of the log.
        group: the writes.
        answers: to be filled, by the place in the group.

    Raises:
        LogGapError: the log does not reach the version, or goes on with rows for a later one.
        LogReplacedError: it has lost entries.
        CorruptError, FormatError: its entries cannot be read.

    """
    if transaction.position < local.manifest.log_sequence:
        raise LogGapError("the index has moved to a version that the log does not reach")
    if transaction.position < local.sequence:
        raise LogReplacedError(
            f"the log ends at sequence {transaction.position}, and had {local.sequence} before: it was replaced"
        )
    views = [write.view for write in group if write.view is not None]
    after = min([local.sequence, *(view.after(local) for view in views)])
    state = GroupState(local, transaction.read(after))
    transaction.expect([write.request for write in group if write.request.id])
    for number, write in enumerate(group):
        try:
            answer = transaction.answer_of(write.request) if write.request.id else None
            if answer is not None:
                answers[number] = answer
                continue
            if write.columns_version not in (None, local.manifest.columns_version):
                raise OtherVersionError("the index has just got other columns", retry_after_s=MOVED_RETRY_S)
            resolved = write.resolve(state)
            if resolved is None:
                answers[number] = Answer(transaction.position, 0)
                continue
            mutation, data, count = resolved
            # The index may have moved to another version with these columns since it was prepared.
            mutation = rows_fit(mutation, state.manifest, sequence=transaction.position + 1, new=True)
        except Exception as error:  # noqa: BLE001  fails this request only
            answers[number] = error
            continue
        sequence = transaction.append(data, request=write.request, count=count)
        state.add(sequence, mutation, len(data))
        answers[number] = Answer(sequence, count)
    return state.local
