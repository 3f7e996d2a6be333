"""Segments whose rows have no vectors: on disk, open, in memory, and in stores of this release's format."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import (
    BuildError,
    FormatError,
    Manifest,
    MemorySegment,
    SegmentCache,
    Store,
    build_segment,
    conformed,
    open_index,
    open_segment,
    parse_spec,
    store_segment,
    verify,
    written_schema,
)
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, VALUES_COLUMN

SPEC = parse_spec(
    {
        "index": "bare",
        "source": {"id": "id", "vector": "v", "text": "text", "sparse_vector": "s"},
        "vectors": "optional",
        "lexical": {"language": "none", "analyser": 3},
        "attributes": {"n": "int"},
    }
)
ROWS = 5


def rows(vectors: list[list[float] | None] | None = None) -> pa.Table:
    names = [f"d{row}" for row in range(ROWS)]
    schema = written_schema(SPEC, 2)
    columns: dict[str, Any] = {
        "id": pa.array(names),
        "document_id": pa.array(names),
        "text": pa.array([f"word{row} all" for row in range(ROWS)]),
        "n": pa.array(range(ROWS)),
        INDICES_COLUMN: pa.array([[row] for row in range(ROWS)], pa.list_(pa.uint32())),
        VALUES_COLUMN: pa.array([[1.0]] * ROWS, pa.list_(pa.float32())),
    }
    if vectors is not None:
        columns["embedding"] = pa.array(vectors, schema.field("embedding").type)
    return conformed(pa.table(columns), schema)


def test_a_segment_without_vectors_has_everything_else(tmp_path: Path):
    store = Store.open(tmp_path / "store", create=True)
    built = build_segment(rows(), spec=SPEC, shard=0, directory=tmp_path)
    assert (built.entry.kind, built.entry.vectors, built.entry.rows) == ("exact", False, ROWS)
    assert "embedding" not in pq.read_table(built.path).column_names
    store_segment(store, "bare", built)
    stored = open_segment(store, "bare", built.entry, SegmentCache(tmp_path / "cache"))
    for segment in (stored, MemorySegment.of(rows(), SPEC)):
        assert (segment.rows, segment.has_vectors, segment.dimensions) == (ROWS, False, 0)
        assert segment.row_of("d3") == 3
        assert segment.take([1], ["n", "text"]).to_pylist() == [{"n": 1, "text": "word1 all"}]
        assert segment.postings is not None
        assert segment.sparse is not None
        assert segment.vectors([0, 2]).shape == (2, 0)
        query_1D = np.ones((1, 2), np.float32)
        found_rows, scores = segment.search(query_1D, 3)
        assert (found_rows < 0).all()
        assert np.isneginf(scores).all()
        assert (segment.find(query_1D, 3).rows_QK < 0).all()


def test_a_segment_refuses_rows_of_both_kinds(tmp_path: Path):
    with pytest.raises(BuildError, match="only some of the rows"):
        build_segment(rows([[1, 0], None, [0, 1], None, None]), spec=SPEC, shard=0, directory=tmp_path)


def test_segments_with_vectors_are_written_as_without_the_key(tmp_path: Path):
    table = rows([[1, row] for row in range(ROWS)])
    strict = SPEC.model_copy(update={"vectors": "required"})
    files = [
        build_segment(table, spec=spec, shard=0, directory=tmp_path).path.name for spec in (SPEC, strict)
    ]
    assert files[0] == files[1]


def test_runs_in_memory_are_merged_without_vectors():
    parts = [MemorySegment.of(rows().slice(start, 2), SPEC) for start in (0, 2)]
    merged = MemorySegment.merged(parts, [np.array([True, False]), None])
    assert (merged.has_vectors, merged.ids.to_pylist()) == (False, ["d0", "d2", "d3"])
    merged.warm()


GOLDEN = Path(__file__).parents[1] / "golden" / "without-vectors"


def test_a_stored_index_with_rows_of_both_kinds_keeps_opening(tmp_path: Path):
    store = Store.open(GOLDEN)
    index = open_index(store, "golden", cache=SegmentCache(tmp_path))
    assert {(entry.vectors, entry.rows) for entry in index.manifest.segments} == {(True, 2), (False, 3)}
    found = {segment.has_vectors: segment.ids.to_pylist() for segment in index.segments}
    assert found == {True: ["v0", "v1"], False: ["w0", "w1", "w2"]}
    assert verify(store, "golden").problems == ()


def test_a_later_value_of_the_key_is_refused_as_that_of_a_later_release():
    # As releases that do not know the key refuse it at all: they find it first.
    data = (GOLDEN / "golden" / "versions" / "00000001.json").read_text()
    body, _, _ = data.replace('"optional"', '"sometimes"').rpartition(',\n  "sha256": "')
    digest = hashlib.sha256(body.encode()).hexdigest()
    changed = f'{body},\n  "sha256": "{digest}"\n}}\n'.encode()
    with pytest.raises(FormatError, match=r"spec\.vectors is unknown to this one"):
        Manifest.from_json(changed, origin="00000001.json")
