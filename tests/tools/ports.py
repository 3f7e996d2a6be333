"""Free ports of loopback for servers that keep them over restarts, or that get them on a command line."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ["free_port", "free_ports", "is_free"]

# Below those that the system gives to connections: one of these would take the port while its server is away.
_PORTS = range(10_000, 32_000)
_CHOSEN = random.SystemRandom()
_GIVEN = set[int]()


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that were free at this moment, and that this process was not given before."""
    found: list[int] = []
    while len(found) < count:
        port = _CHOSEN.choice(_PORTS)
        if port not in _GIVEN and is_free(port):
            _GIVEN.add(port)
            found.append(port)
    return found


def free_port() -> int:
    """Return one of `free_ports`."""
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
