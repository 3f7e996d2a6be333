"""Texts of concurrent callers, encoded in batches."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.encoding.query_encoder import TextBatcher
from scannery.serving.scheduling.permits import CallerGoneError, Permit

NEVER = Deadline.after(None)


class SlowEncoder:
    """Encodes a text as its length, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.go = threading.Event()
        self.entered = threading.Event()

    def encode(self, texts: list[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.entered.set()
        assert self.go.wait(60)
        if "bad" in texts:
            raise ValueError("bad")
        return np.array([[len(text)] for text in texts], np.float32)


def await_waiting(batcher: TextBatcher, count: int) -> None:
    until_s = time.monotonic() + 60
    while len(batcher._coalescer._waiting) < count:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_texts_that_come_while_others_are_encoded_are_encoded_together() -> None:
    slow = SlowEncoder()
    sizes: list[float] = []
    batcher = TextBatcher(slow.encode, max_texts=64, observe=sizes.append)  # type: ignore[arg-type]
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(batcher.encode, ["first"], NEVER)
        assert slow.entered.wait(60)
        others = []
        for text in ("a", "bb", "bad", "a"):
            others.append(pool.submit(batcher.encode, [text], NEVER))
            await_waiting(batcher, len(others))
        slow.go.set()
        assert first.result()[0].tolist() == [5.0]
        assert [others[i].result()[0].tolist() for i in (0, 1, 3)] == [[1.0], [2.0], [1.0]]
        with pytest.raises(ValueError, match="bad"):
            others[2].result()
    assert slow.batches[:2] == [["first"], ["a", "bb", "bad"]]
    assert sizes[:2] == [1, 3]
    assert batcher.encode(["again"], NEVER)[0].tolist() == [5.0]


def test_several_batches_are_encoded_at_once() -> None:
    slow = SlowEncoder()
    batcher = TextBatcher(slow.encode, max_texts=64, observe=lambda texts: None, at_once=2)  # type: ignore[arg-type]
    with ThreadPoolExecutor(3) as pool:
        asked = []
        for text in ("a", "bb"):
            asked.append(pool.submit(batcher.encode, [text], NEVER))
            assert slow.entered.wait(60)
            slow.entered.clear()
        asked.append(pool.submit(batcher.encode, ["ccc"], NEVER))
        await_waiting(batcher, 1)
        slow.go.set()
        assert [each.result()[0].tolist() for each in asked] == [[1.0], [2.0], [3.0]]
    assert slow.batches == [["a"], ["bb"], ["ccc"]]


def test_a_batch_has_at_most_so_many_texts_unless_one_caller_brings_more() -> None:
    slow = SlowEncoder()
    batcher = TextBatcher(slow.encode, max_texts=3, observe=lambda texts: None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(5) as pool:
        pool.submit(batcher.encode, ["first"], NEVER)
        assert slow.entered.wait(60)
        for count, texts in enumerate((["a", "b"], ["c", "d"], ["e"], list("fghi")), 1):
            pool.submit(batcher.encode, texts, NEVER)
            await_waiting(batcher, count)
        slow.go.set()
    assert slow.batches == [["first"], ["a", "b", "e"], ["c", "d"], list("fghi")]


@pytest.mark.parametrize("error", [CallerGoneError, DeadlineError])
def test_texts_that_nobody_waits_for_are_not_encoded(error: type[Exception]) -> None:
    slow = SlowEncoder()
    batcher = TextBatcher(slow.encode, max_texts=64, observe=lambda texts: None)  # type: ignore[arg-type]
    here = [True]

    def ask() -> object:
        deadline = Deadline.after(0.05) if error is DeadlineError else NEVER
        with Permit(threading.BoundedSemaphore(1), NEVER, lambda: here[0]):
            return batcher.encode(["x"], deadline)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.encode, ["first"], NEVER)
        assert slow.entered.wait(60)
        second = pool.submit(ask)
        if error is DeadlineError:
            with pytest.raises(DeadlineError):
                second.result()
        else:
            await_waiting(batcher, 1)
            here[0] = False
        slow.go.set()
        with pytest.raises(error):
            second.result()
        assert first.result()[0].tolist() == [5.0]
    assert slow.batches == [["first"]]
