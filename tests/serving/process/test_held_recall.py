"""A server holds the recall of an index that was tuned with its own rows, when it is asked with other questions."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, parse_spec
from scannery.serving import Server
from scannery.serving.scheduling import spare_time
from tests.data import clustered, datapoints
from tests.served import copied, publish_version, serving
from tests.serving.process.test_supervisor import Log, children, started, wait_until

pytestmark = pytest.mark.system

TARGET = 0.95
ROWS, DIMENSIONS = 6000, 24
SPEC = parse_spec(
    {
        "index": "i",
        "source": {"id": "id", "vector": "v"},
        "scann": {"exact_below_rows": 1000},
        "target_recall": TARGET,
    }
)
SETTLED_S = 300.0
BATCH = 32
"""Queries that are asked, and repeated by the server, together."""
ROWS_ND = clustered(ROWS, DIMENSIONS, clusters=200)
QUESTIONS_QD = np.random.default_rng(3).standard_normal((2000, DIMENSIONS)).astype(np.float32)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held")
    publish_version(
        Store.open(folder / "store", create=True),
        SPEC,
        datapoints(SPEC, ROWS_ND),
        folder,
        queries=ROWS_ND[:100],
    )
    return folder / "store"


@pytest.fixture(scope="module")
def easy_questions(built: Path) -> np.ndarray:
    """Questions whose hits are found without more effort than the curve says; rows as such only reach the target."""
    questions_QD = ROWS_ND[:1000]
    with scannery.connect(built) as client:
        index = client.index("i")
        pairs = zip(ids(index, questions_QD), ids(index, questions_QD, exact=True), strict=True)
        return questions_QD[[hits == true_hits for hits, true_hits in pairs]]


def ids(index: scannery.Index, queries_QD: np.ndarray, *, exact: bool = False) -> list[set[str]]:
    """Return the ids of the hits of each query."""
    hits = index.search_many(list(queries_QD), exact=exact, fields=[])
    return [{hit.id for hit in of_query} for of_query in hits]


def recall(index: scannery.Index, queries_QD: np.ndarray, truth: list[set[str]]) -> float:
    """Return the recall of a default search."""
    pairs = zip(ids(index, queries_QD), truth, strict=True)
    return float(np.mean([len(hits & true_hits) / 10 for hits, true_hits in pairs]))


def settle(server: Server, index: scannery.Index, queries_QD: np.ndarray, *, up: bool) -> None:
    """Ask until the settings rest, and no more than the server repeats, which would only take its time."""
    control = server._recall and server._recall.control("i")
    assert control
    first, until_s = control.step, time.monotonic() + SETTLED_S
    for number in itertools.count():
        if time.monotonic() > until_s:
            raise AssertionError(f"at step {control.step} after {number} batches: {control.estimate()}")
        start = number * BATCH % len(queries_QD)
        index.search_many(list(queries_QD[start : start + BATCH]), fields=[])
        moved = control.step > first if up else control.step == 0
        if moved and not (up and control.is_undecided):
            return
        sample = server._observer.samples["i"]
        while (sample.waiting or sample.repeats) and time.monotonic() < until_s:
            time.sleep(0.01)


def test_it_reaches_the_target_and_goes_back_down_for_easier_questions(
    built: Path, easy_questions: np.ndarray, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with serving(copied(built, tmp_path), recall_share=1.0) as server:
        index = scannery.connect(server.address).index("i")
        truth = ids(index, QUESTIONS_QD[:400], exact=True)
        before = recall(index, QUESTIONS_QD[:100], truth[:100])
        assert before < TARGET - 0.03, "the curve of the rows is not that of the questions"
        settle(server, index, QUESTIONS_QD, up=True)
        assert recall(index, QUESTIONS_QD[:400], truth) >= TARGET - 0.015
        how = index.search(QUESTIONS_QD[0], explain=True).explanation
        assert how is not None
        assert how.recall_steps > 0
        assert how.target_recall == pytest.approx(TARGET)
        assert TARGET < (how.effective_target_recall or 0) <= 1
        low = index.search(QUESTIONS_QD[0], explain=True, target_recall=0.8).explanation
        assert low is not None
        assert low.recall_steps == how.recall_steps
        assert (low.effective_target_recall or 0) < (
            how.effective_target_recall or 0
        ) or how.effective_target_recall == 1
        for fixed in (
            index.search(QUESTIONS_QD[0], explain=True, leaves=2),
            index.search(QUESTIONS_QD[0], explain=True, exact=True),
        ):
            assert fixed.explanation is not None
            assert (fixed.explanation.recall_steps, fixed.explanation.target_recall) == (0, None)
        assert "is below the target 0.950" in caplog.text
        settle(server, index, easy_questions, up=False)
        assert "would also reach the target" in caplog.text
        dump = server.metrics.registry.dump()
        assert dump["scannery_recall_effective_target"]["i"] == pytest.approx(TARGET)
        assert {"i\x1fup", "i\x1fdown"} == dump["scannery_recall_steps_total"].keys()


@pytest.fixture(autouse=True)
def quick_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find out more quickly than beside the work of users."""
    # The caller is in the process of the server here, which would be busy.
    monkeypatch.setattr(spare_time, "BUSY_LOAD", 2.0)
    # At the lowest priority, its thread waits for all other tests.
    monkeypatch.setattr(spare_time, "LOW_PRIORITY", os.getpriority(os.PRIO_PROCESS, 0))
    monkeypatch.setattr(spare_time, "SHARE", 0.5)
    monkeypatch.setattr(spare_time, "SHARE_BUSY", 0.5)
    monkeypatch.setattr(spare_time, "LEAST_PAUSE_S", 0.02)


