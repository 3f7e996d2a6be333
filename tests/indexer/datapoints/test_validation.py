"""The validator by itself: what its tables hold, what it refuses, and in which order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import (
    SPARSE,
    SPOKEN_COLUMN,
    Field,
    InvalidRecordError,
    SizeLimits,
    ValidatedBatch,
    parse_spec,
    passage_rows,
    validate,
    written_schema,
)

SPEC = parse_spec({
    "index": "i",
    "source": {"text": "text", "title": "title", "payload": "payload"},
    "encoder": {"model": "m"},
    "attributes": {"show": "string", "tags": "string_list", "speakers": "string_list", "weight": "float"},
})  # fmt: skip
CUT = SPEC.model_copy(update={"source": SPEC.source.model_copy(update={"chunk": {"max_tokens": 8}})})
LIMITS = SizeLimits(title=8, text=8, payload=8, attribute=8, strings=3)
VECTORS_ND = np.array([[1, 0], [0, 1], [2, 0]], np.float32)


def validated(rows: Any = 3, spec: Any = SPEC, **columns: Any) -> ValidatedBatch:
    """Return what becomes of a batch with given columns; ids are made where there are none."""
    options = {name: columns.pop(name) for name in ("limits", "partial", "spoken") if name in columns}
    fields = {"id": [f"id{row}" for row in range(rows)], **columns}
    named = {name: Field(name, values) for name, values in fields.items()}
    return validate(rows, named, spec, {"": 2}, embeds=True, **options)


def errors(valid: ValidatedBatch) -> dict[int, tuple[str, str | None]]:
    return {rejected.row: (rejected.error.reason, rejected.error.field) for rejected in valid.rejected}


def test_rows_that_all_have_vectors_are_rows_of_an_index():
    valid = validated(embedding=VECTORS_ND, text=["one", None, "three"], title=[" a ", " ", None])
    assert valid.table.schema == written_schema(SPEC, 2)
    assert valid.table.column("document_id").to_pylist() == ["id0", "id1", "id2"]
    assert valid.table.column("title").to_pylist() == ["a", None, None]
    assert valid.table.column("text_end").to_pylist() == [3, None, 5]
    np.testing.assert_array_equal(np.stack(valid.table.column("embedding").to_pylist()), VECTORS_ND)


def test_a_row_without_a_vector_has_null_and_needs_a_text():
    given: list[Any] = [[1.0, 0.0], None, None]
    valid = validated(embedding=given, text=["one", "two", " "])
    assert valid.table.column("embedding").to_pylist() == [[1.0, 0.0], None]
    assert valid.rows_N.tolist() == [0, 1]
    assert errors(valid) == {2: ("missing_text", "text")}
    assert "embedding" not in validated(text=["one", "two", "three"]).table.column_names
    assert errors(validated(partial=True)) == {}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), None])
def test_ids_are_looked_at_in_slices_of_arrays_too(kind):
    names = ["bad\n", "good", "é" * 256, "", "\x7f", "\x1f", "é" * 257, "last"]
    values: Any = names[1:] if kind is None else pa.array(names, kind).slice(1)
    valid = validated(7, id=values, partial=True)
    assert errors(valid) == {2: ("id", "id"), 4: ("id", "id"), 5: ("id", "id")}
    assert valid.table.column("id").to_pylist() == ["good", "é" * 256, "\x7f", "last"]
    good: Any = names[1:3] if kind is None else pa.array(names, kind).slice(1, 2)
    assert validated(2, id=good, partial=True).table.column("id").to_pylist() == names[1:3]


@pytest.mark.parametrize(
    ("column", "fits", "too_large"),
    [
        ("title", "é" * 4, "é" * 5),
        ("text", "x" * 8, "x" * 9),
        ("payload", '"123456"', '"1234567"'),
        ("show", "é" * 4, "é" * 5),
        ("tags", ["é" * 2, "éé"], ["é" * 2, "é" * 3]),
        ("tags", ["a", "b", "c"], ["a", "b", "c", "d"]),
    ],
)
def test_sizes_are_those_of_each_value(column, fits, too_large):
    assert errors(validated(2, embedding=VECTORS_ND[:2], limits=LIMITS, **{column: [fits] * 2})) == {}
    valid = validated(embedding=VECTORS_ND, limits=LIMITS, **{column: [fits, too_large, fits]})
    reasons = {"title": "text", "text": "text", "payload": "payload"}
    assert errors(valid) == {1: (reasons.get(column, "attribute"), column)}
    assert errors(validated(embedding=VECTORS_ND, **{column: [fits, too_large, fits]})) == {}


def test_the_first_error_of_a_row_is_told_and_an_unreadable_value_is_one():
    unreadable = InvalidRecordError("show: cannot be read", reason="attribute", field="show")
    valid = validated(
        id=["", "b", "c"],
        embedding=np.array([[math.nan, 0], [0, 0], [1, 0]]),
        show=["s", "s", unreadable],
        payload=["{", "{", "{"],
    )
    assert errors(valid) == {0: ("id", "id"), 1: ("vector_value", "embedding"), 2: ("attribute", "show")}
    assert [rejected.id for rejected in valid.rejected] == [None, "b", "c"]


def test_lists_and_sparse_vectors():
    spec = parse_spec({
        "index": "i", "source": {"vector": "v", "sparse_vector": "w"}, "attributes": {"tags": "string_list"}
    })  # fmt: skip
    sparse: list[Any] = [{"3": 1.0, "1": 2.0}, None, {"1": 0.0}]
    valid = validated(spec=spec, embedding=VECTORS_ND, tags=[["a", None], ["b"], ["c"]], **{SPARSE: sparse})
    assert errors(valid) == {0: ("attribute", "tags"), 2: ("sparse_vector", SPARSE)}
    assert valid.table.column("tags").to_pylist() == [["b"]]


def test_what_is_spoken_is_that_of_rows_with_vectors():
    given: list[Any] = [[1.0, 0.0], None, [0.0, 1.0]]
    valid = validated(embedding=given, text=["A", "B", "C"], spoken=str.lower)
    assert valid.table.column(SPOKEN_COLUMN).to_pylist() == ["a", None, "c"]


def test_passages_have_what_their_documents_have():
    documents = validated(2, text=["one two", "three"], show=["s", None], speakers=[None, ["me"]]).table
    own: dict[str, list[Any]] = {
        "text": ["one", "two", "three"],
        "text_start": [0, 4, 0],
        "text_end": [3, 7, 5],
        "time_start_s": [None] * 3,
        "time_end_s": [None] * 3,
        SPOKEN_COLUMN: [None] * 3,
        "speakers": [("ann",), (), ("bob",)],
    }
    rows = passage_rows(documents, [2, 1], own, VECTORS_ND, CUT)
    assert rows.schema == written_schema(CUT, 2)
    assert rows.column("id").to_pylist() == ["id0#0", "id0#1", "id1#0"]
    assert rows.column("document_id").to_pylist() == ["id0", "id0", "id1"]
    assert rows.column("speakers").to_pylist() == [["ann"], None, ["me"]]
    assert rows.select(["text", "show"]).to_pylist() == [
        {"text": "one", "show": "s"}, {"text": "two", "show": "s"}, {"text": "three", "show": None}
    ]  # fmt: skip
    assert passage_rows(documents, [2, 1], own, VECTORS_ND, SPEC).column("id").to_pylist() == [
        "id0",
        "id0",
        "id1",
    ]
