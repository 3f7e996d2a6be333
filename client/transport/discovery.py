"""What a server that is reached over gRPC says about its HTTP port, and where that is.

A call with the metadata `ASK` gets the port and the server's id in trailing metadata. Where the port was configured,
the id is empty: several servers may share it, as they share the gRPC port.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from typing import Any

from scannery.client.transport.http.endpoint import Endpoint

__all__ = ["ASK", "endpoints_of", "host_of", "offer_in"]

ASK = (("scannery-http", "ask"),)

_MAX_ADDRESSES = 4
"""Addresses of a host: which of several servers by one name answered over gRPC is not known."""
_TARGET = re.compile(
    r"(?:dns:(?:///)?|ipv4:|ipv6:)?(?!(?:dns|ipv4|ipv6|unix|unix-abstract|xds):)"
    r"(\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9_.-]+):[0-9]+"
)


def host_of(target: str) -> str | None:
    """Return the host of a target of gRPC; None: it is not a single host with a port."""
    match = _TARGET.fullmatch(target)
    return match[1].strip("[]") if match else None


def offer_in(metadata: Iterable[Any] | None) -> tuple[int, str] | None:
    """Return port and id of the server in the trailing metadata of its answer; None: it does not offer HTTP."""
    values = {key: value for key, value in metadata or () if key in ("scannery-http", "scannery-server")}
    port, server = values.get("scannery-http", ""), values.get("scannery-server")
    if server is None or not re.fullmatch(r"[1-9][0-9]{0,4}", port):
        return None
    return int(port), server


def endpoints_of(host: str, port: int, server: str, *, tls: bool) -> list[Endpoint]:
    """Return an endpoint for each address of the host; raises OSError and UnicodeError."""
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = dict.fromkeys(str(address[0]) for *_, address in resolved)
    return [Endpoint(host, port, tls, address, server) for address in list(addresses)[:_MAX_ADDRESSES]]
