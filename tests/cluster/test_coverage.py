"""How much of an index an answer of some groups covers, with the datapoints that are not in a version yet."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scannery
from scannery.client.response.results import Coverage
from scannery.indexer import ShardGroup, Store, shards_of_ids
from scannery.live.leaf_index import LeafIndex
from scannery.live.maintenance.seal import seal
from tests.cluster.processes import wait_until
from tests.cluster.servers import started_cluster

pytestmark = pytest.mark.system

SHARDS, GROUPS, ROWS = 8, 3, 120
SPEC = {"index": "i", "source": {"id": "id", "vector": "v"}, "shards": SHARDS}
SHARDS_OF_GROUP = (3, 3, 2)


def rows_by_group(ids: list[str]) -> Counter[int]:
    return Counter(int(shard) % GROUPS for shard in shards_of_ids(pa.chunked_array([ids]), SHARDS))


def covered(shards: int, rows: int, answered: int) -> Coverage:
    return Coverage(shards=SHARDS, shards_answered=shards, rows=rows, rows_answered=answered)


def coverage_of(index: scannery.Index, sequence: int = 0) -> Coverage:
    found = index.search([1, 2], 3, allow_partial=True, min_sequence=sequence).coverage
    assert found is not None
    return found


def test_live_datapoints_count(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with scannery.connect(store, create=True) as writer:
        index = writer.create_index(SPEC, dimensions=2)
        with started_cluster(store, GROUPS) as (root, [leaves]), scannery.connect(root.address) as client:
            asked = client.index("i")
            assert coverage_of(asked) == covered(SHARDS, 0, 0)
            ids = [f"d{number}" for number in range(ROWS)]
            index.upsert([{"id": name, "vector": [1, number]} for number, name in enumerate(ids)])
            seal(Store.open(store), "i")
            index.upsert([{"id": f"new{number}", "vector": [1, number]} for number in range(ROWS)])
            sequence = index.delete(ids[: ROWS // 2]).sequence
            there = [*ids[ROWS // 2 :], *(f"new{number}" for number in range(ROWS))]
            assert coverage_of(asked, sequence) == covered(SHARDS, len(there), len(there))

            # Leaves apply what they have read when they are asked: in the new version, too, before they tell its rows.
            wait_until(lambda: asked.search([1, 2], 3, min_sequence=sequence).version == 2, 20)
            time.sleep(2)  # leaves are asked for their status twice a second
            leaves[1].stop(drain_s=0)
            left = len(there) - rows_by_group(there)[1]
            expected = covered(SHARDS - SHARDS_OF_GROUP[1], len(there), left)
            wait_until(lambda: coverage_of(asked, sequence) == expected, 20)
            assert coverage_of(asked, sequence) == expected
            assert len(asked.search([1, 2], 1000, allow_partial=True)) == left


def test_a_group_that_lags_is_left_out_only_if_no_state_is_there_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, follow = tmp_path / "store", LeafIndex.catch_up

    def lag(index: LeafIndex[Any], **options: Any) -> bool:
        """Read nothing in group 1, as where the database of the log cannot be reached."""
        shards = index._shards
        return not (isinstance(shards, ShardGroup) and shards.number == 1) and follow(index, **options)

    with scannery.connect(store, create=True) as writer:
        index = writer.create_index(SPEC, dimensions=2)
        read = index.upsert([{"id": f"d{row}", "vector": [1, row]} for row in range(ROWS)]).sequence
        with started_cluster(store, GROUPS) as (root, _), scannery.connect(root.address) as client:
            asked = client.index("i")
            assert coverage_of(asked, read).complete
            monkeypatch.setattr(LeafIndex, "catch_up", lag)
            new = index.upsert([{"id": "new", "vector": [1, 1]}]).sequence
            partial = asked.search([1, 2], 1000, allow_partial=True, min_sequence=new)
            assert partial.coverage is not None
            assert (partial.sequence, partial.coverage.shards_answered) == (new, SHARDS - SHARDS_OF_GROUP[1])
            # The root knows of the last mutation now, and answers completely without it.
            found = asked.search([1, 2], 1000, allow_partial=True)
            assert found.coverage is not None
            assert (found.sequence, found.coverage.complete, len(found)) == (read, True, ROWS)
            with pytest.raises(scannery.UnavailableError, match="group 1"):
                asked.search([1, 2], min_sequence=new, timeout_s=5)
