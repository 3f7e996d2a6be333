"""The thread that commits groups: each write is answered, also beside a close."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

from scannery.live.log.mutation_log import Answer, Request
from scannery.live.writing import group_commit as module
from scannery.live.writing.group_commit import Write, Writer
from scannery.runtime.retry import Deadline
from scannery.serving import ClosedError


def a_write() -> Write:
    def resolve(_: Any) -> Any:
        raise AssertionError

    return Write(Request(""), 0, None, None, resolve)


def answered(group: Sequence[Write]) -> None:
    for write in group:
        write.outcome.set_result(Answer(1, 1))


@pytest.mark.system
def test_a_write_beside_the_close_is_answered_at_once() -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            writer = Writer("x", answered)
            outcomes: list[object] = []

            def submit(writer: Writer = writer, outcomes: list[object] = outcomes) -> None:
                try:
                    outcomes.append(writer.submit(a_write(), Deadline.after(20)))
                except ClosedError as error:
                    outcomes.append(error)

            threads = [threading.Thread(target=submit) for _ in range(4)]
            for thread in threads:
                thread.start()
            started = time.monotonic()
            writer.close()
            for thread in threads:
                thread.join()
            assert len(outcomes) == 4
            assert time.monotonic() - started < 10
    finally:
        sys.setswitchinterval(interval)


def test_a_write_between_the_look_and_the_queue_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer is closed after a write has seen that it is open, and before it is in the queue."""
    writer = Writer("x", answered)
    closers: list[threading.Thread] = []

    class Late(queue.Queue[Any]):
        def put_nowait(self, item: Any) -> None:
            closers.append(threading.Thread(target=writer.close))
            closers[0].start()
            closers[0].join(0.3)
            super().put_nowait(item)

    late = Late(10)
    before, writer._queue = writer._queue, late
    before.put(a_write())  # so that its thread goes on with the other queue
    assert writer.submit(a_write(), Deadline.after(5)) == Answer(1, 1)
    closers[0].join()
    with pytest.raises(ClosedError):
        writer.submit(a_write(), Deadline.after(5))


def test_a_close_is_bounded_where_a_commit_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.3)
    monkeypatch.setattr(module, "MAX_QUEUED", 2)
    begun, go = threading.Event(), threading.Event()

    def hanging(group: Sequence[Write]) -> None:
        begun.set()
        go.wait(30)
        answered(group)

    writer, waiting = Writer("x", hanging), [a_write() for _ in range(3)]
    writer._queue.put(waiting[0])
    assert begun.wait(10)
    for write in waiting[1:]:
        writer._queue.put(write)  # full from here on
    started = time.monotonic()
    writer.close()
    assert time.monotonic() - started < 5
    assert [write.outcome.cancelled() for write in waiting[1:]] == [True, True]
    go.set()
    writer._thread.join(10)
    assert not writer._thread.is_alive()
    assert waiting[0].outcome.done()
