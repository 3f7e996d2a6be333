"""Filters on lists, strings and places, and places themselves: built by Beam, live, sealed, merged and rolled back."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.client import Index
from scannery.indexer import Store, read_manifest, segment_key, verify
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build, export
from tests.model.oracle import matches
from tests.model.rows import Row
from tests.served import serving

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("merges_by_hand")]

SPEC: dict[str, Any] = {
    "index": "cafes",
    "source": {"vector": "vector"},
    "attributes": {"name": "string", "tags": "string_list", "seats": "int", "place": "geo"},
    "shards": 2,
    "live": {"merge_segments": 2},
}
NAMES = ["Café Ära", "café ÄRA 2", "Kaffeehaus Straße", "KAFFEEHAUS STRASSE", "İz", None, "", "Bar"]
TAGS = [["wifi", "vegan"], ["vegan", "wifi", "vegan"], [], None, ["wifi"], ["Vegan"]]
PLACES = [
    {"lat": 52.5, "lon": 13.4},
    {"lat": 52.51, "lon": 13.41},
    None,
    {"lat": 90.0, "lon": 7.0},
    {"lat": -17.7, "lon": 179.9},
    {"lat": -17.7, "lon": -179.9},
    {"lat": 0.0, "lon": 0.0},
]
FILTERS: list[dict[str, Any]] = [
    {"tags": {"$contains": "vegan"}},
    {"tags": {"$not": {"$contains": "vegan"}}},
    {"tags": {"$all": ["wifi", "vegan"]}},
    {"tags": {"$all": ["wifi", "none"]}},
    {"tags": {"$iprefix": "VEG"}},
    {"tags": {"$ieq": "vegan"}},
    {"name": {"$prefix": "Caf"}},
    {"name": {"$prefix": ""}},
    {"name": {"$iprefix": "CAFÉ ä"}},
    {"name": {"$ieq": "kaffeehaus strasse"}},
    {"name": {"$ieq": "i̇Z"}},
    {"name": {"$not": {"$ieq": "bar"}}},
    {"name": {"$substring": "é ä"}},
    {"name": {"$substring": ""}},
    {"name": {"$isubstring": "FÉ Ä"}},
    {"name": {"$isubstring": "hausstr"}},
    {"tags": {"$isubstring": "EGA"}},
    {"id": {"$substring": "1"}},
    {"name": {"$empty": True}},
    {"tags": {"$empty": True}},
    {"tags": {"$empty": False}},
    {"seats": {"$empty": True}},
    {"place": {"$empty": True}},
    {"id": {"$empty": False}},
    {"id": {"$prefix": "d1"}},
    {"document_id": {"$iprefix": "D2"}},
    {"name": None},
    {"name": {"$ne": None}},
    {"place": None},
    {"place": {"$exists": True}},
    {"tags": {"$in": [None, "wifi"]}},
    {"tags": {"$nin": [None, "wifi"]}},
    {"place": {"$geo_radius": {"lat": 52.5, "lon": 13.4, "radius_m": 0}}},
    {"place": {"$geo_radius": {"lat": 52.5, "lon": 13.4, "radius_m": 5000}}},
    {"place": {"$geo_radius": {"lat": -17.7, "lon": 180, "radius_m": 20_000}}},
    {"place": {"$geo_radius": {"lat": 0, "lon": 0, "radius_m": 20_100_000}}},
    {"place": {"$not": {"$geo_box": {"south": 0, "west": 0, "north": 60, "east": 20}}}},
    {"place": {"$geo_box": {"south": -20, "west": 179, "north": 0, "east": -179}}},
    {"$or": [{"tags": {"$contains": "wifi"}}, {"name": {"$prefix": "Bar"}}], "seats": {"$lt": 20}},
]


def values(number: int) -> dict[str, Any]:
    return {
        "name": NAMES[number % len(NAMES)],
        "tags": TAGS[number % len(TAGS)],
        "seats": number,
        "place": PLACES[number % len(PLACES)],
    }


def vector(number: int) -> list[float]:
    return [1.0, number / 100, (number % 7) / 7]


def written(place: dict[str, float] | None, number: int) -> Any:
    """Return a place in one of the ways that it may be written in."""
    if place is None:
        return None
    lat, lon = place["lat"], place["lon"]
    return [
        place,
        f"{lat},{lon}",
        {"latitude": lat, "lng": lon},
        {"type": "Point", "coordinates": [lon, lat]},
    ][number % 4]


def given(attributes: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return attributes as they are written, without nulls, which dynamic ones keep."""
    own = {**attributes, "place": written(attributes["place"], number)}
    return {name: value for name, value in own.items() if value is not None}


