"""The native protocol (proto/scannery/v1/native.proto): its frames, and what both kinds of clients need of them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from scannery.client.calls import SEARCH, SEARCH_MANY, Method
from scannery.client.errors import ScanneryError
from scannery.client.status import error_from_status
from scannery.v1.native_pb2 import (
    GetEndpointRequest,
    GetEndpointResponse,
    NativeHello,
    NativeMetadata,
    NativeWelcome,
)
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "DIAL_S",
    "GET_ENDPOINT",
    "HEAD",
    "KINDS",
    "LARGEST_REQUEST",
    "MOST_BYTES",
    "Endpoint",
    "Welcome",
    "endpoints_of",
    "error_of",
    "framed",
    "hello_frame",
    "host_of",
    "too_late",
    "welcome_of",
]

GET_ENDPOINT = Method("/scannery.v1.NativeService/GetEndpoint", GetEndpointRequest, GetEndpointResponse)

HEAD = struct.Struct("<IB3xII")
"""Length of the body, kind or status, number of the call, milliseconds that the client will wait."""
HELLO = 1
KINDS = {SEARCH.path: 2, SEARCH_MANY.path: 3}
"""Calls that may go this way, by method."""

LARGEST_REQUEST = 256 << 10
"""Bytes; what is larger costs more in the search than on the way, and is not to hold up the others."""
MOST_BYTES = (1 << 31) - 1
"""Of an answer."""
DIAL_S = 1.0
"""How long a connection may take that is not there yet: gRPC's is."""

MOST_ADDRESSES = 4
"""Of a host, that are tried: which of several servers answered over gRPC is not known."""

_PROTOCOL = 1
_MOST_MS = (1 << 32) - 1
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}
_TARGET = re.compile(
    r"(?:dns:(?:///)?|ipv4:|ipv6:)?(?!(?:dns|ipv4|ipv6|unix|unix-abstract|xds):)"
    r"(\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9_.-]+):[0-9]+"
)


class Endpoint(NamedTuple):
    """Where a server speaks it."""

    host: str
    """As in the target; the name that a certificate must have."""
    address: str
    """What the host's name stands for, so that nobody who searches waits for a name server."""
    port: int
    server: str
    """What the welcome must say; empty: anything."""


class Welcome(NamedTuple):
    """Which process of a server answers on a connection."""

    worker: int
    workers: int


def host_of(target: str) -> str | None:
    """Return the host of a gRPC target; None where it is not a single one, or none that has ports."""
    match = _TARGET.fullmatch(target)
    return match[1].strip("[]") if match else None


def endpoints_of(
    host: str, found: GetEndpointResponse, addresses: Iterable[tuple[Any, ...]]
) -> list[Endpoint]:
    """Return what a server's answer may mean; `addresses` are those of the host, as `getaddrinfo` gives them.

    Raises:
        ConnectionError: it means nothing.

    """
    names = dict.fromkeys(str(where[0]) for *_, where in addresses)
    if not names or not 1 <= found.port <= 65535:
        raise ConnectionAbortedError(f"there is no endpoint at {host}:{found.port}")
    return [Endpoint(host, name, found.port, found.server) for name in names][:MOST_ADDRESSES]


def framed(kind: int, body: bytes, number: int, left_s: float) -> bytes:
    """Return a frame towards the server, which has so many seconds to answer it."""
    left_ms = min(max(1, int(left_s * 1000)), _MOST_MS)
    return HEAD.pack(len(body), kind, number, left_ms) + body


def hello_frame(metadata: tuple[tuple[str, str], ...]) -> bytes:
    """Return the first frame of a connection; its number is 0."""
    pairs = [NativeMetadata(key=key, value=value) for key, value in metadata]
    hello = NativeHello(protocol=_PROTOCOL, metadata=pairs)
    return framed(HELLO, hello.SerializeToString(), 0, DIAL_S)


def welcome_of(endpoint: Endpoint, status: int, body: bytes) -> Welcome:
    """Return what the server answered to the hello.

    Raises:
        ConnectionError: it does not want us, or is not the one that we looked for.

    """
    if status:
        raise ConnectionRefusedError(f"the server answered the hello with status {status}")
    try:
        welcome = NativeWelcome.FromString(body)
    except DecodeError as error:
        raise ConnectionAbortedError("the server's welcome is none") from error
    if welcome.protocol != _PROTOCOL or (endpoint.server and welcome.server != endpoint.server):
        raise ConnectionAbortedError("another server answers there")
    return Welcome(welcome.worker, max(1, welcome.workers))


def error_of(status: int, body: bytes) -> ScanneryError:
    """Return the error of an answer: the one that gRPC would give."""
    code = _CODES.get(status, grpc.StatusCode.UNKNOWN)
    if code is grpc.StatusCode.CANCELLED:
        # We cancel nothing: a server that is stopping dropped it.
        code = grpc.StatusCode.UNAVAILABLE
    detail: ErrorDetail | None
    try:
        detail = ErrorDetail.FromString(body)
    except DecodeError:
        detail = None
    return error_from_status(code, code.name.lower(), detail)


def too_late(target: str) -> ScanneryError:
    """Return the error of a call that got no answer in time."""
    return error_from_status(grpc.StatusCode.DEADLINE_EXCEEDED, f"{target}: Deadline Exceeded", None)
