"""The rows of a scan: selections packed in bits, orders, samples, and pages of a bounded size."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.indexer import AllowedRows, Store, parse_spec
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine.scanning.row_order import sorted_positions
from scannery.serving.engine.scanning.scan_result import BLOCK_ROWS, PackedRows, ScanResult
from scannery.serving.request.scan import RowOrder, parse_scan
from scannery.v1.search_pb2 import ScanRequest, ScanResponse
from tests.data import datapoints
from tests.served import library_table, publish_version

NEVER = Deadline.after(None)


@pytest.mark.parametrize("rows", [1, 63, BLOCK_ROWS - 1, BLOCK_ROWS, 3 * BLOCK_ROWS + 17])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.5, 1.0])
def test_any_range_of_packed_rows_is_that_of_the_mask(rows: int, share: float) -> None:
    random = np.random.default_rng(rows)
    mask = random.random(rows) < share
    mask.setflags(write=False)
    selected = np.flatnonzero(mask)
    for allowed in (AllowedRows(mask, None, rows), AllowedRows(selected, None, rows)):
        packed = PackedRows(rows, allowed)
        assert packed.count == len(selected)
        assert packed.size_bytes <= rows // 8 + 8 * (rows // BLOCK_ROWS + 3)
        bounds = np.sort(random.integers(0, len(selected) + 1, (20, 2)))
        for start, stop in [(0, len(selected)), (0, 0), *bounds.tolist()]:
            assert packed.rows(start, stop).tolist() == selected[start:stop].tolist()
    assert PackedRows(rows, None).rows(0, rows).tolist() == list(range(rows))


@pytest.fixture(scope="module")
def index(library: Path) -> Any:
    with scannery.connect(library) as client:
        yield client.index("library")


@pytest.fixture(scope="module")
def points(index: Any) -> list[scannery.Datapoint]:
    names = library_table().column("id").to_pylist()
    return [*index.get(names)]


@pytest.mark.system
@pytest.mark.parametrize("name", ["id", "document_id", "show", "year", "rating", "live", "published"])
@pytest.mark.parametrize("descending", [False, True])
def test_datapoints_are_sorted_missing_ones_last_and_equal_ones_by_id(
    index: Any, points: list[scannery.Datapoint], name: str, descending: bool
) -> None:
    def key(point: scannery.Datapoint) -> Any:
        return getattr(point, name) if name.endswith("id") else point.attributes.get(name)

    by_id = sorted(points, key=lambda point: point.id)
    there = sorted((p for p in by_id if key(p) is not None), key=key, reverse=descending)
    expected = there + [p for p in by_id if key(p) is None]
    order = f"-{name}" if descending else name
    assert list(index.scan(order_by=order, page_size=77)) == expected
    some = [p for p in expected if p.attributes.get("year", 0) == 2010]
    assert list(index.scan(order_by=order, where={"year": 2010})) == some


@pytest.mark.system
def test_rows_in_memory_are_sorted_among_those_of_segments(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "s", create=True) as client:
        spec = {"index": "t", "source": {"id": "id", "vector": "v"}, "attributes": {"at": "timestamp"}}
        index = client.create_index(spec, dimensions=2)
        day = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)
        for turn in range(3):
            rows: Any = [
                {"id": f"p{i}", "vector": [1, i], "attributes": {"at": day + dt.timedelta(days=i % 7)}}
                for i in range(turn, 60, 3)
            ]
            index.upsert(rows)
            if turn == 0:
                from scannery.live.maintenance.seal import seal

                seal(Store.open(tmp_path / "s"), "t")
        found = [(point.attributes["at"], point.id) for point in index.scan(order_by="at")]
        assert len(found) == 60
        assert found == sorted(found)


@pytest.mark.system
def test_a_sample_is_without_replacement_and_the_same_for_a_seed(index: Any) -> None:
    everything = [point.id for point in index.scan()]
    first = [point.id for point in index.scan(sample=50, seed=1, page_size=7)]
    assert len(set(first)) == 50
    assert first == [name for name in everything if name in set(first)]  # in the order of the scan
    assert first == [point.id for point in index.scan(sample=50, seed=1)]
    assert first != [point.id for point in index.scan(sample=50, seed=2)]
    assert [point.id for point in index.scan(sample=10_000)] == everything
    where = {"year": {"$gte": 2010}}
    allowed = {point.id for point in index.scan(where=where)}
    chosen = list(index.scan(sample=20, where=where, order_by="-year"))
    assert {point.id for point in chosen} <= allowed
    years = [point.attributes["year"] for point in chosen]
    assert years == sorted(years, reverse=True)


@pytest.mark.system
def test_each_datapoint_is_equally_likely_in_a_sample(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Blocks of 64 positions, so that the choice among blocks counts too.
    monkeypatch.setattr("scannery.serving.engine.scanning.scan_result.SAMPLE_BLOCK", 64)
    catalog = open_embedded_catalog(library)
    snapshot = catalog.snapshot("library")
    counts = np.zeros(600, int)
    for seed in range(300):
        request = ScanRequest(index="library", sample=60, seed=seed)
        result = ScanResult(snapshot, parse_scan(request, snapshot.manifest.spec), NEVER)
        assert result.total == 60
        order = result._order_R
        assert order is not None
        counts[order] += 1
    assert counts.sum() == 300 * 60
    assert counts.min() > 8  # 30 expected, standard deviation 5.2
    assert counts.max() < 56
    catalog.close()


@pytest.mark.system
def test_pages_have_a_bounded_size_and_at_least_one_datapoint(tmp_path: Path) -> None:
    spec = parse_spec({"index": "long", "source": {"id": "id", "vector": "v"}})
    sizes = [100] * 200 + [1 << 20] * 5 + [4 << 20] + [100] * 30
    table = datapoints(
        spec, np.ones((len(sizes), 2), np.float32), columns={"text": ["x" * size for size in sizes]}
    )
    store = Store.open(tmp_path / "s", create=True)
    publish_version(store, spec, table, tmp_path)
    catalog = open_embedded_catalog(tmp_path / "s")
    snapshot = catalog.snapshot("long")
    result = ScanResult(snapshot, parse_scan(ScanRequest(index="long"), spec), NEVER)
    position, found = 0, []
    while position < result.total:
        written = result.page(position, 10_000, NEVER)
        data, count = written.data, len(written)
        page = ScanResponse.FromString(data).datapoints
        assert len(page) == count > 0
        assert written.sizes_P.sum() == len(data)
        assert count == 1 or len(data) <= limits.MAX_SCAN_PAGE_BYTES
        found += [(point.id, len(point.text)) for point in page]
        position += count
    assert sorted(size for _, size in found) == sorted(sizes)
    assert len({name for name, _ in found}) == len(sizes)
    last = result.page(position, 10, NEVER)
    assert (last.data, len(last)) == (b"", 0)
    catalog.close()


def test_more_datapoints_than_can_be_sorted_are_refused(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_SORTED_ROWS", 100)
    catalog = open_embedded_catalog(library)
    snapshot = catalog.snapshot("library")
    for request, field in (
        (ScanRequest(order_by={"field": "year"}), "order_by"),  # type: ignore[arg-type]
        (ScanRequest(sample=200), "sample"),
    ):
        with pytest.raises(InvalidRequestError, match="at most 100 datapoints") as caught:
            ScanResult(snapshot, parse_scan(request, snapshot.manifest.spec), NEVER)
        assert caught.value.field == field
    assert ScanResult(snapshot, parse_scan(ScanRequest(), snapshot.manifest.spec), NEVER).total == 600
    catalog.close()


def test_a_segment_older_than_an_attribute_has_no_values_of_it(tmp_path: Path, library: Path) -> None:
    catalog = open_embedded_catalog(library)
    segment = catalog.snapshot("library").segments[0]
    rows, by_id = np.arange(9), np.argsort(segment.ids.take(pa.array(range(9))).to_pylist())
    for descending in (False, True):
        order = RowOrder("added_later", descending)
        assert sorted_positions([(segment, rows)], order, NEVER).tolist() == by_id.tolist()
    catalog.close()
