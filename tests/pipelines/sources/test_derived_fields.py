"""Fields of folders, numbered columns and made ids, in every format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.indexer import Store
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.versions.versions import read_manifest
from scannery.pipelines import build
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file

ROWS: list[dict[str, Any]] = [{"text": f"bees and owls {row}", "n": row} for row in range(6)]


def write_csv(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def write_avro(path: Path, rows: list[dict[str, Any]]) -> None:
    kinds = {str: "string", int: "long", float: "double"}
    fields = [{"name": name, "type": kinds[type(value)]} for name, value in rows[0].items()]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "row", "fields": fields}, rows)


WRITERS: dict[str, Callable[[Path, list[dict[str, Any]]], object]] = {
    "csv": write_csv,
    "jsonl": lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    "json": lambda path, rows: path.write_text(json.dumps(rows)),
    "parquet": lambda path, rows: pq.write_table(pa.Table.from_pylist(rows), path),
    "avro": write_avro,
}
FIRST = {"csv": 2, "jsonl": 1, "json": 1, "parquet": 1, "avro": 1}
"""Number of the first record, as dead letters have it."""


def records_of(inputs: list[Path], limit: int = 1 << 20, **source: Any) -> list[Record]:
    spec = parse_spec(
        {"index": "a", "source": source, "vectors": "optional", "attributes": {"lang": "string"}}
    )
    files = arrange(find_files([str(path) for path in inputs]), spec.source)
    parts = [part for file in files for part in split_file(file, limit)]
    items = [item for part in parts for item in read_part(part, Fields.of(spec))]
    assert all(isinstance(item, Record) for item in items), items
    return [item for item in items if isinstance(item, Record)]


def ids_of(inputs: list[Path], limit: int = 1 << 20, **source: Any) -> list[str]:
    return [record.fields["_id"] for record in records_of(inputs, limit, **source)]


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("limit", [1 << 20, 40])
def test_ids_of_rows_have_file_and_number(tmp_path: Path, format: str, limit: int):
    (tmp_path / "data" / "b").mkdir(parents=True)
    for name in ("a", "b/a"):
        WRITERS[format](tmp_path / "data" / f"{name}.{format}", ROWS)
    found = ids_of([tmp_path / "data"], limit, id={"from": "row"}, text="text")
    numbers = range(FIRST[format], FIRST[format] + len(ROWS))
    assert found == [f"{name}.{format}:{number}" for name in ("a", "b/a") for number in numbers]


@pytest.mark.system
@pytest.mark.parametrize("format", WRITERS)
def test_ids_of_content_depend_on_the_content_alone(tmp_path: Path, format: str):
    path = tmp_path / f"a.{format}"
    ids = {}
    for name, rows in {
        "first": ROWS,
        "other order": ROWS[::-1],
        "one more": [*ROWS[:3], {"text": "new", "n": 7}, *ROWS[3:]],
        "other order of columns": [{"n": row["n"], "text": row["text"]} for row in ROWS],
        "changed": [{**row, "n": row["n"] + 10 * (row["n"] == 2)} for row in ROWS],
        "equal": [ROWS[0], ROWS[0]],
    }.items():
        WRITERS[format](path, rows)
        ids[name] = ids_of([path], 40, id={"from": "content"}, text="text")
        # Another spec of the same rows has the same ids.
        assert ids_of([path], id={"from": "content"}, text="text", title="n") == ids[name]
    first = set(ids["first"])
    assert len(first) == len(ROWS)
    assert set(ids["other order"]) == set(ids["other order of columns"]) == first
    assert first < set(ids["one more"])
    assert len(first - set(ids["changed"])) == 1
    assert len(set(ids["equal"])) == 1


def test_ids_of_vectors_do_not_depend_on_their_neighbours(tmp_path: Path):
    vectors: list[Any] = [[0.5, 0.25], [1.5, 2.5]]
    pq.write_table(pa.table({"v": pa.array(vectors, pa.list_(pa.float32()))}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"v": pa.array([*vectors, None], pa.list_(pa.float32()))}), tmp_path / "b.parquet"
    )
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"v": one}) + "\n" for one in vectors))
    a, b, c = (ids_of([tmp_path / name], id={"from": "content"}, vector="v") for name in
               ("a.parquet", "b.parquet", "c.jsonl"))  # fmt: skip
    assert a == b[:2] == c


def test_ids_of_bare_vectors_and_of_files(tmp_path: Path):
    np.save(tmp_path / "a.npy", np.array([[0.5, 1], [2, 3], [0.5, 1]], np.float32))
    assert ids_of([tmp_path / "a.npy"], id={"from": "row"}, vector="v") == ["a.npy:1", "a.npy:2", "a.npy:3"]
    first, second, third = ids_of([tmp_path / "a.npy"], id={"from": "content"}, vector="v")
    assert first == third != second
    for name in ("x.txt", "y.txt"):
        (tmp_path / name).write_text("the same text")
    texts = [tmp_path / "x.txt", tmp_path / "y.txt"]
    assert len(set(ids_of(texts, id={"from": "content"}, text="text"))) == 1
    assert ids_of(texts, id={"from": "row"}, text="text") == ["x.txt:1", "y.txt:1"]


def rows_of(store: str, field: str) -> list[Any]:
    points = scannery.connect(store).index("a").scan()
    return sorted(getattr(point, field) for point in points)


def spec_of(kind: str) -> dict[str, Any]:
    return {"index": "a", "source": {"id": {"from": kind}, "vector": "v", "text": "text"}}


@pytest.mark.system
def test_updates_of_rows_without_ids(tmp_path: Path):
    store = str(tmp_path / "store")
    rows = [{"text": f"t{row}", "v": f"{row} 1 2"} for row in (1, 2, 3)]
    path = tmp_path / "a.csv"
    write_csv(path, [*rows, rows[0]])
    report = build(spec_of("content"), [str(path)], store)
    assert (report.documents, report.dead_letters) == (3, {})  # equal rows are one
    write_csv(path, [{"text": "new", "v": "9 9 9"}, *rows[:2]])
    report = build(spec_of("content"), [str(path)], store)
    assert (report.unchanged, report.added, report.not_in_input) == (2, 1, 1)
    report = build(spec_of("content"), [str(path)], store, mode="full")
    assert sorted(rows_of(store, "text")) == ["new", "t1", "t2"]


@pytest.mark.system
def test_rows_that_move_are_replaced(tmp_path: Path):
    store, path = str(tmp_path / "store"), tmp_path / "a.csv"
    rows = [{"text": f"t{row}", "v": f"{row} 1 2"} for row in (1, 2, 3)]
    write_csv(path, rows)
    build(spec_of("row"), [str(path)], store)
    write_csv(path, [{"text": "new", "v": "9 9 9"}, *rows])
    build(spec_of("row"), [str(path)], store)
    assert rows_of(store, "id") == ["a.csv:2", "a.csv:3", "a.csv:4", "a.csv:5"]
    assert rows_of(store, "text") == ["new", "t1", "t2", "t3"]
    spec = read_manifest(Store.open(store), "a").spec
    assert spec.source.generated_id is not None


PARTITIONS = {
    "lang=en": "en",
    "lang=pt%2FBR": "pt/BR",
    "lang=a=b": "a=b",
    "lang=": "",
    "lang=__HIVE_DEFAULT_PARTITION__": None,
    "year=2024/lang=en/hour=3": "en",
}


@pytest.mark.parametrize("format", [*WRITERS, "md", "txt"])
@pytest.mark.parametrize("folder", PARTITIONS)
def test_partitions_are_fields(tmp_path: Path, folder: str, format: str):
    (tmp_path / "table" / folder).mkdir(parents=True)
    path = tmp_path / "table" / folder / f"part-0.{format}"
    WRITERS.get(format, lambda path, _: path.write_text("bees"))(path, ROWS)
    for given in (tmp_path / "table", path):
        found = {record.fields.get("lang") for record in records_of([given], id="n", text="text")}
        assert found == {PARTITIONS[folder]}


def test_a_column_wins_over_a_folder(tmp_path: Path):
    (tmp_path / "lang=en").mkdir()
    for format in ("csv", "parquet"):
        WRITERS[format](tmp_path / "lang=en" / f"a.{format}", [{"text": "bees", "lang": "de"}])
    assert {one.fields["lang"] for one in records_of([tmp_path], id="n", text="text")} == {"de"}


@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize(("before", "first"), [("dim_", 0), ("", 1), ("emb.", 0)])
def test_numbered_columns_are_one_vector(tmp_path: Path, format: str, before: str, first: int):
    if format == "avro" and before != "dim_":
        pytest.skip("no names of Avro")
    vectors = [[0.5 * row + place for place in range(12)] for row in range(3)]
    rows = [
        {"n": row, **{f"{before}{place + first}": one for place, one in enumerate(vector)}}
        for row, vector in enumerate(vectors)
    ]
    WRITERS[format](tmp_path / f"a.{format}", rows)
    found = records_of([tmp_path], id="n", vector=f"{before}*")
    assert [np.asarray(record.fields[f"{before}*"]).tolist() for record in found] == vectors
    assert all(record.fields.keys() <= {"n", f"{before}*"} for record in found)


def test_records_that_nest_too_deep_for_a_hash_are_refused_alone(tmp_path: Path):
    deep = "[" * 400 + "]" * 400
    (tmp_path / "a.jsonl").write_text(f'{{"t": "a", "d": {deep}}}\n{{"t": "b"}}\n')
    assert [
        record.fields.get("_id") is None
        for record in records_of([tmp_path], id={"from": "content"}, text="t")
    ] == [True, False]


def test_numbers_of_columns_that_are_far_apart_cost_little(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "d0": 1, "d1": 2, "d999999": 3}\n')
    [record] = records_of([tmp_path], id="n", vector="d*")
    assert record.fields["d*"] == [1, 2, None, None]


@pytest.mark.system
def test_a_missing_number_refuses_its_row_alone(tmp_path: Path):
    (tmp_path / "a.csv").write_text("id,d0,d1,d2\na,1,,3\nb,1,2,3\nc,4,5,x\nd,4,5,6\n")
    table = pa.table({"id": ["e", "f"], "d0": [1.0, 2.0], "d1": [None, 2.0], "d2": [0.5, 1.5]})
    pq.write_table(table, tmp_path / "b.parquet")
    spec = {"index": "a", "source": {"id": "id", "vector": "d*"}}
    report = build(spec, [str(tmp_path / "a.csv"), str(tmp_path / "b.parquet")], str(tmp_path / "store"))
    assert rows_of(str(tmp_path / "store"), "id") == ["b", "d", "f"]
    assert sum(report.dead_letters.values()) == 3
