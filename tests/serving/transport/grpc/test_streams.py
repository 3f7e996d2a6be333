"""Streams of requests: how much of their answers may wait for who does not read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from scannery.serving.transport.grpc.streams import pipelined


def numbers(count: int, taken: list[int]) -> Iterator[bytes]:
    for number in range(count):
        taken.append(number)
        yield str(number).encode()


@pytest.mark.parametrize(
    ("size", "window", "window_bytes", "most"),
    [(1 << 20, 1000, 4 << 20, 4 + 4), (1, 10, 1 << 30, 10), (8 << 20, 1000, 1 << 20, 4)],
)
def test_answers_that_are_not_read_are_bounded_in_number_and_bytes(
    size: int, window: int, window_bytes: int, most: int
) -> None:
    """Beyond the window, there is one answer of each thread."""
    taken: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        answers = pipelined(
            numbers(40, taken),
            lambda request: request + bytes(size),
            threads=4,
            window=window,
            window_bytes=window_bytes,
            pool=pool,
        )
        found = [next(answers)]
        time.sleep(0.3)
        assert len(taken) <= most + 1  # the one that was read
        found += answers
    assert sorted(int(answer.rstrip(b"\0")) for answer in found) == list(range(40))


def test_whoever_goes_away_leaves_no_thread_waiting() -> None:
    taken: list[int] = []
    with ThreadPoolExecutor(2) as pool:
        answers = pipelined(
            numbers(100, taken), lambda request: bytes(10), threads=2, window=100, window_bytes=5, pool=pool
        )
        next(answers)
        answers.close()  # type: ignore[attr-defined]  # a generator
    # The pool has ended.
    assert len(taken) < 10


def test_an_error_ends_the_stream() -> None:
    gone = threading.Event()

    def answer(request: bytes) -> bytes:
        if request == b"3":
            raise ValueError("no")
        gone.wait(0.01)
        return request

    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="no"):
        list(pipelined(numbers(100, []), answer, threads=2, window=10, window_bytes=100, pool=pool))
