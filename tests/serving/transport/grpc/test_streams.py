"""Streams of requests: how much of their answers may wait for who does not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from scannery.runtime.errors import OverloadedError
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.scheduling.permits import Budget
from scannery.serving.transport.grpc.dispatcher import Pipeline


def numbers(count: int, taken: list[int]) -> Iterator[bytes]:
    for number in range(count):
        taken.append(number)
        yield str(number).encode()


@contextmanager
def pipeline(
    requests: Iterator[bytes],
    answer: Callable[[bytes], bytes],
    *,
    threads: int,
    window: int = 1000,
    window_bytes: int = 1 << 30,
    helpers: int = 100,
    total_bytes: int = 1 << 40,
) -> Iterator[Pipeline]:
    pool = CallThreads(threads, "test-stream")
    memory = Budget(total_bytes, "bytes")
    try:
        yield Pipeline(
            requests, answer, threads=threads, window=window, window_bytes=window_bytes, pool=pool,
            helpers=Budget(helpers, "threads"), share=memory.take("a", 0),
        )  # fmt: skip
    finally:
        pool.close()


@pytest.mark.system
@pytest.mark.parametrize(
    ("size", "window", "window_bytes", "most"),
    [(1 << 20, 1000, 4 << 20, 4 + 4), (1, 10, 1 << 30, 10), (8 << 20, 1000, 1 << 20, 4)],
)
def test_answers_that_are_not_read_are_bounded_in_number_and_bytes(
    size: int, window: int, window_bytes: int, most: int
) -> None:
    """Beyond the window, there is one answer of each thread."""
    taken: list[int] = []
    with pipeline(
        numbers(40, taken),
        lambda request: request + bytes(size),
        threads=4,
        window=window,
        window_bytes=window_bytes,
    ) as stream:
        answers = stream.answers()
        hits = [next(answers)]
        time.sleep(0.3)
        assert len(taken) <= most + 1  # the one that was read
        hits += answers
    assert sorted(int(answer.rstrip(b"\0")) for answer in hits) == list(range(40))


def test_whoever_goes_away_leaves_no_thread_waiting() -> None:
    taken: list[int] = []
    with pipeline(
        numbers(100, taken), lambda request: bytes(10), threads=2, window=100, window_bytes=5
    ) as stream:
        answers = stream.answers()
        next(answers)
        answers.close()  # type: ignore[attr-defined]  # a generator
        deadline_s = time.monotonic() + 10
        while stream._working and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not stream._working
    assert len(taken) < 10


def test_an_error_ends_the_stream() -> None:
    gone = threading.Event()

    def answer(request: bytes) -> bytes:
        if request == b"3":
            raise ValueError("no")
        gone.wait(0.01)
        return request

    with (
        pipeline(numbers(100, []), answer, threads=2, window=10, window_bytes=100) as stream,
        pytest.raises(ValueError, match="no"),
    ):
        list(stream.answers())


@pytest.mark.system
@pytest.mark.parametrize(("threads", "helpers", "at_once"), [(4, 100, 4), (4, 4, 3), (1, 100, 1)])
def test_requests_that_arrive_together_are_answered_by_as_many_threads_as_there_are(
    threads: int, helpers: int, at_once: int
) -> None:
    """Of the helpers a lone caller has half; one thread answers in the order of the requests."""
    working, most, lock = 0, 0, threading.Lock()

    def answer(request: bytes) -> bytes:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        time.sleep(0.03)
        with lock:
            working -= 1
        return request

    with pipeline(numbers(20, []), answer, threads=threads, helpers=helpers) as stream:
        answers = [int(each) for each in stream.answers()]
    assert sorted(answers) == list(range(20))
    assert threads > 1 or answers == list(range(20))
    assert most == at_once


def test_memoryof_requests_and_unread_answers_are_those_of_the_caller() -> None:
    with (
        pipeline(numbers(9, []), lambda request: bytes(1 << 20), threads=1, total_bytes=5 << 20) as stream,
        pytest.raises(OverloadedError, match="bytes"),
    ):
        for _ in stream.answers():
            time.sleep(0.1)


def test_a_stream_is_ended_from_outside_with_the_reason() -> None:
    silent = threading.Event()

    def requests() -> Iterator[bytes]:
        yield b"1"
        silent.wait(30)

    with pipeline(requests(), lambda request: request, threads=2) as stream:
        answers = stream.answers()
        assert next(answers) == b"1"
        stream.end(ValueError("the reason"))
        with pytest.raises(ValueError, match="the reason"):
            next(answers)
        silent.set()
