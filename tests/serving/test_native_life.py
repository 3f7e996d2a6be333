"""The native protocol while processes of a server come, go and die."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import grpc
import numpy as np
import pytest

from scannery.client.request import calls
from tests.data import ROOT
from tests.native import SEARCH, SEARCH_MANY, Native, endpoint_of
from tests.served import DIMENSIONS, serving
from tests.serving.test_workers import Log, children, started, wait_until

QUERIES = np.random.default_rng(0).normal(size=(50, DIMENSIONS)).astype(np.float32)
REQUESTS = [
    (SEARCH, calls.search("library", QUERIES[0], 3).request.SerializeToString()),
    (
        SEARCH,
        calls.search("library", QUERIES[0], 3, where={"year": {"$gte": 2010}}).request.SerializeToString(),
    ),
    (SEARCH_MANY, calls.search_many("library", QUERIES, 10).request.SerializeToString()),
]


class Caller(threading.Thread):
    """Asks all the time, and again over a new connection when it gets no answer."""

    def __init__(self, port: int, *, persistent: bool) -> None:
        super().__init__(daemon=True)
        self._port, self._persistent = port, persistent
        self.done = threading.Event()
        self.codes: Counter[grpc.StatusCode] = Counter()
        self.lost = 0
        """Requests without an answer, and connections that were refused."""
        self.workers: set[int] = set()
        self.servers: set[str] = set()

    def run(self) -> None:
        native: Native | None = None
        number = 0
        while not self.done.is_set():
            kind, body = REQUESTS[number % len(REQUESTS)]
            try:
                if native is None:
                    native = Native(self._port)
                    welcome = native.welcome()
                    self.workers.add(welcome.worker)
                    self.servers.add(welcome.server)
                self.codes[native.ask(kind, body, call=number).code] += 1
                number += 1
                lost = not self._persistent
            except OSError:
                lost = True
                self.lost += 1
                time.sleep(0.01)
            if lost and native is not None:
                native.close()
                native = None
        if native is not None:
            native.close()


def test_reloads_deaths_and_the_end_are_seen_as_lost_connections_only(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        log, endpoint = Log(process), endpoint_of(address)
        callers = [Caller(endpoint.port, persistent=number < 4) for number in range(6)]
        for caller in callers:
            caller.start()

        def answered_again() -> None:
            then = [caller.codes.total() for caller in callers]
            wait_until(lambda: all(c.codes.total() > n + 20 for c, n in zip(callers, then, strict=True)))

        answered_again()
        # Both workers listen at the port: connections that are made again and again get to either.
        wait_until(lambda: all(len(caller.workers) == 2 for caller in callers[4:]))
        first = set(children(process.pid))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("the new workers answer"))
        wait_until(lambda: len(set(children(process.pid))) == 2 and not set(children(process.pid)) & first)
        answered_again()
        assert endpoint_of(address) == endpoint
        second = set(children(process.pid))
        os.kill(min(second), signal.SIGKILL)
        wait_until(lambda: len(children(process.pid)) == 2 and min(second) not in children(process.pid))
        answered_again()
        assert all(caller.lost < 500 for caller in callers)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        for caller in callers:
            caller.done.set()
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()
        codes = sum((caller.codes for caller in callers), Counter())
        # With fewer callers than it always takes on, nobody is refused.
        assert codes.keys() == {grpc.StatusCode.OK}
        assert {server for caller in callers for server in caller.servers} == {endpoint.server}
        assert log.said("Traceback") == 0
        with pytest.raises(OSError):
            Native(endpoint.port)


def test_a_port_that_is_taken_is_named(library: Path) -> None:
    with serving(library, native="127.0.0.1:0") as server, socket.create_server(("127.0.0.1", 0)) as other:
        for port in (endpoint_of(server.address).port, other.getsockname()[1]):
            process = subprocess.run(
                [sys.executable, "-m", "scannery.cli.main", "serve", "--store", str(library),
                 "--listen", "127.0.0.1:0", "--native", f"127.0.0.1:{port}"],
                capture_output=True, text=True, timeout=120, check=False,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            )  # fmt: skip
            assert process.returncode == 4
            assert f"cannot listen on 127.0.0.1:{port}" in process.stderr
            assert "Traceback" not in process.stderr


def test_a_port_of_ones_own_choice(library: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with started(library, "--native", f"127.0.0.1:{port}") as (process, address):
        endpoint = endpoint_of(address)
        assert (endpoint.port, endpoint.server) == (port, "")
        with Native.greeted(port) as native:
            assert native.ask(*REQUESTS[0]).code is grpc.StatusCode.OK
            process.send_signal(signal.SIGTERM)
            assert native.is_closed()
        assert process.wait(60) == 0
