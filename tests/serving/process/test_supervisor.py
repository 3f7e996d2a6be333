"""Processes of a server, with real signals."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import grpc
import numpy as np
import pytest

import scannery
from scannery.serving import BindError, ConfigError, ServerConfig, serve
from scannery.serving.config import RemoteConfig
from scannery.serving.security import KeyFile
from scannery.v1.search_pb2 import SearchStreamRequest
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.data import ROOT
from tests.served import DIMENSIONS, PAUSE_S, serving
from tests.tools.prepared_process import PreparedProcess

VECTOR = np.ones(DIMENSIONS, np.float32)


@contextmanager
def started(store: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `scannery serve` on a free port, and give the process and its address."""
    process = PreparedProcess(
        [sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(store), "--listen", "127.0.0.1:0",
         *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 120)
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


def wait_until(condition: object, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def answers(address: str) -> bool:
    with scannery.connect(address) as client:
        return len(client.index("library").search(VECTOR, 3)) == 3


@pytest.mark.system
@pytest.mark.parametrize(
    ("workers", "number"),
    [
        ("1", signal.SIGINT),
        ("2", signal.SIGTERM),
        pytest.param("1", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("2", signal.SIGINT, marks=pytest.mark.long),
    ],
)
def test_a_signal_ends_the_server_cleanly(library: Path, workers: str, number: signal.Signals) -> None:
    with started(library, "--workers", workers) as (process, address):
        assert answers(address)
        workers_then = children(process.pid)
        process.send_signal(number)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        assert "Traceback" not in log
        for pid in workers_then:
            assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(scannery.UnavailableError):
            answers(address)


@pytest.mark.system
def test_signals_may_reach_a_thread_that_does_not_expect_them(library: Path) -> None:
    """Threads of libraries do not block the supervisor's signals; it must neither die of one nor miss one."""
    script = (
        "import sys, threading; from scannery.serving import ServerConfig, serve\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "serve(ServerConfig(store=sys.argv[1], listen='127.0.0.1:0'), workers=1,\n"
        "      ready=lambda address: print(address, flush=True))"
    )
    with PreparedProcess(
        [sys.executable, "-c", script, str(library)],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, process.wait()
            before = children(process.pid)
            for _ in range(3000):  # while it looks into one, the next one comes
                process.send_signal(signal.SIGUSR1)
            os.kill(before[0], signal.SIGKILL)
            wait_until(lambda: len(children(process.pid)) == 1 and children(process.pid) != before)
            wait_until(lambda: _answers_or_waits(address))
            process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.system
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


@pytest.mark.system
def test_all_workers_answer_and_do_not_outlive_a_killed_supervisor(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        workers = children(process.pid)
        ticks = {pid: _cpu(pid) for pid in workers}
        wait_until(lambda: answers(address) and all(_cpu(pid) > then for pid, then in ticks.items()))
        process.kill()
        process.wait()
        wait_until(lambda: not any(_runs(pid) for pid in workers))


def _cpu(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it may end between open and read
        return False


def _can_listen(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as candidate:
        candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            candidate.bind((host, int(port)))
            candidate.listen()
        except OSError:
            return False
        return True


@pytest.mark.system
def test_a_worker_that_drains_without_its_supervisor_keeps_no_port(library: Path) -> None:
    with started(library) as (process, address), grpc.insecure_channel(address) as channel:
        [worker] = children(process.pid)
        ended = threading.Event()

        def silence() -> Iterator[SearchStreamRequest]:
            ended.wait(60)
            yield from ()

        # Open without a request until the event is set, so that there is something to drain.
        running = SearchServiceStub(channel).SearchStream(silence())
        wait_until(lambda: answers(address))
        process.kill()
        process.wait()
        wait_until(lambda: _can_listen(address), 8)
        assert _runs(worker)
        ended.set()
        running.cancel()
        wait_until(lambda: not _runs(worker))


@pytest.mark.system
@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.long), "2"])
def test_a_server_that_cannot_start_says_why_and_ends(library: Path, workers: str, tmp_path: Path) -> None:
    with serving(library) as server:
        for arguments, code, message in (
            (["--store", str(library), "--listen", server.address], 4, "cannot listen on"),
            (["--store", str(tmp_path / "no")], None, "there is no store"),
            (["--store", str(library), "--listen", "0.0.0.0:0"], 2, "does not authenticate callers"),
        ):
            process = PreparedProcess(
                [sys.executable, "-m", "scannery.cli.main", "serve", "--workers", workers, *arguments],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )
            _, errors = process.communicate(timeout=120)
            assert message in errors
            assert "Traceback" not in errors
            assert process.returncode == (code or 3)


@pytest.mark.system
def test_options_are_checked_before_anything_happens(library: Path) -> None:
    with pytest.raises(ConfigError, match="workers: must be 1 to 256, got 0"):
        serve(ServerConfig(store=str(library)), workers=0)
    with pytest.raises(
        ConfigError, match="workers: must be 1 with device xla, got 2: one process holds all chips"
    ):
        serve(ServerConfig(store=str(library), device="xla"), workers=2)
    with serving(library) as server, pytest.raises(BindError):
        serve(ServerConfig(store=str(library), listen=server.address), workers=2)


@pytest.mark.system
def test_a_server_on_xla_refuses_to_reload(library: Path) -> None:
    """New workers could not get the chips, which the old one holds."""
    with started(library, "--workers", "1", "--device", "xla") as (process, address):
        log, before = Log(process), children(process.pid)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("everything stays as it was: device: a server on xla cannot reload"))
        assert children(process.pid) == before
        assert not log.said("starting new workers")
        assert answers(address)


def test_a_server_whose_encoder_process_has_the_chips_may_reload(library: Path) -> None:
    config = ServerConfig(store=str(library), device="xla")
    with pytest.raises(ConfigError, match="cannot reload: its worker holds all chips"):
        config.check_reload()
    replace(config, encoder=RemoteConfig(address="127.0.0.1:7078")).check_reload()
    replace(config, device="cpu").check_reload()


class Log:
    """What a process says on a stream, read while it runs."""

    def __init__(self, process: subprocess.Popen[str], stream: str = "stderr") -> None:
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, args=(getattr(process, stream),), daemon=True)
        self._thread.start()

    def _read(self, stream: TextIO) -> None:
        for line in stream:
            self.lines.append(line)

    def said(self, text: str) -> int:
        return sum(text in line for line in list(self.lines))


@pytest.mark.system
def test_reloads_and_deaths_under_load_are_not_seen_through_the_sdk(library: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, key = keys.create("load")
    options = ("--workers", "2", "--keys", str(keys.path), "--log-json", "--metrics-listen", "127.0.0.1:0")
    done, failures, answered = threading.Event(), [], [0]
    with started(library, *options) as (process, address):
        log = Log(process)
        client = scannery.connect(address, api_key=key, timeout_s=60)

        def ask() -> None:
            while not done.wait(PAUSE_S):
                try:
                    assert len(client.index("library").search(VECTOR, 3)) == 3
                    answered[0] += 1
                except Exception as error:  # noqa: BLE001  every one is a finding
                    failures.append(error)

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        wait_until(lambda: log.said("/metrics"))
        [metrics] = [found[0] for line in log.lines if (found := re.search(r"http://[\w.:]+/metrics", line))]
        before = _requests(metrics)
        first = set(children(process.pid))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("the new workers are ready"))
        # The two workers are new, and the process with the metrics is the old one.
        wait_until(lambda: len(set(children(process.pid)) & first) == 1)
        second = set(children(process.pid)) - first
        listening = log.said("listening on")
        os.kill(min(second), signal.SIGKILL)
        wait_until(lambda: log.said("listening on") > listening)
        # A reload that cannot work leaves everything as it is.
        settled = set(children(process.pid))
        keys.path.write_text("damaged")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("the old workers stay"))
        wait_until(lambda: set(children(process.pid)) == settled)
        so_far = answered[0]
        wait_until(lambda: answered[0] > so_far + 100)
        done.set()
        for thread in threads:
            thread.join()
        assert failures == []
        wait_until(lambda: _requests(metrics) > before + 100)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        assert {"time", "level", "message", "process"} <= json.loads(log.lines[-1]).keys()


def _requests(url: str) -> float:
    text = urllib.request.urlopen(url, timeout=60).read().decode()
    found = re.findall(r'scannery_request_seconds_count\{method="Search",[^}]*code="OK"\} (\d+)', text)
    return sum(map(float, found))


@pytest.mark.system
def test_orphans_are_reaped_and_stop_signals_end_a_server_that_is_process_one(library: Path) -> None:
    """As in a container. Needs the right to make a process namespace."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    try:
        subprocess.run([*unshare, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("cannot make a process namespace")
    arguments = ["serve", "--store", str(library), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*unshare, sys.executable, "-m", "scannery.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        assert process.stdout is not None
        match = re.search(r"Serving on (\S+);", process.stdout.readline())
        assert match is not None
        assert answers(match[1])
        [one] = children(process.pid)
        # An orphan in its namespace becomes its child, and must not stay as a zombie.
        nsenter = ["nsenter", "-t", str(one), "-p", "-m", "sh", "-c", "(sleep 0.2 &) ; exit 0"]
        subprocess.run(nsenter, check=True)
        time.sleep(0.5)
        wait_until(lambda: all(_runs(pid) for pid in children(one)))
        os.kill(one, signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert "Traceback" not in log
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()


@pytest.mark.system
def test_workers_share_the_memory_of_what_was_open_before_they_began(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        assert answers(address)
        for pid in children(process.pid):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            sizes = {name: int(size) for name, size in re.findall(r"(\w+): +(\d+) kB", text)}
            private = sizes["Private_Dirty"] + sizes["Private_Clean"]
            assert private < 0.5 * sizes["Rss"]


HANGING = """
import os, time
from scannery.serving import ServerConfig
from scannery.serving.process import supervisor as workers
from scannery.serving.process.worker import await_stop
workers.MAX_RELOAD_S, workers.KILL_AFTER_S = 4.0, 0.5

def share(config, before):
    return 0 if before is None else before + 1

def body(config, shared, context, ready):
    os.write(1, b"began %d\\n" % shared)  # at once: several processes write there
    if shared:
        time.sleep(20)
    ready()
    await_stop()

config = ServerConfig(store="/", listen="127.0.0.1:0", drain_s=0)
workers.Supervisor(config, 2, lambda address: print("ready", flush=True), share, body).run()
"""


@pytest.mark.system
def test_a_reload_that_hangs_is_given_up_and_the_old_workers_are_kept_up_meanwhile() -> None:
    with PreparedProcess(
        [sys.executable, "-c", HANGING],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            said, log = Log(process, "stdout"), Log(process)
            wait_until(lambda: said.said("ready"))
            old = children(process.pid)
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: said.said("began 1") == 2)
            new = set(children(process.pid)) - set(old)
            os.kill(old[0], signal.SIGKILL)
            wait_until(lambda: said.said("began 0") == 3)
            assert not log.said("the old workers stay")
            wait_until(lambda: log.said("the old workers stay"))
            # They do not listen to SIGTERM, since they are not ready.
            wait_until(lambda: not any(_runs(pid) for pid in new))
            wait_until(lambda: len(children(process.pid)) == 2)
            # What is started from now on shares what the old ones do.
            os.kill(old[1], signal.SIGKILL)
            wait_until(lambda: said.said("began 0") == 4)
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()


@pytest.mark.system
@pytest.mark.parametrize("hangs_s", [0.5, 60])
def test_a_store_that_hangs_at_a_reload_keeps_nobody_from_stopping_the_server(hangs_s: float) -> None:
    program = HANGING.replace(
        "    return 0 if before is None else before + 1",
        f"""\
    if before is None:
        return 0
    print("opening", flush=True)
    time.sleep({hangs_s})
    return before + 1""",
    )
    with PreparedProcess(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    ) as process:  # fmt: skip
        try:
            said, log = Log(process, "stdout"), Log(process)
            wait_until(lambda: said.said("ready"))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: said.said("opening"))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert bool(log.said("still opening; stopping")) == (hangs_s > 1)
        finally:
            process.kill()
