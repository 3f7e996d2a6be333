"""Segments whose rows have named vectors: in files of their own, open, in memory, and as an index of each name."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import (
    BuildError,
    FormatError,
    IndexSpec,
    Manifest,
    MemorySegment,
    OpenIndex,
    Segment,
    SegmentCache,
    Store,
    VectorsInfo,
    build_segment,
    open_index,
    open_segment,
    parse_spec,
    search_ready,
    store_segment,
    vector_column,
    vectors_array,
    verify,
    written_schema,
)
from tests.data import clustered, datapoints

ROWS, LACKING = 1500, 7
NAMED = {"title": {"dimensions": 6, "distance": "dot"}, "image": {"dimensions": 3}}


def spec_of(*, exact: bool) -> IndexSpec:
    scann = {"exact_below_rows": 10_000 if exact else 1000}
    source = {"id": "id", "vector": "v"}
    return parse_spec({"index": "n", "source": source, "named_vectors": NAMED, "scann": scann})


def rows_of(spec: IndexSpec, titles: Sequence[np.ndarray | None]) -> pa.Table:
    table = datapoints(spec, clustered(ROWS, 8))
    place = table.schema.get_field_index(vector_column("title"))
    return table.set_column(place, vector_column("title"), vectors_array(titles))


def titles_of() -> list[np.ndarray | None]:
    """Return a vector for each row, but for every seventh."""
    return [None if row % LACKING == 0 else vector for row, vector in enumerate(clustered(ROWS, 6, seed=1))]


def opened(tmp_path: Path, spec: IndexSpec, table: pa.Table) -> Segment:
    store = Store.open(tmp_path / "store", create=True)
    built = build_segment(table, spec=spec, shard=0, directory=tmp_path)
    store_segment(store, spec.index, built)
    return open_segment(store, spec.index, built.entry, SegmentCache(tmp_path / "cache"))


def in_memory(tmp_path: Path, spec: IndexSpec, table: pa.Table) -> Segment:
    assert tmp_path.is_dir()
    half = ROWS // 2
    parts = [MemorySegment.of(table.slice(start, half), spec) for start in (0, half)]
    return MemorySegment.merged(parts, [None, None])


def in_searched_memory(tmp_path: Path, spec: IndexSpec, table: pa.Table) -> Segment:
    """Return the rows merged from segments that were searched before, one of which had other rows, too."""
    half = ROWS // 2
    twice = pa.concat_tables([table.slice(0, half), table.slice(3, 10)])
    parts = [MemorySegment.of(twice, spec), MemorySegment.of(table.slice(half), spec)]
    assert all(part.named["title"].segment.rows for part in parts)
    merged = MemorySegment.merged(parts, [np.arange(half + 10) < half, None])
    assert merged.has_named
    return merged


@pytest.mark.system
@pytest.mark.parametrize(
    ("make", "exact"), [(opened, True), (opened, False), (in_memory, True), (in_searched_memory, True)]
)
def test_a_name_is_searched_among_the_datapoints_that_have_it(tmp_path: Path, make, exact: bool) -> None:
    spec, titles = spec_of(exact=exact), titles_of()
    segment = make(tmp_path, spec, rows_of(spec, titles))
    assert set(segment.named) == {"title"}  # no row has an image
    named = segment.named["title"]
    assert named.segment.rows == ROWS - len(titles[::LACKING])
    ids = segment.ids.to_pylist()
    assert [ids[row] for row in named.rows_V] == named.segment.ids.to_pylist()
    query_D = clustered(1, 6, seed=5)[0]
    scores = {f"d{row}": float(vector @ query_D) for row, vector in enumerate(titles) if vector is not None}
    expected = sorted(scores, key=lambda name: -scores[name])[:5]
    ready_1D = search_ready(query_D[None], "dot")
    found, _ = named.segment.search(ready_1D, 5, ready=True)
    assert [ids[row] for row in named.datapoints(found)[0]] == expected
    mask_N = np.array([identifier not in expected[:2] for identifier in ids])
    allowed = segment.allow(mask_N)
    assert named.allowed(allowed) is named.allowed(allowed)
    found_most = named.segment.find(ready_1D, 3, allowed=named.allowed(allowed), ready=True)
    assert [ids[row] for row in named.datapoints(found_most.rows_QK)[0]] == expected[2:]


@pytest.mark.system
@pytest.mark.parametrize("make", [opened, in_memory, in_searched_memory])
def test_vectors_of_datapoints_are_returned_as_given(tmp_path: Path, make) -> None:
    spec, titles = spec_of(exact=True), titles_of()
    segment = make(tmp_path, spec, rows_of(spec, titles))
    rows_R = np.array([5, 0, 1499, 7])
    for found, row in zip(segment.named["title"].vectors(rows_R), rows_R.tolist(), strict=True):
        if row % LACKING == 0:
            assert found is None
        else:
            assert np.array_equal(found, titles[row])


@pytest.mark.system
@pytest.mark.parametrize("make", [opened, in_memory])
def test_vectors_of_datapoints_are_a_column_of_their_rows(tmp_path: Path, make) -> None:
    spec, titles = spec_of(exact=True), titles_of()
    named = make(tmp_path, spec, rows_of(spec, titles)).named["title"]
    for rows in ([5, 0, 1499, 7], [7, 0], [], [1400]):
        column = named.column(np.array(rows, np.int64))
        assert column.equals(vectors_array([titles[row] if row % LACKING else None for row in rows]))


@pytest.mark.system
def test_files_of_names_can_be_read_by_others_and_rows_have_no_columns_of_them(tmp_path: Path) -> None:
    spec = spec_of(exact=False)
    built = build_segment(rows_of(spec, titles_of()), spec=spec, shard=0, directory=tmp_path)
    rows, named = (pq.read_table(path) for path in built.paths)
    assert not [name for name in rows.column_names if name.startswith("_embedding")]
    assert rows.column("id").take(named.column("_row")).equals(named.column("id"))
    assert built.entry.kind == built.entry.named["title"].kind == "scann"
    assert built.entry.named["title"].curve
    assert len(built.entry.files) == 2
    assert len(set(built.entry.keys)) == 2


@pytest.mark.system
def test_rows_may_have_named_vectors_alone(tmp_path: Path) -> None:
    spec = parse_spec({"index": "n", "source": {"text": "t"}, "named_vectors": NAMED})
    table = written_schema(spec, 0).empty_table()
    names = pa.array(["a", "b"])
    columns = {
        "id": names,
        "document_id": names,
        vector_column("image"): vectors_array([None, np.ones(3, np.float32)]),
    }
    arrays = [columns.get(field.name, pa.nulls(2, field.type)) for field in table.schema]
    segment = opened(tmp_path, spec, pa.table(arrays, schema=table.schema))
    assert (segment.has_vectors, segment.named["image"].rows_V.tolist()) == (False, [1])


@pytest.mark.system
def test_an_index_of_a_name_has_its_live_vectors(tmp_path: Path) -> None:
    spec, titles = spec_of(exact=True), titles_of()
    segment = opened(tmp_path, spec, rows_of(spec, titles))
    mask_N = np.arange(ROWS) < 100
    mask_N.setflags(write=False)
    manifest = Manifest(
        index="n", version=1, created_at="2026-01-01T00:00:00Z", spec=spec, dimensions=8, shards=1,
        segments=(segment.entry,), named_vectors={"title": VectorsInfo(dimensions=6)},
    )  # fmt: skip
    again = Manifest.from_json(manifest.to_json(), origin="test")
    assert again.segments == manifest.segments
    index = OpenIndex(again, (segment,), (segment.allow(mask_N),))
    named = index.space("title")
    assert ([part.number for part in named.parts], named.index.dimensions, named.index.spec.distance) == (
        [0],
        6,
        "dot",
    )
    assert named.index.alive[0] is not None
    assert named.index.alive[0].count == sum(vector is not None for vector in titles[:100])


def test_vectors_of_a_name_must_have_the_same_dimensions(tmp_path: Path) -> None:
    spec = spec_of(exact=True)
    titles = titles_of()
    titles[3] = np.ones(5, np.float32)
    with pytest.raises(BuildError, match=r"vectors 'title' have \[5, 6\] dimensions"):
        build_segment(rows_of(spec, titles), spec=spec, shard=0, directory=tmp_path)


GOLDEN = Path(__file__).parents[1] / "golden" / "named-vectors"


@pytest.mark.system
def test_a_stored_index_with_named_vectors_keeps_opening_and_answering(tmp_path: Path) -> None:
    store = Store.open(GOLDEN)
    index = open_index(store, "golden", cache=SegmentCache(tmp_path))
    assert verify(store, "golden").problems == ()
    titles_ND, query_D = clustered(1000, 4, seed=1), clustered(1, 4, seed=9)
    named = index.space("title")
    [part], [settings] = named.parts, named.index.settings_for(0.95)
    segment, vectors = part.segment, part.vectors
    assert vectors is not None
    assert segment.entry.kind == "scann"
    found, _ = segment.search(query_D, 3, settings=settings)
    ids = index.segments[0].take(vectors.datapoints(found)[0], ["id"]).column(0).to_pylist()
    assert ids == [f"d{row}" for row in np.argsort(-(titles_ND @ query_D[0]))[:3]]
    images = index.space("image")
    assert (images.index.dimensions, images.index.segments[0].rows) == (2, 20)


def test_releases_without_the_key_refuse_the_index_as_that_of_a_later_release() -> None:
    # They find the key of the spec first: it is unknown to them as `later_vectors` is to this one.
    data = (GOLDEN / "golden" / "versions" / "00000001.json").read_text()
    body, _, _ = data.replace(
        '"named_vectors": {\n      "title"', '"later_vectors": {\n      "title"'
    ).rpartition(',\n  "sha256": "')
    changed = f'{body},\n  "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'.encode()
    with pytest.raises(FormatError, match=r"spec\.later_vectors is unknown to this one"):
        Manifest.from_json(changed, origin="00000001.json")
