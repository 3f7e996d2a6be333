"""The log of queries: what is written of them, by whom, and that no search waits for it or fails with it."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, StoreError
from scannery.indexer.traffic import merging
from scannery.indexer.traffic.day_files import days_of, read_rows, write_rows
from scannery.indexer.traffic.keys import client_hashes, read_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from scannery.indexer.versions.dropping import drop_index
from scannery.runtime.errors import ConfigError
from scannery.serving import Server, ServerConfig
from scannery.serving.config import TrafficConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.security.config import SecurityConfig
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic import writer as writer_module
from scannery.serving.traffic.writer import TrafficWriter
from tests.cluster.processes import Process
from tests.http1 import eventually
from tests.indexer.traffic.test_day_files import event, query
from tests.served import DIMENSIONS, copied, serving
from tests.tools.ports import free_ports

RNG = np.random.default_rng(0)
VECTOR = RNG.normal(size=DIMENSIONS).astype(np.float32)
ALL = TrafficConfig(share=1.0)


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def log_of(store: Path, index: str = "library") -> list[LoggedQuery]:
    return list(read_rows(Store.open(store), index, LoggedQuery))


def metric(server: Server, name: str, *labels: str) -> float:
    return float(server.metrics.registry.dump()[name].get("\x1f".join(labels), 0))


# What is written


@pytest.mark.system
def test_a_logged_query_has_hits_scores_and_attributes(store: Path) -> None:
    with serving(store, traffic=ALL) as server, scannery.connect(server.address, http=False) as client:
        hits = client.index("library").search(VECTOR, k=3, offset=2, where={"show": "gotime"})
        [several, _] = client.index("library").search_many([VECTOR, -VECTOR], k=2)
        assert metric(server, "scannery_identified_answers_total", "library") == 3
    [row, *batch] = log_of(store)
    assert row.query_id == hits.query_id.partition(".")[0]
    assert row.query_response_hit_ids == [hit.id for hit in hits]
    assert row.scores == pytest.approx([hit.score for hit in hits])
    assert row.attributes == {"version": 1, "mode": "dense", "k": 3, "offset": 2}, "filters only with texts"
    assert 0 < row.latency_us < 60e6
    assert abs(row.timestamp - datetime.now(timezone.utc)) < timedelta(minutes=2)
    assert (row.user_query, row.vector, row.asker) == (None, None, None)
    assert {each.query_id for each in batch} >= {several.query_id.partition(".")[0]}
    assert len(batch) == 2


@pytest.mark.system
def test_texts_filters_and_vectors_are_logged_only_if_wanted(texts: Path, tmp_path: Path) -> None:
    store = copied(texts, tmp_path)
    config = TrafficConfig(share=1.0, text=True, vectors=True)
    text = "who bakes for ann@example.com, 555 123 456 789?"
    with serving(store, traffic=config, device="cpu") as server:
        for http in (False, True):
            target = f"http://127.0.0.1:{server.http_port}" if http else server.address
            with scannery.connect(target, http=http) as client:
                client.index("texts").search(text, where={"letters": {"$gt": 123456789}}, mode="dense")
                client.index("texts").search(np.ones(384))
    by_text = [row for row in log_of(store, "texts") if row.user_query]
    assert [row.user_query for row in by_text] == ["who bakes for # #?"] * 2 or by_text[0].user_query
    assert len({row.asker for row in by_text}) == 1
    for row in by_text:
        assert "ann" not in row.query_attributes
        assert "123456789" not in row.query_attributes
        assert "letters" in row.query_attributes
        assert row.attributes["mode"] == "dense"
        assert row.vector is not None
        assert np.linalg.norm(row.vector) == pytest.approx(1, abs=1e-4)
    assert sum(row.vector == [1.0] * 384 for row in log_of(store, "texts")) == 2


@pytest.mark.system
def test_clients_are_told_apart_without_their_names(store: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    created = {name: keys.create(name) for name in ("ann", "bob")}
    security = SecurityConfig(keys_file=str(keys.path))

    def ask(config: TrafficConfig) -> list[str]:
        before = {row.query_id for row in log_of(store)}
        with serving(store, traffic=config, security=security) as server:
            for name in ("ann", "bob", "ann"):
                with scannery.connect(server.address, api_key=created[name][1], http=False) as client:
                    for client_id in (None, "user-1", "user-2"):
                        client.index("library").search(VECTOR, client_id=client_id)
        return [row.client_id for row in log_of(store) if row.query_id not in before]

    told = ask(ALL)
    assert told[:3] == told[6:]
    assert len(set(told)) == 6
    assert len(set(ask(replace(ALL, client_ids=False)))) == 2
    assert told[1] in client_hashes(
        read_keys(Store.open(store)), f"ann/{created['ann'][0].id}\0user-1", datetime.now(timezone.utc).date()
    )
    files = b"".join(
        Store.open(store).read(key)
        for keys in days_of(Store.open(store), "library", LoggedQuery).values()
        for key in keys
    )
    assert b"user-1" not in files
    assert b"ann" not in files


@pytest.mark.system
def test_a_share_of_the_queries_is_logged(store: Path) -> None:
    config = TrafficConfig(share=0.05)
    with serving(store, traffic=config) as server, scannery.connect(server.address, http=False) as client:
        for _ in range(20):
            answers = client.index("library").search_many(RNG.normal(size=(100, DIMENSIONS)))
            assert all(each.query_id for each in answers)
    assert 50 < len(log_of(store)) < 170  # of 2,000, five standard deviations


# Days


@pytest.mark.system
def test_old_days_go(store: Path) -> None:
    now = datetime.now(timezone.utc)
    rows = [query(days, now - timedelta(days=days)) for days in (1, 6, 7, 40)]
    write_rows(Store.open(store), "library", [*rows, event(0, now - timedelta(days=7))], "old-0")
    with serving(store, traffic=replace(ALL, days=7)) as server:
        eventually(lambda: len(days_of(Store.open(store), "library", LoggedQuery)) == 2)
        eventually(lambda: not days_of(Store.open(store), "library", LoggedEvent))
        assert server.config.traffic.days == 7


# What may go wrong


class FailingStore:
    """A store of which writing fails while `fails` is set, to keys that have `fails_at` in them."""

    def __init__(self, path: Path) -> None:
        self.store, self.fails, self.fails_at = Store.open(path, create=True), True, ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def write(self, key: str, data: bytes) -> None:
        if self.fails and self.fails_at in key:
            raise StoreError("the store is down")
        self.store.write(key, data)


def written_by(store: Any, metrics: ServerMetrics, **options: Any) -> TrafficWriter:
    options = {"days": 30, "serves": lambda index: True, "indexes": list, **options}
    return TrafficWriter(store, metrics, **options)


def test_rows_wait_while_the_store_is_down_and_some_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_ROWS", 100)
    store, metrics = FailingStore(tmp_path / "store"), ServerMetrics()
    writer = written_by(store, metrics)
    assert all(writer.add_later("library", partial(query, number), 10) for number in range(100))
    with pytest.raises(StoreError):
        writer.flush()
    assert not writer.add_later("library", lambda: query(100), 10)
    assert not writer.add("library", event(), 10)
    store.fails = False
    writer.flush()
    assert len(log_of(tmp_path / "store")) == 100
    assert writer.add("library", event(), 10), "there is room again"
    dump = metrics.registry.dump()
    assert dump["scannery_traffic_dropped_total"] == {"traffic": 1, "feedback": 1}
    assert dump["scannery_traffic_rows_total"] == {"traffic": 100}


def test_what_was_written_before_a_failure_is_replaced(tmp_path: Path) -> None:
    store = FailingStore(tmp_path / "store")
    store.fails_at = "/traffic/"
    writer = written_by(store, ServerMetrics())
    writer.add("library", event(), 10)
    for number in range(3):
        writer.add_later("library", partial(query, number), 10)
        with pytest.raises(StoreError):
            writer.flush()
    store.fails = False
    writer.flush()
    writer.add_later("library", partial(query, 3), 10)
    writer.flush()
    assert len(log_of(tmp_path / "store")) == 4
    assert (len(store.list("library/feedback")), len(store.list("library/traffic"))) == (1, 2)


def test_the_memory_of_waiting_rows_is_bounded(tmp_path: Path) -> None:
    writer = written_by(FailingStore(tmp_path / "store"), ServerMetrics())
    assert writer.add_later("library", lambda: query(1), writer_module.MAX_BYTES - 10)
    assert not writer.add_later("library", lambda: query(2), 11)
    writer.forget("library")
    assert writer.add_later("library", lambda: query(2), 11)


def test_a_row_that_cannot_be_made_is_dropped(tmp_path: Path) -> None:
    def fail() -> LoggedQuery:
        raise StoreError("the index is gone")

    metrics = ServerMetrics()
    writer = written_by(Store.open(tmp_path / "store", create=True), metrics)
    for row_of in (fail, query):
        assert writer.add_later("library", row_of, 10)
    writer.flush()
    assert len(log_of(tmp_path / "store")) == 1
    assert metrics.registry.dump()["scannery_traffic_dropped_total"] == {"traffic": 1}


def test_an_index_that_is_down_does_not_keep_others_waiting(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    writer = written_by(store, ServerMetrics(), serves=lambda index: index != "gone")
    for index in ("gone", "library", "gone"):
        writer.add_later(index, query, 10)
    writer.flush()
    assert len(log_of(tmp_path / "store")) == 1
    assert not store.list("gone")


def test_a_damaged_file_keeps_no_old_days(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    now = datetime.now(timezone.utc)
    for index in ("damaged", "library"):
        for number in range(merging.MIN_FILES):
            write_rows(store, index, [query(number, now - timedelta(days=2))], f"a-{number}")
        write_rows(store, index, [query(99, now - timedelta(days=40))], "old-0")
    store.write(days_of(store, "damaged", LoggedQuery).popitem()[1][0], b"no table")
    metrics = ServerMetrics()
    writer = written_by(store, metrics, indexes=lambda: ["damaged", "library"])
    writer.start()
    eventually(lambda: len(store.list("library/traffic")) == 1)
    writer.stop()
    assert len(days_of(store, "damaged", LoggedQuery)) == 1
    assert metrics.registry.dump()["scannery_background_failures_total"] == {"traffic": 1}


@pytest.mark.system
def test_searches_are_answered_while_the_store_takes_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise StoreError("the store is down")

    monkeypatch.setattr(writer_module, "write_rows", fail)
    with serving(store, traffic=ALL) as server, scannery.connect(server.address, http=False) as client:
        monkeypatch.setattr(writer_module, "MAX_ROWS", 40)
        answers = [client.index("library").search(VECTOR) for _ in range(100)]
        assert all(len(hits) == 10 and hits.query_id for hits in answers)
        assert metric(server, "scannery_traffic_dropped_total", "traffic") >= 60
        with (
            scannery.connect(server.address, http=False, retries=False) as hasty,
            pytest.raises(scannery.ResourceExhaustedError, match="feedback cannot be stored"),
        ):
            hasty.feedback(answers[0].query_id, clicked=[answers[0][0].id])
        eventually(lambda: metric(server, "scannery_background_failures_total", "traffic") >= 1)
    assert not log_of(store)


@pytest.mark.system
def test_searches_are_answered_where_the_keys_are_damaged(store: Path) -> None:
    Store.open(store).write("_traffic/keys/00000001.json", b"{}")
    with serving(store, traffic=ALL) as server, scannery.connect(server.address, http=False) as client:
        hits = client.index("library").search(VECTOR)
        assert len(hits) == 10
        assert hits.query_id == ""


@pytest.mark.system
def test_a_dropped_index_leaves_nothing(store: Path) -> None:
    with serving(store, traffic=ALL) as server, scannery.connect(server.address, http=False) as client:
        hits = client.index("library").search(VECTOR)
        client.drop_index("library")
        with pytest.raises(scannery.NotFoundError):
            client.feedback(hits.query_id, clicked=[hits[0].id])
    assert not Store.open(store).list("library")


@pytest.mark.system
def test_rows_of_an_index_that_another_process_drops_are_not_written(store: Path) -> None:
    with serving(store, traffic=ALL, check_every_s=3600) as server:
        with scannery.connect(server.address, http=False) as client:
            client.index("library").search(VECTOR)
            client.index("flat").search(VECTOR[:4])
        drop_index(Store.open(store), "library", force=True)
    assert not (store / "library").exists()
    assert len(log_of(store, "flat")) == 1


@pytest.mark.system
def test_a_killed_server_loses_what_waits_and_leaves_whole_files(store: Path) -> None:
    [port] = free_ports(1)
    process = Process(store, port, "--traffic-share", "1")
    process.start()
    try:
        process.wait()
        queries = RNG.normal(size=(1000, DIMENSIONS)).astype(np.float32)
        with scannery.connect(process.address, http=False) as client:
            for _ in range(5):
                client.index("library").search_many(queries, k=1)
            eventually(lambda: log_of(store))
            before = len(log_of(store))
            client.index("library").search_many(queries, k=1)
        process.send(signal.SIGKILL)
        process.wait_for_the_end()
    finally:
        process.kill()
    assert 2000 < before <= len(log_of(store)) <= 6000
    folder = Path(store) / "library/traffic"
    assert all(path.suffix == ".parquet" for path in folder.rglob("*") if path.is_file())


# Options


@pytest.mark.parametrize("fields", [{"share": 1.5}, {"share": -0.1}, {"days": 0}])
def test_options_are_checked(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        TrafficConfig(**fields)
    assert caught.value.field in fields


def test_a_leaf_has_no_log(library: Path) -> None:
    with pytest.raises(ConfigError, match="not for a leaf"):
        ServerConfig(store=str(library), role="leaf", group="0/2", traffic=ALL)


@pytest.mark.system
def test_empty_answers_are_counted_with_and_without_the_log(store: Path) -> None:
    for config in (TrafficConfig(), ALL):
        with serving(store, traffic=config) as server:
            for target in (server.address, f"http://127.0.0.1:{server.http_port}"):
                with scannery.connect(target, http=target != server.address) as client:
                    assert not client.index("library").search(VECTOR, where={"show": "none"})
                    assert client.index("library").search(VECTOR)
            assert metric(server, "scannery_empty_answers_total", "library") == 2


@pytest.mark.system
def test_scores_and_clicks_are_counted(store: Path) -> None:
    with serving(store, traffic=ALL) as server, scannery.connect(server.address, http=False) as client:
        answers = [client.index("library").search(VECTOR, k=3) for _ in range(4)]
        for _ in range(3):
            client.feedback(answers[0].query_id, clicked=[answers[0][0].id, answers[0][1].id])
        dump = server.metrics.registry.dump()
        assert dump["scannery_feedback_total"] == {"library\x1fclick": 2}
        assert dump["scannery_clicked_answers_total"] == {"library": 1}
        assert dump["scannery_identified_answers_total"] == {"library": 4}
        assert sum(dump["scannery_answer_score"]["library\x1fdense"][1:]) == 4
