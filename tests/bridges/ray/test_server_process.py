"""A server that is started again when it ends, as Ray's actors own it; without Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from scannery.bridges.ray.server_process import ServerProcess
from scannery.cli.main import main
from tests.cluster.processes import children_of, wait_until
from tests.served import make_library_store

pytestmark = pytest.mark.system


class Closing:
    """Stops a process at the end of a block."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process

    def close(self) -> None:
        self.process.stop()


def test_a_process_that_is_killed_serves_again_at_its_address_until_it_is_stopped(tmp_path: Path) -> None:
    store = make_library_store(tmp_path)
    arguments = ["--store", str(store), "--role", "leaf", "--group", "0/1", "--http", "off"]
    process = ServerProcess(arguments, host="127.0.0.1", port=0, environment={})
    with closing(Closing(process)):
        wait_until(lambda: bool(process.state().address))
        first = process.state()
        assert first.starts == 1
        os.kill(first.pid, signal.SIGKILL)
        wait_until(lambda: process.state().starts == 2 and bool(process.state().address))
        second = process.state()
        assert second.address == first.address
        assert second.pid != first.pid
        assert (second.failures, second.problem) == (0, "")
    assert process.state().address == ""
    assert not Path(f"/proc/{second.pid}").exists()


def test_a_process_that_does_not_start_is_tried_again_and_tells_why(tmp_path: Path) -> None:
    # The environment names the store.
    absent = str(tmp_path / "absent")
    process = ServerProcess([], host="127.0.0.1", port=0, environment={"SCANNERY_STORE": absent})
    with closing(Closing(process)):
        wait_until(lambda: process.state().failures >= 1 and bool(process.state().problem))
        assert absent in process.state().problem


def test_without_ray_the_command_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    if importlib.util.find_spec("ray") is not None:
        pytest.skip("Ray is installed")
    assert main(["cluster", "up", "--ray", "auto", "--store", "s", "--groups", "1"]) == 2
    assert "scannery[ray]" in capsys.readouterr().err
    assert main(["cluster", "status", "--json"]) == 2
    assert "--leaves or --ray" in capsys.readouterr().err


def test_a_process_that_prints_other_bytes_is_started_again(tmp_path: Path) -> None:
    absent = str(tmp_path / "ä")
    environment = {"SCANNERY_STORE": absent, "PYTHONIOENCODING": "latin-1"}
    process = ServerProcess([], host="127.0.0.1", port=0, environment=environment)
    with closing(Closing(process)):
        wait_until(lambda: process.state().failures >= 2)


def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, right = make_library_store(tmp_path), sys.executable
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    process = ServerProcess(leaf_of(store), host="127.0.0.1", port=0, environment={})
    with closing(Closing(process)):
        wait_until(lambda: process.state().failures >= 1)
        assert "absent" in process.state().problem
        monkeypatch.setattr(sys, "executable", right)
        wait_until(lambda: bool(process.state().address))


def pause_s_after_kill(process: ServerProcess) -> float:
    """Kill the process when it serves, and return how long it takes until the next one is started."""
    wait_until(lambda: bool(process.state().address))
    starts = process.state().starts
    os.kill(process.state().pid, signal.SIGKILL)
    wait_until(lambda: process.state().pid == 0 or process.state().starts > starts)
    ended_s = time.monotonic()
    wait_until(lambda: process.state().starts > starts)
    return time.monotonic() - ended_s


@pytest.mark.long
def test_pauses_grow_if_a_process_ends_soon_again_and_again(tmp_path: Path) -> None:
    process = ServerProcess(leaf_of(make_library_store(tmp_path)), host="127.0.0.1", port=0, environment={})
    with closing(Closing(process)):
        pauses_s = [pause_s_after_kill(process) for _ in range(3)]
    # The first is started again at once.
    assert pauses_s[0] < 1.0
    assert pauses_s[1] > 1.5
    assert pauses_s[2] > 3.5


def test_a_worker_that_hangs_delays_no_start(tmp_path: Path) -> None:
    process = ServerProcess(leaf_of(make_library_store(tmp_path)), host="127.0.0.1", port=0, environment={})
    with closing(Closing(process)):
        wait_until(lambda: bool(process.state().address))
        first = process.state()
        [worker] = children_of(first.pid)
        os.kill(worker, signal.SIGSTOP)
        try:
            os.kill(first.pid, signal.SIGKILL)
            # The worker keeps the port, so the second start has another one.
            wait_until(lambda: process.state().address not in ("", first.address))
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_process_that_hangs_is_killed_when_it_is_stopped(tmp_path: Path) -> None:
    process = ServerProcess(leaf_of(make_library_store(tmp_path)), host="127.0.0.1", port=0, environment={})
    wait_until(lambda: bool(process.state().address))
    pid = process.state().pid
    os.kill(pid, signal.SIGSTOP)
    try:
        process.stop(within_s=1)
        assert not Path(f"/proc/{pid}").exists()
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def leaf_of(store: Path) -> list[str]:
    return ["--store", str(store), "--role", "leaf", "--group", "0/1", "--http", "off"]
