"""`scannery evaluate` on Cranfield, by words: the figures of docs/benchmarks/quality.md, whose reference is bm25s."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.collections import cranfield
from scannery.indexer import Store, parse_spec
from tests.cli.test_commands import in_json
from tests.data import datapoints, shared_data
from tests.served import publish_version

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shared_data("ir-cranfield")  # skips without the data
    folder = tmp_path_factory.mktemp("cranfield")
    collection = cranfield()
    collection.write(folder)
    ids, titles, texts = map(list, zip(*collection.documents, strict=True))
    # Vectors are not searched here; a model would take a minute for them.
    vectors_ND = np.random.default_rng(0).normal(size=(len(ids), 8)).astype(np.float32)
    source = {"id": "id", "title": "title", "text": "text", "vector": "vector"}
    spec = parse_spec({"index": "cranfield", "source": source, "lexical": {"analyser": 2}})
    table = datapoints(
        spec, vectors_ND, ids=ids, columns={"document_id": ids, "title": titles, "text": texts}
    )
    publish_version(Store.open(folder / "store", create=True), spec, table, folder)
    return folder


def test_figures_are_those_of_the_reference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = in_json(
        capsys, "evaluate", "-i", "cranfield", "-s", str(folder / "store"), "--mode", "lexical",
        "--queries", str(folder / "queries.jsonl"), "--qrels", str(folder / "qrels.tsv"),
    )  # fmt: skip
    assert (answer["queries"], answer["left_out"]) == (225, 0)
    metrics = answer["modes"]["lexical"]["metrics"]
    found = {name: round(metrics[name]["mean"], 4) for name in ("nDCG@10", "MRR@10", "recall@100")}
    assert found == {"nDCG@10": 0.3676, "MRR@10": 0.5351, "recall@100": 0.7403}
    # One of Cranfield's empty documents is judged relevant.
    assert answer["collection"]["unknown_documents"] == ["995"]
    assert (answer["collection"]["relevant"], answer["collection"]["unknown_relevant"]) == (1612, 1)


def test_the_interval_of_the_mean_is_that_of_its_standard_error(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "queries.csv"
    answer = in_json(
        capsys, "evaluate", "-i", "cranfield", "-s", str(folder / "store"), "--mode", "lexical",
        "--queries", str(folder / "queries.jsonl"), "--qrels", str(folder / "qrels.tsv"), "--per-query", str(path),
    )  # fmt: skip
    interval = answer["modes"]["lexical"]["metrics"]["nDCG@10"]
    with path.open(newline="") as file:
        values = np.array([float(row["nDCG@10"]) for row in csv.DictReader(file)])
    assert interval["mean"] == pytest.approx(values.mean())
    error = values.std() / math.sqrt(len(values))
    assert (interval["high"] - interval["low"]) / 2 == pytest.approx(1.96 * error, rel=0.08)
