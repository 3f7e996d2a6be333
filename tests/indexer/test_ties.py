"""Ranks of ids, and rows with the same vector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import ties as module
from scannery.indexer.ties import BY_ROW, Ties, find_twins, id_ranks, write_ties


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
    from scannery.indexer import row_kernels

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
