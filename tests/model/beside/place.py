"""Where clients write: a server, which may be killed, or the store itself."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import scannery
from scannery.client import Client
from tests.live.torture import ServerProcess
from tests.model.beside.rows import TIMEOUT_S

__all__ = ["Place"]


@dataclass
class Place:
    """A server, or the store itself, at which clients write; a server that was killed is started again."""

    name: str
    start: Callable[[], tuple[str, ServerProcess | None]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0
    """How often it was started."""
    address: str = ""
    server: ServerProcess | None = None

    def open(self) -> tuple[Client, int]:
        """Return a new client, and the number of the start."""
        with self.lock:
            if not self.address:
                self.address, self.server = self.start()
                self.number += 1
            return scannery.connect(self.address, timeout_s=TIMEOUT_S), self.number

    def kill(self, rng: random.Random) -> None:
        """Kill a worker, the supervisor or all."""
        with self.lock:
            if self.server is not None and not self.server.kill(
                rng.choice(["worker", "worker", "server"]), rng
            ):
                self.address, self.server = "", None

    def close(self) -> None:
        """End the server."""
        if self.server is not None:
            self.server.end()
