"""Requests that are answered together: by whom, with whom, and what becomes of each when something goes wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import scannery
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.engine import search as engine
from scannery.serving.engine.hydrator import WrittenHits
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.scheduling.coalescer import Coalescer
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from tests.data import clustered
from tests.served import DIMENSIONS, serving

NEVER = Deadline.after(None)
ONE, TWO = object(), object()


class Answers:
    """Doubles numbers, in batches that it remembers; while it is shut, it holds on to them."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = threading.Event()
        self.open.set()
        self.begun = threading.Semaphore(0)

    def __call__(self, numbers: Sequence[int], deadline: Deadline) -> list[int]:
        self.batches.append(list(numbers))
        self.begun.release()
        assert self.open.wait(60)
        deadline.check()
        if -1 in numbers:
            raise ValueError("no negative numbers")
        return [2 * number for number in numbers]


def _ask_while_busy(
    coalescer: Coalescer[int, int],
    answers: Answers,
    asks: Sequence[Callable[[], int]],
    *,
    ended: int = 0,
) -> list[Future[int]]:
    """Ask while one is being answered, one after the other; return what becomes of each, once all are answered.

    So many of them end before that one is answered.
    """
    answers.open.clear()
    with ThreadPoolExecutor(len(asks) + 1) as pool:
        first = pool.submit(coalescer.run, ONE, 0, NEVER, answers)
        assert answers.begun.acquire(timeout=60)
        futures = []
        for ask in asks:
            futures.append(pool.submit(ask))
            _await(lambda: len(coalescer._waiting) == len([f for f in futures if not f.done()]))
        _await(lambda: sum(future.done() for future in futures) >= ended)
        answers.open.set()
        assert first.result() == 0
    return futures


def _await(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.001)


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def coalescer() -> Coalescer[int, int]:
    return Coalescer(concurrency=1, max_weight=3)


def test_one_that_comes_alone_waits_for_nobody(coalescer: Coalescer[int, int], answers: Answers) -> None:
    assert [coalescer.run(ONE, number, NEVER, answers) for number in (1, 2, 3)] == [2, 4, 6]
    assert answers.batches == [[1], [2], [3]]


def test_those_that_wait_are_answered_together_with_their_like(
    coalescer: Coalescer[int, int], answers: Answers
) -> None:
    asks = [(ONE, 1), (TWO, 2), (ONE, 3), (ONE, 4), (ONE, 5)]
    futures = _ask_while_busy(
        coalescer,
        answers,
        [partial(coalescer.run, key, number, NEVER, answers) for key, number in asks],
    )
    assert [future.result() for future in futures] == [2, 4, 6, 8, 10]
    # At most three together, and the others in the order in which they came.
    assert answers.batches == [[0], [1, 3, 4], [2], [5]]
    assert coalescer._running == 0


def test_who_makes_a_batch_fail_fails_alone(coalescer: Coalescer[int, int], answers: Answers) -> None:
    futures = _ask_while_busy(
        coalescer,
        answers,
        [partial(coalescer.run, ONE, number, NEVER, answers) for number in (1, -1, 3)],
    )
    assert [futures[0].result(), futures[2].result()] == [2, 6]
    with pytest.raises(ValueError, match="negative"):
        futures[1].result()
    assert coalescer.run(ONE, 7, NEVER, answers) == 14


def test_followers_of_a_thread_that_ends_do_not_wait_for_ever(
    coalescer: Coalescer[int, int], answers: Answers
) -> None:
    def ends(numbers: Sequence[int], deadline: Deadline) -> list[int]:
        raise SystemExit

    asks = [partial(coalescer.run, ONE, 1, NEVER, ends), partial(coalescer.run, ONE, 2, NEVER, answers)]
    leader, follower = _ask_while_busy(coalescer, answers, asks)
    with pytest.raises(SystemExit):
        leader.result()
    with pytest.raises(RuntimeError, match="was ended"):
        follower.result()
    assert coalescer._running == 0


def test_deadlines_and_callers_who_hang_up_keep_nobody_waiting(
    coalescer: Coalescer[int, int], answers: Answers
) -> None:
    turns = threading.BoundedSemaphore(8)
    here = [True, True]

    def in_turn(number: int) -> int:
        with Permit(turns, NEVER, lambda: here[number]):
            try:
                return coalescer.run(ONE, number, NEVER, answers)
            finally:
                here[number] = False

    def leave() -> int:
        here[1] = False
        return coalescer.run(ONE, 5, NEVER, answers)

    late = lambda: coalescer.run(ONE, 9, Deadline.after(0.05), answers)  # noqa: E731
    asks = [late, lambda: in_turn(0), lambda: in_turn(1), leave]
    futures = _ask_while_busy(coalescer, answers, asks, ended=1)
    with pytest.raises(DeadlineError):
        futures[0].result()
    with pytest.raises(CallerGoneError):
        futures[2].result()
    assert (futures[1].result(), futures[3].result()) == (0, 10)
    assert not any(9 in batch or 1 in batch for batch in answers.batches)
    assert turns._value == 8, "every turn was given back once"
    assert coalescer._running == 0


@pytest.mark.system
def test_queries_of_concurrent_callers_are_searched_together_and_answered_as_alone(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    search = engine.search

    def slow(prepared: PreparedSearch, batch: QueryBatch, rows: None) -> WrittenHits:
        sizes.append(len(batch.queries))
        time.sleep(0.02)
        return search(prepared, batch)

    vectors_ND = clustered(40, DIMENSIONS, seed=6)
    with serving(library) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        alone = [index.search(vector_D, 5) for vector_D in vectors_ND]
        monkeypatch.setattr(engine, "search", slow)
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda vector_D: index.search(vector_D, 5), vectors_ND))
    assert max(sizes) > 1
    for one, other in zip(alone, found, strict=True):
        assert one == other


@pytest.mark.system
@pytest.mark.parametrize("k", [1, 7, 10, 50, 60])
@pytest.mark.parametrize("exact", [False, True])
def test_one_query_is_answered_as_one_of_many(library: Path, k: int, exact: bool) -> None:
    queries_QD = clustered(20, 4, seed=9)
    with serving(library) as server, scannery.connect(server.address) as client:
        index = client.index("flat")
        many = index.search_many(queries_QD, k, exact=exact)
        for query_D, hits in zip(queries_QD, many, strict=True):
            one = index.search(query_D, k, exact=exact)
            assert one == hits
            later = index.search(query_D, k, offset=1, exact=exact)
            assert [hit.id for hit in later][: k - 1] == [hit.id for hit in one][1:]
