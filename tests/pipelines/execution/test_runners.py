"""The same pipeline on engines of several processes that run here for real: a job service, a Dask cluster."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store, verify
from scannery.pipelines import RunnerError
from scannery.pipelines.execution.runners import import_beam
from tests.data import ROOT
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records
from tests.tools.ports import free_port

pytestmark = pytest.mark.system

SPEC = VECTORS | {"shards": 3}
DEADLINE_S = 150
SCRIPT = """
import json, sys
from scannery.pipelines import build
from scannery.pipelines.state import work_units as units
spec, path, store, runner, options, unit_bytes = sys.argv[1:]
units.MIN_VECTOR_UNIT_BYTES = int(unit_bytes)
report = build(json.loads(spec), [path], store, runner=runner, runner_options=json.loads(options))
print(json.dumps(report.to_dict()))
"""

# Beam's own job service, which gives a job one worker and has no option for more.
JOB_SERVICE = """
import sys
from apache_beam.runners.portability import local_job_service_main
from apache_beam.runners.portability.fn_api_runner import fn_runner
class TwoWorkers(fn_runner.FnApiRunner):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._num_workers = 2
fn_runner.FnApiRunner = TwoWorkers
local_job_service_main.run(sys.argv[1:])
"""


@contextlib.contextmanager
def process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a Python program as long as the context lasts; its `python` on the path is this one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PATH": path}
    with subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(5)
            except subprocess.TimeoutExpired:
                running.kill()


def until(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (value := condition()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return value


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("localhost", port)) == 0


def children(pid: int) -> set[str]:
    found: set[str] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that just ended
            found |= set((task / "children").read_text().split())
    return found


def building(
    store: Store, path: str, runner: str, options: list[str]
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return process("-c", SCRIPT, json.dumps(SPEC), path, store.uri, runner, json.dumps(options), str(1 << 14))


def report_of(build: subprocess.Popen[str]) -> dict[str, Any]:
    printed, _ = build.communicate(timeout=DEADLINE_S)
    assert build.returncode == 0
    report: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return report


def assert_equal_to_local(store: Store, path: str, report: dict[str, Any], folder: Path) -> None:
    local = Store.open(folder, create=True)
    expected = run(local, path, spec=SPEC)
    assert rows_of(store) == rows_of(local)
    assert (report["version"], report["documents"], report["dead_letters"]) == (
        1, expected.documents, dict(expected.dead_letters),
    )  # fmt: skip
    assert not verify(store, "vectors").problems


@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_portable_job_service_with_workers_of_its_own(store, write, tmp_path):
    path = write("a.jsonl", [*vector_records(0, 2000), "{broken", vector_records(5, 6)[0]])
    job_port, pool_port = free_port(), free_port()
    service = ("-c", JOB_SERVICE, f"--port={job_port}")
    pool = ("-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={pool_port}")
    options = [f"--job_endpoint=localhost:{job_port}", "--environment_type=EXTERNAL",
               f"--environment_config=localhost:{pool_port}", "--job_name=scannery"]  # fmt: skip
    with process(*service), process(*pool) as workers:
        until(lambda: listens(job_port) and listens(pool_port))
        with building(store, path, "portable", options) as build:
            seen: set[str] = set()
            while build.poll() is None and len(seen) < 2:
                seen |= children(workers.pid)
                time.sleep(0.02)
            report = report_of(build)
    assert len(seen) == 2, "the pool started two worker processes"
    assert_equal_to_local(store, path, report, tmp_path / "local")


@pytest.mark.timeout(4 * DEADLINE_S)
@pytest.mark.long
def test_a_dask_cluster_that_loses_a_worker(store, write, tmp_path):
    pytest.importorskip("distributed")
    path = write("a.jsonl", [*vector_records(0, 3000), "{broken", vector_records(5, 6)[0]])
    file = tmp_path / "scheduler.json"
    scheduler = (
        "-m", "distributed.cli.dask_scheduler", "--port=0", "--no-dashboard", f"--scheduler-file={file}",
    )  # fmt: skip
    worker = ("-m", "distributed.cli.dask_worker", f"--scheduler-file={file}", "--nthreads=1", "--no-nanny",
              "--no-dashboard", f"--local-directory={tmp_path}")  # fmt: skip
    with process(*scheduler), process(*worker), process(*worker) as victim:
        until(file.exists)
        options = [f"--dask_scheduler_file={file}", "--dask_npartitions=12"]
        with building(store, path, "dask", options) as build:
            until(lambda: build.poll() is not None or len(store.list("vectors/embeddings")) >= 2)
            assert build.poll() is None, "the build ended before a worker could be killed"
            victim.kill()
            report = report_of(build)
    assert victim.returncode == -9
    assert_equal_to_local(store, path, report, tmp_path / "local")


@pytest.mark.parametrize(("runner", "options", "words"), [
    ("portable", [], "--job_endpoint"),
    ("flink", ["--environment_type=DOCKER"], "--flink_master"),
    ("spark", [], "--spark_master_url"),
    ("dataflow", ["--project=p"], "--region"),
    ("dask", ["--dask_npartition_size=8"], "unknown option"),
    ("local", ["--direct_num_worker=2", "--nonsense"], "unknown option --direct_num_worker=2, --nonsense"),
    ("dataflow", ["--project=p", "--region=r", "--temp_location=gs://b/t"], "cannot reach"),
])  # fmt: skip
def test_options_are_checked_before_anything_starts(store, write, runner, options, words):
    with pytest.raises(RunnerError, match=words):
        run(store, write("a.jsonl", vector_records(0, 3)), runner=runner, runner_options=options)
    assert not store.list()


def test_to_import_beam_changes_nothing_of_what_is_logged() -> None:
    before = logging.root.manager.disable
    try:
        for level in (logging.NOTSET, logging.ERROR):
            logging.disable(level)
            import_beam()
            assert logging.root.manager.disable == level
    finally:
        logging.disable(before)
