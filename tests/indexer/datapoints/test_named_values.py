"""Named vectors of a batch: validated each by itself, and given to the right passages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import (
    Field,
    IndexSpec,
    ValidatedBatch,
    named_texts,
    parse_spec,
    passage_rows,
    validate,
    vector_column,
    with_vectors,
)

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NAMED = {"title": 3, "image": 2}


def spec_of(**keys: Any) -> IndexSpec:
    named = {
        "title": {"encoder": {"model": MODEL}},
        "image": {"dimensions": 2, "distance": "dot"},
        "body": {"encoder": {"model": MODEL}},
    }
    data = {"index": "n", "source": {"text": "text"}, "encoder": {"model": MODEL}, "named_vectors": named}
    return parse_spec(data | keys)


def validated(**vectors: Any) -> ValidatedBatch:
    fields = {vector_column(name): Field(f"vectors.{name}", values) for name, values in vectors.items()}
    rows = len(next(iter(vectors.values())))
    given = {"id": [f"d{row}" for row in range(rows)], "text": ["t"] * rows}
    fields |= {name: Field(name, values) for name, values in given.items()}
    return validate(rows, fields, spec_of(), {"": 4, **NAMED}, embeds=True)


def test_vectors_of_a_name_are_kept_as_given_and_may_be_missing() -> None:
    table = validated(image=[[1, 2], None, (0, 0)], title=np.eye(3)).table
    assert table.column(vector_column("image")).to_pylist() == [[1, 2], None, [0, 0]]
    assert table.column(vector_column("title")).to_pylist() == np.eye(3).tolist()
    assert table.column(vector_column("body")).null_count == 3


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("image", [1, 2, 3], "vectors.image: must have 2 dimensions, got 3"),
        ("image", [1, float("nan")], "vectors.image: must be finite and within ±1e+15"),
        ("image", "x", "vectors.image: must be a list of numbers, got 'x'"),
        ("title", [0, 0, 0], "vectors.title: must not be all zeros: cosine needs a direction"),
    ],
)
def test_a_wrong_vector_rejects_its_row_alone(name: str, value: object, what: str) -> None:
    done = validated(**{name: [None, value]})
    assert [(one.row, one.error.message, one.error.field) for one in done.rejected] == [
        (1, what, f"vectors.{name}")
    ]
    assert done.table.column("id").to_pylist() == ["d0"]


def test_an_unnamed_vector_is_refused_with_the_names_that_there_are() -> None:
    spec = parse_spec({"index": "n", "source": {}, "named_vectors": {"image": {"dimensions": 2}}})
    fields = {"id": Field("id", ["a"]), "embedding": Field("vector", [[1, 2]])}
    done = validate(1, fields, spec, {"": 0, "image": 2}, embeds=False)
    assert "the index has named vectors only (image); write `vectors`" in done.rejected[0].error.message


def passages(spec: IndexSpec, image: list[list[float] | None]) -> pa.Table:
    """Return the rows of two documents with two passages each."""
    given = {"id": ["a", "b"], "text": ["one two", "three four"], "title": ["A", None]}
    fields = {name: Field(name, values) for name, values in given.items()}
    fields[vector_column("image")] = Field("image", image)
    documents = validate(2, fields, spec, {"": 4, **NAMED}, embeds=True).table
    own: dict[str, list[Any]] = {
        "text": ["one", "two", "three", "four"],
        "title": ["A", "A", None, None],
        "_spoken": [None] * 4,
    }
    own |= {name: [None] * 4 for name in ("text_start", "text_end", "time_start_s", "time_end_s")}
    return passage_rows(documents, [2, 2], own, np.ones((4, 4), np.float32), spec)


def test_given_vectors_are_those_of_the_first_passage() -> None:
    rows = passages(spec_of(source={"text": "text", "chunk": {"max_tokens": 64}}), [[1, 2], None])
    assert rows.column(vector_column("image")).to_pylist() == [[1, 2], None, None, None]


def test_titles_are_encoded_for_the_first_passage_and_texts_for_each() -> None:
    spec = spec_of(source={"text": "text", "chunk": {"max_tokens": 64}})
    rows = passages(spec, [None, None])
    assert named_texts(rows, spec, "title") == ["A", None, None, None]
    assert named_texts(rows, spec, "body") == ["one", "two", "three", "four"]
    given = with_vectors(rows, "body", [np.ones(4, np.float32), None, None, None])
    assert named_texts(given, spec, "body") == [None, None, "three", "four"]


def test_without_passages_each_row_that_lacks_the_vector_is_encoded() -> None:
    spec = spec_of()
    rows = passages(spec, [None, None])
    given = with_vectors(rows, "title", [np.ones(3, np.float32), None, None, None])
    assert named_texts(given, spec, "title") == [None, "A", None, None]
    assert named_texts(given, spec, "body") == ["one", "two", "three", "four"]