def row(name: str, attributes: Mapping[str, Any]) -> Row:
    present = {key: value for key, value in attributes.items() if value is not None}
    return Row(name, name, (), None, None, present, None, None)


ROWS = {f"d{number}": values(number) for number in range(60)}


def check(index: Index, rows: dict[str, dict[str, Any]]) -> None:
    """Compare all filters, and the attributes that come back, with what was written."""
    wanted = {name: row(name, attributes) for name, attributes in rows.items()}
    for where in FILTERS:
        hits = index.search([1.0, 0.1, 0.2], k=200, where=where)
        expected = {name for name, one in wanted.items() if matches(one, where)}
        assert {hit.id for hit in hits} == expected, where
        assert {hit.id: hit.attributes for hit in hits} == {
            name: wanted[name].attributes for name in expected
        }
    points = index.get(list(wanted))
    assert {point.id: point.attributes for point in points if point} == {
        name: one.attributes for name, one in wanted.items()
    }


def check_anew(store: Store, rows: dict[str, dict[str, Any]]) -> None:
    """Compare as `check`, by a client that opens the current version."""
    with scannery.connect(store.uri) as client:
        check(client.index("cafes"), rows)


@pytest.fixture(params=["declared", "dynamic"])
def kind(request: pytest.FixtureRequest) -> str:
    """Whether the strings and lists are declared in the spec; places always are."""
    return str(request.param)


@pytest.fixture
def store(tmp_path: Path, kind: str) -> Store:
    records = [
        {"id": name, "vector": vector(number)} | given(own, number)
        for number, (name, own) in enumerate(ROWS.items())
    ]
    spec = SPEC if kind == "declared" else SPEC | {"attributes": {"place": "geo"}, "dynamic": True}
    path = tmp_path / "cafes.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    store = Store.open(tmp_path / "store", create=True)
    report = build(spec, [str(path)], store.uri)
    assert report.passages == 60
    return store


@pytest.fixture
def index(store: Store) -> Iterator[Index]:
    with scannery.connect(store.uri) as client:
        yield client.index("cafes")


def test_filters_hold_from_build_to_rollback(index: Index, store: Store) -> None:
    rows: dict[str, Any] = dict(ROWS)
    check(index, rows)
    changed = {f"d{number}": values(number + 3) for number in range(50, 70)}
    points: list[Any] = [
        {"id": name, "vector": vector(number), "attributes": given(own, number)}
        for number, (name, own) in enumerate(changed.items())
    ]
    index.upsert(points)
    index.update([
        {"id": "d1", "attributes": {"place": "52.5,13.4", "tags": ["wifi", "vegan"]}},
        {"id": "d0", "attributes": {"place": None}},
    ])  # fmt: skip
    index.delete(["d2"])
    rows |= changed
    rows["d1"] = {**rows["d1"], "place": {"lat": 52.5, "lon": 13.4}, "tags": ["wifi", "vegan"]}
    rows["d0"] = {**rows["d0"], "place": None}
    del rows["d2"]
    check(index, rows)
    seal(store, "cafes")
    check_anew(store, rows)
    index.update([{"id": "d3", "attributes": {"place": {"lat": 1, "lng": 2}}}])
    rows["d3"] = {**rows["d3"], "place": {"lat": 1.0, "lon": 2.0}}
    check(index, rows)
    seal(store, "cafes")
    assert merge(store, "cafes")
    while merge(store, "cafes"):
        pass
    check(index, rows)
    check_anew(store, rows)
    assert not verify(store, "cafes").problems
    rollback(store, "cafes", 1)
    check_anew(store, ROWS)


