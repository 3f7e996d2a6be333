"""Writes to a root: the answers, errors and contents are those of one server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.log.location import DatabaseUrl
from scannery.live.maintenance.seal import seal
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Condition, Datapoint, Filter, Operator, Value
from tests.cluster.processes import wait_until
from tests.cluster.questions import INDEX, any_search, make_store
from tests.cluster.servers import root_server
from tests.cluster.writes.random_writes import RandomWrites
from tests.cluster.writes.targets import Pair, Target, made_pair
from tests.data import repeated
from tests.live.log.postgres_server import PostgresServer

pytestmark = pytest.mark.system

WRITES, SEARCHES = 60, 12
LONG_WRITES, LONG_SEARCHES = repeated(1500), repeated(300)
"""By `make test-long`."""
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("writes"))


@pytest.fixture(scope="module")
def pair(store: Path, tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer) -> Iterator[Pair]:
    with made_pair(store, tmp_path_factory.mktemp("pair"), postgres.new_database()) as found:
        yield found


def test_the_same_answers_and_contents(pair: Pair) -> None:
    check(pair.alone, pair.cluster, 0, WRITES, SEARCHES)


@pytest.mark.long
def test_the_same_after_thousands_of_writes(store: Path, tmp_path: Path, postgres: PostgresServer) -> None:
    with made_pair(store, tmp_path, postgres.new_database()) as pair:
        check(pair.alone, pair.cluster, 1, LONG_WRITES, LONG_SEARCHES)


def check(alone: Target, cluster: Target, seed: int, writes: int, searches: int) -> None:
    """Fail if a cluster answers a write otherwise than one server, or has other datapoints after them."""
    requests, sequence, kinds = RandomWrites(seed), 0, set()
    for number in range(writes):
        method, request = requests.next()
        one, other = alone.write(method, request), cluster.write(method, request)
        assert one == other, f"write {number}: {method} {request}"
        requests.answered(request, one)
        sequence = max(sequence, getattr(one, "sequence", 0))
        kinds.add((method, one[0] if isinstance(one, tuple) else None))
    assert {("Upsert", None), ("Delete", None)} < kinds
    assert ("Upsert", grpc.StatusCode.FAILED_PRECONDITION) in kinds, "conditions that do not hold"
    assert alone.contents(sequence) == cluster.contents(sequence)
    for number in range(searches):
        search = any_search(number)
        search.options.min_sequence = sequence
        assert alone.found(search) == cluster.found(search), search


def test_batches_by_filter(pair: Pair) -> None:
    # Which datapoints a batch has is not the same; how many, and what is left in the end, are.
    where = Filter(
        condition=Condition(field="year", operator=Operator.OPERATOR_GTE, values=[Value(int_value=2015)])
    )
    found = []
    for target in (pair.alone, pair.cluster):
        request = pb.DeleteWhereRequest(index=INDEX, where=where, limit=17, dry_run=True)
        batches = [target.write("DeleteWhere", request)]
        request.dry_run = False
        while batches[-1].remaining:
            batches.append(target.write("DeleteWhere", request))
            request.until_sequence = batches[-1].until_sequence
        found.append(batches)
    assert found[0] == found[1]
    assert len(found[0]) > 5
    sequence = found[0][-1].sequence
    assert pair.alone.contents(sequence) == pair.cluster.contents(sequence)


def test_two_roots_count_together(pair: Pair) -> None:
    # Each increment reads a counter and writes it if no other caller has meanwhile: none is lost, whatever is sealed.
    check_counters(pair, seals=1, increments=6)


@pytest.mark.long
def test_two_roots_count_for_long(pair: Pair) -> None:
    check_counters(pair, seals=3, increments=repeated(60))


def check_counters(pair: Pair, *, seals: int, increments: int) -> None:
    """Fail if an increment is lost of those that four callers of two roots make."""
    # One that the other root knows, too.
    name = Datapoint.FromString(pair.cluster.contents(0)[0]).id
    with root_server(pair.store, pair.leaves, log=pair.log) as other, scannery.connect(pair.root) as client:
        index = client.index(INDEX)
        index.update([{"id": name, "attributes": {"year": 0}}])
        addresses = (pair.root, other.address) * 2
        counters = [Counter(address, name, increments) for address in addresses]
        for counter in counters:
            counter.start()
        for _ in range(seals):
            seal(Store.open(pair.store), INDEX, log_root=DatabaseUrl(pair.log))
        for counter in counters:
            counter.join(4 * TIMEOUT_S)
        assert [counter.done for counter in counters] == [increments] * len(counters)

        def count() -> Any:
            [point] = index.get([name])
            return None if point is None else point.attributes["year"]

        # The last increment may have been made at the other root: this one knows of it a moment later.
        wait_until(lambda: count() == increments * len(counters), 20)
        assert sum(counter.refused for counter in counters), "they met"


class Counter(threading.Thread):
    """Increments an attribute of a datapoint."""

    def __init__(self, address: str, name: str, increments: int) -> None:
        super().__init__()
        self._address, self._name, self._increments = address, name, increments
        self.done, self.refused = 0, 0

    def run(self) -> None:
        """Read and write, and begin again where another one has written meanwhile."""
        with scannery.connect(self._address) as client:
            index = client.index(INDEX)
            while self.done < self._increments:
                [point] = index.get([self._name])
                assert point is not None
                year = point.attributes["year"]
                assert isinstance(year, int)
                new: Any = {"id": self._name, "attributes": {"year": year + 1}, "if_revision": point.revision}
                try:
                    index.update([new])
                    self.done += 1
                except scannery.FailedPreconditionError:
                    self.refused += 1
