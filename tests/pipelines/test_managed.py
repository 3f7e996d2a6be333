"""The managed service's input layout: its three forms say the same, and nothing in them is lost without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from scannery.indexer import InvalidSpecError, open_index, parse_spec
from scannery.indexer.sparse import INDICES_COLUMN, VALUES_COLUMN
from scannery.pipelines import InputChangedError, UnknownFormatError
from scannery.pipelines.deadletters import DeadLetter
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.managed_csv import csv_record, java_float
from scannery.pipelines.sources.managed_records import CATEGORIES, to_record
from tests.pipelines.conftest import letters_of, manifest_of, rows_of, run

SPEC: dict[str, Any] = {
    "index": "managed",
    "source": {"format": "managed"},
    "distance": "dot",
    "attributes": {
        "color": "string_list",
        "color_deny": "string_list",
        "shape": "string",
        "size": "int",
        "ratio": "float",
        "crowding_tag": "string",
    },
}
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
    "restricts": [
        {"namespace": "color", "allow": ["red", "blue"], "deny": ["purple"]},
        {"namespace": "shape", "allow": ["square"]},
    ],
    "numeric_restricts": [
        {"namespace": "size", "value_int": 3},
        {"namespace": "ratio", "value_float": 0.125},
    ],
    "crowding_tag": "test",
}
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


@pytest.mark.parametrize("name", ["a.json", "a.csv", "a.avro"])
def test_every_form_becomes_the_same_datapoint(batch, store, name):
    put(batch, name, [FULL_CSV] if name == "a.csv" else [FULL])
    report = run(store, str(batch), spec=SPEC)
    assert (report.passages, report.dead, dict(report.ignored)) == (1, 0, {})
    assert rows_of(store, "managed") == {"6": (7.0, -8.125)}
    assert attributes_in(store) == {"6": FULL_ATTRIBUTES | {"payload": None}}


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


def test_the_names_counted_have_a_bound(batch, store):
    put(batch, "a.json", [{"id": str(i), "embedding": [1], f"x{i}": 1} for i in range(150)])
    report = run(store, str(batch), spec=SPEC)
    assert len(report.ignored) == 101
    assert report.ignored["…"] == 50


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
        UnknownFormatError, match=r"the managed layout has files that end in \.json \.csv \.avro"
    ):
        run(store, str(batch), spec=SPEC)


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


BAD_LINES = [
    ("a,1,x,3", "vector", "INVALID_EMBEDDING"),
    ("a,1,2,", "vector", "INVALID_EMBEDDING"),
    ("a,1,2,color=red,3", "malformed", "INVALID_CSV_SYNTAX"),
    ("a,1,2,5:0.5,3", "malformed", "INVALID_CSV_SYNTAX"),
    ("a,1,x:0.5", "malformed", "INVALID_SPARSE_DIMENSIONS"),
    ("a,1,5:x", "malformed", "INVALID_SPARSE_EMBEDDING"),
    ("a,1,crowding_tag=x,crowding_tag=y", "malformed", "INVALID_CSV_SYNTAX"),
    ("\ufeff", "malformed", "EMPTY_LINE"),
    ("a,1,#size=3", "attribute", "INVALID_NUMERIC_VALUE"),
    ("a,1,#size=3.5i", "attribute", "INVALID_NUMERIC_VALUE"),
    ("a,1,#size=i", "attribute", "INVALID_NUMERIC_VALUE"),
    ("a,1,#size=1i,#size=1i", "attribute", "MULTIPLE_VALUES"),
    ('a,1,"open', "malformed", "INVALID_CSV_SYNTAX"),
]


@pytest.mark.parametrize(("line", "reason", "category"), BAD_LINES)
def test_wrong_lines_of_csv(line, reason, category):
    letter = csv_record(line.encode(), "a.csv", 1)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.category, letter.line) == (reason, category, 1)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), ("-2.5f", -2.5), ("1e-3D", 0.001), (".5", 0.5), ("5.", 5.0), ("1_000.5d", 1000.5),
     ("0x1.8p1", 3.0), ("-0X.8P-1f", -0.25), ("+7", 7.0)],
)  # fmt: skip
def test_numbers_are_written_as_in_java(text, value):
    assert java_float(text) == value


@pytest.mark.parametrize("text", ["", "nan", "inf", "f", "1f2", "0x1", "--1", "1e", "0x1p99999", "_1"])
def test_what_is_no_number_in_java(text):
    with pytest.raises(ValueError, match="number|large"):
        java_float(text)


_names = st.text(
    st.characters(codec="utf-8", exclude_characters='=,"\r\n!#:', exclude_categories=["Cc", "Zs"]),
    min_size=1,
    max_size=8,
)
_name = st.one_of(st.sampled_from(["color", "shape", "size"]), _names).filter(
    lambda name: name != "crowding_tag"
)
_token = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=6).filter(
    lambda token: not token.startswith("!")
)
_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def _unique(entries: Any) -> Any:
    return st.lists(entries, max_size=3, unique_by=lambda entry: entry["namespace"])


_number = st.one_of(
    st.fixed_dictionaries({"namespace": _names, "value_int": st.integers(-(2**31), 2**31 - 1)}),
    st.fixed_dictionaries(
        {"namespace": _names, "value_double": st.floats(allow_nan=False, allow_infinity=False)}
    ),
)
_tokens = st.lists(_token, min_size=1, max_size=3)
_restrict = st.fixed_dictionaries({"namespace": _name}, optional={"allow": _tokens, "deny": _tokens}).filter(
    lambda entry: len(entry) > 1
)
_records = st.fixed_dictionaries(
    {"id": _names, "embedding": st.lists(_float32, min_size=1, max_size=5)},
    optional={"restricts": _unique(_restrict), "numeric_restricts": _unique(_number), "crowding_tag": _token},
)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if any(mark in cell for mark in '",') else cell


def as_csv(record: dict[str, Any]) -> str:
    """Write a record as a line of CSV: what a careful writer of the layout would do."""
    cells = [record["id"], *(repr(number) for number in record["embedding"])]
    if "crowding_tag" in record:
        cells.append(f"crowding_tag={record['crowding_tag']}")
    for entry in record.get("restricts", []):
        cells += [f"{entry['namespace']}={token}" for token in entry.get("allow", [])]
        cells += [f"{entry['namespace']}=!{token}" for token in entry.get("deny", [])]
    for entry in record.get("numeric_restricts", []):
        kind, value = next(pair for pair in entry.items() if pair[0] != "namespace")
        cells.append(f"#{entry['namespace']}={value!r}{'i' if kind == 'value_int' else 'd'}")
    return ",".join(map(_quoted, cells))


@settings(max_examples=200)
@given(_records)
def test_csv_and_json_say_the_same(record):
    line = csv_record(as_csv(record).encode() + b"\n", "a.csv", 2)
    assert isinstance(line, Record), line
    from_csv = to_record(line, FIELDS)
    from_json = to_record(Record(json.loads(json.dumps(record)), "a.csv", line=2), FIELDS)
    if isinstance(from_json, Record):
        assert isinstance(from_csv, Record)
        assert (from_csv.fields, from_csv.ignored) == (from_json.fields, from_json.ignored)
    else:
        assert isinstance(from_csv, DeadLetter)
        assert (from_csv.reason, from_csv.category) == (from_json.reason, from_json.category)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["namespace", "allow", "deny", "value_int", "value_float", "op", "values", "dimensions"]),
        inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300)
@given(
    st.dictionaries(
        st.sampled_from(["id", "embedding", "restricts", "numeric_restricts", "crowding_tag",
                         "sparse_embedding", "embedding_metadata", "other"]), _json)
)  # fmt: skip
def test_no_record_breaks_the_reader(fields):
    result = to_record(Record(fields, "a.json", line=1), FIELDS)
    if isinstance(result, Record):
        assert set(result.fields) <= {"id", "embedding", "embedding_metadata", *ATTRIBUTES}
        sparse_embedding = fields.get("sparse_embedding")
        assert not sparse_embedding or not any(sparse_embedding.values())
    else:
        assert result.category is None or result.category in _ALL_CATEGORIES


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text('a1,.=!#:"ifd-_', max_size=40).map(str.encode)))
def test_no_line_breaks_the_reader(line):
    result = csv_record(line or b"x", "a.csv", 1)
    assert isinstance(result, (Record, DeadLetter))
    if isinstance(result, Record):
        assert isinstance(to_record(result, FIELDS), (Record, DeadLetter))


# The service's own list, without those that it has no use for here.
_ALL_CATEGORIES = {
    "EMPTY_LINE", "INVALID_JSON_SYNTAX", "INVALID_CSV_SYNTAX", "INVALID_AVRO_SYNTAX", "INVALID_EMBEDDING_ID",
    "EMBEDDING_SIZE_MISMATCH", "NAMESPACE_MISSING", "PARSING_ERROR", "DUPLICATE_NAMESPACE", "OP_IN_DATAPOINT",
    "MULTIPLE_VALUES", "INVALID_NUMERIC_VALUE", "INVALID_ENCODING", "INVALID_SPARSE_DIMENSIONS",
    "INVALID_TOKEN_VALUE", "INVALID_SPARSE_EMBEDDING", "INVALID_EMBEDDING", "INVALID_EMBEDDING_METADATA",
}  # fmt: skip


def test_categories_are_the_services_own():
    assert set(CATEGORIES.values()) <= _ALL_CATEGORIES
    assert {category for _, _, category in (*WRONG, *BAD_LINES) if category} <= _ALL_CATEGORIES


def test_real_vectors_come_back_bit_by_bit(batch, store):
    vectors = np.random.default_rng(0).standard_normal((200, 48)).astype(np.float32)
    put(batch, "a.json", [{"id": str(i), "embedding": vectors[i].tolist()} for i in range(100)])
    put(batch, "b.csv", [",".join([str(i), *map(repr, vectors[i].tolist())]) for i in range(100, 200)])
    run(store, str(batch), spec=SPEC)
    assert rows_of(store, "managed") == {str(i): tuple(vectors[i].tolist()) for i in range(200)}
