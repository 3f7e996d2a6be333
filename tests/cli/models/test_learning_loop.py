"""From what users click to another order of hits, while they search: log, judgements, training, gate, promotion."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, read_manifest
from scannery.serving.config import TrafficConfig
from tests.cli.models.test_train import SIDES, TOPICS, built, short_talk
from tests.served import copied, serving

__all__ = ["built"]  # a fixture

pytestmark = pytest.mark.system

ASKERS = 5


def use(address: str, askers: range) -> int:
    """Let some users ask all questions and open the short talk; return how often it was the first hit."""
    first = 0
    with scannery.connect(address) as client:
        index = client.index("talks")
        for asker in askers:
            for topic in TOPICS:
                for side in SIDES:
                    hits = index.search(f"{topic} and {side}", 5, max_per_group=1, client_id=f"user-{asker}")
                    opened = [hit.id for hit in hits if hit.document_id == short_talk(topic, side)]
                    client.feedback(hits.query_id, clicked=opened)
                    first += hits[0].document_id == short_talk(topic, side)
    return first


def test_the_order_is_learned_from_clicks_while_users_search(built: Path, tmp_path: Path) -> None:
    store = copied(built, tmp_path)
    where = ("--store", str(store))
    with serving(store, traffic=TrafficConfig(share=1.0, text=True), device="cpu") as server:
        before = use(server.address, range(ASKERS)) / ASKERS
    assert before < 0.2 * len(TOPICS) * len(SIDES), "the default has long talks first"
    assert main(["log", "pairs", "-i", "talks", *where, "--output", str(tmp_path / "clicks")]) == 0
    spec = tmp_path / "train.yaml"
    spec.write_text(
        "name: clicks\nindex: talks\nevaluate: {queries: clicks/queries.jsonl, qrels: clicks/qrels.tsv}\n"
    )
    with serving(store, traffic=TrafficConfig(share=1.0, text=True), device="cpu") as server:
        failed: list[Exception] = []
        ended = threading.Event()

        def search_on() -> None:
            with scannery.connect(server.address) as client:
                while not ended.is_set():
                    try:
                        assert client.index("talks").search("chess and prices", 5)
                    except (scannery.ScanneryError, AssertionError) as error:
                        failed.append(error)

        searching = threading.Thread(target=search_on)
        searching.start()
        try:
            assert main(["train", str(spec), *where]) == 0
            assert main(["model", "promote", "clicks", "-i", "talks", *where]) == 0
            version = read_manifest(Store.open(store), "talks").version
            with scannery.connect(server.address) as client:
                until_s = time.monotonic() + 30
                while client.index("talks").search("chess", 1).version < version:
                    assert time.monotonic() < until_s
                    ended.wait(0.05)
        finally:
            ended.set()
            searching.join()
        assert failed == []
        assert use(server.address, range(1)) > 0.9 * len(TOPICS) * len(SIDES)
