"""CSV of the managed service's layout says what JSON says, and neither breaks the reader."""

from __future__ import annotations

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Record
from scannery.pipelines.sources.managed.managed_csv import csv_record, java_float
from scannery.pipelines.sources.managed.managed_records import CATEGORIES, to_record
from tests.pipelines.sources.test_managed import ATTRIBUTES, FIELDS, WRONG

# The service's own list, without those that it has no use for here.
_ALL_CATEGORIES = {
    "EMPTY_LINE", "INVALID_JSON_SYNTAX", "INVALID_CSV_SYNTAX", "INVALID_AVRO_SYNTAX", "INVALID_EMBEDDING_ID",
    "EMBEDDING_SIZE_MISMATCH", "NAMESPACE_MISSING", "PARSING_ERROR", "DUPLICATE_NAMESPACE", "OP_IN_DATAPOINT",
    "MULTIPLE_VALUES", "INVALID_NUMERIC_VALUE", "INVALID_ENCODING", "INVALID_SPARSE_DIMENSIONS",
    "INVALID_TOKEN_VALUE", "INVALID_SPARSE_EMBEDDING", "INVALID_EMBEDDING", "INVALID_EMBEDDING_METADATA",
}  # fmt: skip

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


@pytest.mark.system
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


@pytest.mark.system
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


@pytest.mark.system
@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text('a1,.=!#:"ifd-_', max_size=40).map(str.encode)))
def test_no_line_breaks_the_reader(line):
    result = csv_record(line or b"x", "a.csv", 1)
    assert isinstance(result, (Record, DeadLetter))
    if isinstance(result, Record):
        assert isinstance(to_record(result, FIELDS), (Record, DeadLetter))


def test_categories_are_the_services_own():
    assert set(CATEGORIES.values()) <= _ALL_CATEGORIES
    assert {category for _, _, category in (*WRONG, *BAD_LINES) if category} <= _ALL_CATEGORIES
