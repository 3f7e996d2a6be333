"""A server that is started again when it ends, as Ray's actors own it; without Ray."""

from __future__ import annotations

import importlib.util
import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.cli.placement.server_process import ServerProcess
from tests.cluster.processes import wait_until
from tests.served import make_library_store


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
