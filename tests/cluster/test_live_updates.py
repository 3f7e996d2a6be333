"""Live updates: a cluster answers as one server does after the same mutations, and each answer is of one state."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.v1.search_pb2 import SearchManyRequest, SearchRequest
from tests.cluster.processes import often, running_cluster
from tests.cluster.questions import (
    DIMENSIONS,
    INDEX,
    ROWS,
    TOPIC_DIMENSIONS,
    WORDS,
    any_batch,
    any_search,
    make_store,
)
from tests.cluster.servers import started_cluster
from tests.cluster.test_same_answers import Both, comparable
from tests.data import repeated
from tests.served import PAUSE_S

pytestmark = pytest.mark.system

SEARCHES, BATCHES, WRITES = 30, 5, 20
LONG_SEARCHES, LONG_BATCHES, LONG_WRITES = (
    repeated(often(*counts)) for counts in ((300, 2000), (40, 200), (800, 5000))
)
"""By `make test-long`."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


@contextmanager
def both_of(store: Path, groups: int) -> Iterator[Both]:
    with started_cluster(store, groups) as (root, _):
        found = Both(store, root.address)
        yield found
        found.channel.close()
        found.alone.close()


@pytest.mark.parametrize("groups", [1, 3])
def test_the_same_answers_after_writes(store: Path, groups: int) -> None:
    check_after_writes(store, groups, WRITES, SEARCHES, BATCHES)


@pytest.mark.long
def test_the_same_answers_after_thousands_of_writes(store: Path) -> None:
    check_after_writes(store, 4, LONG_WRITES, LONG_SEARCHES, LONG_BATCHES)


def check_after_writes(store: Path, groups: int, writes: int, searches: int, batches: int) -> None:
    """Fail if a cluster has another answer than one server, while mutations come in between."""
    chosen = random.Random(groups)
    with both_of(store, groups) as both, scannery.connect(store) as writer:
        index, sequence, written = writer.index(INDEX), 0, 0
        for number in range(searches):
            while written * searches < (number + 1) * writes:
                sequence = any_write(index, chosen)
                written += 1
            request = any_search(number)
            request.options.min_sequence = sequence
            check_same(both, "search", "Search", request)
            if number % (searches // batches) == 0:
                batch = any_batch(number)
                batch.options.min_sequence = sequence
                check_same(both, "search_many", "SearchMany", batch)


def check_same(both: Both, call: str, method: str, request: SearchRequest | SearchManyRequest) -> None:
    """Fail if the cluster answers a request otherwise than one server."""
    alone, cluster = both.answers(getattr(both.alone, call), method, request)
    assert comparable(alone) == comparable(cluster), request


def any_write(index: scannery.Index, chosen: random.Random) -> int:
    """Upsert or delete some datapoints at random, and return the sequence."""
    ids = [f"d{chosen.randrange(ROWS + 50)}" for _ in range(chosen.choice([1, 1, 5, 20]))]
    if chosen.random() < 0.2:
        return index.delete(ids[:3]).sequence
    if chosen.random() < 0.1:
        return index.delete([], document_ids=[f"doc{chosen.randrange(ROWS // 5)}"]).sequence
    return index.upsert([any_datapoint(name, chosen) for name in dict.fromkeys(ids)]).sequence


def any_datapoint(name: str, chosen: random.Random) -> Any:
    """Return a datapoint; some of them have no vector of a name, or another document than before."""
    point: dict[str, Any] = {
        "id": name,
        "document_id": f"doc{chosen.randrange(ROWS // 5)}",
        "text": " ".join(chosen.choices(WORDS, k=chosen.randrange(1, 9))),
        "attributes": {"show": chosen.choice(["gotime", "jsparty"]), "year": chosen.randrange(2000, 2020)},
        "vector": _vector(chosen, DIMENSIONS),
    }
    if chosen.random() < 0.8:
        point["vectors"] = {"topic": _vector(chosen, TOPIC_DIMENSIONS)}
    return point


def _vector(chosen: random.Random, dimensions: int) -> np.ndarray:
    random_D = np.random.default_rng(chosen.randrange(1 << 30)).standard_normal(dimensions)
    vector_D: np.ndarray = (random_D / np.linalg.norm(random_D)).astype(np.float32)
    return vector_D


MOST_BATCHES = 200_000
PAIR = [f"pair{number}" for number in range(40)]


class Reader(threading.Thread):
    """Reads datapoints of all shards that each batch writes together: an answer must have one value of them."""

    def __init__(self, address: str, ended: threading.Event) -> None:
        super().__init__(daemon=True)
        self._address, self._ended = address, ended
        self.answers, self.seen = 0, set[Any]()
        self.mixed: list[tuple[int, set[Any]]] = []
        self.problem: BaseException | None = None

    def run(self) -> None:
        try:
            with scannery.connect(self._address) as client:
                self._read(client.index(INDEX))
        except BaseException as error:  # noqa: BLE001  the test tells
            self.problem = error

    def _read(self, index: scannery.Index) -> None:
        newest = 0
        while not self._ended.wait(PAUSE_S):
            hits = index.search("together", 100, mode="lexical", fields=["year"], min_sequence=newest)
            values = {hit.attributes["year"] for hit in hits}
            if len(values) > 1 or len(hits) not in (0, len(PAIR)):
                self.mixed.append((len(hits), values))
            assert hits.sequence >= newest
            newest = hits.sequence
            self.seen = self.seen | values  # the main thread reads the former one meanwhile
            self.answers += 1


@pytest.mark.parametrize(
    ("answers", "seals"),
    [(100, False), pytest.param(repeated(often(1500, 100_000)), True, marks=pytest.mark.long)],
)
def test_no_answer_has_half_of_a_batch(store: Path, answers: int, seals: bool) -> None:
    ended, vector, year = threading.Event(), _vector(random.Random(1), DIMENSIONS), 0
    with ExitStack() as stack:
        if seals:
            address = stack.enter_context(running_cluster(store, 3, 1)).root.address
        else:
            address = stack.enter_context(started_cluster(store, 3))[0].address
        writer = stack.enter_context(scannery.connect(store))
        readers = [Reader(address, ended) for _ in range(3)]
        for reader in readers:
            reader.start()
        while not _enough(readers, answers) and year < MOST_BATCHES:
            points: list[Any] = [
                {"id": name, "text": "together", "vector": vector, "attributes": {"year": year}}
                for name in PAIR
            ]
            writer.index(INDEX).upsert(points)
            year += 1
            if seals and year % 50 == 0:
                seal(Store.open(store), INDEX)
            time.sleep(0.02)
        ended.set()
        for reader in readers:
            reader.join(60)
    assert [reader.problem for reader in readers] == [None] * 3
    assert [reader.mixed for reader in readers] == [[]] * 3
    assert len(_seen(readers)) > 10, "the searches ran beside the writes"


def _enough(readers: Sequence[Reader], answers: int) -> bool:
    """Return whether the readers had `answers` answers, of more than ten states, or one failed."""
    there = sum(reader.answers for reader in readers) >= answers and len(_seen(readers)) > 10
    return there or any(reader.problem for reader in readers)


def _seen(readers: Sequence[Reader]) -> set[Any]:
    return set().union(*(reader.seen for reader in readers))
