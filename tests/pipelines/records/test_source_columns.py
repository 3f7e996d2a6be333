"""Validation: each thing that can be wrong with a record has its reason, its field and its message."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from scannery.indexer import parse_spec
from scannery.pipelines.dead_letters import REASONS, DeadLetter, excerpt_of
from scannery.pipelines.records.source_columns import dead_letter, validate_records
from scannery.pipelines.sources import Record
from tests.data import ROOT

TEXT = parse_spec({
    "index": "i",
    "source": {"id": "key", "text": "body", "title": "head", "payload": "extra", "chunk": {"max_tokens": 64}},
    "encoder": {"model": "m"},
    "attributes": {"year": "int", "tags": "string_list"},
})  # fmt: skip
VECTOR = parse_spec({"index": "i", "source": {"vector": "v", "text": "body", "document_id": "doc"}})


def made(fields: dict[str, Any], spec: Any = TEXT) -> dict[str, Any] | DeadLetter:
    """Return the row that a record becomes, or its dead letter; a good one beside it changes nothing."""
    other = {"id": "other", "key": "other", "body": "good", "v": [1, 2, 3], "doc": "other"}
    records = [Record(other, "file.jsonl", line=6), Record(fields, "file.jsonl", line=7)]
    valid = validate_records(records, spec, {"": 3})
    if not valid.rejected:
        row: dict[str, Any] = valid.table.to_pylist()[1]
        return row
    (rejected,) = valid.rejected
    assert (rejected.row, valid.table.num_rows, valid.rows_N.tolist()) == (1, 1, [0])
    return dead_letter(records[1], rejected)


@pytest.mark.parametrize(
    ("fields", "reason", "field"),
    [
        ({"body": "x"}, "missing_id", "key"),
        ({"key": None, "body": "x"}, "missing_id", "key"),
        ({"key": "", "body": "x"}, "id", "key"),
        ({"key": ["a"], "body": "x"}, "id", "key"),
        ({"key": "a\n", "body": "x"}, "id", "key"),
        ({"key": "a" * 504, "body": "x"}, "id", "key"),
        ({"key": "a"}, "missing_text", "body"),
        ({"key": "a", "body": " \n"}, "missing_text", "body"),
        ({"key": "a", "body": {"p": 5}}, "text", "body"),
        ({"key": "a", "body": "x", "head": [["t"]]}, "text", "head"),
        ({"key": "a", "body": "\ud800"}, "encoding", "body"),
        ({"key": "a", "body": "x", "tags": ["\udfff"]}, "encoding", "tags"),
        ({"key": "a", "body": "x", "year": "soon"}, "attribute", "year"),
        ({"key": "a", "body": "x", "extra": {"n": float("inf")}}, "payload", "extra"),
        ({"key": "a", "body": "x", "extra": "{not json"}, "payload", "extra"),
    ],
)
def test_a_bad_text_record_is_a_dead_letter(fields, reason, field):
    letter = made(fields)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.field, letter.line, letter.source) == (reason, field, 7, "file.jsonl")
    assert letter.message.startswith(field)
    assert DeadLetter.from_json(letter.to_json()) == letter


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (None, "missing_vector"),
        ("abc", "vector"),
        ([[1.0, 2.0, 3.0]], "vector"),
        ([1.0, 2.0], "vector_size"),
        ([1.0, float("nan"), 0.0], "vector_value"),
        ([1.0, 1e300, 0.0], "vector_value"),
        (np.array([1.0, 1e300, 0.0]), "vector_value"),
        ([0.0, 0.0, 0.0], "vector_value"),
    ],
)
def test_a_bad_vector_is_a_dead_letter(vector, reason):
    letter = made({"id": "a", "doc": "d", "v": vector}, VECTOR)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, letter.field, letter.id) == (reason, "v", "a")


def test_a_good_record_is_typed():
    fields = {
        "key": 5,
        "body": "text",
        "head": " T ",
        "year": "2020",
        "tags": "one",
        "extra": {"b": [1, "é"]},
    }
    row = made(fields)
    assert isinstance(row, dict)
    assert (row["id"], row["document_id"], row["title"], row["text"]) == ("5", "5", "T", "text")
    assert (row["year"], row["tags"]) == (2020, ["one"])
    assert row["payload"] == '{"b":[1,"é"]}'


def test_with_a_vector_the_text_is_optional_and_records_group_into_documents():
    row = made({"id": "a", "doc": "d", "v": [1, 2, 3]}, VECTOR)
    assert isinstance(row, dict)
    assert (row["text"], row["document_id"]) == (None, "d")
    assert row["embedding"] == [1.0, 2.0, 3.0]


def test_the_message_names_what_the_record_has_instead():
    letter = made({"name": "x", "Body": "y"})
    assert isinstance(letter, DeadLetter)
    assert "Body, name" in letter.message


def test_excerpts_are_bounded_and_always_printable():
    for record in [b"\xff" * 10_000, "x" * 10_000, {"v": np.zeros(10_000)}, {"t": "\ud800" * 999}, object()]:
        assert len(excerpt_of(record)) <= 400
        json.dumps(excerpt_of(record)).encode()


def test_reasons_are_closed():
    with pytest.raises(ValueError, match="reason"):
        DeadLetter(reason="other", message="", source="")
    page = (ROOT / "docs" / "build.md").read_text()
    section = page.partition("## Dead letters\n")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| `(\w+)` \| (.*) \|$", section, re.MULTILINE)
    assert dict(documented) == dict(REASONS)
