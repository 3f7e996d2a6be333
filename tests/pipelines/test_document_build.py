"""Folders of documents go in as they are, are cut at their headings, and live writes are cut alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from reportlab.pdfgen import canvas

import scannery
from scannery.indexer import open_index, read_manifest
from tests.embed.conftest import MINILM
from tests.pipelines.conftest import letters_of, run

pytestmark = pytest.mark.system

SPEC: dict[str, Any] = {
    "index": "docs",
    "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 32, "overlap_tokens": 8}},
    "encoder": {"model": MINILM, "device": "cpu"},
    "attributes": {"section": "string", "page": "int", "tags": "string_list"},
    "lexical": True,
}
GUIDE = """---
title: Coffee at home
tags: [coffee, kitchen]
---
Read this first.

# Brewing

## Espresso

Nine bars of pressure for thirty seconds.

## Prices

| bean | price |
| --- | --- |
""" + "".join(f"| bean {i} | {i} euros a kilogram |\n" for i in range(12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    folder.mkdir()
    (folder / "guide.md").write_text(GUIDE)
    (folder / "tea.html").write_text(
        "<title>Tea</title><h1>Tea</h1><p>Green.</p><h2>Black</h2><p>Strong.</p>"
    )
    page = canvas.Canvas(str(folder / "report.pdf"))
    for text in (
        "Sales grew.",
        "Costs fell because of a mild winter, which saved most of the gas of the year before.",
    ):
        page.drawString(72, 700, text)
        page.showPage()
    page.save()
    (folder / "scan.pdf").write_bytes(b"%PDF-1.7 nothing")
    return folder


def table_of(store, *columns: str) -> dict[str, dict[str, Any]]:
    opened = open_index(store, "docs")
    names = ("id", "text", "title", *columns)
    tables = [segment.take(rows_R, [*names]) for segment, rows_R in opened.live_rows()]
    return {row["id"]: row for row in pa.concat_tables(tables).to_pylist()}


def test_a_new_index_of_documents_is_cut_at_headings(store, folder):
    report = run(store, str(folder), spec=SPEC)
    assert [letter.reason for letter in letters_of(store, report)] == ["damaged_file"]
    chunk = read_manifest(store, "docs").spec.source.chunk
    assert chunk is not None
    assert chunk.headings is True
    rows = table_of(store, "section", "page", "tags", "text_start", "text_end")
    guide = [row for name, row in rows.items() if name.startswith("guide.md#")]
    assert [(row["title"], row["section"]) for row in sorted(guide, key=lambda row: row["text_start"])][
        :3
    ] == [
        ("Coffee at home", None),
        ("Coffee at home > Brewing > Espresso", "Brewing > Espresso"),
        ("Coffee at home > Brewing > Prices", "Brewing > Prices"),
    ]
    assert all(row["text"] == GUIDE[row["text_start"] : row["text_end"]] for row in guide)
    assert all(row["tags"] == ["coffee", "kitchen"] for row in guide)
    assert (rows["tea.html#1"]["text"], rows["tea.html#1"]["section"]) == (
        "## Black\n\nStrong.",
        "Tea > Black",
    )
    assert [rows[f"report.pdf#{i}"]["page"] for i in range(1)] == [1]
    with scannery.connect(store.uri) as client:
        index = client.index("docs")
        [hit] = index.search("espresso pressure", k=1, where={"section": "Brewing > Espresso"})
        assert hit.attributes["section"] == "Brewing > Espresso"
        # The header of the table is found with each piece of it.
        assert len(index.search("price", mode="lexical", k=20)) >= 3


def test_live_writes_are_cut_as_builds_are(store, folder):
    run(store, str(folder / "guide.md"), spec=SPEC)
    columns = ("section", "page", "text_start", "text_end")
    built = table_of(store, *columns)
    with scannery.connect(store.uri) as client:
        index = client.index("docs")
        index.delete(["guide.md"])
        index.upsert([{"id": "live", "text": GUIDE, "title": "Coffee at home"}])
        ids = [f"live#{i}" for i in range(len(built))]
        points = index.get([*ids, f"live#{len(built)}"], vectors=True)
        assert points.pop() is None
        before = {row["text"]: row for row in built.values()}
        for point in points:
            assert point is not None
            row = before[point.text]
            assert (point.title, point.attributes.get("section")) == (row["title"], row["section"])


def test_an_existing_index_keeps_its_passages(store, folder):
    old = {**SPEC, "source": {**SPEC["source"], "chunk": {**SPEC["source"]["chunk"], "headings": False}}}
    run(store, str(folder / "guide.md"), spec=old)
    stored = read_manifest(store, "docs").spec.model_dump()
    assert "headings" not in stored["source"]["chunk"]  # as earlier releases store it
    rows = table_of(store)
    for mode in ("upsert", "full"):
        report = run(store, str(folder / "guide.md"), spec=SPEC, mode=mode)
        assert report.embedded == 0
        assert table_of(store) == rows
    new = {**SPEC, "source": {**SPEC["source"], "chunk": {**SPEC["source"]["chunk"], "headings": True}}}
    assert run(store, str(folder / "guide.md"), spec=new).embedded > 0
    assert table_of(store) != rows
    assert run(store, str(folder / "guide.md"), spec=SPEC).embedded == 0  # it keeps this, too


def test_embedded_documents_are_recognised(store, folder):
    run(store, str(folder / "guide.md"), str(folder / "tea.html"), spec=SPEC)
    rows = table_of(store, "section")
    (folder / "more.md").write_text("# More\nNew.")
    report = run(store, str(folder / "*.md"), str(folder / "tea.html"), spec=SPEC)
    assert report.embedded == 1
    assert {name: row for name, row in table_of(store, "section").items() if name in rows} == rows


def test_records_without_headings_are_cut_as_before(store, write):
    run(store, write("a.jsonl", [{"id": "a", "title": "T", "text": "# One\ntext\n# Two\ntext"}]), spec=SPEC)
    assert [row["title"] for row in table_of(store).values()] == ["T"]
