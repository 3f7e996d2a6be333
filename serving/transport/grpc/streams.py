"""Answers the requests of one stream, several at once or in their order.

A stream without requests holds two threads, which wait: one for the next request, and one for its answer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator

from scannery.runtime.errors import OverloadedError
from scannery.serving.scheduling.budgets import Budget, Share
from scannery.serving.scheduling.thread_pool import CallThreads

__all__ = ["Pipeline"]

SPARE_S = 1.0
"""A thread without a request waits this long for one before it leaves the stream."""
COUNTED_BYTES = 1 << 16
"""Fewer bytes of requests and answers of a stream are not counted."""


class Pipeline:
    """Threads of which one waits for the next request while the others answer theirs (leader/followers).

    Passing each request to a pool would cost one more thread switch, and would need a bounded queue.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        answer: Callable[[bytes], bytes],
        *,
        threads: int,
        window: int,
        window_bytes: int,
        pool: CallThreads,
        helpers: Budget,
        share: Share,
    ) -> None:
        """Read nothing yet.

        Args:
            requests: read one at a time, ahead of the answers.
            answer: from a request to its answer; an exception ends the stream.
            threads: number of requests answered concurrently. With one, answers are in the order of the requests.
            window: limit of requests that were read and whose answers are not sent.
            window_bytes: no request is read while unsent answers have this many bytes; requests that are being
                answered may exceed it.
            pool: runs the threads; has one for each stream and each helper.
            helpers: threads of all streams besides their first ones.
            share: of the caller, for the bytes of requests and unsent answers.

        """
        self._requests, self._answer = requests, answer
        self._threads, self._pool, self._helpers = threads, pool, helpers
        self._window, self._window_bytes = window, window_bytes
        self._share = share
        self._next = threading.Lock()
        """Held by the thread that waits for the next request."""
        self._room = threading.Condition()
        self._unread = self._unread_bytes = self._held_bytes = 0
        """Requests read whose answers are not sent; bytes of answers that are ready, and those with the requests."""
        self._working = self._spare = 0
        """Threads of this stream, and those of them that wait to be the next to read."""
        self._shares: list[Share] = []
        """Of `helpers`, one for each thread but one."""
        self._ended = False
        self._answers: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        """Answers; the error that ended the stream; None when all requests are answered."""

    def answers(self) -> Iterator[bytes]:
        """Yield the answers to requests as they are ready; raises the error that ended the stream."""
        self._start_thread()
        try:
            while (item := self._answers.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
                self._sent(len(item))
        finally:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """Read no further requests, and raise the error in `answers`."""
        with self._room:
            self._ended = True
            self._room.notify_all()
        if error is not None:
            self._answers.put(error)

    def _start_thread(self) -> None:
        with self._room:
            self._working += 1
        try:
            self._pool.submit(self._work)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        with self._room:
            self._working -= 1
            if self._shares:
                self._shares.pop().close()
            if not self._working:
                self._answers.put(None)

    def _work(self) -> None:
        """Answer requests until there are none."""
        try:
            while (request := self._take()) is not None:
                self._hold(len(request))
                answer = self._answer(request)
                self._hold(len(answer) - len(request))
                with self._room:
                    self._unread_bytes += len(answer)
                self._answers.put(answer)
        except Exception as error:  # noqa: BLE001  raised again by `answers`
            self.end(error)
        finally:
            self._leave()

    def _take(self) -> bytes | None:
        """Return the next request; None: the stream has ended, or this thread is not needed."""
        with self._room:
            self._spare += 1
        try:
            if not self._next.acquire(timeout=SPARE_S):
                return None
        finally:
            with self._room:
                self._spare -= 1
        try:
            # Bounds the unsent answers, too.
            with self._room:
                self._room.wait_for(self._has_room)
                self._unread += 1
            request = None if self._ended else next(self._requests, None)
            if request is None:
                self._ended = True
                return None
            self._call_follower()
            return request
        finally:
            self._next.release()

    def _call_follower(self) -> None:
        """Have another thread wait for the next request, if there may be one more."""
        with self._room:
            if self._spare or self._working >= self._threads:
                return
            try:
                self._shares.append(self._helpers.take(self._share.account, 1))
            except OverloadedError:
                return  # this thread goes on when it has answered
        try:
            self._start_thread()
        except RuntimeError:  # the system has no more threads now
            return

    def _hold(self, more_bytes: int) -> None:
        with self._room:
            before, after = self._held_bytes, self._held_bytes + more_bytes
            self._held_bytes = after
            if max(before, after) > COUNTED_BYTES:
                self._share.resize(after)

    def _sent(self, size_bytes: int) -> None:
        """Record that an answer was sent, which makes room for another request."""
        self._hold(-size_bytes)
        with self._room:
            self._unread -= 1
            self._unread_bytes -= size_bytes
            self._room.notify()

    def _has_room(self) -> bool:
        return self._ended or (self._unread < self._window and self._unread_bytes < self._window_bytes)
