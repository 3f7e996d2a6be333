"""Searches of concurrent callers that share calls: everybody gets what they would have got alone."""

from __future__ import annotations

import asyncio
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

import scannery
from scannery.client.calls import Method, search
from scannery.client.client import Client
from scannery.client.embedded import EmbeddedTransport
from scannery.client.gathered import _Thread
from scannery.client.gathering import FEW, LARGEST, Gathering, Waiting, kind_of
from scannery.serving import Server, ServerConfig
from tests.served import DIMENSIONS, serving

CALLERS = 32
QUERIES = np.random.default_rng(3).normal(size=(CALLERS, DIMENSIONS)).astype(np.float32)
OPTIONS: list[dict[str, Any]] = [
    {},
    {"k": 3},
    {"where": {"show": "gotime"}},
    {"fields": ["title"], "vectors": True},
    {"target_recall": 0.9},
    {"max_per_group": 1},
]
KIND = ("library", b"", 64, 5.0)
Alone: TypeAlias = Callable[[Any], scannery.Hits]


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


class Gate:
    """A transport to a store in this process that counts calls, and lets them through when it is told to."""

    gathers = True

    def __init__(self, inner: EmbeddedTransport) -> None:
        self._inner = inner
        self.open = threading.Event()
        self.closed_to = 1 << 30
        """How many calls wait for it to open; further ones pass."""
        self.entered = threading.Semaphore(0)
        self.sizes: list[int] = []
        self.fails: Callable[[str], None] = lambda path: None

    def call(self, method: Method[Any, Any], request: Any, timeout_s: float) -> Any:
        many = method.path.endswith("Many")
        self.sizes.append(len(request.vectors.packed) // (4 * DIMENSIONS) if many else 1)
        self.entered.release()
        self.fails(method.path)
        if len(self.sizes) <= self.closed_to and not self.open.wait(timeout_s):
            raise scannery.DeadlineExceededError("too late")
        return self._inner.call(method, request, timeout_s)

    def close(self) -> None:
        """Nothing: others go through the same store."""


@pytest.fixture(scope="module")
def inner(library: Path) -> Iterator[EmbeddedTransport]:
    transport = EmbeddedTransport.open(library)
    yield transport
    transport.close()


@pytest.fixture
def gate(inner: EmbeddedTransport, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A closed gate, where all but the first search wait until that has returned, however long that takes."""
    monkeypatch.setattr("scannery.client.gathering.AT_ONCE", 1)
    monkeypatch.setattr("scannery.client.gathering.FEW", 1)
    monkeypatch.setattr("scannery.client.gathered.WINDOW_S", 60.0)
    gate = Gate(inner)
    yield gate
    gate.open.set()


def gathered(gate: Gate, pool: ThreadPoolExecutor, queries: list[Any], **options: Any) -> list[Any]:
    """Ask so that the first search is under way and all others wait; return futures."""
    client = Client(gate, timeout_s=20, coalesce=True)
    index = client.index("library")

    def ask(query: Any) -> scannery.Hits:
        return index.search(query, 5, **options)

    first = pool.submit(ask, queries[0])
    assert gate.entered.acquire(timeout=10)
    assert client._gathered is not None
    groups = client._gathered._gathering._groups
    others = [pool.submit(ask, query) for query in queries[1:]]
    until_s = time.monotonic() + 10
    while sum(len(group.waiting) for group in groups.values()) < len(others):
        assert time.monotonic() < until_s
        time.sleep(0.005)
    return [first, *others]


@pytest.fixture(scope="module")
def alone(inner: EmbeddedTransport) -> Alone:
    """Asks one query, by itself."""
    index = Client(inner, timeout_s=30).index("library")
    return lambda query: index.search(query, 5)


def same(found: scannery.Hits, expected: scannery.Hits) -> bool:
    """Return whether these are the same hits; searches of one and of many round differently."""
    pairs = list(zip(found, expected, strict=True))
    close = all(abs(one.score - other.score) < 1e-5 for one, other in pairs)
    fields = all(
        (one.id, one.text, one.attributes) == (other.id, other.text, other.attributes) for one, other in pairs
    )
    return close and fields and found.version == expected.version


# Who goes, waits and leads


class Caller(Waiting):
    def __init__(self) -> None:
        super().__init__(search("library", [1.0], 1).request, time.monotonic() + 5)
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1


def test_the_first_go_straight_out_and_the_others_wait_for_one_to_return() -> None:
    gathering: Gathering[Caller] = Gathering()
    callers = [Caller() for _ in range(FEW + 5)]
    firsts = [gathering.enter(KIND, caller) for caller in callers]
    assert [caller.leads for caller in callers] == [True] * FEW + [False] * 5
    assert firsts == [False] * FEW + [True] + [False] * 4
    other = Caller()
    gathering.enter(("other", *KIND[1:]), other)
    assert other.leads
    gathering.leave(KIND)
    leader, *rest = callers[FEW:]
    assert (leader.leads, leader.woken) == (True, 1)
    assert gathering.followers(KIND) == rest
    assert not any(caller.leads or caller.woken for caller in rest)
    gathering.leave(KIND, 5)
    for _ in range(FEW - 1):
        gathering.leave(KIND)
    late = Caller()
    assert not gathering.enter(KIND, late)
    assert late.leads


def test_who_waited_long_enough_leads_unless_on_the_way_with_others() -> None:
    gathering: Gathering[Caller] = Gathering()
    for _ in range(FEW):
        gathering.enter(KIND, Caller())
    slow, taken = Caller(), Caller()
    assert gathering.enter(KIND, slow)
    assert not gathering.enter(KIND, taken)
    gathering.overdue(KIND, slow)
    assert slow.leads
    assert gathering.followers(KIND) == [taken]
    gathering.overdue(KIND, taken)
    assert not taken.leads


def test_who_gives_up_leaves_the_others_with_a_leader() -> None:
    gathering: Gathering[Caller] = Gathering()
    for _ in range(FEW):
        gathering.enter(KIND, Caller())
    first, second = Caller(), Caller()
    gathering.enter(KIND, first)
    gathering.enter(KIND, second)
    gathering.give_up(KIND, first)
    assert (first.leads, second.leads, second.woken) == (False, True, 1)


def test_a_batch_has_a_bound_and_the_rest_does_not_wait_for_it() -> None:
    gathering: Gathering[Caller] = Gathering()
    callers = [Caller() for _ in range(FEW + LARGEST + 3)]
    for caller in callers:
        gathering.enter(KIND, caller)
    gathering.leave(KIND)
    assert len(gathering.followers(KIND)) == LARGEST - 1
    assert callers[FEW + LARGEST].leads
    assert len(gathering.followers(KIND)) == 2


@pytest.mark.parametrize(
    "options",
    [{"mode": "hybrid"}, {"exact": True}, {"explain": True}, {"rerank": 5}, {"k": 1001}],
    ids=lambda options: next(iter(options)),
)
def test_what_may_take_long_goes_alone(options: dict[str, Any]) -> None:
    k = options.pop("k", 10)
    assert kind_of(search("library", QUERIES[0], k, **options).request, 5.0) is None


def test_everything_goes_alone_while_the_program_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    request = search("library", QUERIES[0], 10).request
    assert kind_of(request, 5.0) is not None
    monkeypatch.setattr("scannery.client.tracing.on", lambda: True)
    assert kind_of(request, 5.0) is None


def test_only_what_asks_for_the_same_shares_a_call() -> None:
    for query in (
        "words",
        scannery.Like("d1"),
        scannery.Blend([QUERIES[0]]),
        scannery.Sparse({1: 1.0}, QUERIES[0]),
    ):
        assert kind_of(search("library", query, 10).request, 5.0) is None
    kinds = [
        kind_of(search(index, QUERIES[0][:size], k, min_sequence=sequence, where=where).request, timeout_s)
        for index, size, k, sequence, where, timeout_s in [
            ("library", 16, 10, 0, None, 5.0),
            ("flat", 16, 10, 0, None, 5.0),
            ("library", 15, 10, 0, None, 5.0),
            ("library", 16, 9, 0, None, 5.0),
            ("library", 16, 10, 1, None, 5.0),
            ("library", 16, 10, 0, {"year": 1}, 5.0),
            ("library", 16, 10, 0, {"year": 2}, 5.0),
            ("library", 16, 10, 0, None, 4.0),
        ]
    ]
    assert None not in kinds
    assert len(set(kinds)) == len(kinds)
    same = kind_of(search("library", QUERIES[1], 10).request, 5.0)
    assert same == kinds[0]


# Through a gate: what waits is known


def test_those_who_wait_share_one_call_and_each_gets_its_own_hits(gate: Gate, alone: Alone) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        futures = gathered(gate, pool, list(QUERIES))
        gate.open.set()
        for query, future in zip(QUERIES, futures, strict=True):
            assert same(future.result(20), alone(query))
    assert gate.sizes == [1, CALLERS - 1]


def test_the_error_of_one_is_nobody_elses(gate: Gate, alone: Alone) -> None:
    queries = list(QUERIES[:8])
    queries[3] = np.full(DIMENSIONS, np.nan, np.float32)
    with ThreadPoolExecutor(8) as pool:
        futures = gathered(gate, pool, queries)
        gate.open.set()
        for number, future in enumerate(futures):
            if number == 3:
                with pytest.raises(scannery.InvalidArgumentError, match="must be finite") as caught:
                    future.result(20)
                assert caught.value.field == "query"
            else:
                assert same(future.result(20), alone(queries[number]))


def test_what_is_wrong_with_the_server_is_told_to_each(gate: Gate) -> None:
    def fails(path: str) -> None:
        if path.endswith("Many"):
            raise scannery.UnavailableError("gone", retry_after_s=3)

    gate.fails = fails
    with ThreadPoolExecutor(8) as pool:
        futures = gathered(gate, pool, list(QUERIES[:8]))
        gate.open.set()
        first, *errors = [future.exception(20) for future in futures]
    assert first is None
    assert {type(error) for error in errors} == {scannery.UnavailableError}
    assert {error.retry_after_s for error in errors if isinstance(error, scannery.UnavailableError)} == {3}
    assert len({id(error) for error in errors}) == len(errors)


def only_one_is_interrupted(gate: Gate, alone: Alone) -> None:
    """Ask with eight threads, and check that all but one of them get their answers."""
    with ThreadPoolExecutor(8) as pool:
        futures = gathered(gate, pool, list(QUERIES[:8]))
        gate.open.set()
        failed = [future.exception(20) for future in futures]
    assert [type(error) for error in failed if error] == [KeyboardInterrupt]
    for query, future in zip(QUERIES, futures, strict=False):
        assert future.exception() or same(future.result(), alone(query))


def test_a_leader_that_breaks_off_leaves_nobody_behind(gate: Gate, alone: Alone) -> None:
    def fails(path: str) -> None:
        if path.endswith("Many"):
            raise KeyboardInterrupt

    gate.fails = fails
    only_one_is_interrupted(gate, alone)


def test_a_caller_that_is_interrupted_while_it_waits_leaves_nobody_behind(
    gate: Gate, alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    awaited = _Thread.awaited

    def interrupted(waiting: _Thread, most_s: float) -> bool:
        if waiting.request.query.vector.packed == QUERIES[1].tobytes():
            gate.open.wait(20)
            time.sleep(0.2)  # until it is its turn, or not any more
            raise KeyboardInterrupt
        return awaited(waiting, most_s)

    monkeypatch.setattr(_Thread, "awaited", interrupted)
    only_one_is_interrupted(gate, alone)


def test_a_deadline_passes_while_its_caller_waits(gate: Gate) -> None:
    client = Client(gate, timeout_s=20, coalesce=True)
    index = client.index("library")
    with ThreadPoolExecutor(8) as pool:
        under_way = pool.submit(index.search, QUERIES[0], 5, timeout_s=0.3)
        assert gate.entered.acquire(timeout=10)
        late = [pool.submit(index.search, query, 5, timeout_s=0.3) for query in QUERIES[:4]]
        patient = pool.submit(index.search, QUERIES[0], 5)
        for future in (under_way, *late):
            with pytest.raises(scannery.DeadlineExceededError):
                future.result(10)
        gate.open.set()
        assert len(patient.result(10)) == 5
        # And nothing is left behind: the next one goes straight out.
        assert len(index.search(QUERIES[0], 5, timeout_s=5)) == 5
    assert client._gathered is not None
    assert client._gathered._gathering._groups == {}


def test_a_few_callers_have_calls_of_their_own(inner: EmbeddedTransport) -> None:
    gate = Gate(inner)
    gate.open.set()
    index = Client(gate, timeout_s=20, coalesce=True).index("library")
    with ThreadPoolExecutor(FEW) as pool:
        for callers in range(1, FEW + 1):
            gate.sizes.clear()
            for _ in range(20):
                assert all(pool.map(lambda query: index.search(query, 5), QUERIES[:callers]))
            assert gate.sizes == [1] * (20 * callers)


def test_a_slow_call_holds_up_nobody(inner: EmbeddedTransport) -> None:
    """With the real window: those who wait for a call that does not return go without it."""
    gate = Gate(inner)
    gate.closed_to = FEW
    client = Client(gate, timeout_s=20, coalesce=True)
    index = client.index("library")
    with ThreadPoolExecutor(8) as pool:
        slow = [pool.submit(index.search, QUERIES[0], 5) for _ in range(FEW)]
        for _ in slow:
            assert gate.entered.acquire(timeout=10)
        others = [pool.submit(index.search, query, 5) for query in QUERIES[:6]]
        for future in others:
            assert len(future.result(10)) == 5
        assert not any(future.done() for future in slow)
        gate.open.set()
        for future in slow:
            assert len(future.result(10)) == 5


# Over the wire


def test_every_one_of_many_threads_gets_its_own_answer(server: Server) -> None:
    def ask(index: scannery.Index, number: int) -> list[scannery.Hits]:
        options = dict(OPTIONS[number % len(OPTIONS)])
        k = options.pop("k", 10)
        go.wait()
        return [index.search(QUERIES[(number + turn) % CALLERS], k, **options) for turn in range(10)]

    with (
        scannery.connect(server.address, native=False) as client,
        scannery.connect(server.address, coalesce=False, native=False) as plain,
        ThreadPoolExecutor(CALLERS) as pool,
    ):
        go = threading.Barrier(CALLERS)
        found = list(pool.map(lambda number: ask(client.index("library"), number), range(CALLERS)))
        go = threading.Barrier(CALLERS)
        expected = list(pool.map(lambda number: ask(plain.index("library"), number), range(CALLERS)))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(same, ours, theirs))
    assert calls_of(server, "SearchMany") > 0


def calls_of(server: Server, method: str) -> int:
    series = server.metrics.request_seconds.dump()
    return sum(sum(counts[1:]) for labels, counts in series.items() if labels.split("\x1f")[0] == method)


async def test_every_one_of_many_coroutines_gets_its_own_answer(server: Server, alone: Alone) -> None:
    async with scannery.aio.connect(server.address, native=False) as client:
        index = client.index("library")
        bad = np.full(DIMENSIONS, np.inf, np.float32)
        queries = [*QUERIES, bad]
        answers = await asyncio.gather(*(index.search(query, 5) for query in queries), return_exceptions=True)
        cancelled = [asyncio.create_task(index.search(query, 5)) for query in QUERIES]
        await asyncio.sleep(0)
        for task in cancelled[::2]:
            task.cancel()
        rest = await asyncio.gather(*cancelled, return_exceptions=True)
        assert client._gathered is not None
        assert client._gathered._gathering._groups == {}
        late = await asyncio.gather(
            *(index.search(query, 5, timeout_s=1e-4) for query in QUERIES), return_exceptions=True
        )
    assert isinstance(answers.pop(), scannery.InvalidArgumentError)
    for query, answer in zip(QUERIES, answers, strict=True):
        assert same(answer, alone(query))  # type: ignore[arg-type]  # no error
    assert all(isinstance(answer, asyncio.CancelledError) for answer in rest[::2])
    assert all(map(same, rest[1::2], answers[1::2]))  # type: ignore[arg-type]
    assert {type(answer) for answer in late} <= {scannery.DeadlineExceededError, scannery.Hits}


def test_a_restart_is_not_seen_by_those_who_share_calls(library: Path, alone: Alone) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = ServerConfig(store=str(library), listen=address, drain_s=5)
    expected = [hit.id for hit in alone(QUERIES[0])]
    done, wrong, answered = threading.Event(), list[object](), [0] * 8

    def ask(number: int) -> None:
        while not done.is_set():
            try:
                if [hit.id for hit in index.search(QUERIES[0], 5)] != expected:
                    wrong.append("hits")
            except scannery.ScanneryError as error:
                wrong.append(error)
            answered[number] += 1

    with scannery.connect(address, timeout_s=30, native=False) as client, ThreadPoolExecutor(8) as pool:
        index = client.index("library")
        for turn in range(2):
            with Server(config):
                if turn == 0:
                    asking = [pool.submit(ask, number) for number in range(8)]
                before = list(answered)
                until_s = time.monotonic() + 20
                while any(now - then < 20 for now, then in zip(answered, before, strict=True)):
                    assert time.monotonic() < until_s
                    time.sleep(0.01)
                if turn == 1:
                    done.set()
                    for future in asking:
                        future.result(20)
    assert wrong == []


def test_a_fork_while_others_wait_leaves_the_child_free(library: Path) -> None:
    """In a process of its own: a fork of this one, with all the threads that other tests left, proves nothing."""
    code = f"""
import os, sys, numpy as np, scannery
index = scannery.connect(sys.argv[1], native=False).index("library")
query = np.ones({DIMENSIONS}, np.float32)
before = [hit.id for hit in index.search(query, 3)]
gathering = index._client._gathered._gathering
# As a fork finds it while other threads are in the middle of theirs.
gathering._lock.acquire()
if os.fork() == 0:
    same = [hit.id for hit in index.search(query, 3, timeout_s=20)] == before
    os._exit(0 if same else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
gathering._lock.release()
assert [hit.id for hit in index.search(query, 3)] == before
sys.exit(status)
"""
    with serving(library) as server:
        done = subprocess.run(
            [sys.executable, "-c", code, server.address],
            timeout=60,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def test_a_client_that_gathers_may_be_pickled_and_closed(server: Server) -> None:
    client = scannery.connect(server.address, native=False)
    index = client.index("library")
    expected = index.search(QUERIES[0], 3)
    copy = pickle.loads(pickle.dumps(index))
    client.close()
    assert copy.search(QUERIES[0], 3) == expected
    with ThreadPoolExecutor(8) as pool:
        errors = [pool.submit(index.search, query, 3).exception(20) for query in QUERIES[:8]]
    assert {type(error) for error in errors} == {scannery.CancelledError}
