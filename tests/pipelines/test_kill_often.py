"""`kill -9` at random moments of a build, an update and a compaction; `make kills` for the long form.

Killed processes are forked from one that has everything imported, so that a kill costs no start of Beam. A moment is a
random share of the time that the fastest undisturbed run takes; the seed is printed, and SCANNERY_SEED repeats it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store, collect_garbage, list_versions, open_index, read_manifest, verify
from tests.data import LONG_SHARE, ROOT
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records

KILLS = int(os.environ.get("SCANNERY_KILLS", "1"))
SEED = int(os.environ.get("SCANNERY_SEED", random.SystemRandom().randrange(2**32)))
CASES = [("build", None), ("update", "local"), ("compact", None)]
if KILLS > 1 or LONG_SHARE == 1:
    CASES += [("build", "local"), ("update", None), ("compact", "local")]
"""With either runner, which run the same stages."""
SPEC = VECTORS | {"shards": 2, "scann": {"exact_below_rows": 1000}}

FORKER = """
import json, os, sys
from scannery.pipelines import building, compacting
from scannery.pipelines.execution import runners
from scannery.pipelines.state import work_units as units
import scannery.pipelines.execution.beam_pipeline
units.MIN_UNIT_BYTES = units.MIN_VECTOR_UNIT_BYTES = 1 << 15
for line in sys.stdin:
    task = json.loads(line)
    pid = os.fork()
    if pid == 0:
        try:
            if task["kind"] == "compact":
                compacting.compact("vectors", task["store"], runner=task["runner"])
            else:
                options = {"deletes": task["deletes"], "runner": task["runner"]}
                building.build(task["spec"], [task["input"]], task["store"], **options)
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    print(pid, flush=True)
    print(os.waitpid(pid, 0)[1], flush=True)
"""


class Forker:
    """A process that has Beam imported, and forks others to be killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, task: dict[str, Any], after_s: float | None = None) -> tuple[int, float]:
        """Run a task, killed after some seconds if it lasts that long; return its wait status and its time."""
        assert self._process.stdin and self._process.stdout
        print(json.dumps(task), file=self._process.stdin, flush=True)
        started = time.perf_counter()
        pid = int(self._process.stdout.readline())
        if after_s is not None:
            time.sleep(after_s)
            # Not reaped before its status is read, so the number cannot be another process's unless it ended;
            # the forker starts none meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return int(self._process.stdout.readline()), time.perf_counter() - started


@pytest.fixture(scope="module")
def forker() -> Iterator[Forker]:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", FORKER]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Forker(process)
        assert process.stdin
        process.stdin.close()


def task_of(kind: str, folder: Path, write: Any) -> dict[str, Any]:
    """Prepare the store that a task starts from, in `folder`, and return the task."""
    store = Store.open(folder, create=True)
    path = write("a.jsonl", [*vector_records(0, 3000), "{broken"])
    task = {"kind": kind, "store": str(folder), "spec": SPEC, "input": path, "deletes": []}
    if kind != "build":
        run(store, path, spec=SPEC)
    if kind == "update":
        task |= {"input": write("b.jsonl", vector_records(2500, 3300, seed=1)), "deletes": ["d1", "d3200"]}
    if kind == "compact":
        run(store, write("b.jsonl", vector_records(3000, 3150)), spec=SPEC)
    return task


@pytest.mark.long
@pytest.mark.timeout(300 + 60 * KILLS)
@pytest.mark.parametrize(("kind", "runner"), CASES)
def test_killed_at_random_moments(kind, runner, forker, tmp_path, write):
    random_moments = random.Random(f"{SEED} {kind}")
    print(f"SCANNERY_SEED={SEED}")
    task = task_of(kind, tmp_path / "start", write) | {"runner": runner}
    shutil.copytree(tmp_path / "start", tmp_path / "undisturbed")
    status, whole_s = forker.run(task | {"store": str(tmp_path / "undisturbed")})
    assert status == 0
    undisturbed = Store.open(tmp_path / "undisturbed")
    place = tmp_path / "killed"
    shutil.copytree(tmp_path / "start", place)
    killed = tries = 0
    while killed < KILLS and tries < 8 * KILLS:
        tries += 1
        status, took_s = forker.run(task | {"store": str(place)}, random_moments.uniform(0, whole_s))
        killed += os.WIFSIGNALED(status)
        store = Store.open(place)
        for version in list_versions(store, "vectors"):
            open_index(store, "vectors", version)  # whole, or it raises
        if status == 0:  # it was faster: start over
            whole_s = min(whole_s, took_s)
            shutil.rmtree(place)
            shutil.copytree(tmp_path / "start", place)
    print(f"{kind}: {killed} of {tries} runs killed, undisturbed {whole_s:.2f} s")
    assert killed
    assert forker.run(task | {"store": str(place)})[0] == 0
    assert rows_of(store) == rows_of(undisturbed)
    assert list_versions(store, "vectors") == list_versions(undisturbed, "vectors")
    assert not verify(store, "vectors").problems
    assert_no_orphans(store)


def assert_no_orphans(store: Store) -> None:
    # Those of killed processes, which expire after a quarter of an hour.
    for item in store.list("vectors/leases"):
        store.delete(item.key)
    collect_garbage(store, "vectors", keep=1, min_age=timedelta(0))
    (version,) = list_versions(store, "vectors")
    named = {f"vectors/{entry.key}" for entry in read_manifest(store, "vectors", version).segments}
    assert {item.key for item in store.list("vectors/segments")} == named
    assert not store.list("vectors/stage/reuse")
    assert not store.list("vectors/stage/deletes")
    assert not list(Path(store.uri).rglob(".tmp-*"))
