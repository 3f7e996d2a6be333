"""Processes of a server, with real signals."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.serving import BindError, ConfigError, ServerConfig, serve
from tests.data import ROOT
from tests.served import DIMENSIONS, serving

VECTOR = np.ones(DIMENSIONS, np.float32)


@contextmanager
def started(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `scannery serve` on a free port, and give the process and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(store), "--listen", "127.0.0.1:0",
         *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 60)
        line = process.stdout.readline() if ready else ""
        match = re.search(r"Serving on (\S+);", line)
        if not match:
            process.kill()
            raise AssertionError(f"not started: {line!r} {process.communicate()}")
        yield process, match[1]
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: object, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def answers(address: str) -> bool:
    with scannery.connect(address) as client:
        return len(client.index("library").search(VECTOR, 3)) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_ends_the_server_cleanly(library: Path, workers: str, number: signal.Signals) -> None:
    with started(library, "--workers", workers) as (process, address):
        assert answers(address)
        workers_then = children(process.pid)
        process.send_signal(number)
        _, log = process.communicate(timeout=20)
        assert process.returncode == 0, log
        assert "Traceback" not in log
        for pid in workers_then:
            assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(scannery.UnavailableError):
            answers(address)


def test_a_worker_that_dies_is_replaced(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        before = children(process.pid)
        assert len(before) == 2
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: len(set(children(process.pid)) - set(before)) == 1)
        for _ in range(20):
            assert answers(address)
        # And the other one, too.
        os.kill(before[1], signal.SIGKILL)
        wait_until(lambda: len(children(process.pid)) == 2 and before[1] not in children(process.pid))
        wait_until(lambda: _answers_or_waits(address))


def _answers_or_waits(address: str) -> bool:
    try:
        return answers(address)
    except scannery.UnavailableError:
        return False


def test_all_workers_answer(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        ticks = {pid: _cpu(pid) for pid in children(process.pid)}
        wait_until(lambda: answers(address) and all(_cpu(pid) > then for pid, then in ticks.items()))


def _cpu(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def test_workers_do_not_outlive_a_killed_supervisor(library: Path) -> None:
    with started(library, "--workers", "2") as (process, _):
        workers = children(process.pid)
        process.kill()
        process.wait()
        wait_until(lambda: not any(_runs(pid) for pid in workers))


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_that_cannot_start_says_why_and_ends(library: Path, workers: str, tmp_path: Path) -> None:
    with serving(library) as server:
        for arguments, code, message in (
            (["--store", str(library), "--listen", server.address], 4, "cannot listen on"),
            (["--store", str(tmp_path / "no")], None, "there is no store"),
            (["--store", str(library), "--listen", "0.0.0.0:0"], 2, "authenticates nobody"),
        ):
            process = subprocess.run(
                [sys.executable, "-m", "scannery.cli.main", "serve", "--workers", workers, *arguments],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
            assert message in process.stderr
            assert "Traceback" not in process.stderr
            assert process.returncode == (code or (3 if workers == "1" else 5))


def test_options_are_checked_before_anything_happens(library: Path) -> None:
    with pytest.raises(ConfigError, match="workers: must be 1 to 256, got 0"):
        serve(ServerConfig(store=str(library)), workers=0)
    with serving(library) as server, pytest.raises(BindError):
        serve(ServerConfig(store=str(library), listen=server.address), workers=2)
