"""The process that seals and merges: it starts without a word, and ends without leaving anything."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, list_versions
from scannery.live.maintenance import scheduler
from scannery.live.maintenance.scheduler import PROGRAM, TaskSlots
from scannery.serving.catalog.roles import server_catalog
from tests.data import ROOT
from tests.live.model import make_store, random_row

STUCK = f"""
import sys, time
from scannery.live.maintenance import seal as sealing
import {PROGRAM} as process
def stuck(*_, directory, **__):
    (directory / "half").write_text("x")
    print("building", flush=True)
    time.sleep(120)
sealing.build_segment = stuck
sys.exit(process.main(sys.argv[1:]))
"""


def written(folder: Path) -> Path:
    rng = random.Random(1)
    path = make_store(folder, [random_row(rng, f"id{i}") for i in range(20)])
    with scannery.connect(path) as client:
        client.index("live").upsert([random_row(rng, "id1")])  # type: ignore[list-item]
    return path


def started(store: Path, temporary: Path, program: Sequence[str]) -> subprocess.Popen[str]:
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, *program, "seal", "live", "--store", str(store), "--log", str(store), "--lock", "0"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.system
def test_it_seals_and_says_nothing(tmp_path: Path) -> None:
    store = written(tmp_path)
    process = started(store, tmp_path / "tmp", ["-m", PROGRAM])
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output) == (0, "")
    assert list_versions(Store.open(store), "live") == [1, 2]
    assert not list((tmp_path / "tmp").glob("scannery-*"))


@pytest.mark.system
def test_a_server_that_stops_leaves_no_temporary_files(tmp_path: Path) -> None:
    store = written(tmp_path)
    process = started(store, tmp_path / "tmp", ["-c", STUCK])
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "building\n"
        assert list((tmp_path / "tmp").glob("scannery-*/content/half"))
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        assert (process.returncode, output) == (143, "")
        assert not list((tmp_path / "tmp").glob("scannery-*"))
        assert list_versions(Store.open(store), "live") == [1]
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_is_left_behind_brings_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    left = subprocess.Popen(["sleep", "60"])
    try:
        monkeypatch.setattr(scheduler, "_DETACHED", [left])
        scheduler._leave_detached()
        with warnings.catch_warnings(record=True) as warned:
            left.__del__()  # as at the end of the interpreter
        assert warned == []
    finally:
        os.kill(left.pid, signal.SIGKILL)
        os.waitpid(left.pid, 0)


@pytest.mark.system
def test_many_indexes_that_are_due_at_once_are_sealed_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"tenant-{number}" for number in range(3)]
    with scannery.connect(tmp_path / "store", create=True) as client:
        for name in names:
            client.create_index(name, dimensions=2).upsert([{"id": "a", "vector": [1, 0]}])
    monkeypatch.setitem(scheduler._SLOTS, "seal", TaskSlots(1))
    monkeypatch.setattr(scheduler, "seal_due", lambda state, age_s, *, filling: state.mutations > 0)
    catalog = server_catalog(Store.open(tmp_path / "store"))
    most = 0

    def all_sealed() -> bool:
        nonlocal most
        catalog.refresh()
        catalog.maintain()
        running = [entry.maintenance.running for entry in catalog._entries.values() if entry.maintenance]
        most = max(most, sum(map(len, running)))
        return all(catalog.manifest(name).version > 1 for name in names)

    until_s = time.monotonic() + 120
    while not all_sealed():
        assert time.monotonic() < until_s
        time.sleep(0.02)
    assert most == 1
    catalog.close()