@contextmanager
def writing(index: scannery.Index, per_second: float) -> Iterator[list[int]]:
    """Replace rows all the time; yield a list of what was written."""
    written: list[int] = []
    done = threading.Event()

    def write() -> None:
        begun = time.monotonic()
        while not done.is_set():
            row = len(written) % ROWS
            index.upsert([{"id": f"d{row % 500}", "vector": ROWS_ND[row % 500]}])
            written.append(row)
            time.sleep(max(0.0, begun + len(written) / per_second - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        done.set()
        thread.join()


def test_it_reaches_the_target_beside_constant_writes(built: Path, tmp_path: Path) -> None:
    with serving(copied(built, tmp_path), recall_share=1.0) as server:
        index = scannery.connect(server.address).index("i")
        with writing(index, 50) as written:
            settle(server, index, QUESTIONS_QD, up=True)
        assert len(written) > 50, "rows are written all the time"
        truth = ids(index, QUESTIONS_QD[:300], exact=True)
        assert recall(index, QUESTIONS_QD[:300], truth) >= TARGET - 0.02


def test_it_can_be_turned_off(built: Path, tmp_path: Path) -> None:
    with serving(copied(built, tmp_path), recall_share=1.0, hold_recall=False) as server:
        index = scannery.connect(server.address).index("i")
        for query_D in QUESTIONS_QD[:300]:
            index.search(query_D, fields=[])
        how = index.search(QUESTIONS_QD[0], explain=True).explanation
        assert how is not None
        assert how.recall_steps == 0
        assert how.effective_target_recall == pytest.approx(TARGET)
        assert not server.metrics.registry.dump()["scannery_recall_effective_target"]


def test_workers_move_together_and_a_reload_keeps_the_step(built: Path, tmp_path: Path) -> None:
    options = ("--workers", "2", "--recall-share", "1")
    with started(copied(built, tmp_path), *options) as (process, address):
        log = Log(process)

        def steps(connections: int = 8) -> set[int]:
            """Return the steps of searches over several connections, which the kernel spreads over the workers."""
            found = set()
            for _ in range(connections):
                with scannery.connect(address) as client:
                    how = client.index("i").search(QUESTIONS_QD[0], explain=True).explanation
                    assert how is not None
                    found.add(how.recall_steps)
            return found

        clients = [scannery.connect(address) for _ in range(4)]
        until_s = time.monotonic() + SETTLED_S
        for number in itertools.count():
            start = number * BATCH % len(QUESTIONS_QD)
            clients[number % 4].index("i").search_many(list(QUESTIONS_QD[start : start + BATCH]), fields=[])
            if log.said("effective target") > 1:
                break
            assert time.monotonic() < until_s
            time.sleep(0.1)  # a busy server repeats few of them
        assert log.said("is below the target 0.950") > 0
        wait_until(lambda: min(steps()) > 0)
        for client in clients:
            client.close()
        first = {*children(process.pid)}
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("the new workers are ready"))
        wait_until(lambda: not first & {*children(process.pid)})
        assert min(steps()) > 0
