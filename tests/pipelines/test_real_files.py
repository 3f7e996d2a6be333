"""Files as spreadsheets, databases, pandas and web services write them go in as they are, with a spec alone."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import Store, load_spec, open_index
from scannery.pipelines import BuildReport, export
from tests.pipelines.conftest import letters_of, run

pytestmark = pytest.mark.system

UTC = dt.timezone.utc


def index_of(store: Store, name: str, *columns: str) -> dict[str, dict[str, Any]]:
    """Return some columns of all datapoints, by id."""
    rows: dict[str, dict[str, Any]] = {}
    for segment, rows_R in open_index(store, name).live_rows():
        rows |= {row.pop("id"): row for row in segment.take(rows_R, ["id", *columns]).to_pylist()}
    return rows


def build(store: Store, path: Path, source: dict[str, Any], attributes: dict[str, Any]) -> BuildReport:
    spec = {"index": "own", "source": {"vector": "vector"} | source, "attributes": attributes}
    return run(store, str(path), spec=spec)


def test_a_german_spreadsheet(store, tmp_path):
    path = tmp_path / "Artikel.csv"
    lines = ["Lagerliste 2024;;;;;;", "Nr.;Bezeichnung;Preis (€);Bestand;Aktiv;Datum;Vektor",
             "1;Bürste, groß;1.234,50;7,0;1;03.02.2024;[1, 2]", "2;Käse;0,99;;0;;[2, 1]",
             "3;;zwölf;viele;kaum;32.1.2024;[1, 1]"]  # fmt: skip
    path.write_bytes("\r\n".join(lines).encode("cp1252"))
    own = {"type": "float", "from": "Preis (€)", "decimal": ","}
    attributes = {
        "price": own,
        "stock": own | {"type": "int", "from": "Bestand"},
        "active": {"type": "bool", "from": "Aktiv"},
        "day": {"type": "timestamp", "from": "Datum", "format": "%d.%m.%Y"},
    }
    report = build(store, path, {"id": "Nr.", "text": "Bezeichnung", "vector": "Vektor"}, attributes)
    assert index_of(store, "own", "text", *attributes) == {
        "1": {"text": "Bürste, groß", "price": 1234.5, "stock": 7, "active": True,
              "day": dt.datetime(2024, 2, 3, tzinfo=UTC)},
        "2": {"text": "Käse", "price": 0.99, "stock": None, "active": False, "day": None},
    }  # fmt: skip
    (letter,) = letters_of(store, report)
    assert (letter.line, letter.id, letter.field) == (5, "3", "Preis (€)")
    for part in ["Preis (€): must be a number with `,`", "Bestand: must be a number", "Aktiv: must be true or false",
                 "Datum: must be written as %d.%m.%Y, got '32.1.2024'"]:  # fmt: skip
        assert part in letter.message
    assert report.converted == {
        "active: a word or number as true or false": 2,
        "CSV: text that is not UTF-8 as cp1252": 3,
    }


def test_a_web_service_answers_with_an_object_around_the_records(store, tmp_path):
    path = tmp_path / "answer.json"
    items = [
        {"meta": {"id": n, "author": {"name": f"A{n}"}}, "title": f"T{n}", "body": {"html": "x", "text": f"text {n}"},
         "tags": [{"name": "red"}, {"name": "blue"}], "score": float(n), "at": 1_709_424_000_000 + n, "v": [n, 1]}
        for n in (1, 2)
    ]  # fmt: skip
    path.write_text(json.dumps({"total": 2, "data": {"items": items}}, indent=1))
    attributes = {
        "author": {"type": "string", "from": "meta.author.name"},
        "tags": {"type": "string_list", "from": "tags.name"},
        "score": "int",
        "at": "timestamp",
        "kind": {"type": "string", "value": "post"},
    }
    source = {
        "records": "data.items",
        "id": "meta.id",
        "text": "{title}: {body.text}",
        "payload": "body",
        "vector": "v",
    }
    report = build(store, path, source, attributes)
    assert index_of(store, "own", "text", "payload", *attributes)["1"] == {
        "text": "T1: text 1", "payload": '{"html":"x","text":"text 1"}', "author": "A1", "tags": ["red", "blue"],
        "score": 1, "at": dt.datetime(2024, 3, 3, 0, 0, 0, 1000, tzinfo=UTC), "kind": "post",
    }  # fmt: skip
    assert report.converted == {
        "at: a number as milliseconds since 1970": 2,
        "score: a whole number with decimals (such as 7.0) as an integer": 2,
    }


def test_an_export_has_the_attributes_under_their_own_names(store, tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id;Price (USD);vector\n1;1,5;[1, 2]\n")
    build(store, path, {}, {"price": {"type": "float", "from": "Price (USD)", "decimal": ","}})
    export("own", store.uri, tmp_path / "out")
    spec = load_spec(tmp_path / "out" / "_spec.yaml")
    assert (spec.attributes, spec.attribute_specs) == ({"price": "float"}, {})


def test_the_records_inside_an_object_are_pointed_to(store, tmp_path):
    path = tmp_path / "answer.json"
    path.write_text(json.dumps({"total": 1, "items": [{"id": 1, "vector": [1, 2]}]}))
    (tmp_path / "good.json").write_text('[{"id": 1, "vector": [1, 2]}]')
    report = build(store, tmp_path, {}, {})
    (letter,) = letters_of(store, report)
    assert letter.message.endswith(
        "Its `items` is a list of 1 objects: if these are the records, set `source.records: items`"
    )


def test_a_database_writes_parquet(store, tmp_path):
    path = tmp_path / "table.parquet"
    table = pa.table({
        "id": pa.array([1, 2]),
        "vector": pa.array([[1.0, 2.0], [2.0, 1.0]]),
        "cost": pa.array([Decimal("1.50"), None], pa.decimal128(38, 9)),
        "count": pa.array([Decimal(7), Decimal(8)], pa.decimal128(20, 0)),
        "day": pa.array([dt.date(2024, 3, 3), None]),
        "seen": pa.array([1_709_424_000_000_000_001, None], pa.timestamp("ns")),
        "at": pa.array([dt.datetime(2024, 3, 3, 1), None], pa.timestamp("s", tz="Europe/Berlin")),
        "open": pa.array([dt.time(9, 30), None], pa.time64("us")),
        "show": pa.array(["a", None]).dictionary_encode(),
        "flag": pa.array([1, 0], pa.int8()),
        "tags": pa.array([["x"], None], pa.large_list(pa.large_string())),
        "meta": pa.array([{"name": "n", "price": Decimal("2.5"), "day": dt.date(2024, 3, 3)}, None]),
    })  # fmt: skip
    pq.write_table(table, path)
    attributes: dict[str, Any] = {
        "cost": "float", "count": "int", "day": "timestamp", "seen": "timestamp", "at": "timestamp", "open": "string",
        "show": "string", "flag": "bool", "tags": "string_list", "name": {"type": "string", "from": "meta.name"},
        "price": {"type": "float", "from": "meta.price"},
    }  # fmt: skip
    report = build(store, path, {"payload": "meta"}, attributes)
    assert report.dead_letters == {}
    rows = index_of(store, "own", *attributes, "payload")
    day = dt.datetime(2024, 3, 3, tzinfo=UTC)
    assert rows["1"] == {
        "cost": 1.5, "count": 7, "day": day, "seen": day, "at": day.replace(hour=1), "open": "09:30:00", "show": "a",
        "flag": True, "tags": ["x"], "name": "n", "price": 2.5,
        "payload": '{"name":"n","price":2.5,"day":"2024-03-03"}',
    }  # fmt: skip
    assert {value for key, value in rows["2"].items() if key not in ("count", "flag")} == {None}
    assert report.converted == {"flag: 1 or 0 as true or false": 2}


def test_a_pipeline_writes_avro(store, tmp_path):
    path = tmp_path / "table.avro"
    day = dt.datetime(2024, 3, 3, tzinfo=UTC)
    inner = {"type": "record", "name": "m", "fields": [{"name": "name", "type": "string"}]}
    types: dict[str, Any] = {
        "id": "double",
        "vector": {"type": "array", "items": "float"},
        "cost": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2},
        "day": {"type": "int", "logicalType": "date"},
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "meta": inner,
    }
    fields = [{"name": name, "type": types[name]} for name in types]
    schema = {"type": "record", "name": "r", "fields": fields}
    values = (1.0, [1.0, 2.0], Decimal("1.50"), day.date(), day, {"name": "n"})
    with path.open("wb") as file:
        fastavro.writer(file, schema, [dict(zip(types, values, strict=True))])
    attributes: dict[str, Any] = {"cost": "float", "day": "timestamp", "at": "timestamp"}
    attributes["name"] = {"type": "string", "from": "meta.name"}
    report = build(store, path, {}, attributes)
    assert index_of(store, "own", *attributes) == {"1": {"cost": 1.5, "day": day, "at": day, "name": "n"}}
    assert report.converted == {"id: a whole number with decimals (such as 7.0) as an id": 1}


@pytest.mark.filterwarnings("ignore:'epoch' date format is deprecated")
@pytest.mark.parametrize("ending", ["csv", "json", "jsonl", "parquet"])
def test_pandas_writes_what_it_reads(store, tmp_path, ending):
    frame = pd.DataFrame({
        "id": [1, 2], "vector": [[1.0, 2.0], [2.0, 1.0]], "n": [7, None], "flag": [True, False],
        "tags": [["a", "b c"], ["d"]], "at": pd.to_datetime(["2024-03-03", None], utc=True),
    })  # fmt: skip
    path = tmp_path / f"frame.{ending}"
    if ending == "csv":
        frame.to_csv(path, index=False)
    elif ending == "parquet":
        frame.to_parquet(path)
    else:
        form = "iso" if ending == "json" else "epoch"
        frame.to_json(path, orient="records", lines=ending == "jsonl", date_format=form, date_unit="ms")
    kinds = {"n": "int", "flag": "bool", "tags": "string_list", "at": "timestamp"}
    report = build(store, path, {}, kinds)
    assert report.dead_letters == {}
    assert index_of(store, "own", *kinds) == {
        "1": {"n": 7, "flag": True, "tags": ["a", "b c"], "at": dt.datetime(2024, 3, 3, tzinfo=UTC)},
        "2": {"n": None, "flag": False, "tags": ["d"], "at": None},
    }


def test_a_table_of_mysql_with_prices_and_dates_of_zeros(store, tmp_path):
    path = tmp_path / "shop.csv"
    path.write_text(
        'sku,name,price,sold,v\n1,"the \\"big\\" one",\\N,0000-00-00,"[1, 2]"\n'
        '2,"two\\\nlines","€ 1.234,50",2024-03-02,"[2, 1]"\n3,three,"€ 1.234",2024-03-02,"[1, 1]"\n'
    )
    attributes = {"price": "float", "sold": "timestamp"}
    report = build(store, path, {"id": "sku", "text": "name", "vector": "v"}, attributes)
    assert index_of(store, "own", "text", *attributes) == {
        "1": {"text": 'the "big" one', "price": None, "sold": None},
        "2": {"text": "two\nlines", "price": 1234.5, "sold": dt.datetime(2024, 3, 2, tzinfo=UTC)},
    }
    assert report.converted == {
        "price: a price in € as a number": 1,
        "sold: a date of zeros (such as 0000-00-00) as no value": 1,
    }
    (letter,) = letters_of(store, report)
    assert (letter.line, letter.field) == (5, "price")
    assert "it can be 1234 or 1.234; say what the decimal mark is" in letter.message


def test_a_broken_element_of_a_list_and_a_link_cost_themselves_only(store, tmp_path):
    folder, outside = tmp_path / "in", tmp_path / "secret.jsonl"
    folder.mkdir()
    (folder / "list.json").write_text(
        '[{"id": 1, "v": [1, 2]}, {"id": 2, "v": [1, }, {"id": 3, "v": [2, 1]}]'
    )
    outside.write_text('{"id": "secret", "v": [1, 2]}\n')
    (folder / "link.jsonl").symlink_to(outside)
    report = build(store, folder, {"vector": "v"}, {})
    assert set(index_of(store, "own")) == {"1", "3"}
    assert report.dead_letters == {"malformed": 1, "unreadable_file": 1}
    assert "list.json, row 2: not JSON" in report.dead_letter_examples["malformed"]
