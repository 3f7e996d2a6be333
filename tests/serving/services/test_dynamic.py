"""Dynamic attributes: kept exactly and found by filter, live and in segments, over every wire."""

from __future__ import annotations

import datetime as dt
import json
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import DYNAMIC_COLUMN, InvalidRecordError, Store, parse_spec
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.serving.request.datapoint_columns import datapoint_columns
from scannery.v1.types_pb2 import Datapoint
from tests.served import WIRES, connected

pytestmark = pytest.mark.usefixtures("merges_by_hand")

SPEC: dict[str, Any] = {
    "index": "notes",
    "source": {"vector": "vector"},
    "attributes": {"year": "int"},
    "dynamic": True,
}
VALUES: list[Any] = [
    1, "1", 1.0, True, False, 0, -0.5, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1, 1e300, "", "é\n\"\\", "z", "~",
    None, [], [1, "a", 2.5, None], ["a", "b", "a"], [None], [[1]], {"1": [1]}, {}, [{"x": 1}],
    "2024-05-01T12:00:00+00:00",
]  # fmt: skip
ROWS: dict[str, dict[str, Any]] = {f"v{i}": {"x": value} for i, value in enumerate(VALUES)} | {
    "none": {},
    "declared": {"year": 2001, "y": 5},
    "names": {
        'quo"te': 1,
        "dotted.name": "d",
        "title": "not the title",
        "_x": 3,
        "x y": [4],
        "\\": "b",
        "ü": 7,
    },
}
SCALARS: list[Any] = [
    1,
    1.0,
    "1",
    True,
    False,
    "a",
    "",
    2**53,
    2**53 + 1,
    2.5,
    0,
    "z",
    2**63 - 1,
    9.3e18,
    -9.3e18,
    'é\n"\\',
]
ORDERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[scannery.Client]:
    Store.open(tmp_path / "store", create=True)
    with connected(tmp_path / "store", request.param) as client:
        yield client


def filled(client: scannery.Client) -> scannery.Index:
    index = client.create_index(spec=SPEC, dimensions=4)
    index.upsert(points(ROWS))
    return index


def points(rows: Mapping[str, Mapping[str, Any]]) -> Any:
    vectors = np.random.default_rng(0).normal(size=(len(rows), 4))
    return [
        {"id": name, "vector": vectors[i], "attributes": values}
        for i, (name, values) in enumerate(rows.items())
    ]


def found(index: scannery.Index, where: Any) -> set[str]:
    return {hit.id for hit in index.search(np.ones(4), 1000, where=where, exact=True)}


def kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def elements(value: Any) -> list[Any]:
    """The values that a filter sees."""
    if isinstance(value, list):
        return [] if any(isinstance(item, (list, dict)) for item in value) else value
    return [value]


def expected(
    name: str, test: Callable[[Any], bool], rows: Mapping[str, Mapping[str, Any]] = ROWS
) -> set[str]:
    return {key for key, row in rows.items() if any(test(value) for value in elements(row.get(name)))}


def check(index: scannery.Index, rows: Mapping[str, Mapping[str, Any]] = ROWS) -> None:
    """Check values and filters against the definition."""
    got = {point.id: point.attributes for point in index.get(list(rows)) if point is not None}
    assert json.dumps(got, sort_keys=True) == json.dumps(
        rows, sort_keys=True
    )  # 1, 1.0, "1" and True differ here
    everything = set(rows)
    for scalar in SCALARS:
        same = expected("x", lambda value, s=scalar: kind(value) == kind(s) and value == s, rows)  # type: ignore[misc]
        assert found(index, {"x": scalar}) == same, scalar
        assert found(index, {"x": {"$ne": scalar}}) == everything - same, scalar
        assert found(index, {"x": {"$in": [scalar, "no"]}}) == same
        assert found(index, {"x": {"$nin": [scalar]}}) == everything - same
        if isinstance(scalar, bool):
            continue
        for name, order in ORDERS.items():
            wanted = expected(
                "x",
                lambda value, s=scalar, o=order: kind(value) == kind(s) and o(value, s),  # type: ignore[misc]
                rows,
            )
            assert found(index, {"x": {name: scalar}}) == wanted, (name, scalar)
    is_set = {key for key, row in rows.items() if row.get("x") is not None}
    assert found(index, {"x": {"$exists": True}}) == is_set == found(index, {"x": {"$ne": None}})
    assert found(index, {"x": None}) == everything - is_set == found(index, {"x": {"$exists": False}})
    assert found(index, {"x": {"$in": [None, "z"]}}) == everything - is_set | expected(
        "x", lambda v: v == "z", rows
    )
    assert found(index, {"never": {"$lt": 5}}) == set() == found(index, {"never": "a"})
    assert found(index, {"never": {"$ne": 5}}) == everything == found(index, {"never": {"$nin": ["a"]}})
    when = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)
    assert found(index, {"x": when}) == expected("x", lambda value: value == when.isoformat(), rows)


