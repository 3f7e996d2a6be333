"""The managed service's input layout: its three forms say the same, and nothing in them is lost without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pytest

from scannery.indexer import InvalidSpecError, open_index, parse_spec
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, VALUES_COLUMN
from scannery.pipelines import InputChangedError, UnknownFormatError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from tests.pipelines.conftest import letters_of, manifest_of, rows_of, run

SPEC: dict[str, Any] = {
    "index": "managed",
    "source": {"format": "managed"},
    "distance": "dot",
    "attributes": {"color": "string_list", "color_deny": "string_list", "shape": "string", "size": "int",
     "ratio": "float", "crowding_tag": "string"},
}  # fmt: skip
ATTRIBUTES = parse_spec(SPEC).attributes
FIELDS = Fields.of(parse_spec(SPEC))

# The schema that the service documents, with metadata added as its JSON has it.
AVRO: dict[str, Any] = {"type": "record", "name": "FeatureVector", "fields": [
    {"name": "id", "type": "string"},
    {"name": "embedding", "type": {"type": "array", "items": "float"}},
    {"name": "sparse_embedding", "default": None, "type": ["null", {
        "type": "record", "name": "sparse_embedding", "fields": [
            {"name": "values", "type": {"type": "array", "items": "float"}},
            {"name": "dimensions", "type": {"type": "array", "items": "long"}}]}]},
    {"name": "restricts", "default": None, "type": ["null", {"type": "array", "items": {
        "type": "record", "name": "Restrict", "fields": [
            {"name": "namespace", "type": "string"},
            {"name": "allow", "default": None, "type": ["null", {"type": "array", "items": "string"}]},
            {"name": "deny", "default": None, "type": ["null", {"type": "array", "items": "string"}]}]}}]},
    {"name": "numeric_restricts", "default": None, "type": ["null", {"type": "array", "items": {
        "type": "record", "name": "NumericRestrict", "fields": [
            {"name": "namespace", "type": "string"},
            {"name": "value_int", "type": ["null", "int"], "default": None},
            {"name": "value_float", "type": ["null", "float"], "default": None},
            {"name": "value_double", "type": ["null", "double"], "default": None}]}}]},
    {"name": "crowding_tag", "type": ["null", "string"], "default": None},
    {"name": "embedding_metadata", "type": ["null", "string"], "default": None},
]}  # fmt: skip

FULL: dict[str, Any] = {
    "id": "6",
    "embedding": [7.0, -8.125],
    "restricts": [{"namespace": "color", "allow": ["red", "blue"], "deny": ["purple"]},
     {"namespace": "shape", "allow": ["square"]}],
    "numeric_restricts": [{"namespace": "size", "value_int": 3}, {"namespace": "ratio", "value_float": 0.125}],
    "crowding_tag": "test",
}  # fmt: skip
FULL_CSV = (
    "6,7,-8.125,crowding_tag=test,color=red,color=blue,color=!purple,shape=square,#size=3i,#ratio=0.125f"
)
FULL_ATTRIBUTES = {
    "color": ["red", "blue"], "color_deny": ["purple"], "shape": "square", "size": 3, "ratio": 0.125,
    "crowding_tag": "test",
}  # fmt: skip


@pytest.fixture
def batch(tmp_path: Path) -> Path:
    """A folder of its own: the store of the test stands beside it."""
    (tmp_path / "batch").mkdir()
    return tmp_path / "batch"


def put(folder: Path, name: str, records: Sequence[object]) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".avro":
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, records, sync_interval=500)
    else:
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        path.write_text("".join(f"{line}\n" for line in lines))
    return path


def read(folder: Path, *, limit: int = 1 << 20) -> tuple[list[Record], list[DeadLetter]]:
    spec = parse_spec(SPEC)
    items: list[Record | DeadLetter] = []
    for file in arrange(find_files([str(folder)]), spec.source):
        for part in split_file(file, limit):
            items.extend(read_part(part, Fields.of(spec)))
    return [i for i in items if isinstance(i, Record)], [i for i in items if isinstance(i, DeadLetter)]


def attributes_in(store: Any) -> dict[str, dict[str, Any]]:
    names = ["id", "payload", *ATTRIBUTES]
    rows = [
        row
        for s, rows_R in open_index(store, "managed").live_rows()
        for row in s.take(rows_R, names).to_pylist()
    ]
    return {row.pop("id"): row for row in rows}


@pytest.mark.system
@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.avro"])
def test_every_form_becomes_the_same_datapoint(batch, store, name):
    put(batch, name, [FULL_CSV] if name == "a.csv" else [FULL])
    report = run(store, str(batch), spec=SPEC)
    assert (report.passages, report.dead, dict(report.ignored)) == (1, 0, {})
    assert rows_of(store, "managed") == {"6": (7.0, -8.125)}
    assert attributes_in(store) == {"6": FULL_ATTRIBUTES | {"payload": None}}


@pytest.mark.system
@pytest.mark.parametrize("limit", [200, 1 << 20])
@pytest.mark.parametrize("ending", ["json", "csv", "avro"])
def test_cuts_lose_and_repeat_nothing(batch, ending, limit):
    numbers = range(300)
    if ending == "csv":
        put(batch, "a.csv", [f"{i},{i}.5,1,#size={i}i" for i in numbers])
    else:
        rows = [
            {
                "id": str(i),
                "embedding": [i + 0.5, 1.0],
                "numeric_restricts": [{"namespace": "size", "value_int": i}],
            }
            for i in numbers
        ]
        put(batch, f"a.{ending}", rows)
    records, letters = read(batch, limit=limit)
    assert not letters
    assert [(r.fields["id"], r.fields["embedding"], r.fields["size"]) for r in records] == [
        (str(i), [i + 0.5, 1.0], i) for i in numbers
    ]


@pytest.mark.system
def test_metadata_is_the_payload(batch, store):
    put(batch, "a.json", [
        {"id": "a", "embedding": [1, 2], "embedding_metadata": {"title": "Ballet Train", "runtime": {"hours": 2}}},
        {"id": "b", "embedding": [1, 2], "embedding_metadata": ["no object"]},
    ])  # fmt: skip
    put(batch, "b.avro", [{"id": "c", "embedding": [1, 2], "embedding_metadata": '{"x": 1}'},
                             {"id": "d", "embedding": [1, 2], "embedding_metadata": "no JSON"}])  # fmt: skip
    report = run(store, str(batch), spec=SPEC)
    payloads = {name: json.loads(row["payload"]) for name, row in attributes_in(store).items()}
    assert payloads == {"a": {"title": "Ballet Train", "runtime": {"hours": 2}}, "c": {"x": 1}}
    assert report.dead_letters == {"payload": 2}
    assert report.record_errors == {"INVALID_EMBEDDING_METADATA": 2}


def restricts(*entries: object) -> dict[str, Any]:
    return {"id": "x", "embedding": [1.0, 2.0], "restricts": list(entries)}


def numbers(*entries: object) -> dict[str, Any]:
    return {"id": "x", "embedding": [1.0, 2.0], "numeric_restricts": list(entries)}


def sparse(values: object, dimensions: object) -> dict[str, Any]:
    return {
        "id": "x",
        "embedding": [1.0, 2.0],
        "sparse_embedding": {"values": values, "dimensions": dimensions},
    }


WRONG = [
    ("[1, 2]", "malformed", "INVALID_JSON_SYNTAX"),
    ("{broken", "malformed", "INVALID_JSON_SYNTAX"),
    ({"embedding": [1, 2]}, "missing_id", "INVALID_EMBEDDING_ID"),
    ({"id": "", "embedding": [1, 2]}, "id", "INVALID_EMBEDDING_ID"),
    ({"id": "x"}, "missing_vector", "INVALID_EMBEDDING"),
    ({"id": "x", "embedding": "1,2"}, "vector", "INVALID_EMBEDDING"),
    ('{"id": "x", "embedding": [NaN, 1]}', "vector_value", "INVALID_EMBEDDING"),
    ({"id": "x", "embedding": [1, 2, 3]}, "vector_size", "EMBEDDING_SIZE_MISMATCH"),
    ({"id": "\ud800", "embedding": [1, 2]}, "id", "INVALID_EMBEDDING_ID"),
    (restricts({"allow": ["red"]}), "attribute", "NAMESPACE_MISSING"),
    (restricts({"namespace": "", "allow": ["red"]}), "attribute", "NAMESPACE_MISSING"),
    (restricts("color"), "attribute", "PARSING_ERROR"),
    ({"id": "x", "embedding": [1, 2], "restricts": {"color": "red"}}, "attribute", "PARSING_ERROR"),
    (restricts({"namespace": "color", "allow_list": ["red"]}), "attribute", "PARSING_ERROR"),
    (restricts({"namespace": "color", "allow": "red"}), "attribute", "INVALID_TOKEN_VALUE"),
    (restricts({"namespace": "color", "allow": [3]}), "attribute", "INVALID_TOKEN_VALUE"),
    (restricts({"namespace": "color", "allow": [""]}), "attribute", "INVALID_TOKEN_VALUE"),
    (restricts({"namespace": "shape", "allow": ["a", "b"]}), "attribute", "INVALID_TOKEN_VALUE"),
    (restricts({"namespace": "size", "allow": ["big"]}), "attribute", "INVALID_TOKEN_VALUE"),
    (restricts({"namespace": "shape", "deny": ["round"]}), "deny", None),
    (restricts({"namespace": "color"}, {"namespace": "color"}), "attribute", "DUPLICATE_NAMESPACE"),
    (numbers({"value_int": 3}), "attribute", "NAMESPACE_MISSING"),
    (numbers({"namespace": "size"}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "size", "value_int": 3.5}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "size", "value_int": True}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "size", "value_int": 2**63}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "size", "value_double": 3.5}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "ratio", "value_float": "3"}), "attribute", "INVALID_NUMERIC_VALUE"),
    (numbers({"namespace": "unknown", "value_int": 1, "value_float": 1}), "attribute", "MULTIPLE_VALUES"),
    (numbers({"namespace": "size", "value_int": 1, "op": "LESS"}), "attribute", "OP_IN_DATAPOINT"),
    (numbers({"namespace": "size", "value_int": 1}, {"namespace": "size", "value_int": 2}),
     "attribute", "DUPLICATE_NAMESPACE"),
    (numbers({"namespace": "crowding_tag", "value_int": 1}) | {"crowding_tag": "1"},
     "attribute", "DUPLICATE_NAMESPACE"),
    ({"id": "x", "embedding": [1, 2], "crowding_tag": {"crowding_attribute": "t"}}, "attribute", "PARSING_ERROR"),
    (sparse([0.5], [3]), "sparse_vector", None),
    ({"id": "x", "sparse_embedding": {"values": [0.5], "dimensions": [3]}}, "sparse_vector", None),
    (sparse([0.5], [3, 4]), "sparse_vector", "INVALID_SPARSE_DIMENSIONS"),
    (sparse([0.5], [-3]), "sparse_vector", "INVALID_SPARSE_DIMENSIONS"),
    (sparse([0.5], None), "sparse_vector", "INVALID_SPARSE_DIMENSIONS"),
    (sparse(["a"], [3]), "sparse_vector", "INVALID_SPARSE_EMBEDDING"),
    ({"id": "x", "embedding": [1, 2], "sparse_embedding": {"value": [0.5]}}, "sparse_vector",
     "INVALID_SPARSE_EMBEDDING"),
    ({"id": "x", "embedding": [1, 2], "sparse_embedding": [0.5]}, "sparse_vector", "INVALID_SPARSE_EMBEDDING"),
]  # fmt: skip


@pytest.mark.system
def test_every_wrong_record_has_its_reason_and_the_services_category(batch, store):
    good = [{"id": f"good{i}", "embedding": [1, 2]} for i in range(50)]
    put(batch, "a.json", [*good, *(record for record, _, _ in WRONG)])
    report = run(store, str(batch), spec=SPEC)
    letters = letters_of(store, report)
    assert [(d.line, d.reason, d.category) for d in letters] == [
        (51 + i, reason, category) for i, (_, reason, category) in enumerate(WRONG)
    ]
    assert report.passages == 50
    assert sum(report.dead_letters.values()) == len(WRONG)
    assert sum(report.record_errors.values()) == sum(category is not None for _, _, category in WRONG)
    assert manifest_of(store, "managed").statistics["record_errors"] == report.record_errors
    again = run(store, str(batch), spec=SPEC)
    assert (again.up_to_date, again.record_errors) == (True, report.record_errors)


@pytest.mark.system
@pytest.mark.parametrize("form", ["json", "csv", "avro"])
def test_sparse_embeddings_are_kept_where_the_spec_takes_them(batch, store, form):
    records: list[object] = [sparse([0.5, 0.25], [9, 3]), {"id": "y", "embedding": [1, 2]}]
    put(batch, f"a.{form}", ["x,1,2,9:0.5,3:0.25", "y,1,2"] if form == "csv" else records)
    source = {"format": "managed", "sparse_vector": "sparse_embedding"}
    report = run(store, str(batch), spec=SPEC | {"source": source})
    assert (report.passages, report.dead_letters) == (2, {})
    ((segment, rows_R),) = open_index(store, "managed").live_rows()
    table = segment.take(rows_R, ["id", INDICES_COLUMN, VALUES_COLUMN]).sort_by("id")
    assert table.column(INDICES_COLUMN).to_pylist()[0] == [3, 9]
    assert table.column(VALUES_COLUMN).to_pylist()[0] == [0.25, 0.5]
    with pytest.raises(InvalidSpecError, match="sparse_vector"):
        parse_spec(SPEC | {"source": {"format": "managed", "sparse_vector": "other"}})


def test_nothing_is_left_of_an_empty_sparse_embedding(batch):
    put(batch, "a.json", [sparse([], []), {"id": "y", "embedding": [1], "sparse_embedding": None}])
    records, letters = read(batch)
    assert (len(records), letters) == (2, [])


@pytest.mark.system
def test_names_that_the_spec_leaves_out_are_counted(batch, store):
    put(batch, "a.json", [
        FULL | {"id": "a", "unheard_of": 1},
        FULL | {"id": "b", "restricts": [{"namespace": "taste", "allow": ["sweet"], "deny": ["sour"]}]},
        FULL | {"id": "c", "numeric_restricts": [{"namespace": "price", "value_int": 1}]},
    ])  # fmt: skip
    spec = SPEC | {"attributes": {"color": "string_list", "color_deny": "string_list"}}
    report = run(store, str(batch), spec=spec)
    assert report.dead == 0
    assert report.ignored == {
        "crowding_tag": 3, "price": 1, "ratio": 2, "shape": 2, "size": 2, "taste": 1, "unheard_of": 1,
    }  # fmt: skip
    assert manifest_of(store, "managed").statistics["ignored"] == report.ignored


@pytest.mark.system
def test_the_names_counted_have_a_bound(batch, store):
    put(batch, "a.json", [{"id": str(i), "embedding": [1], f"x{i}": 1} for i in range(150)])
    report = run(store, str(batch), spec=SPEC)
    assert len(report.ignored) == 101
    assert report.ignored["…"] == 50


@pytest.mark.system
def test_deleted_ids_have_no_record(batch, store):
    put(batch, "a.json", [{"id": "a", "embedding": [1]}, {"id": 7, "embedding": [1]}])
    put(batch, "b.csv", ["b,1", "c,1"])
    put(batch, "delete/one.txt", ["c", "", "gone"])
    put(batch, "delete/two", ["7", "x" * 600])
    report = run(store, str(batch), spec=SPEC)
    assert set(rows_of(store, "managed")) == {"a", "b"}
    letters = {(d.reason, d.id or "", Path(d.source).name) for d in letters_of(store, report)}
    assert letters == {("deleted_id", "c", "b.csv"), ("deleted_id", "7", "a.json"), ("id", "", "two")}
    (batch / "delete" / "one.txt").unlink()
    run(store, str(batch), spec=SPEC)
    assert set(rows_of(store, "managed")) == {"a", "b", "c"}


@pytest.mark.system
def test_an_update_removes_what_the_batch_deletes(batch, tmp_path, store):
    put(batch, "a.json", [{"id": str(i), "embedding": [i + 1.0]} for i in range(5)])
    run(store, str(batch), spec=SPEC)
    later = tmp_path / "later"
    put(later, "b.csv", ["4,9.0", "5,6.0"])
    put(later, "delete/ids.txt", ["0", "3", "nobody"])
    report = run(store, str(later), spec=SPEC)
    assert rows_of(store, "managed") == {"1": (2.0,), "2": (3.0,), "4": (9.0,), "5": (6.0,)}
    assert (report.version, report.dead) == (2, 0)
    last = tmp_path / "last"
    put(last, "delete/ids.txt", ["1"])
    run(store, str(last), spec=SPEC)
    assert set(rows_of(store, "managed")) == {"2", "4", "5"}
    report = run(store, str(later), spec=SPEC, mode="full")
    assert set(rows_of(store, "managed")) == {"4", "5"}


def test_a_delete_file_that_changes_while_a_build_runs_is_noticed(batch):
    put(batch, "a.json", [{"id": "a", "embedding": [1]}])
    put(batch, "delete/one.txt", ["b"])
    spec = parse_spec(SPEC)
    data, _ = arrange(find_files([str(batch)]), spec.source)
    (part,) = split_file(data, 1 << 20)
    put(batch, "delete/one.txt", ["a"])
    with pytest.raises(InputChangedError):
        list(read_part(part, Fields.of(spec)))


@pytest.mark.parametrize("name", ["a.jsonl", "more/a.json", "delete/more/ids.txt", "a.txt", "a.avro.gz"])
def test_what_has_no_place_in_the_layout_is_refused_before_the_start(batch, store, name):
    put(batch, "a.json", [FULL])
    (batch / name).parent.mkdir(parents=True, exist_ok=True)
    (batch / name).write_text("x")
    with pytest.raises(
        UnknownFormatError, match=r"the managed layout has only files that end in \.json \.csv \.avro"
    ):
        run(store, str(batch), spec=SPEC)


@pytest.mark.system
def test_damaged_files(batch, store):
    put(batch, "a.json", [FULL])
    path = put(batch, "b.avro", [FULL | {"id": str(i)} for i in range(100)])
    path.write_bytes(path.read_bytes()[:-50])
    (batch / "c.avro").write_bytes(b"Obj\x01nothing")
    (batch / "d.csv").write_bytes(b'ok,1,2\nb\xff,1,2\n"open,1,2\n9,1,2\n')
    report = run(store, str(batch), spec=SPEC)
    letters = {(Path(d.source).name, d.reason, d.category) for d in letters_of(store, report)}
    assert letters == {
        ("b.avro", "damaged_file", "INVALID_AVRO_SYNTAX"),
        ("c.avro", "damaged_file", "INVALID_AVRO_SYNTAX"),
        ("d.csv", "encoding", "INVALID_ENCODING"),
        ("d.csv", "malformed", "INVALID_CSV_SYNTAX"),
    }
    assert {"6", "ok", "9"} <= set(rows_of(store, "managed"))


@pytest.mark.system
def test_real_vectors_come_back_bit_by_bit(batch, store):
    vectors = np.random.default_rng(0).standard_normal((200, 48)).astype(np.float32)
    put(batch, "a.json", [{"id": str(i), "embedding": vectors[i].tolist()} for i in range(100)])
    put(batch, "b.csv", [",".join([str(i), *map(repr, vectors[i].tolist())]) for i in range(100, 200)])
    run(store, str(batch), spec=SPEC)
    assert rows_of(store, "managed") == {str(i): tuple(vectors[i].tolist()) for i in range(200)}
