"""Rates of callers: what is counted, what is refused, and that workers count together."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from scannery.client.request import calls
from scannery.runtime.errors import QuotaError
from scannery.runtime.sharing import BUCKETS, NAMES, SharedBuckets
from scannery.serving.scheduling.quotas import Quotas
from scannery.serving.scheduling.token_buckets import TokenBuckets
from scannery.serving.security.limits import RATES, Limits
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import embedding_pb2, index_pb2, search_pb2, types_pb2
from scannery.v1.index_pb2 import UpsertRequest

SECOND = 10**9
FAR_NS = 10**15
"""A time of the clock of tests: later than all buckets are full."""
MATRIX = types_pb2.Matrix(packed=bytes(4 * 4), dimensions=1)


def many(**fields: Any) -> search_pb2.SearchManyRequest:
    return search_pb2.SearchManyRequest(index="library", **fields)


def search() -> search_pb2.SearchRequest:
    return calls.search("library", [1.0], 10).request


class Caller:
    """Takes from buckets, at a time that the test sets."""

    def __init__(self, burst_ns: int = SECOND) -> None:
        self.now_ns = FAR_NS
        self.buckets = TokenBuckets(SharedBuckets(), lambda: self.now_ns)
        self.burst_ns = burst_ns

    def waits(self, *costs_ns: int, times: int = 1, name: str = "a") -> list[int]:
        """Take some times, and return how long to wait before each."""
        costs = [*costs_ns, 0, 0, 0, 0, 0][:5]
        return [self.buckets.take(name, costs, self.burst_ns)[0] for _ in range(times)]


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    caller, cost = Caller(), SECOND // 10
    assert caller.waits(cost, times=12) == [0] * 10 + [cost] * 2
    assert caller.waits(cost, name="b") == [0]  # another caller
    assert caller.waits(0, cost) == [0]  # another rate
    caller.now_ns += cost
    assert caller.waits(cost, times=2) == [0, cost]
    caller.now_ns += 100 * SECOND
    assert caller.waits(cost, times=11) == [0] * 10 + [cost]


def test_a_request_above_the_burst_waits_for_a_full_bucket() -> None:
    caller = Caller()
    assert caller.waits(7 * SECOND, times=2) == [0, 7 * SECOND]
    assert caller.waits(1) == [6 * SECOND + 1]
    caller.now_ns += 6 * SECOND + 1
    assert caller.waits(1) == [0]


def test_nothing_is_taken_if_one_bucket_refuses() -> None:
    caller, cost = Caller(), SECOND // 10
    assert caller.waits(0, 0, SECOND) == [0]
    for _ in range(100):
        assert caller.buckets.take("a", [cost, cost, cost, 0, 0], SECOND) == (cost, 2)
    assert caller.waits(cost, cost, times=11) == [0] * 10 + [cost]


def test_what_is_owed_is_paid_before_the_next() -> None:
    caller = Caller()
    caller.buckets.owe("a", 3, 5 * SECOND)
    assert caller.waits(0, 0, 0, SECOND // 10) == [4 * SECOND + SECOND // 10]


def test_rows_are_used_again_when_their_buckets_are_full() -> None:
    shared = SharedBuckets()
    bucket = TokenBuckets(shared)
    for number in range(NAMES - 1):
        assert bucket.take(str(number), [50 * SECOND, 0, 0, 0, 0], SECOND)[0] == 0
    assert shared.row("one more") == 0  # all rows are in use: what has none shares one
    shared.words[5 * BUCKETS] = 0
    assert shared.row("one more") == 5 * BUCKETS
    assert shared.row("one more") == 5 * BUCKETS


def _take_all(shared: SharedBuckets, seconds: float, count: Any) -> None:
    bucket, end = TokenBuckets(shared), time.monotonic() + seconds
    taken = 0
    while time.monotonic() < end:
        taken += bucket.take("a", [SECOND // 5_000, 0, 0, 0, 0], SECOND // 10)[0] == 0
    with count.get_lock():
        count.value += taken


def test_processes_that_take_at_once_never_take_the_same() -> None:
    fork = multiprocessing.get_context("fork")
    shared, count = SharedBuckets(), fork.Value("q", 0)
    TokenBuckets(shared)  # compiled before the fork
    started = time.monotonic()
    processes = [fork.Process(target=_take_all, args=(shared, 0.4, count)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    took_s = time.monotonic() - started
    assert 5_000 * 0.2 < count.value <= 5_000 * (took_s + 0.1) + 1


@dataclass
class Counted:
    quotas: Quotas
    shared: SharedBuckets
    metrics: ServerMetrics

    def amounts(self, request: Any, answer: Any = None) -> dict[str, int]:
        """Return what a request takes of each rate."""
        self.shared.words[:] = SharedBuckets().words
        self.quotas.admit(request)
        if answer is not None:
            self.quotas.settle(request, answer)
        row = self.shared.row("caller")
        words = self.shared.words[row : row + len(RATES)].tolist()
        start = words[0] - 10**9  # each request is one of one a second
        return {
            name: round((word - start) / 1e9)
            for name, word in zip(RATES[1:], words[1:], strict=True)
            if word > start
        }


@pytest.fixture
def counted() -> Iterator[Counted]:
    limits = Limits(**dict.fromkeys(RATES, 1.0), burst_s=1.0)  # type: ignore[arg-type]
    shared, metrics = SharedBuckets(), ServerMetrics()
    token = CURRENT.set(Principal("caller", frozenset(("read",)), limits=limits))
    yield Counted(Quotas(None, shared, metrics), shared, metrics)
    CURRENT.reset(token)


def test_what_a_request_takes(counted: Counted) -> None:
    text = search_pb2.Query(text="x" * 9)
    assert counted.amounts(search_pb2.GetRequest(ids=["a"])) == {}
    assert counted.amounts(search()) == {"queries_per_s": 1}
    assert counted.amounts(search_pb2.SearchRequest(query=text)) == {"queries_per_s": 1, "tokens_per_s": 3}
    lexical = search_pb2.SearchRequest(
        query=text, options=search_pb2.SearchOptions(mode=search_pb2.MODE_LEXICAL)
    )
    assert counted.amounts(lexical) == {"queries_per_s": 1}
    group = search_pb2.Query(group=search_pb2.QueryGroup(queries=[text, text]))
    assert counted.amounts(many(queries=[text, group])) == {"queries_per_s": 2, "tokens_per_s": 9}
    assert counted.amounts(many(vectors=MATRIX)) == {"queries_per_s": 4}
    embed = embedding_pb2.EmbedRequest(texts=["é" * 4, "x"])
    assert counted.amounts(embed) == {"tokens_per_s": 3}
    row = index_pb2.Upsert(datapoint=types_pb2.Datapoint(id="a", title="t" * 5, text="x" * 8))
    given = index_pb2.Upsert(
        datapoint=types_pb2.Datapoint(id="b", text="x" * 8, vector=types_pb2.Vector(values=[1]))
    )
    upsert = UpsertRequest(index="i", upserts=[row, given])
    amounts = {"tokens_per_s": 4, "rows_per_s": 2, "bytes_per_s": upsert.ByteSize()}
    assert counted.amounts(upsert) == amounts
    # Passages of a text are known afterwards.
    answer = index_pb2.UpsertResponse(written=7)
    assert counted.amounts(upsert, answer) == {**amounts, "rows_per_s": 7}
    where = index_pb2.DeleteWhereRequest(index="i")
    size = where.ByteSize()
    assert counted.amounts(where) == {"rows_per_s": 1, "bytes_per_s": size}
    deleted = index_pb2.DeleteWhereResponse(deleted=40)
    assert counted.amounts(where, deleted) == {"rows_per_s": 40, "bytes_per_s": size}
    assert counted.amounts(index_pb2.DeleteWhereRequest(index="i", dry_run=True)) == {}


def test_a_refusal_says_which_limit_and_the_wait_and_is_counted(counted: Counted) -> None:
    counted.quotas.admit(search())
    with pytest.raises(
        QuotaError, match=r"requests_per_s .* allows 1 requests a second.*in (1|0\.99\d?) s"
    ) as caught:
        counted.quotas.admit(search())
    assert caught.value.code == "RESOURCE_EXHAUSTED"
    assert caught.value.retry_after_s == pytest.approx(1, abs=0.1)
    assert counted.metrics.limited.dump() == {"caller\x1frequests_per_s": 1}


def test_keys_of_a_tenant_share_its_rates(counted: Counted) -> None:
    limits = Limits(requests_per_s=1, tenant="acme")

    def admit(name: str, limits: Limits | None = limits) -> None:
        CURRENT.set(Principal(name, frozenset(), limits=limits))
        counted.quotas.admit(search_pb2.GetRequest())

    admit("a")
    with pytest.raises(QuotaError):
        admit("b")
    admit("b", Limits(requests_per_s=1))
    admit("c", None)