@pytest.mark.system
def test_values_are_kept_and_found(client: scannery.Client) -> None:
    index = filled(client)
    check(index)
    assert found(index, {'quo"te': 1}) == found(index, {"dotted.name": "d"}) == {"names"}
    assert (
        found(index, {"title": "not the title"})
        == found(index, {"_x": 3})
        == found(index, {"x y": 4})
        == {"names"}
    )
    assert found(index, {"\\": "b"}) == found(index, {"ü": {"$gt": 6.5}}) == {"names"}
    assert found(index, {"year": 2001, "y": 5}) == {"declared"}
    assert found(index, {"year": None}) == set(ROWS) - {"declared"}


@pytest.mark.system
@pytest.mark.parametrize("wire", WIRES)
def test_segments_merges_and_rollbacks_keep_them(tmp_path: Path, wire: str) -> None:
    store = Store.open(tmp_path / "store", create=True)
    half = dict(list(ROWS.items())[:14])
    with connected(tmp_path / "store", "embedded") as client:
        index = client.create_index(spec=SPEC, dimensions=4)
        index.upsert(points(half))
        seal(store, "notes")
        index.upsert(points({**ROWS, "v0": {"x": "other"}}))
        index.upsert(points({"v0": ROWS["v0"]}))
        index.delete(["v1"])
        index.upsert(points({"v1": ROWS["v1"]}))
        check(index)
    seal(store, "notes")
    with connected(tmp_path / "store", wire) as client:
        check(client.index("notes"))
    for number in range(4):
        with connected(tmp_path / "store", "embedded") as client:
            client.index("notes").upsert(points({f"more{number}": {"x": number}}))
        seal(store, "notes")
    merge(store, "notes")
    more = {f"more{number}": {"x": number} for number in range(4)}
    with connected(tmp_path / "store", wire) as client:
        check(client.index("notes"), {**ROWS, **more})
    rollback(store, "notes", 2)
    with connected(tmp_path / "store", wire) as client:
        check(client.index("notes"), half)


NESTED: dict[str, dict[str, Any]] = {
    "page3": {"source": {"page": 3, "file": {"name": 'a "b".pdf'}}},
    "page4": {"source": {"page": 4, "tags": ["x", None, "y"], "checked": None}},
    "text": {"source": {"page": "3"}},
    "flat": {"source.page": 9, "source": {"page": 3}},
    "list": {"source": [{"page": 3}]},
    "odd": {"source": {"": {"": True}}},
    "none": {"other": "source"},
}


@pytest.mark.system
@pytest.mark.parametrize("sealed", [False, True])
def test_keys_of_objects_are_found_by_their_path(tmp_path: Path, *, sealed: bool) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index(spec=SPEC, dimensions=4)
        index.upsert(points(NESTED))
    if sealed:
        seal(Store.open(tmp_path / "store"), "notes")
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("notes")
        assert index.stats().memory_rows == (0 if sealed else len(NESTED))
        page = "source.page"
        assert found(index, {page: 3}) == {"page3"}
        assert found(index, {page: "3"}) == {"text"}
        assert found(index, {page: {"$gte": 3.5}}) == {"page4", "flat"}  # its own name comes first
        assert found(index, {page: {"$ne": 3}}) == set(NESTED) - {"page3"}
        assert found(index, {page: {"$exists": True}}) == {"page3", "page4", "text", "flat"}
        assert found(index, {"source.file.name": {"$prefix": 'a "'}}) == {"page3"}
        assert found(index, {"source.file": {"$exists": True}}) == {"page3"}
        assert (
            found(index, {"source.tags": "y"})
            == {"page4"}
            == found(index, {"source.tags": {"$all": ["x", "y"]}})
        )
        assert found(index, {"source.checked": None}) == set(NESTED)
        assert found(index, {"source..": True}) == {"odd"}
        for never in ("source.no", "other.page", ".", "source.page.3", "page", "." * 60):
            assert found(index, {never: {"$exists": True}}) == set()
        assert index.count({page: 3}) == 1
        assert {facet.value: facet.count for facet in index.facets(page)} == {3: 1, 4: 1, 9: 1, "3": 1}
        assert next(index.scan(order_by=page)).id == "page3"


