"""A position of a scan is the same datapoint on each leaf of a group, however its rows in memory came to be."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import ShardGroup, Store
from scannery.live.maintenance.seal import seal
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import leaf_catalog
from scannery.serving.contract import LEAF_SCAN
from scannery.serving.engine.scanning.scan_result import decoded_keys
from scannery.serving.services.leaf.leaf_service import LeafService
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.search_pb2 import OrderBy, ScanResponse
from scannery.v1.types_pb2 import OPERATOR_GTE, Condition, Filter, Value
from tests.data import first_quick

pytestmark = pytest.mark.system

GROUP = ShardGroup(0, 1)
IDS, WRITES = 3000, 30
SPEC = {
    "index": "i",
    "source": {"id": "id", "vector": "v"},
    "vectors": "optional",
    "shards": 4,
    "attributes": {"n": "int"},
}


class Replica:
    """A leaf of all shards."""

    def __init__(self, store: Path, stack: ExitStack) -> None:
        self.catalog = leaf_catalog(Store.open(store), GROUP)
        stack.callback(self.catalog.close)
        self.catalog.refresh()
        self.service = LeafService(self.catalog, GROUP, load=lambda: (1, 16))

    def scan(self, sequence: int, **request: Any) -> pb.LeafScanResponse:
        manifest = self.catalog.snapshot("i").manifest
        at = pb.At(index="i", index_id=manifest.index_id or "", version=manifest.version, sequence=sequence)
        answer = self.service.call(LEAF_SCAN, pb.LeafScanRequest(at=at, **request), Deadline.after(60))
        assert isinstance(answer, pb.LeafScanResponse)
        return answer

    def ids_at(self, sequence: int, positions: np.ndarray, **request: Any) -> list[str]:
        """Return the ids of the datapoints at some positions."""
        given = positions.astype("<u8").tobytes()
        return ids_of(self.scan(sequence, positions=given, return_fields=["n"], **request))


def ids_of(answer: pb.LeafScanResponse) -> list[str]:
    return [point.id for point in ScanResponse.FromString(answer.datapoints).datapoints]


def ordered_ids(answer: pb.LeafScanResponse) -> list[str]:
    """Return the ids of the datapoints of an answer with keys."""
    return [each for ids in decoded_keys([answer.keys]).ids for each in ids.to_pylist()]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[scannery.Client]:
    with scannery.connect(tmp_path / "store", create=True) as client:
        yield client


@pytest.mark.parametrize("seed", first_quick(range(3)))
def test_leaves_that_applied_the_log_in_other_steps_agree(
    client: scannery.Client, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    index = client.create_index(SPEC, dimensions=2)
    with ExitStack() as stack:
        index.upsert(points(chosen, 800))
        seal(Store.open(tmp_path / "store"), "i")
        stepwise, at_once = (Replica(tmp_path / "store", stack) for _ in range(2))
        sequence = 0
        for _ in range(WRITES):
            sequence = any_write(index, chosen)
            stepwise.scan(sequence)
        for request in (
            {},
            {"where": above(1500)},
            {"where": above(2950)},
            {"sample": 150, "seed": 5},
            {"sample": 90, "seed": 1, "where": above(300)},
        ):
            check_same([stepwise, at_once], sequence, chosen, request)


def check_same(leaves: Sequence[Replica], sequence: int, chosen: random.Random, request: Any) -> None:
    """Fail if two leaves have another order of the same datapoints, or other ones at the same positions."""
    first, second = (leaf.scan(sequence, most=10_000, return_fields=["n"], **request) for leaf in leaves)
    assert ids_of(first) == ids_of(second)
    assert first.total == second.total == len(ids_of(first)) > 0
    for leaf in leaves:
        answer = leaf.scan(sequence, most=10_000, order_by=OrderBy(field="n"), **request)
        assert ordered_ids(answer) == ids_of(first)
    positions = np.array(chosen.sample(range(first.total), min(first.total, 400)))
    expected = [ids_of(first)[position] for position in positions]
    for leaf in leaves:
        assert leaf.ids_at(sequence, positions, **request) == expected


def points(chosen: random.Random, count: int) -> list[Any]:
    numbers = chosen.sample(range(IDS), count)
    rows: list[dict[str, Any]] = [{"id": f"d{number}", "attributes": {"n": number}} for number in numbers]
    for row in rows:
        if chosen.random() < 0.8:
            row["vector"] = [1, chosen.random()]
    return rows


def any_write(index: scannery.Index, chosen: random.Random) -> int:
    """Upsert or delete many datapoints at random, so that rows in memory die, and are in several runs."""
    if chosen.random() < 0.4:
        return index.delete([f"d{number}" for number in chosen.sample(range(IDS), 400)]).sequence
    return index.upsert(points(chosen, chosen.choice([1, 300, 1000]))).sequence


def above(number: int) -> Filter:
    condition = Condition(field="n", operator=OPERATOR_GTE, values=[Value(int_value=number)])
    return Filter(condition=condition)