@pytest.mark.parametrize("http", [False, True])
def test_servers_answer_as_embedded(store: Store, http: bool) -> None:
    with serving(Path(store.uri.removeprefix("file://")), http="auto") as server:
        target = f"http://127.0.0.1:{server.http_port}" if http else server.address
        with scannery.connect(target, timeout_s=30) as client:
            index = client.index("cafes")
            assert index.stats().attributes["place"] == "geo"
            check(index, ROWS)
            index.upsert([{"id": "new", "vector": vector(1), "attributes": {"place": "1,2", "name": "x"}}])
            check(index, {**ROWS, "new": {"place": {"lat": 1.0, "lon": 2.0}, "name": "x"}})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"lat": 91, "lon": 0}, "lat must be -90 to 90 degrees"),
        ({"lat": 1}, "it has no lon"),
        ("somewhere", "a text is 'latitude,longitude'"),
        (7, "must be a place"),
        (["52.5", "13.4"], "a list may be latitude or longitude first"),
    ],
)
def test_a_wrong_place_is_named(index: Index, place: Any, message: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        index.upsert([{"id": "x", "vector": vector(0), "attributes": {"place": place}}])
    assert caught.value.field == "upserts[0].datapoint.attributes.place"
    assert message in caught.value.message


@pytest.mark.parametrize("kind", ["dynamic"], indirect=True)
def test_what_has_no_value_is_empty(index: Index) -> None:
    without: dict[str, Any] = {
        "none": {},
        "null": {"mixed": None},
        "list": {"mixed": []},
        "nulls": {"mixed": [None]},
    }
    with_one: dict[str, Any] = {
        "": {"mixed": ""},
        "zero": {"mixed": [0]},
        "no": {"mixed": False},
        "{}": {"mixed": {}},
    }
    index.delete(where={"seats": {"$exists": True}})
    index.upsert([
        {"id": f"m{name}", "vector": vector(0), "attributes": own} for name, own in (without | with_one).items()
    ])  # fmt: skip
    for where, names in ((True, without), (False, with_one)):
        hits = index.search(vector(0), k=200, where={"mixed": {"$empty": where}})
        assert {hit.id for hit in hits} == {f"m{name}" for name in names}
    assert index.count({"unseen": {"$empty": True}}) == len(without) + len(with_one)


@pytest.mark.parametrize("kind", ["dynamic"], indirect=True)
def test_lists_are_told_from_values_where_both_may_be(index: Index) -> None:
    index.upsert([
        {"id": "one", "vector": vector(0), "attributes": {"mixed": "Wifi"}},
        {"id": "some", "vector": vector(0), "attributes": {"mixed": ["Wifi", 1, 2.0, True]}},
        {"id": "nested", "vector": vector(0), "attributes": {"mixed": [["Wifi"], 1]}},
        {"id": "number", "vector": vector(0), "attributes": {"mixed": 1}},
    ])  # fmt: skip
    expected: list[tuple[dict[str, Any], set[str]]] = [
        ({"$contains": "Wifi"}, {"some"}),
        ({"$contains": 1.0}, {"some"}),
        ({"$contains": True}, {"some"}),
        ({"$contains": "wifi"}, set()),
        ({"$all": [2, "Wifi", True]}, {"some"}),
        ({"$all": [2, "Wifi", False]}, set()),
        ({"$prefix": "Wi"}, {"one", "some"}),
        ({"$ieq": "WIFI"}, {"one", "some"}),
        ({"$iprefix": ""}, {"one", "some"}),
        ({"$substring": "fi"}, {"one", "some"}),
        ({"$isubstring": "IF"}, {"one", "some"}),
        ({"$empty": False}, {"one", "some", "nested", "number"}),
    ]
    for where, names in expected:
        assert {hit.id for hit in index.search(vector(0), k=200, where={"mixed": where})} == names, where
        assert not index.search(vector(0), where={"unseen": where})
    with pytest.raises(scannery.InvalidArgumentError, match="only a declared attribute of type geo"):
        index.search(vector(0), where={"mixed": {"$geo_radius": {"lat": 1, "lon": 2, "radius_m": 3}}})


def test_places_make_no_groups(index: Index) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="places make no groups"):
        index.search(vector(0), max_per_group=1, group_by="place")


