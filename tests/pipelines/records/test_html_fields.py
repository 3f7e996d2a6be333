"""HTML in text fields of records: read where the spec says so, told of where it does not."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from scannery.indexer import IndexSpec, parse_spec
from scannery.pipelines.planning.build_plan import with_headings
from scannery.pipelines.profiling.checking import check_sample
from scannery.pipelines.profiling.drafting import draft_spec
from scannery.pipelines.profiling.sample import init_sample, read_sample
from scannery.pipelines.records.source_columns import validate_batch, validate_records
from scannery.pipelines.sources import Batch, Record
from scannery.pipelines.sources.documents.html_pages import has_html, readable

ROWS = [
    {
        "id": "1",
        "name": "Tea &amp; coffee",
        "body": "<h2>Brewing</h2><p>Water at 93&nbsp;&deg;C.</p><ul><li>pour</ul>",
    },
    {"id": "2", "name": "plain", "body": "no tags,\ntwo lines, a < b and x > y"},
    {"id": "3", "name": "escaped", "body": "&lt;p&gt;Twice&lt;/p&gt;"},
    {"id": "4", "name": "an entity", "body": "Fish &amp; chips"},
]
TEXTS = [
    "## Brewing\n\nWater at 93 °C.\n\n- pour",
    "no tags,\ntwo lines, a < b and x > y",
    "Twice",
    "Fish & chips",
]


def spec_of(**source: Any) -> IndexSpec:
    own = {"text": "body", "title": "name", **source}
    return parse_spec({"index": "i", "source": own, "encoder": {"model": "m"}})


def test_texts_and_titles_are_read_by_records_and_by_columns():
    spec = spec_of(text_format="html")
    by_records = validate_records([Record(row, "a", line=1) for row in ROWS], spec, {"": 1})
    columns = pa.RecordBatch.from_pylist(ROWS)
    by_columns = validate_batch(Batch(columns, None, "a", 1), spec, {"": 1})
    for valid in (by_records, by_columns):
        assert [text.replace("\xa0", " ") for text in valid.table["text"].to_pylist()] == TEXTS
        assert valid.table["title"].to_pylist()[0] == "Tea & coffee"


@pytest.mark.parametrize("source", [{}, {"text_format": "plain"}])
def test_without_the_key_texts_stay_as_they_are(source):
    valid = validate_records([Record(row, "a", line=1) for row in ROWS], spec_of(**source), {"": 1})
    assert valid.table["text"].to_pylist() == [row["body"] for row in ROWS]


def test_several_fields_are_read_together():
    spec = spec_of(text=["name", "body"], title=None, text_format="html")
    valid = validate_records([Record(ROWS[0], "a", line=1)], spec, {"": 1})
    assert valid.table["text"].to_pylist()[0].startswith("Tea & coffee\n\n## Brewing")


def test_such_texts_are_markdown_for_the_chunker():
    for format, headings in (("html", True), ("plain", False)):
        spec = with_headings(spec_of(text_format=format, chunk={"max_tokens": 64}), None, [])
        assert spec.source.chunk is not None
        assert spec.source.chunk.headings is headings


def test_a_live_write_reads_them_as_a_build_does():
    point = readable(
        {"id": "1", "title": ROWS[0]["name"], "text": ROWS[0]["body"], "attributes": {"x": "<b>"}}
    )
    assert point["text"].replace("\xa0", " ") == TEXTS[0]
    assert (point["title"], point["attributes"]) == ("Tea & coffee", {"x": "<b>"})


@pytest.mark.system
def test_a_check_recommends_the_key_and_a_draft_has_it(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    sample = read_sample([str(path)], spec_of().source)
    assert check_sample(spec_of(), sample, None).html_share == 0.25
    assert check_sample(spec_of(text_format="plain"), sample, None).html_share == 0
    sample, source = init_sample([str(path)])
    assert (
        "text_format: html" in draft_spec(sample, [str(path)], overrides={"text": "body"}, source=source).text
    )


@pytest.mark.parametrize(
    "text", ["a <br> b", "<p class='x'>y", "a&nbsp;b", "&#8217;", "<A HREF='x'>y</A>", "</div>"]
)
def test_tags_and_entities_are_html(text):
    assert has_html(text)


@pytest.mark.parametrize(
    "text", ["a < b > c", "R&D; AT&T", "x <- y", "<3", "List<String> list", "<you@example.com>"]
)
def test_other_signs_are_not(text):
    assert not has_html(text)
