"""Ranks of ids, and rows with the same vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store, open_index, parse_spec
from scannery.indexer.tuning.settings_choice import SearchSettings
from scannery.indexer.vectors import exact_search as module
from scannery.indexer.vectors.exact_search import BY_ROW, Ties, find_twins, id_ranks, write_ties
from tests.data import datapoints
from tests.served import publish_version

pytestmark = pytest.mark.system

K = 10


def ids_of(names: list[str]) -> pa.ChunkedArray:
    return pa.chunked_array([names[:2], names[2:]], pa.string())


def test_ranks_are_those_of_python() -> None:
    names = ["b", "a", "é", "e", "\U0001f600", "\uffff", "", "B", "a ", "10", "9"]
    ranks_N = id_ranks(ids_of(names))
    assert ranks_N.tolist() == [sorted(names).index(name) for name in names]
    assert ranks_N.dtype == np.int32
    assert not ranks_N.flags.writeable


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("block", [3, 1 << 12])
def test_twins_are_the_rows_with_one_vector_in_the_order_of_their_ids(
    seed: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK_ROWS", block)
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 80))
    vectors_ND = rng.integers(-1, 2, (rows, int(rng.integers(1, 5)))).astype(np.float32)
    vectors_ND[rng.random(vectors_ND.shape) < 0.1] = -0.0
    ranks_N = rng.permutation(rows).astype(np.int32)
    twins_2N = find_twins(vectors_ND, ranks_N)
    if not twins_2N.shape[1]:
        assert len(np.unique(vectors_ND + 0.0, axis=0)) == rows
        return
    for row in range(rows):
        alike = np.flatnonzero((vectors_ND == vectors_ND[row]).all(axis=1))
        alike = alike[np.argsort(ranks_N[alike])].tolist()
        first, later = twins_2N[:, row].tolist()
        assert first == (alike[0] if len(alike) > 1 else -1)
        assert later == [*alike[1:], -1][alike.index(row)]


def test_other_vectors_with_the_same_hash_are_no_twins(monkeypatch: pytest.MonkeyPatch) -> None:
    from scannery.indexer.kernels import row_kernels

    monkeypatch.setattr(row_kernels, "hash_rows", lambda vectors_ND, hashes_N: hashes_N.fill(1))
    vectors_ND = np.array([[1, 2], [3, 4], [1, 2], [3, 4]], np.float32)
    assert find_twins(vectors_ND, np.arange(4, dtype=np.int32)).tolist() == [[0, -1, 0, -1], [2, -1, -1, -1]]


@pytest.mark.parametrize("vectors", [[[1.0], [2.0], [3.0]], [[1.0], [1.0], [3.0]]])
def test_ties_on_disk_are_those_that_were_written(tmp_path: Path, vectors: list[list[float]]) -> None:
    vectors_ND = np.array(vectors, np.float32)
    for proposed in (False, True):
        folder = tmp_path / f"{proposed}"
        write_ties(vectors_ND, ids_of(["c", "a", "b"]), folder, proposed=proposed)
        read = Ties.map(folder)
        assert read.ranks_N.tolist() == [2, 0, 1]
        expected = find_twins(vectors_ND, read.ranks_N) if proposed else BY_ROW.twins_2N
        assert read.twins_2N.tolist() == expected.tolist()
        assert read.twins_2N.shape == expected.shape


def test_many_equal_rows_near_a_query_do_not_hide_better_ones(tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    vectors_ND = (rng.standard_normal((6000, 10)) @ rng.standard_normal((10, 24)) / 3).astype(np.float32)
    vectors_ND += 0.3 * rng.standard_normal(vectors_ND.shape).astype(np.float32)
    # As inner products tell it, rows beyond these are better for their own vector.
    vectors_ND[:600] = vectors_ND[np.argsort(np.linalg.norm(vectors_ND, axis=1))[-600]]
    spec = parse_spec(
        {"index": "equal", "source": {"vector": "v"}, "distance": "dot", "scann": {"exact_below_rows": 1000}}
    )
    store = Store.open(tmp_path / "store", create=True)
    publish_version(store, spec, datapoints(spec, vectors_ND), tmp_path)
    [segment] = open_index(store, "equal").segments
    query_1D = vectors_ND[:1]
    scores_N = np.sort(vectors_ND.astype(np.float64) @ query_1D[0].astype(np.float64))[::-1]
    for queries in (1, 3):
        settings = SearchSettings(leaves=1000, rescore=60)
        _, scores_QK = segment.search(np.repeat(query_1D, queries, axis=0), K, settings=settings)
        for scores_K in scores_QK:
            assert scores_K == pytest.approx(scores_N[:K], rel=1e-5)