def test_places_are_rows_of_tables(index: Index) -> None:
    table = index.search(vector(0), k=10, where={"place": {"$ne": None}}).to_arrow()
    assert pa.types.is_struct(table.column("place").type)
    index.upsert(
        pa.table({"id": ["t"], "vector": [vector(3)], "attributes": [{"place": {"lat": 3.0, "lon": 4.0}}]})
    )
    [point] = index.get(["t"])
    assert point is not None
    assert point.attributes == {"place": {"lat": 3.0, "lon": 4.0}}


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_what_is_exported_is_built_again(store: Store, tmp_path: Path, format: str) -> None:
    report = export("cafes", store.uri, tmp_path / f"out.{format}")
    assert report.spec is not None
    again = Store.open(tmp_path / "again", create=True)
    build(report.spec, [str(tmp_path / f"out.{format}")], again.uri)
    with scannery.connect(again.uri) as client:
        check(client.index("cafes"), ROWS)


def test_tables_and_cells_have_places(tmp_path: Path) -> None:
    own = {name: one for name, one in ROWS.items() if one["place"]}
    struct = pa.array([{"lon": one["place"]["lon"], "lat": one["place"]["lat"]} for one in own.values()])
    vectors = [vector(number) for number in range(len(own))]
    pq.write_table(pa.table({"id": list(own), "vector": vectors, "place": struct}), tmp_path / "a.parquet")
    with (tmp_path / "b.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "vector", "lat", "lon"])
        rows.writerows(
            [name, json.dumps(one), place["place"]["lat"], place["place"]["lon"]]
            for (name, place), one in zip(own.items(), vectors, strict=True)
        )
        rows.writerow(["none", json.dumps(vectors[0]), "", ""])
    places = {name: one["place"] for name, one in own.items()}
    cells = {"type": "geo", "from": "{lat},{lon}"}
    for file_name, kind, more in (("a.parquet", "geo", {}), ("b.csv", cells, {"none": None})):
        store = Store.open(tmp_path / file_name.partition(".")[0], create=True)
        report = build(SPEC | {"attributes": {"place": kind}}, [str(tmp_path / file_name)], store.uri)
        assert report.passages == len(places | more)
        with scannery.connect(store.uri) as client:
            found = client.index("cafes").get(list(places | more))
        assert {point.id: point.attributes.get("place") for point in found if point} == places | more


def test_bad_places_of_a_build_are_dead_letters(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    lines = [
        {"id": f"d{n}", "vector": vector(n), "place": [13.4, 52.5] if n == 1 else "1,2"} for n in range(5)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = Store.open(tmp_path / "store", create=True)
    report = build(SPEC | {"source": {"vector": "vector", "max_errors": 1}}, [str(path)], store.uri)
    assert (report.passages, report.dead) == (4, 1)


@pytest.mark.parametrize("kind", ["declared"], indirect=True)
def test_a_later_build_changes_places(store: Store, tmp_path: Path) -> None:
    rows = ROWS | {
        "d1": {**ROWS["d1"], "place": {"lat": -1.0, "lon": 5.0}},
        "d0": {**ROWS["d0"], "place": None},
    }
    records = [
        {"id": name, "vector": vector(int(name[1:]))} | given(rows[name], 0)
        for name in ("d0", "d1", "d3", "d4")
    ]
    path = tmp_path / "later.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    build(SPEC, [str(path)], store.uri, mode="upsert")
    check_anew(store, rows)


def test_duckdb_reads_places_of_a_segment(store: Store) -> None:
    entries = read_manifest(store, "cafes").segments
    root = Path(store.uri.removeprefix("file://"))
    files = [str(root / segment_key("cafes", entry.key)) for entry in entries]
    found = duckdb.execute(
        "select id, place.lat, place.lon from read_parquet(?) where place.lat > 52", [files]
    ).fetchall()
    expected = {
        (name, one["place"]["lat"], one["place"]["lon"])
        for name, one in ROWS.items()
        if one["place"] and one["place"]["lat"] > 52
    }
    assert {*found} == expected
    [metadata] = {pq.ParquetFile(file).schema.to_arrow_schema().field("place").type for file in files}
    assert metadata == pa.struct([("lat", pa.float64()), ("lon", pa.float64())])
