"""Count, facets and attribute statistics against plain Python over the same rows; embedded, over gRPC and over HTTP."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client import Index
from scannery.indexer import Store, parse_spec
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from tests.live.model import LIVE, Row, make_store, random_row
from tests.served import copied, library_table, serving

pytestmark = pytest.mark.usefixtures("merges_by_hand")

Where = dict[str, Any]
LIBRARY_ROWS: list[Row] = library_table().drop_columns(["embedding"]).to_pylist()
FILTERS: list[tuple[Where | None, Callable[[Row], bool]]] = [
    (None, lambda row: True),
    ({}, lambda row: True),
    ({"show": "gotime"}, lambda row: row["show"] == "gotime"),
    ({"year": {"$gte": 2020}}, lambda row: row["year"] is not None and row["year"] >= 2020),
    ({"tags": {"$exists": False}}, lambda row: row["tags"] is None),
    ({"show": "nothing"}, lambda row: False),
]
ATTRIBUTES = ("show", "tags", "year", "rating", "live", "published", "document_id")


@pytest.fixture(scope="module")
def indexes(library: Path) -> Iterator[list[Index]]:
    with ExitStack() as stack:
        server = stack.enter_context(serving(library))
        clients = [
            scannery.connect(library),
            scannery.connect(server.address, http=False),
            scannery.connect(f"http://127.0.0.1:{server.http_port}"),
        ]
        yield [stack.enter_context(client).index("library") for client in clients]


def elements(value: Any) -> list[Any]:
    """Return the values of an attribute, each once."""
    return [] if value is None else sorted(set(value)) if isinstance(value, list) else [value]


def expected_facets(rows: list[Row], name: str, limit: int) -> list[tuple[Any, int]]:
    counts = Counter(value for row in rows for value in elements(row[name]))
    return sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:limit]


@pytest.mark.system
@pytest.mark.parametrize(("where", "matches"), FILTERS)
def test_counts_are_those_of_the_rows(
    indexes: list[Index], where: Where | None, matches: Callable[[Row], bool]
) -> None:
    count = sum(map(matches, LIBRARY_ROWS))
    assert [index.count(where) for index in indexes] == [count] * 3


@pytest.mark.system
@pytest.mark.parametrize("limit", [1, 3, 10_000])
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_facets_are_those_of_the_rows(indexes: list[Index], name: str, limit: int) -> None:
    for where, matches in FILTERS:
        rows = [row for row in LIBRARY_ROWS if matches(row)]
        for index in indexes:
            facets = index.facets(name, where, limit=limit)
            assert facets == expected_facets(rows, name, limit)
            assert facets.distinct == len({value for row in rows for value in elements(row[name])})
            assert facets.missing == sum(row[name] is None for row in rows)


@pytest.mark.system
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_statistics_are_those_of_the_rows(indexes: list[Index], name: str) -> None:
    shares = [0, 0.07, 0.3, 0.5, 0.99, 1.0]
    for where, matches in FILTERS:
        rows = [row for row in LIBRARY_ROWS if matches(row)]
        values = sorted(value for row in rows for value in elements(row[name]))
        for index in indexes:
            stats = index.attribute_stats(name, where, quantiles=shares)
            assert (stats.rows, stats.missing) == (
                sum(row[name] is not None for row in rows),
                sum(row[name] is None for row in rows),
            )
            assert stats.distinct == len(set(values))
            if not values:
                assert (stats.types, stats.min, stats.max, stats.quantiles) == ((), None, None, {})
                continue
            assert (stats.types[0].values, stats.min, stats.max) == (len(values), values[0], values[-1])
            ranks = [max(1, math.ceil(Decimal(str(share)) * len(values))) for share in shares]
            assert stats.quantiles == {
                share: values[rank - 1] for share, rank in zip(shares, ranks, strict=True)
            }


def test_the_type_of_values_is_named(indexes: list[Index]) -> None:
    kinds = {name: indexes[0].attribute_stats(name).types[0].type for name in ATTRIBUTES}
    assert kinds == {
        "show": "string",
        "tags": "string",
        "year": "int",
        "rating": "float",
        "live": "bool",
        "published": "timestamp",
        "document_id": "string",
    }
    assert isinstance(indexes[0].facets("rating")[0].value, float)
    assert indexes[0].facets("published")[0].value.tzinfo == dt.timezone.utc  # type: ignore[union-attr]


def test_a_list_with_a_value_twice_has_it_once(tmp_path: Path) -> None:
    with scannery.connect(make_store(tmp_path, [])) as client:
        index = client.index("live")
        index.upsert([{"id": "a", "vector": [1.0] * 8, "attributes": {"tags": ["x", "y", "x"]}}])
        assert index.facets("tags") == [("x", 1), ("y", 1)]
        assert index.attribute_stats("tags").types[0].values == 2


@pytest.mark.parametrize(("ask", "field", "message"), [
    (lambda i: i.facets("yaer"), "attribute", "did you mean year"),
    (lambda i: i.facets("id"), "attribute", "must not be id"),
    (lambda i: i.facets(""), "attribute", "must be the name"),
    (lambda i: i.facets("show", limit=0), "limit", "must be 1 to 10000, got 0"),
    (lambda i: i.facets("show", limit=10_001), "limit", "must be 1 to 10000"),
    (lambda i: i.facets("show", limit=1.5), "limit", "must be an integer"),
    (lambda i: i.facets("show", {"yaer": 1}), "where.yaer", "did you mean year"),
    (lambda i: i.attribute_stats("nothing"), "attribute", "no such attribute"),
    (lambda i: i.attribute_stats("year", quantiles=[0.5, 1.5]), "quantiles[1]", "must be 0 to 1, got 1.5"),
    (lambda i: i.attribute_stats("year", quantiles=[math.nan]), "quantiles[0]", "must be 0 to 1"),
    (lambda i: i.attribute_stats("year", quantiles=[0.1] * 101), "quantiles", "at most 100 items, got 101"),
    (lambda i: i.attribute_stats("year", quantiles="a"), "quantiles", "must be a list of numbers"),
    (lambda i: i.count({"year": "soon"}), "where.year", "must be a 64-bit integer"),
])  # fmt: skip
def test_bad_input_is_named(
    indexes: list[Index], ask: Callable[[Index], Any], field: str, message: str
) -> None:
    for index in indexes:
        with pytest.raises(scannery.InvalidArgumentError, match=message) as caught:
            ask(index)
        assert caught.value.field == field


def test_an_index_that_does_not_exist_is_named(library: Path) -> None:
    with scannery.connect(library) as client, pytest.raises(scannery.NotFoundError):
        client.index("nothing").count()


def agrees(index: Index, rows: dict[str, Row]) -> None:
    """Check counts and facets of a live index against the rows that it should have."""
    known = [{"document_id": row["document_id"], **row["attributes"]} for row in rows.values()]
    assert index.count() == len(known)
    assert index.count({"show": "gotime"}) == sum(row["show"] == "gotime" for row in known)
    for name in ("show", "year", "tags", "document_id"):
        assert index.facets(name) == expected_facets(known, name, 100)
        recent = [row for row in known if row["year"] is not None and row["year"] >= 2015]
        assert index.facets(name, {"year": {"$gte": 2015}}) == expected_facets(recent, name, 100)


@pytest.mark.system
def test_live_rows_count_and_deleted_ones_do_not(tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = {f"id{i}": random_row(rng, f"id{i}") for i in range(60)}
    path = make_store(tmp_path, list(rows.values()))
    store = Store.open(path)
    with scannery.connect(path) as client:
        index = client.index("live")
        built = dict(rows)
        for step in range(4):
            new = [random_row(rng, f"id{rng.randrange(100)}") for _ in range(20)]
            new = list({row["id"]: row for row in new}.values())
            index.upsert(new)  # type: ignore[arg-type]  # a dictionary with these keys
            rows |= {row["id"]: row for row in new}
            gone = rng.sample(sorted(rows), 5)
            index.delete(gone)
            for name in gone:
                del rows[name]
            agrees(index, rows)
            if step == 1:
                seal(store, LIVE.index)
                agrees(index, rows)
    with scannery.connect(copied(path, tmp_path)) as client:
        agrees(client.index("live"), rows)
    seal(store, LIVE.index)
    rollback(store, LIVE.index, 1)
    with scannery.connect(path) as client:
        agrees(client.index("live"), built)


VALUES: list[Any] = [1, 1.0, "1", True, [1, "x", "x", 2.5], None, {"deep": 1}, 3, "x", [[1]], []]


@pytest.mark.system
def test_dynamic_attributes_are_counted_by_exact_type(tmp_path: Path) -> None:
    spec = {**LIVE.model_dump(), "dynamic": True}
    path = make_store(tmp_path, [], spec=parse_spec(spec))
    with scannery.connect(path) as client:
        index = client.index("live")
        points: list[Any] = [
            {"id": f"id{i}", "vector": [1.0] * 8, "attributes": {"any": value, "show": "a"}}
            for i, value in enumerate(VALUES)
        ]
        index.upsert([*points, {"id": "without", "vector": [1.0] * 8}])
        for _ in range(2):
            facets = index.facets("any")
            expected = [(1, 2), ("x", 2), (True, 1), (1.0, 1), (2.5, 1), (3, 1), ("1", 1)]
            assert [(type(each.value), *each) for each in facets] == [(type(v), v, n) for v, n in expected]
            assert (facets.distinct, facets.missing) == (7, 2)  # null and no value are the same
            stats = index.attribute_stats("any", quantiles=[0, 0.5, 1])
            assert (stats.rows, stats.missing, stats.min, stats.quantiles) == (10, 2, None, {})
            numbers = next(one for one in stats.types if one.type == "number")
            assert (numbers.values, numbers.distinct, numbers.min, numbers.max) == (5, 4, 1, 3)
            assert numbers.quantiles == {0: 1, 0.5: 1.0, 1: 3}
            assert {one.type: one.values for one in stats.types} == {
                "bool": 1,
                "number": 5,
                "other": 2,
                "string": 3,
            }
            assert index.facets("any", {"any": {"$gt": 1}}) == [(1, 1), (2.5, 1), (3, 1), ("x", 1)]
            never = index.facets("never seen")
            assert (never, never.distinct, never.missing) == ([], 0, len(VALUES) + 1)
            assert index.count({"never seen": 1}) == 0
            seal(Store.open(path), "live")


def test_places_are_counted_but_have_no_facets(tmp_path: Path) -> None:
    path = make_store(tmp_path, [], spec=parse_spec({**LIVE.model_dump(), "attributes": {"at": "geo"}}))
    with scannery.connect(path) as client:
        index = client.index("live")
        points: list[Any] = [
            {"id": "a", "vector": [1.0] * 8, "attributes": {"at": {"lat": 1.0, "lon": 2.0}}},
            {"id": "b", "vector": [1.0] * 8},
        ]
        index.upsert(points)
        stats = index.attribute_stats("at")
        assert (stats.rows, stats.missing, stats.types[0].type, stats.types[0].values) == (1, 1, "geo", 1)
        assert (stats.min, stats.quantiles) == (None, {})
        with pytest.raises(scannery.InvalidArgumentError, match="places, which have no facets"):
            index.facets("at")
        index.update(where={"at": {"$exists": False}}, attributes={"at": {"lat": 0.0, "lon": 0.0}})
        circle = {"$geo_radius": {"lat": 0.0, "lon": 0.0, "radius_m": 1000}}
        assert index.delete(where={"at": circle}).deleted == 1


@pytest.mark.system
def test_rows_without_vectors_are_counted_changed_and_deleted(tmp_path: Path) -> None:
    path = make_store(tmp_path, [], spec=parse_spec({**LIVE.model_dump(), "vectors": "optional"}))
    with scannery.connect(path) as client:
        index = client.index("live")
        rows: list[Any] = [{"id": f"id{i}", "attributes": {"year": i}} for i in range(10)]
        index.upsert([*rows, {"id": "with", "vector": [1.0] * 8, "attributes": {"year": 5}}])
        for _ in range(2):
            assert index.count({"year": {"$gte": 5}}) == 6
            assert index.update(where={"year": {"$gte": 5}}, attributes={"show": "late"}).written == 6
            assert index.facets("show") == [("late", 6)]
            assert [hit.id for hit in index.search([1.0] * 8)] == ["with"]
            seal(Store.open(path), "live")
        assert index.delete(where={"show": "late"}, batch_size=4).deleted == 6
        assert index.count() == 5


def test_statistics_order_integers_and_floats_exactly(tmp_path: Path) -> None:
    big, most = 2**53, 2**63 - 1
    values: list[float] = [big + 3, float(big + 4), big + 4, big + 5, -big - 3, -float(big + 4), -big - 5]
    values += [most, float(2**63), -(2**63), -float(2**63), 1e300, -1e300, 0.5, 0, -0.5]
    path = make_store(tmp_path, [], spec=parse_spec({**LIVE.model_dump(), "dynamic": True}))
    with scannery.connect(path) as client:
        index = client.index("live")
        for size in (4, len(values)):  # a share is exact
            index.upsert(
                [
                    {"id": f"id{i}", "vector": [1.0] * 8, "attributes": {"any": value}}
                    for i, value in enumerate(values[:size])
                ]
            )
            shares = [(i + 1) / size for i in range(size)]
            stats = index.attribute_stats("any", quantiles=shares)
            assert list(stats.quantiles.values()) == sorted(values[:size])
            assert (stats.min, stats.max) == (min(values[:size]), max(values[:size]))


@pytest.mark.system
def test_the_size_of_an_answer_is_bounded(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index(
            {"index": "long", "source": {"vector": "v"}, "attributes": {"s": "string"}}, dimensions=1
        )
        index.upsert([{"id": "a", "vector": [1], "attributes": {"s": "x" * 1_000_000}}])
        assert index.attribute_stats("s", quantiles=[0.5]).max == "x" * 1_000_000
        with pytest.raises(scannery.InvalidArgumentError, match="their values have 39 MiB") as caught:
            index.attribute_stats("s", quantiles=[i / 40 for i in range(41)])
        assert caught.value.field == "quantiles"
