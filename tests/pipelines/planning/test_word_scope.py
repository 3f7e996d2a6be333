"""The scope of words: which one an index has, and that a build changes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store
from scannery.indexer.versions.versions import read_manifest
from scannery.pipelines import build

SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"text": "text", "document_id": "talk"},
    "vectors": "optional",
    "lexical": {"language": "none"},
}
PASSAGES = [
    {"id": "a0", "talk": "a", "text": "volcano and ash"},
    {"id": "a1", "talk": "a", "text": "lava runs downhill"},
    {"id": "b0", "talk": "b", "text": "lava runs downhill"},
    {"id": "b1", "talk": "b", "text": "a lamp from the seventies"},
]


def built(folder: Path, **lexical: Any) -> scannery.Index:
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(passage)}\n" for passage in PASSAGES))
    spec = {**SPEC, "lexical": {**SPEC["lexical"], **lexical}}
    build(spec, [str(folder / "in.jsonl")], str(folder / "store"))
    return scannery.connect(folder / "store").index("talks")


def scope_of(folder: Path) -> str | None:
    lexical = read_manifest(Store.open(folder / "store"), "talks").spec.lexical
    assert lexical is not None
    return lexical.scope


def test_a_new_index_of_passages_counts_the_words_of_documents(tmp_path: Path) -> None:
    hits = built(tmp_path).search("volcano lava", 4, mode="lexical")
    assert scope_of(tmp_path) == "document"
    assert {hit.id for hit in hits} == {"a0", "a1", "b0"}  # b1 has none of the words
    scores = {hit.id: hit.score for hit in hits}
    assert scores["a1"] > scores["b0"] > 0  # equal texts, but the talk of one has the other word, too


def test_a_filter_takes_no_word_from_a_document(tmp_path: Path) -> None:
    index = built(tmp_path)
    [whole] = [hit.score for hit in index.search("volcano lava", 4, mode="lexical") if hit.id == "a1"]
    [hit] = index.search("volcano lava", 4, mode="lexical", where={"id": "a1"})
    assert hit.score == whole


def test_a_build_changes_the_scope_and_other_builds_keep_it(tmp_path: Path) -> None:
    built(tmp_path, scope="passage")
    before = read_manifest(Store.open(tmp_path / "store"), "talks")
    hits = built(tmp_path).search("volcano lava", 4, mode="lexical")
    assert scope_of(tmp_path) == "passage"
    scores = {hit.id: hit.score for hit in hits}
    assert scores["a1"] == scores["b0"]
    hits = built(tmp_path, scope="document").search("volcano lava", 4, mode="lexical")
    scores = {hit.id: hit.score for hit in hits}
    assert scores["a1"] > scores["b0"]
    after = read_manifest(Store.open(tmp_path / "store"), "talks")
    assert [entry.sha256 for entry in after.segments] == [entry.sha256 for entry in before.segments]


def test_a_full_build_has_the_scope_of_a_new_index(tmp_path: Path) -> None:
    built(tmp_path, scope="passage")
    build(SPEC, [str(tmp_path / "in.jsonl")], str(tmp_path / "store"), mode="full")
    assert scope_of(tmp_path) == "document"


@pytest.mark.system
def test_passages_without_words_do_not_hinder_what_a_build_measures(tmp_path: Path) -> None:
    texts = [f"number {row} of the volcanoes, their ash and lava" for row in range(200)] + ["* " * 20] * 50
    rows = [{"id": f"p{row}", "talk": f"t{row // 3}", "text": text} for row, text in enumerate(texts)]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    build(SPEC, [str(tmp_path / "in.jsonl")], str(tmp_path / "store"))
    relevance = read_manifest(Store.open(tmp_path / "store"), "talks").relevance
    assert relevance is not None
    assert relevance.questions == 50  # of which some have no word


def test_deleted_passages_have_no_words_and_new_ones_have(tmp_path: Path) -> None:
    index = built(tmp_path)

    def score(name: str) -> float:
        [value] = [hit.score for hit in index.search("volcano lava", 9, mode="lexical") if hit.id == name]
        return value

    assert score("a1") > score("b0")
    index.delete(ids=["a0", "b1"])
    assert score("a1") == score("b0")
    index.upsert(
        [{"id": "b2", "document_id": "b", "text": "volcano"}]
    )  # in memory; the others are in a segment
    assert score("b0") > score("a1")


def test_an_index_of_texts_that_are_not_cut_has_no_scope(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "a", "text": "volcano"}))
    build({**SPEC, "source": {"text": "text"}}, [str(tmp_path / "in.jsonl")], str(tmp_path / "store"))
    assert scope_of(tmp_path) is None


@pytest.mark.parametrize(
    ("scope", "text"), [("document", "their whole documents"), ("passage", "each datapoint")]
)
def test_the_scope_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], scope: str, text: str
) -> None:
    built(tmp_path, scope=scope)
    assert main(["index", "show", "talks", "--store", str(tmp_path / "store")]) == 0
    assert text in capsys.readouterr().out
