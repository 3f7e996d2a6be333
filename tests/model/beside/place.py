"""Where clients write: a server, which may be killed, or the store itself."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import scannery
from scannery.client import Client
from tests.live.torture import ServerProcess
from tests.model.beside.rows import TIMEOUT_S
from tests.model.errors import check
from tests.tools.ports import free_port, is_free

__all__ = ["Place"]

PATIENCE_S = 60.0


@dataclass
class Place:
    """A server, or the store itself, at which clients write.

    A server that was killed comes back at its address: its clients reach it there by themselves, where a new address
    would have each of them try the old one until its deadline.
    """

    name: str
    address: str = ""
    """Of a root, or path of the store; empty until the server is started."""
    start: Callable[[str], ServerProcess] | None = None
    """Starts a server that listens at an address."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    server: ServerProcess | None = None

    def open(self) -> Client:
        """Return a new client."""
        with self.lock:
            if self.start is not None and self.server is None:
                self.address = f"127.0.0.1:{free_port()}"
                self.server = self.start(self.address)
            return scannery.connect(self.address, timeout_s=TIMEOUT_S)

    def kill(self, rng: random.Random) -> None:
        """Kill a worker, or the supervisor and all workers, and start what was killed."""
        with self.lock:
            if self.start is None or self.server is None:
                return
            if not self.server.kill(rng.choice(["worker", "worker", "server"]), rng):
                end_s = time.monotonic() + PATIENCE_S
                while not is_free(int(self.address.rpartition(":")[2])):  # workers are just ending
                    check(time.monotonic() < end_s, f"{self.address} is still in use")
                    time.sleep(0.01)
                self.server = self.start(self.address)

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.end()
