"""HTTP while processes of a server come, go and die."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import scannery
from tests.client.test_http_served import by_http, wire_of
from tests.served import DIMENSIONS, PAUSE_S
from tests.serving.process.test_supervisor import Log, children, started, wait_until

pytestmark = pytest.mark.system

QUERIES = np.random.default_rng(0).normal(size=(50, DIMENSIONS)).astype(np.float32)


class Caller(threading.Thread):
    """Asks all the time, over kept connections or over a new one for each call."""

    def __init__(self, url: str, *, persistent: bool) -> None:
        super().__init__(daemon=True)
        self._url, self._persistent = url, persistent
        self.done = threading.Event()
        self.answered = 0
        self.workers: set[str] = set()
        self.failures: list[BaseException] = []

    def run(self) -> None:
        client = scannery.connect(self._url, timeout_s=30)
        while not self.done.wait(PAUSE_S):
            index = client.index("library")
            try:
                index.search(QUERIES[self.answered % 50], 3, where={"year": {"$gte": 2010}})
                index.search_many(QUERIES, 10)
                self.answered += 1
            except scannery.ScanneryError as error:
                self.failures.append(error)
            self.workers |= client._transport._wire._pool._loads.keys()  # type: ignore[attr-defined]
            if not self._persistent:
                client.close()
                client = scannery.connect(self._url, timeout_s=30)
        client.close()


def test_reloads_and_deaths_are_not_seen(library: Path) -> None:
    with started(library, "--workers", "2") as (process, address):
        log = Log(process)
        with scannery.connect(address) as client:
            by_http(client)
            url = f"http://127.0.0.1:{wire_of(client).endpoint.port}"
        callers = [Caller(url, persistent=number < 2) for number in range(4)]
        for caller in callers:
            caller.start()

        def answered_again() -> None:
            then = [caller.answered for caller in callers]
            wait_until(lambda: all(c.answered > n + 10 for c, n in zip(callers, then, strict=True)))

        answered_again()
        # Both workers listen at the port.
        wait_until(lambda: all(len(caller.workers) == 2 for caller in callers[2:]))
        first = set(children(process.pid))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: log.said("the new workers are ready"))
        wait_until(lambda: len(set(children(process.pid))) == 2 and not set(children(process.pid)) & first)
        answered_again()
        second = set(children(process.pid))
        os.kill(min(second), signal.SIGKILL)
        wait_until(lambda: len(children(process.pid)) == 2 and min(second) not in children(process.pid))
        answered_again()
        for caller in callers:
            caller.done.set()
        for caller in callers:
            caller.join(60)
            assert not caller.is_alive()
            assert caller.failures == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert log.said("Traceback") == 0
