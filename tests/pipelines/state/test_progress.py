"""The progress of large builds takes a small share of the launcher's time."""

from __future__ import annotations

import threading
import time

import pytest

from scannery.indexer import Store, VectorsInfo
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines.state import progress
from scannery.pipelines.state.job import Job
from scannery.pipelines.state.progress import Progress, watched
from tests.pipelines.conftest import VECTORS

pytestmark = pytest.mark.system


def test_a_slow_listing_is_seldom_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "INTERVAL_S", 0.001)
    store = Store.open(tmp_path / "store", create=True)
    job = Job(store_uri=store.uri, spec=parse_spec(VECTORS), vectors={"": VectorsInfo(dimensions=8)}, shards=1,
              recipe={}, build_id="b", parent=None)  # fmt: skip
    spent: list[float] = []
    seen: list[Progress] = []
    real = store.list

    def slow(prefix: str = "") -> object:
        started = time.perf_counter()
        time.sleep(0.03)
        found = real(prefix)
        spent.append(time.perf_counter() - started)
        return found

    monkeypatch.setattr(store, "list", slow)
    started, ended = time.perf_counter(), threading.Event()
    with watched(job, store, [], seen.append):
        first = len(spent)
        ended.wait(2.0)
    took = time.perf_counter() - started
    assert seen
    # Twice the share for the first look, which has no pause before it, and for a busy machine.
    assert sum(spent[first:]) < 2 * progress.MOST_SHARE * took + 0.1
