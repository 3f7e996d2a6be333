"""Segments whose training a seal leaves to a merge, with the real ScaNN."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.indexer import SegmentEntry, Store, read_manifest
from scannery.live.maintenance.locks import locked
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal

pytestmark = pytest.mark.system

ROWS, DIMENSIONS, K = 1_200, 8, 10
SPEC = {"index": "i", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1_000}}


def entries(store: Store) -> tuple[SegmentEntry, ...]:
    return read_manifest(store, "i").segments


def test_rows_are_found_while_training_waits_and_after_it(tmp_path: Path) -> None:
    vectors_ND = np.random.default_rng(0).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        index = client.create_index(SPEC, dimensions=DIMENSIONS)
        store = Store.open(path)
        with locked(path, "i", "seal"), locked(path, "i", "merge"):
            index.upsert_many({"id": str(n), "vector": vector_D} for n, vector_D in enumerate(vectors_ND))
            assert seal(store, "i", filling=True) is not None
            assert [(entry.kind, entry.rows) for entry in entries(store)] == [("exact", ROWS)]
            true = [[hit.id for hit in hits] for hits in index.search_many(vectors_ND[:50], k=K)]
            assert [ids[0] for ids in true] == [str(n) for n in range(50)]
            assert merge(store, "i", filling=True) is None  # too few rows to train while more come
            assert merge(store, "i") is not None
            assert [(entry.kind, entry.rows) for entry in entries(store)] == [("scann", ROWS)]
            assert merge(store, "i") is None
    with scannery.connect(path) as client:
        found = [[hit.id for hit in hits] for hits in client.index("i").search_many(vectors_ND[:50], k=K)]
    shared = [len(set(one) & set(other)) for one, other in zip(true, found, strict=True)]
    assert np.mean(shared) / K >= 0.9