def test_an_object_in_a_filter_is_refused_with_the_way_to_name_its_keys(dynamic: scannery.Index) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="named with a dot, ATTRIBUTE.page"):
        dynamic.count({"source": {"page": 3}})


def test_answers_have_the_fields_that_are_named(client: scannery.Client) -> None:
    index = filled(client)

    def attributes(name: str, *fields: str) -> Any:
        [hit] = index.search(np.ones(4), 1, where={"id": name}, fields=fields or None)
        return hit.attributes

    assert attributes("declared") == ROWS["declared"]
    assert attributes("declared", "y") == {"y": 5}
    assert attributes("declared", "y", "year") == ROWS["declared"]
    assert attributes("declared", "year") == {"year": 2001}
    assert attributes("names", "ü", "never", 'quo"te') == {"ü": 7, 'quo"te': 1}
    assert attributes("names", "title") == {}
    assert index.get(["v18"])[0].attributes == {"x": [1, "a", 2.5, None]}  # type: ignore[union-attr]


@pytest.mark.system
def test_updates_change_and_remove_single_attributes(client: scannery.Client) -> None:
    index = filled(client)
    index.update(
        [{"id": "names", "attributes": {"ü": "new", "_x": None, "more": {"a": [1, None]}, "title": None}}]
    )
    wanted = {name: value for name, value in ROWS["names"].items() if name not in ("_x", "title")}
    wanted |= {"ü": "new", "more": {"a": [1, None]}}
    assert index.get(["names"])[0].attributes == wanted  # type: ignore[union-attr]
    assert found(index, {"ü": "new"}) == {"names"}
    index.update([{"id": "declared", "attributes": {"year": None, "y": None, "gone": None}}])
    assert index.get(["declared"])[0].attributes == {}  # type: ignore[union-attr]
    assert found(index, {"y": {"$exists": True}}) == set()


@pytest.mark.system
@pytest.mark.parametrize(
    ("attributes", "field"),
    [
        ({"x": 2**63}, "attributes.x"),
        ({"x": {"deep": [2**64]}}, "attributes.x.deep[0]"),
        ({"x": float("inf")}, "attributes.x"),
        ({"x": [1.0, float("inf")]}, "attributes.x"),
        ({"x": {"y": float("inf")}}, "attributes.x"),
        ({"": 1}, "attributes"),
        ({"id": 1}, "attributes.id"),
        ({"document_id": 1}, "attributes.document_id"),
        ({"$x": 1}, "attributes.$x"),
        ({"a\nb": 1}, "attributes.a"),
        ({"n" * 257: 1}, "attributes.n"),
        ({"x": "\ud800"}, "attributes"),
        ({"x": "a" * (1 << 20)}, "attributes"),
        ({f"n{i}": i for i in range(257)}, "attributes"),
        ({"x": [0] * 65_537}, "attributes.x"),
        ({"year": "soon"}, "attributes.year"),
        ({"year": {"a": 1}}, "attributes.year"),
        ({"x": object()}, "attributes.x"),
    ],
)
def test_what_cannot_be_kept_names_the_field(dynamic: scannery.Index, attributes: Any, field: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        dynamic.upsert([{"id": "bad", "vector": [1, 0, 0, 0], "attributes": attributes}])
    assert (caught.value.field or "").startswith(f"upserts[0].datapoint.{field}")
    assert dynamic.get(["bad"]) == [None]


@pytest.mark.parametrize(
    "where", [{"x": {"$lt": True}}, {"x": {"$gt": None}}, {"x": [1]}, {"year": "x"}, {"$x": 1}]
)
def test_filters_that_make_no_sense_are_refused(dynamic: scannery.Index, where: Any) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        found(dynamic, where)
    assert (caught.value.field or "").startswith("where.")


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda i, name: i.count({name: 1}), "where."),
        (lambda i, name: i.search([1, 0, 0, 0], where={name: {"$in": [1] * 9}}), "where."),
        (lambda i, name: i.facets(name), "attribute"),
        (lambda i, name: i.attribute_stats(name), "attribute"),
        (lambda i, name: next(i.scan(fields=[name])), "fields"),
    ],
)
def test_names_that_no_attribute_can_have_are_refused(
    dynamic: scannery.Index, ask: Callable[[scannery.Index, str], Any], field: str
) -> None:
    for name in ("n" * 257, "ü" * 129, "n" * 1_000_000):  # caches would keep them
        with pytest.raises(scannery.InvalidArgumentError, match="at most 256 bytes") as caught:
            ask(dynamic, name)
        assert (caught.value.field or "").startswith(field)
        assert len(caught.value.message) < 500


