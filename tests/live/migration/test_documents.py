"""Documents put together from passages, and what a migration changes of a spec."""

from __future__ import annotations

import pyarrow as pa
import pytest

from scannery.indexer import IndexSpec, parse_spec, written_schema
from scannery.live.migration.conversion import changed_spec, former_values, whole_changes
from scannery.live.migration.documents import documents_of
from scannery.live.migration.errors import MigrationError

SPEC = parse_spec(
    {
        "index": "talks",
        "source": {"text": "text", "id": "id", "chunk": {"max_tokens": 64}},
        "encoder": {"model": "m"},
        "attributes": {"year": "int", "section": "string"},
    }
)
TEXT = "First part here.\n\nSecond part, longer. Third part."


def rows(*passages: dict[str, object], spec: IndexSpec = SPEC) -> pa.Table:
    schema = written_schema(spec, 2)
    columns = [
        pa.array([passage.get(name, "d" if name == "document_id" else None) for passage in passages], kind)
        if name != "embedding"
        else pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 2 * len(passages), pa.float32()), type=kind)
        for name, kind in zip(schema.names, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


def passage(number: int, start: int, end: int, **values: object) -> dict[str, object]:
    return {"id": f"d#{number}", "text": TEXT[start:end], "text_start": start, "text_end": end, **values}


def test_passages_become_their_text_again() -> None:
    # The second overlaps the third.
    table = rows(passage(2, 25, 50), passage(0, 0, 16), passage(1, 18, 38))
    documents = documents_of(table, SPEC).to_pylist()
    assert [document["text"] for document in documents] == [TEXT]
    assert documents[0]["id"] == documents[0]["document_id"] == "d"
    assert documents[0]["text_start"] is None


def test_marks_of_times_come_back_where_there_is_room_for_them() -> None:
    text = "[00:00:00] Ann: Hello there.\n[01:01:05] Bob: And hello to you.\nMore."
    spans = ((11, 28, 0.0), (40, 62, 3665.0), (63, 68, 3665.0))
    passages = [
        {"text": text[start:end], "text_start": start, "time_start_s": time_s} for start, end, time_s in spans
    ]
    expected = text.replace("\nMore", " More")
    assert documents_of(rows(*passages), SPEC).column("text").to_pylist() == [expected]
    short = [passages[0] | {"text_start": 8}, passages[1] | {"text_start": 34}]
    assert documents_of(rows(*short), SPEC).column("text").to_pylist() == [
        "[00:00] Ann: Hello there.\n[61:05] Bob: And hello to you."
    ]


def test_what_differs_among_passages_is_not_the_documents() -> None:
    first = passage(0, 0, 16, year=2020, section="One", title="Talk > One")
    second = passage(1, 18, 38, year=2020, section="Two", title="Talk > Two")
    document = documents_of(rows(first, second), SPEC).to_pylist()[0]
    assert document["title"] == "Talk"
    assert document["year"] == 2020
    assert document["section"] is None


def test_documents_come_in_the_order_of_their_ids() -> None:
    table = rows(
        {"id": "b#0", "document_id": "b", "text": "beta", "text_start": 0},
        {"id": "a#0", "document_id": "a", "text": "alpha", "text_start": 0},
    )
    assert documents_of(table, SPEC).column("id").to_pylist() == ["a", "b"]


def test_datapoints_that_were_not_cut_are_documents() -> None:
    spec = SPEC.model_copy(update={"source": SPEC.source.model_copy(update={"chunk": None})})
    table = rows({"id": "x", "document_id": "x", "text": "alpha"}, spec=spec)
    assert documents_of(table, spec).column("text").to_pylist() == ["alpha"]
    several = rows({"id": "x", "text": "alpha"}, {"id": "y", "text": "beta"}, spec=spec)
    with pytest.raises(MigrationError, match="were not cut from one text"):
        documents_of(several, spec)


def test_another_encoder_is_not_the_model_that_the_spec_names_for_its_vectors() -> None:
    encoder = {"model": "org/model-b"}
    spec = parse_spec(
        {
            "index": "given",
            "source": {"text": "text"},
            "encoder": {"model": "org/model-a"},
            "vector_model": "model-a",
        }
    )
    changes = whole_changes(spec, {"encoder": encoder})
    assert changes == {"encoder": encoder, "vector_model": None}
    assert changed_spec(spec, changes, "mirror").vector_model is None
    assert former_values(spec, changes)["vector_model"] == "model-a"


def test_what_a_build_changes_in_the_source_meanwhile_stays() -> None:
    spec = parse_spec({"index": "i", "source": {"text": "text"}, "encoder": {"model": "org/model-a"}})
    changes = whole_changes(spec, {"chunk": {"max_tokens": 200}})
    built = parse_spec({**spec.model_dump(mode="json"), "source": {"text": "body", "max_errors": 5}})
    there = changed_spec(built, changes, "i")
    assert (
        there.source == changed_spec(built, whole_changes(built, {"chunk": {"max_tokens": 200}}), "i").source
    )
    assert changed_spec(there, former_values(spec, changes), "i") == built
