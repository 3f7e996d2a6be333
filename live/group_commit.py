"""Group commit: requests that come together are appended in one transaction, and share its sync.

One thread per index appends. Whoever calls waits for the outcome, at most until its deadline; what is in the queue then
is written all the same, as with every request whose answer gets lost.
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

from scannery.live.log.mutation_log import Answer, Request
from scannery.live.log.records import Mutation
from scannery.live.memtable import LiveState
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import ClosedError, DeadlineError, OverloadedError

__all__ = ["Outcome", "Write", "Writer"]

MAX_QUEUED = 128
GROUP_BYTES = 32 << 20
RETRY_S = 0.5
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Write:
    """A request that waits to be appended."""

    request: Request
    size_bytes: int
    needs_state: bool
    resolve: Callable[[LiveState], tuple[Mutation, bytes, int]]
    """From the state before it to the mutation, the record, and how many datapoints it writes or deletes."""
    outcome: Future[Answer] = field(default_factory=Future)


Outcome = Future[Answer]


class Writer:
    """A thread that commits groups of writes with `commit`, which must give each of them its outcome."""

    def __init__(
        self,
        name: str,
        commit: Callable[[Sequence[Write]], None],
        *,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Start the thread.

        Args:
            name: of the index.
            commit: appends a group and sets the outcome of each write.
            waiting: returns a context in which a request waits and does not work; others may work meanwhile.

        """
        self._commit = commit
        self._waiting = waiting
        self._queue: queue.Queue[Write | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name=f"scannery-writer-{name}", daemon=True)
        self._closed = False
        self._closing = threading.Lock()
        self._thread.start()

    def submit(self, write: Write, deadline: Deadline) -> Answer:
        """Return the answer to a write once it is durable and can be seen here.

        Raises:
            OverloadedError: too many writes are waiting.
            DeadlineError: it is not known what became of the write.
            ServingError, IndexerError: it was not written.

        """
        # Under the lock: what comes after `close` has emptied the queue would wait until its deadline.
        with self._closing:
            if self._closed:
                raise ClosedError("the engine is closed")
            try:
                self._queue.put_nowait(write)
            except queue.Full:
                raise OverloadedError("too many writes are waiting", retry_after_s=RETRY_S) from None
        timeout_s = deadline.remaining_s
        try:
            # A disk that hangs must not keep queries from their permits; and more writes share a sync.
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
        """Commit what is waiting, and end; what is not committed in time is refused."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        end_s = time.monotonic() + END_S
        with suppress(queue.Full):  # a disk that hangs
            self._queue.put(None, timeout=END_S)
        self._thread.join(max(0.0, end_s - time.monotonic()))
        with suppress(queue.Empty):
            while True:
                write = self._queue.get_nowait()
                if write is not None:
                    write.outcome.cancel()
        if self._thread.is_alive():
            self._queue.put(None)  # it may have been taken out just now

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            group, last = self._group(first)
            # Whoever gave up while it waited is left out; the others can no longer give up.
            group = [write for write in group if write.outcome.set_running_or_notify_cancel()]
            try:
                self._commit(group)
            except BaseException as error:  # noqa: BLE001  whoever waits must hear of it
                for write in group:
                    if not write.outcome.done():
                        write.outcome.set_exception(error)
            if last:
                return

    def _group(self, first: Write) -> tuple[list[Write], bool]:
        """Return what waits, up to a size, and whether the end was among it."""
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
