"""The values of attributes with their rows: what the local cache has is what would be made now."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import (
    ColdReads,
    IndexSpec,
    MemorySegment,
    Segment,
    SegmentCache,
    Store,
    ValuePostings,
    open_index,
    parse_spec,
)
from scannery.indexer.segment import segment_files as files
from tests.data import clustered, datapoints, publish
from tests.served import LIBRARY, library_columns

ROWS = 400
INDEXED = sorted({*LIBRARY.attributes, "document_id"} - {"place"})


def equal(one: ValuePostings, other: ValuePostings) -> bool:
    values = [pa.array(each.values).to_pylist() for each in (one, other)]
    arrays = [(each.starts.tolist(), each.rows_P.tolist(), each.missing.tolist()) for each in (one, other)]
    kinds = (one.rows, one.kind, one.order is None) == (other.rows, other.kind, other.order is None)
    positions = [None if each.order is None else each.order.positions_N.tolist() for each in (one, other)]
    return kinds and values[0] == values[1] and arrays[0] == arrays[1] and positions[0] == positions[1]


@pytest.mark.parametrize("column", [
    pa.array(["b", None, "a", "", "b", "\U0001f600"]),
    pa.array([["b", "a", "b"], [], None, [None], ["a"]], pa.list_(pa.string())),
    pa.array([3, None, -(2**63), 3, 2**63 - 1]),
    pa.array([0.5, None, -0.0, 0.0, float("inf")]),
    pa.array([True, None, False, True]),
    pa.array([1, None, 0], pa.timestamp("us", "UTC")),
    pa.nulls(3, pa.int64()),
    pa.nulls(3, pa.string()),
    pa.array([], pa.string()),
], ids=lambda column: f"{column.type} {len(column)}")  # fmt: skip
def test_files_have_what_was_made(column: pa.Array, tmp_path: Path) -> None:
    postings = ValuePostings.of_column(pa.chunked_array([column]))
    postings.save(tmp_path / "new", None)
    stored = ValuePostings.map(tmp_path / "new", len(column), column.type)
    assert equal(stored, postings)
    assert stored.size_bytes == 0 < postings.size_bytes
    assert not stored.rows_P.flags.writeable


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_texts_are_looked_up_by_their_bytes(kind: pa.DataType) -> None:
    texts = ["", "a", "ab", "b", "z\0", "é", "\ue000", "\U0010ffff"]
    array = pa.array(["left out", *texts, None, "left out"], kind)[1:-1]
    postings = ValuePostings.of_column(pa.chunked_array([array]))
    assert postings.find_texts(texts[::-1]).tolist() == list(range(len(texts)))[::-1]
    assert postings.find_texts(["!", "aa", "z", "\U0010ffff!"]).tolist() == [-2, -3, -5, -9]
    none = ValuePostings.of_column(pa.chunked_array([pa.nulls(2, kind)]))
    assert none.find_texts(["", "a"]).tolist() == [-1, -1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("library")
    store = Store.open(folder / "store", create=True)
    table = datapoints(spec_of({}), clustered(ROWS, 8), columns=library_columns(ROWS))
    publish(store, spec_of({}), table, folder)
    return store


def spec_of(keys: dict[str, Any]) -> IndexSpec:
    return parse_spec(
        {"index": "t", "source": {"vector": "v"}, "attributes": LIBRARY.attributes, "shards": 1} | keys
    )


def opened(store: Store, cache: Path, cold: ColdReads | None = None) -> Segment:
    [segment] = open_index(store, "t", cache=SegmentCache(cache), cold=cold).segments
    return segment


@pytest.mark.parametrize("cold", [None, ColdReads()], ids=["unpacked", "cold"])
def test_an_open_segment_has_the_postings_of_its_attributes_mapped(
    store: Store, tmp_path: Path, cold: ColdReads | None
) -> None:
    segment = opened(store, tmp_path, cold)
    assert sorted(segment._attributes) == INDEXED
    for name in INDEXED:
        postings = segment.value_postings(name)
        assert postings.size_bytes == 0, f"{name} was indexed in the memory of this process"
        assert equal(postings, ValuePostings.of_column(segment.column(name))), name
    assert not segment.has_only_documents
    assert segment.value_postings("id").size_bytes > 0, "made now"


def test_folders_of_earlier_releases_have_none_and_give_the_same(store: Store, tmp_path: Path) -> None:
    expected = {name: opened(store, tmp_path).value_postings(name) for name in INDEXED}
    [about] = tmp_path.glob(f"segments/*/*/{files.INFO}")
    info = json.loads(about.read_text())
    del info["attributes"]
    folder = about.parent
    about.write_text(json.dumps(info))
    segment = Segment(opened(store, tmp_path / "other").entry, folder)
    for name, postings in expected.items():
        made = segment.value_postings(name)
        assert equal(made, postings), name
        assert made.size_bytes > 0


def test_a_segment_in_memory_makes_them_from_its_columns() -> None:
    table = datapoints(spec_of({}), clustered(ROWS, 8), columns=library_columns(ROWS))
    segment = MemorySegment.of(table, spec_of({}))
    assert equal(segment.value_postings("tags"), ValuePostings.of_column(table.column("tags")))
    assert "records" not in segment.__dict__, "all columns were copied for it"


def test_an_attribute_of_another_type_than_in_the_file_has_its_own_postings(
    store: Store, tmp_path: Path
) -> None:
    segment = opened(store, tmp_path)
    year = segment.table.schema.get_field_index("year")
    floats = segment.table.set_column(year, "year", segment.column("year").cast(pa.float64()))
    changed = segment.with_columns({"later": pa.string()})
    changed._table = floats.append_column("later", changed.column("later"))
    assert changed.value_postings("year").kind == pa.float64()
    assert changed.value_postings("later").missing.tolist() == list(range(ROWS))
    with pytest.raises(KeyError):
        changed.value_postings("never")


def test_rows_of_leaves_are_counted_when_the_segment_is_unpacked(tmp_path: Path) -> None:
    spec = parse_spec({
        "index": "t", "source": {"vector": "v"}, "attributes": {"number": "int", "unset": "string"}, "shards": 1,
        "scann": {"exact_below_rows": 1000},
    })  # fmt: skip
    store = Store.open(tmp_path / "store", create=True)
    numbers = np.random.default_rng(0).permutation(3000).tolist()
    table = datapoints(spec, clustered(3000, 8), columns={"number": numbers})
    publish(store, spec, table, tmp_path)
    segment = opened(store, tmp_path / "cache")
    assert segment.has_only_documents
    assert [*segment._attributes] == ["number"], "documents have the hashes of ids, and nothing is unset"
    assert segment.value_postings("unset").missing.tolist() == list(range(3000))
    assert segment.leaves is not None
    stored = segment.value_postings("number").order
    made = ValuePostings.of_column(segment.column("number")).order
    assert stored is not None
    assert made is not None
    assert stored._counts_BL is not None
    for start, stop in ((0, 3000), (7, 19), (100, 1300)):
        assert (
            stored.per_leaf(start, stop, segment.leaves) == made.per_leaf(start, stop, segment.leaves)
        ).all()
