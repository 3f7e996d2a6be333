"""Dynamic attributes that are times in ISO 8601: filters, facets, orders and statistics see instants."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("merges_by_hand")]
TIMES = {
    "z": "2025-02-03T12:45:46Z",
    "offset": "2025-02-03T12:45:46.000+00:00",
    "naive": "2025-02-03 12:45:46",
    "india": "2025-02-03T18:15:46+05:30",
    "basic": "20250203T124546Z",
    "earlier": "2025-02-03T13:00:00+05:30",
    "day": "2025-02-04",
    "midnight": "2025-02-04T00:00:00Z",
}
TEXTS = {"year": "2025", "month": "2025-02", "digits": "20250203", "word": "soon"}
MOMENT = dt.datetime(2025, 2, 3, 12, 45, 46, tzinfo=dt.timezone.utc)
SAME = {"z", "offset", "naive", "india", "basic"}
DAY = {"day", "midnight"}
INDIA = dt.timezone(dt.timedelta(hours=5, minutes=30))


@pytest.fixture(scope="module", params=["live", "sealed", "both"])
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("times")
    with scannery.connect(str(path), create=True) as client:
        index = client.create_index("a", dimensions=1, distance="dot", dynamic=True)
        rows = [{"id": id, "vector": [1], "attributes": {"at": at}} for id, at in (TIMES | TEXTS).items()]
        rows.append({"id": "list", "vector": [1], "attributes": {"at": ["2025-02-03T12:45:46Z", ""]}})
        for part in (rows[::2], rows[1::2]):
            index.upsert(part)  # type: ignore[arg-type]  # TypedDicts
            if request.param != "live" and (request.param == "sealed" or part is rows[::2]):
                _sealed(path)
        yield index


def _sealed(path: Path) -> None:
    seal(Store.open(str(path)), "a")


@pytest.mark.parametrize(
    ("condition", "ids"),
    [
        ({"$eq": MOMENT}, SAME | {"list"}),
        ({"$eq": MOMENT.astimezone(INDIA)}, SAME | {"list"}),
        ({"$eq": MOMENT.replace(tzinfo=None)}, SAME | {"list"}),
        ({"$eq": "2025-02-03T13:45:46+01:00"}, SAME | {"list"}),
        ({"$in": [np.datetime64("2025-02-03T12:45:46"), "2025"]}, SAME | {"list", "year"}),
        ({"$all": [MOMENT]}, {"list"}),
        ({"$gt": MOMENT}, DAY),
        ({"$gte": MOMENT}, SAME | DAY | {"list"}),
        ({"$lt": MOMENT}, {"earlier"}),
        ({"$lte": MOMENT}, SAME | {"earlier", "list"}),
        ({"$eq": dt.date(2025, 2, 4)}, DAY),
        ({"$eq": "2025-02-04"}, DAY),
        ({"$gte": "2025-02-04T00:00:00Z", "$lt": "2025-02-05"}, DAY),
        # Texts that are no times are what they were.
        ({"$eq": "2025"}, {"year"}),
        ({"$eq": "2025-02"}, {"month"}),
        ({"$eq": "20250203"}, {"digits"}),
        ({"$lt": "2025-02"}, {"year", "list"}),
        ({"$gt": "20250203"}, {"word"}),
        ({"$prefix": "2025-02-03T18"}, {"india"}),
        ({"$substring": "+05:30"}, {"india", "earlier"}),
        ({"$ieq": "20250203t124546z"}, {"basic"}),
    ],
)
def test_filters(index: scannery.Index, condition: dict[str, Any], ids: set[str]) -> None:
    assert {row.id for row in index.scan(where={"at": condition})} == ids
    negated = {row.id for row in index.scan(where={"$not": {"at": condition}})}
    assert negated == {*TIMES, *TEXTS, "list"} - ids


def test_facets_count_an_instant_once_and_values_stay_as_written(index: scannery.Index) -> None:
    counts = {facet.value: facet.count for facet in index.facets("at")}
    assert counts["2025-02-03 12:45:46"] == len(SAME) + 1
    assert counts["2025-02-04"] == len(DAY)
    assert len(counts) == len(TEXTS) + 4
    assert {row.id: row.attributes["at"] for row in index.scan() if row.id in TIMES} == TIMES


def test_rows_are_in_the_order_of_time(index: scannery.Index) -> None:
    ids = [row.id for row in index.scan(order_by="at", where={"id": {"$in": [*TIMES, *TEXTS]}})]
    assert ids == ["year", "month", "earlier", *sorted(SAME), *sorted(DAY), "digits", "word"]


def test_statistics_are_in_the_order_of_time(index: scannery.Index) -> None:
    [stats] = index.attribute_stats("at", where={"id": {"$in": [*TIMES]}}).types
    assert (stats.min, stats.max, stats.distinct) == ("2025-02-03T13:00:00+05:30", "2025-02-04", 3)