@pytest.mark.parametrize("form", ["dynamic_json", "json_value", "list_value"])
def test_json_that_is_far_too_long_is_not_parsed(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = '{"x": [' + "[]," * 3_000_000 + "1]}"
    point = Datapoint(id="a")
    if form == "dynamic_json":
        point.dynamic_json = data
    elif form == "json_value":
        point.attributes["x"].json_value = data
    else:
        point.attributes["x"].list_value.values.add(json_value=data)
    for module in ("indexer.datapoints.dynamic", "serving.request.datapoint_columns"):
        monkeypatch.setattr(f"scannery.{module}.strict_json", None)
    [error] = (
        datapoint_columns([point], parse_spec(SPEC), {"": 4}, check=lambda: None)
        .fields[DYNAMIC_COLUMN]
        .values
    )
    assert isinstance(error, InvalidRecordError)
    assert "must have at most 1048576 bytes, got 9" in error.message


@pytest.mark.parametrize("form", ["dynamic_json", "json_value"])
def test_a_key_that_an_object_has_twice_is_refused(form: str) -> None:
    point = Datapoint(id="a")
    if form == "dynamic_json":
        point.dynamic_json = '{"x": [{"inner": 1, "inner": 2}]}'
    else:
        point.attributes["x"].json_value = '[{"inner": 1, "inner": 2}]'
    [error] = (
        datapoint_columns([point], parse_spec(SPEC), {"": 4}, check=lambda: None)
        .fields[DYNAMIC_COLUMN]
        .values
    )
    assert isinstance(error, InvalidRecordError)
    assert error.field == ("dynamic_json" if form == "dynamic_json" else "attributes.x")
    assert "the key 'inner' twice" in error.message


def test_refused_attributes_are_not_kept_by_their_error() -> None:
    point = Datapoint(id="a", dynamic_json='{"x": {"a": [1' + "0" * 30 + "]}}")
    [error] = (
        datapoint_columns([point], parse_spec(SPEC), {"": 4}, check=lambda: None)
        .fields[DYNAMIC_COLUMN]
        .values
    )
    assert isinstance(error, InvalidRecordError) and "must fit 64 bits" in error.message
    assert error.__traceback__ is None
    assert error.__cause__ is None


def test_groups_are_of_declared_attributes(dynamic: scannery.Index) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="no such declared attribute"):
        dynamic.search(np.ones(4), max_per_group=1, group_by="x")


def test_other_indexes_take_declared_attributes_only(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("plain", dimensions=4, attributes={"tags": "string_list"})
        for attributes in ({"x": 1}, {"tags": [1]}, {"tags": {"a": 1}}):
            with pytest.raises(scannery.InvalidArgumentError, match=r"upserts\[0\].datapoint.attributes"):
                index.upsert([{"id": "a", "vector": [1, 0, 0, 0], "attributes": attributes}])
        with pytest.raises(scannery.InvalidArgumentError, match="no such attribute"):
            found(index, {"x": 1})


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scannery.Index]:
    with scannery.connect(tmp_path_factory.mktemp("dynamic") / "store", create=True) as client:
        yield filled(client)
