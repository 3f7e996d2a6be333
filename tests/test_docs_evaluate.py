"""The commands of docs/evaluate.md, run one after the other, and what the page says of their output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from scannery.evaluation.evaluate import SWEPT
from scannery.evaluation.measures import parse_measures
from scannery.indexer import Store, parse_spec, read_manifest
from tests.cli.test_judge import typed
from tests.data import ROOT
from tests.pages import Reader, blocks
from tests.served import make_text_store
from tests.test_docs import rows

PATH = "docs/evaluate.md"
PAGE = (ROOT / PATH).read_text()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `./store`, which has two indexes of a few texts."""
    folder = tmp_path_factory.mktemp("docs")
    made = make_text_store(folder, lexical=True)
    made.rename(folder / "store")
    for name in ("podcasts", "podcasts-large"):
        copy_index(folder / "store", "texts", name)
    return folder


def copy_index(path: Path, name: str, copy: str) -> None:
    """Commit a version of another index with the segments of the first."""
    from scannery.indexer import commit, segment_key

    store = Store.open(path)
    manifest = read_manifest(store, name)
    spec = parse_spec({**manifest.spec.model_dump(), "index": copy})
    for entry in manifest.segments:
        store.write(segment_key(copy, entry.key), store.read(segment_key(name, entry.key)))
    commit(store, manifest.model_copy(update={"index": copy, "spec": spec, "index_id": None}))


@pytest.mark.system
def test_the_commands_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    Path("answers.jsonl").write_text('{"text": "how do eruptions happen", "hits": [{"id": "volcano"}]}\n')
    reader = Reader(capsys)
    for block in blocks(PATH):
        with typed(b"23100" * 20):
            reader.run(block)
    assert len(reader.outputs) == 8
    assert {path.name for path in folder.iterdir()} >= {
        "qrels.tsv", "alpha.png", "queries.csv", "run.dense.trec", "run.hybrid.trec", "evaluation.json",
    }  # fmt: skip
    described = {name for cells in rows(PAGE, "| key | value |") for name in re.findall(r"`(\w+)`", cells[0])}
    assert described == set(json.loads((folder / "evaluation.json").read_text()))


def test_the_tables_are_complete() -> None:
    swept = {name for cells in rows(PAGE, "| sweep | values |") for name in re.findall(r"`(\w+)`", cells[0])}
    assert swept == set(SWEPT)
    measures = [re.findall(r"`(.+?)`", cells[0])[0] for cells in rows(PAGE, "| measure | of a query |")]
    assert [one.name for one in parse_measures(measures)] == measures
