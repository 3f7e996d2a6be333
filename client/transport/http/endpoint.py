"""Where a server answers HTTP, and which of its processes answers on a connection."""

from __future__ import annotations

import re
import socket
from typing import NamedTuple

from scannery.client.transport.http.codec import ProtocolError, Response

__all__ = ["CONNECT_TIMEOUT_S", "SOCKET_OPTIONS", "Endpoint", "UnsentError", "Worker", "worker_of"]

CONNECT_TIMEOUT_S = 5.0
"""How long a connection may take, within the deadline of the call."""

# A peer that vanished is noticed within 30 s, as it is by gRPC (channels.py).
SOCKET_OPTIONS = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in [
            ("TCP_KEEPIDLE", 20),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 2),
            ("TCP_USER_TIMEOUT", 30_000),
        ]
        if hasattr(socket, name)
    ),
]

_WORKER = re.compile(rb"([\w.-]{1,64})/([0-9]{1,6})")
_MISDIRECTED = 421


class UnsentError(ConnectionError):
    """The connection broke before all of the request was sent: the server cannot have done what it asks."""


class Endpoint(NamedTuple):
    """Where a server answers HTTP."""

    host: str
    """The name that a certificate must have."""
    port: int
    tls: bool = False
    address: str = ""
    """What the host's name was resolved to; empty: it is resolved for each connection."""
    server: str | None = None
    """The id of the server that must answer; empty: any server of Scannery; None: anything, for example a proxy."""

    @property
    def authority(self) -> str:
        """Return the value of the header `Host`: the address if it is known, which a server never refuses."""
        name = (self.address or self.host).partition("%")[0]
        host = f"[{name}]" if ":" in name else name
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Return it as in `connect`."""
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class Worker(NamedTuple):
    """The process that answers on a connection; `Worker("", 1)` where the server does not tell."""

    name: str
    workers: int
    """How many of them the server has."""


def worker_of(response: Response, endpoint: Endpoint) -> Worker:
    """Return who answered the request for health on a new connection.

    A refusal (401, 403) tells it as well as an answer does.

    Raises:
        ProtocolError: it is not the server that was expected, or the connection ends here.

    """
    if endpoint.server is not None:
        answers = response.headers.get(b"scannery-server", b"").decode("latin-1")
        if not answers or endpoint.server not in ("", answers) or response.status == _MISDIRECTED:
            raise ProtocolError(f"another server answers at {endpoint.url}")
    if not response.reusable:
        raise ProtocolError(f"{endpoint.url} answers one request per connection")
    match = _WORKER.fullmatch(response.headers.get(b"scannery-worker", b""))
    return Worker(match[1].decode(), max(1, int(match[2]))) if match else Worker("", 1)
