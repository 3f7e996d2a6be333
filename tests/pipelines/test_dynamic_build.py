"""Builds of an index with dynamic attributes: fields that the spec does not name are kept, exactly and filterable."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyarrow import feather

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal
from scannery.pipelines import PipelineError, compact, export
from tests.pipelines.conftest import DIMENSIONS, Write, letters_of, run, vector_records

pytestmark = pytest.mark.system

SPEC: dict[str, Any] = {
    "index": "vectors",
    "source": {"vector": "vector"},
    "attributes": {"show": "string"},
    "dynamic": True,
}
VALUES: list[Any] = [
    1, "1", 1.0, True, None, [1, "a", None], {"deep": [1, 1.0, None]}, 2**62 + 1, "é\"\\\n", [], 0.1, [[1], 2]
]  # fmt: skip


def records(count: int = 24) -> list[dict[str, Any]]:
    return [
        {**record, "x": VALUES[i % len(VALUES)], **({"odd": i} if i % 2 else {}), "language": f"t{i}"}
        for i, record in enumerate(vector_records(0, count))
    ]


def wanted(given: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kept = ("id", "vector")
    return {
        record["id"]: {name: value for name, value in record.items() if name not in kept} for record in given
    }


def check(store: Store, rows: dict[str, dict[str, Any]], index: str = "vectors") -> None:
    with scannery.connect(str(store.uri)) as client:
        opened = client.index(index)
        got = {point.id: point.attributes for point in opened.get(list(rows)) if point is not None}
        assert json.dumps(got, sort_keys=True) == json.dumps(rows, sort_keys=True)
        assert opened.stats().rows + opened.stats().memory_rows >= len(rows)

        def found(where: Any) -> set[str]:
            return {hit.id for hit in opened.search(np.ones(DIMENSIONS), 1000, where=where, exact=True)}

        def having(test: Any) -> set[str]:
            return {name for name, row in rows.items() if test(row)}

        assert found({"x": "1"}) == having(lambda row: row.get("x") == "1")
        assert found({"x": 1}) == having(
            lambda row: row.get("x") in (1, [1, "a", None]) and row["x"] is not True
        )
        assert found({"x": 2**62 + 1}) == having(lambda row: row.get("x") == 2**62 + 1)
        assert found({"odd": {"$gte": 5.5}}) == having(lambda row: row.get("odd", 0) > 5)
        assert found({"odd": {"$exists": False}, "show": "s1"}) == having(
            lambda row: "odd" not in row and row["show"] == "s1"
        )
        assert found({"language": "t3"}) == having(lambda row: row.get("language") == "t3")


def test_fields_that_the_spec_does_not_name_become_attributes(store: Store, write: Write) -> None:
    given = records()
    report = run(store, write("a.jsonl", given), spec=SPEC)
    assert (report.passages, report.dead_letters, report.ignored, report.unused_fields) == (24, {}, {}, [])
    check(store, wanted(given))
    assert run(store, write("a.jsonl", given), spec=SPEC).up_to_date


def test_only_what_changed_is_written_by_an_update(store: Store, write: Write) -> None:
    given = records()
    run(store, write("a.jsonl", given), spec=SPEC)
    given[3]["x"] = "changed"
    del given[4]["language"]
    run(store, write("a.jsonl", given), spec=SPEC)
    check(store, wanted(given))
    compact("vectors", store.uri)
    check(store, wanted(given))


def test_an_index_becomes_dynamic(store: Store, write: Write) -> None:
    given = records()
    path = write("a.jsonl", given)
    run(store, path, spec={**SPEC, "dynamic": False})
    run(store, path, spec=SPEC)
    check(store, wanted(given))


def test_live_rows_and_rows_of_a_build_are_alike(store: Store, write: Write) -> None:
    given = records()
    run(store, write("a.jsonl", given[:12]), spec=SPEC)
    with scannery.connect(str(store.uri)) as client:
        newer: Any = given[12:]
        client.index("vectors").upsert(newer)
    check(store, wanted(given))
    seal(store, "vectors")
    check(store, wanted(given))
    merge(store, "vectors")
    run(store, write("b.jsonl", vector_records(90, 91)), spec=SPEC)
    compact("vectors", store.uri)
    check(store, wanted(given))


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_exports_are_built_and_written_again(store: Store, write: Write, tmp_path: Path, format: str) -> None:
    given = records()
    run(store, write("a.jsonl", given), spec=SPEC)
    export("vectors", store.uri, tmp_path / "out", format=format)
    again = Store.open(tmp_path / "again", create=True)
    run(again, str(tmp_path / "out"), spec=yaml.safe_load((tmp_path / "out" / "_spec.yaml").read_text()))
    check(again, wanted(given))
    with scannery.connect(str(again.uri)) as client:
        index = client.create_index({**SPEC, "index": "copy"}, dimensions=DIMENSIONS)
        rows = exported_rows(tmp_path / "out", format)
        index.upsert(rows)
    check(again, wanted(given), "copy")


def exported_rows(folder: Path, format: str) -> Any:
    if format == "parquet":
        return pq.read_table(next(folder.glob("part-*")))
    return [json.loads(line) for path in folder.glob("part-*") for line in path.read_text().splitlines()]


def test_bad_values_are_dead_letters(store: Store, write: Write) -> None:
    given = records(4)
    given[0]["x"] = 2**63
    given[1]["$bad"] = 1
    given[2] = {**given[2], **{f"n{i}": i for i in range(257)}}
    report = run(store, write("a.jsonl", given), spec=SPEC)
    assert report.passages == 1
    assert [letter.field for letter in letters_of(store, report)] == ["x", "$bad", "_dynamic"]
    check(store, wanted(given[3:]))


def test_columns_keep_their_types(store: Store, tmp_path: Path) -> None:
    moment = dt.datetime(2024, 5, 1, 12, 30, tzinfo=dt.timezone.utc)
    vectors = np.random.default_rng(0).normal(size=(3, DIMENSIONS)).astype(np.float32)
    table = pa.table({
        "id": ["a", "b", "c"],
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), DIMENSIONS),
        "int": pa.array([1, None, 3], pa.int32()),
        "float": pa.array([1.0, float("nan"), None]),
        "bool": [True, False, None],
        "words": [["x", "y"], [], None],
        "when": pa.array([moment, None, moment]),
        "nested": [{"k": 1}, None, {"k": 2}],
        "document_id": [None, None, None],
    })  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    report = run(store, str(tmp_path / "a.parquet"), spec=SPEC)
    assert (report.passages, report.dead_letters) == (3, {})
    text = "2024-05-01T12:30:00+00:00"
    with scannery.connect(str(store.uri)) as client:
        points = client.index("vectors").get(["a", "b", "c"])
        assert [point.attributes for point in points if point is not None] == [
            {"int": 1, "float": 1.0, "bool": True, "words": ["x", "y"], "when": text, "nested": {"k": 1}},
            {"bool": False, "words": []},
            {"int": 3, "when": text, "nested": {"k": 2}},
        ]
        hits = client.index("vectors").search(np.ones(DIMENSIONS), where={"when": {"$lte": moment}})
        assert {hit.id for hit in hits} == {"a", "c"}


def test_cells_of_csv_are_strings(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,vector, n ,empty\na,"[1,0,0,0,0,0,0,1]",7,\n')
    run(store, str(tmp_path / "a.csv"), spec=SPEC)
    with scannery.connect(str(store.uri)) as client:
        assert client.index("vectors").get(["a"])[0].attributes == {"n": "7"}  # type: ignore[union-attr]


def test_records_of_the_managed_service_keep_undeclared_namespaces(store: Store, write: Write) -> None:
    record = {
        "id": "a",
        "embedding": [1.0] * DIMENSIONS,
        "restricts": [{"namespace": "color", "allow": ["red", "blue"], "deny": ["green"]},
         {"namespace": "show", "allow": ["s"]}],
        "numeric_restricts": [{"namespace": "size", "value_int": 3}, {"namespace": "cost", "value_float": 3.0}],
        "crowding_tag": "tag",
        "more": {"x": 1},
    }  # fmt: skip
    path = write("a.json", [record])
    run(store, path, spec={**SPEC, "source": {"format": "managed"}})
    with scannery.connect(str(store.uri)) as client:
        assert client.index("vectors").get(["a"])[0].attributes == {  # type: ignore[union-attr]
            "show": "s", "color": ["red", "blue"], "color_deny": ["green"], "size": 3, "cost": 3.0,
            "crowding_tag": "tag", "more": {"x": 1},
        }  # fmt: skip


def _written(path: Path, format: str, column: pa.Array) -> None:
    """Write a file of three rows with a column `x`."""
    table = pa.table({"id": ["a", "b", "c"], "vector": [[1.0] * DIMENSIONS] * 3, "x": column})
    if format == "parquet":
        pq.write_table(table, path)
    elif format == "arrow":
        feather.write_feather(table, str(path))
    else:
        vectors = {"type": "array", "items": "double"}
        fields = [{"name": "id", "type": "string"}, {"name": "vector", "type": vectors}]
        schema = {"type": "record", "name": "r", "fields": [*fields, {"name": "x", "type": "bytes"}]}
        with path.open("wb") as file:
            fastavro.writer(file, fastavro.parse_schema(schema), table.to_pylist())


BYTES: list[bytes] = [b"one", b"two", b"three"]
WITHOUT_JSON = {
    "bytes": pa.array(BYTES),
    "bytes in structs": pa.array([{"bytes": each, "path": "a.png"} for each in BYTES]),
    "lists of bytes": pa.array([[each] for each in BYTES]),
    "dictionary of bytes": pa.array(BYTES).dictionary_encode(),
}


@pytest.mark.parametrize("kind", WITHOUT_JSON)
@pytest.mark.parametrize("format", ["parquet", "arrow", "avro"])
def test_bytes_do_not_vanish(store: Store, tmp_path: Path, format: str, kind: str) -> None:
    if format == "avro" and kind != "bytes":
        pytest.skip("its bytes are read as values, whatever they are in")
    _written(path := tmp_path / f"a.{format}", format, WITHOUT_JSON[kind])
    with pytest.raises(PipelineError, match=r"x: .*(no form in JSON|have no form in JSON).*declare a"):
        run(store, str(path), spec=SPEC)
    # What the message says to do.
    if kind != "bytes":
        return
    declared = {**SPEC, "attributes": {"x": "string"}}
    assert run(store, str(path), spec=declared).passages == 3
    with scannery.connect(str(store.uri)) as client:
        index = client.index("vectors")
        assert [point and point.attributes for point in index.get(["a"])] == [{"x": "one"}]
        with pytest.raises(scannery.InvalidArgumentError, match=r"attributes\.y"):
            index.upsert([{"id": "d", "vector": [1.0] * DIMENSIONS, "attributes": {"y": b"one"}}])


def test_columns_of_bytes_that_are_no_attributes_are_left_out(store: Store, tmp_path: Path) -> None:
    _written(path := tmp_path / "a.parquet", "parquet", WITHOUT_JSON["bytes"])
    assert run(store, str(path), spec={**SPEC, "dynamic": False}).passages == 3
    # One that is called like an attribute which comes from elsewhere.
    other = {**SPEC, "attributes": {"x": {"type": "string", "from": "id"}}}
    assert run(store, str(path), spec=other, mode="full").passages == 3
