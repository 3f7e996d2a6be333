"""A blocking connection of the native protocol, for one call at a time."""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from scannery.client.native.frames import HEAD, MOST_BYTES, Endpoint, Welcome, framed, hello_frame, welcome_of

if TYPE_CHECKING:
    import ssl

__all__ = ["SOCKET_OPTIONS", "Connection", "dial"]

_ONE_READ = 1 << 16
"""Bytes; holds most answers whole."""
_LARGE_READ = 1 << 20
_BRIEF_S = 0.005
_MOST_WAIT_S = 3600.0

# A peer that vanished without a word is noticed within 30 s, as it is by gRPC (channels.py).
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


class Connection:
    """A connection in the clear.

    The socket blocks for 5 ms, which holds most calls: with a timeout of its own, Python would look at it before each
    read and write, and let other threads in its way each time. What takes longer is waited for to the deadline.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._number = 0
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self.welcome = Welcome(0, 1)
        self.used_s = time.monotonic()
        """When it last answered."""
        self._set_up()

    def _set_up(self) -> None:
        self._socket.settimeout(None)
        brief = struct.pack("ll", 0, int(_BRIEF_S * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, brief)

    def ask(self, kind: int, body: bytes, until_s: float) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Args:
            kind: of the request, as in `KINDS`.
            body: the request.
            until_s: the deadline, by `time.monotonic`.

        Raises:
            OSError: it broke, or the time is up; either way, it cannot be used any more.

        """
        self._number = number = (self._number + 1) & 0xFFFFFFFF
        return self.exchange(framed(kind, body, number, until_s - time.monotonic()), number, until_s)

    def exchange(self, frame: bytes, number: int, until_s: float) -> tuple[int, bytes]:
        """Send a frame with a number, and return status and body of its answer; see `ask`."""
        self._send(frame, until_s)
        data = self._receive(_ONE_READ, until_s)
        while len(data) < HEAD.size:
            data += self._receive(_ONE_READ, until_s)
        length, status, answered, _ = HEAD.unpack_from(data)
        missing = HEAD.size + length - len(data)
        if answered != number or length > MOST_BYTES or missing < 0:
            raise ConnectionAbortedError("this answers another call")
        if missing:
            data = self._rest(data, missing, until_s)
        return status, data[HEAD.size :]

    def _rest(self, data: bytes, missing: int, until_s: float) -> bytes:
        parts = [data]
        while missing:
            part = self._receive(min(missing, _LARGE_READ), until_s)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _send(self, frame: bytes, until_s: float) -> None:
        try:
            sent = self._socket.send(frame)
        except BlockingIOError:
            sent = 0
        while sent < len(frame):
            writable = select.poll()
            writable.register(self._socket, select.POLLOUT)
            _await(writable, until_s)
            with suppress(BlockingIOError):
                sent += self._socket.send(memoryview(frame)[sent:])

    def _receive(self, most: int, until_s: float) -> bytes:
        """Return what is there, as soon as there is something."""
        while True:
            if until_s - time.monotonic() < 10 * _BRIEF_S:
                _await(self._readable, until_s)
            try:
                data = self._socket.recv(most)
            except BlockingIOError:
                _await(self._readable, until_s)
                continue
            if not data:
                raise ConnectionResetError("the server closed the connection")
            return data

    @property
    def quiet(self) -> bool:
        """Whether nothing came while it was idle; the end of a connection would have."""
        return not self._readable.poll(0)

    def close(self) -> None:
        """End the connection and give up the socket."""
        self.end()
        self.let_go()

    def end(self) -> None:
        """End the connection, whoever waits on it; the socket stays theirs."""
        # Of the base class: that of TLS takes away what another thread is using.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Give up the socket; a process that has it too, by a fork, keeps its connection."""
        self._socket.close()

    def __del__(self) -> None:
        # Whoever forgets a client without closing it is not to hear of its sockets.
        self._socket.close()


class _Secure(Connection):
    """A connection by TLS, where each wait has to be Python's."""

    def _set_up(self) -> None:
        """Leave the socket as it is."""

    def _send(self, frame: bytes, until_s: float) -> None:
        self._socket.settimeout(_left(until_s))
        self._socket.sendall(frame)

    def _receive(self, most: int, until_s: float) -> bytes:
        self._socket.settimeout(_left(until_s))
        data = self._socket.recv(most)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data


def dial(
    endpoint: Endpoint, tls: ssl.SSLContext | None, metadata: tuple[tuple[str, str], ...], timeout_s: float
) -> Connection:
    """Return a connection that was welcomed.

    Args:
        endpoint: where to.
        tls: how to encrypt; None: in the clear.
        metadata: what gRPC would send with each call.
        timeout_s: until it is there.

    Raises:
        OSError: there is none within the time, or not to that server.

    """
    until_s = time.monotonic() + timeout_s
    sock = socket.create_connection((endpoint.address, endpoint.port), timeout_s)
    try:
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)
        if tls is not None:
            sock.settimeout(_left(until_s))
            sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
        connection = (Connection if tls is None else _Secure)(sock)
        answer = connection.exchange(hello_frame(metadata), 0, until_s)
        connection.welcome = welcome_of(endpoint, *answer)
    except BaseException:
        sock.close()
        raise
    return connection


def _await(ready: Any, until_s: float) -> None:
    # Rounded up, so that nobody comes back just before the deadline, again and again.
    if not ready.poll(ceil(1000 * _left(until_s))):
        _left(until_s)


def _left(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the time is up")
    return min(left_s, _MOST_WAIT_S)
