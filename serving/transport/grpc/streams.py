"""Answers the requests of one stream concurrently; answers may be out of order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

__all__ = ["pipelined"]


class _Pipeline:
    """Threads of which one waits for the next request while the others answer theirs (leader/followers).

    Passing each request to a pool would cost one more thread switch, and would need a bounded queue.
    """

    def __init__(
        self,
        requests: Iterator[bytes],
        answer: Callable[[bytes], bytes],
        window: int,
        window_bytes: int,
    ) -> None:
        self._requests = requests
        self._answer = answer
        self._next = threading.Lock()
        self._room = threading.Condition()
        self._window, self._window_bytes = window, window_bytes
        self._unread = self._unread_bytes = 0
        """Requests read whose answers are not sent; bytes of the answers that are ready."""
        self._ended = False
        self.answers: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()
        """Answers; the error that ended the stream; None for each finished thread."""

    def work(self) -> None:
        """Answer requests until there are none."""
        try:
            while (request := self._take()) is not None:
                answer = self._answer(request)
                with self._room:
                    self._unread_bytes += len(answer)
                self.answers.put(answer)
        except Exception as error:  # noqa: BLE001  raised again by `pipelined`
            self._ended = True
            self.answers.put(error)
        finally:
            self.answers.put(None)

    def sent(self, size_bytes: int) -> None:
        """Record that an answer was sent, which makes room for another request."""
        with self._room:
            self._unread -= 1
            self._unread_bytes -= size_bytes
            self._room.notify()

    def end(self) -> None:
        """Read no further requests."""
        with self._room:
            self._ended = True
            self._room.notify_all()

    def _take(self) -> bytes | None:
        with self._next:
            # Bounds the unsent answers, too.
            with self._room:
                self._room.wait_for(self._has_room)
                self._unread += 1
            request = None if self._ended else next(self._requests, None)
            if request is None:
                self._ended = True
            return request

    def _has_room(self) -> bool:
        return self._ended or (self._unread < self._window and self._unread_bytes < self._window_bytes)


def pipelined(
    requests: Iterator[bytes],
    answer: Callable[[bytes], bytes],
    *,
    threads: int,
    window: int,
    window_bytes: int,
    pool: Executor,
) -> Iterator[bytes]:
    """Yield the answers to requests as they are ready.

    Args:
        requests: read one at a time, ahead of the answers.
        answer: from a request to its answer; an exception ends the stream.
        threads: number of requests answered concurrently.
        window: limit of requests that were read and whose answers are not sent.
        window_bytes: no request is read while unsent answers have this many bytes; requests that are being answered
            may exceed it.
        pool: runs the threads.

    """
    pipeline = _Pipeline(requests, answer, window, window_bytes)
    for _ in range(threads):
        pool.submit(pipeline.work)
    working = threads
    try:
        while working:
            item = pipeline.answers.get()
            if item is None:
                working -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
                pipeline.sent(len(item))
    finally:
        pipeline.end()
