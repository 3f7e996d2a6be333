"""Connections for one call at a time, for threads."""

from __future__ import annotations

import select
import socket
import struct
import time
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Any

from scannery.client.transport.http.endpoint import Endpoint
from scannery.client.transport.http.pool import SOCKET_OPTIONS, UnsentError, Worker, worker_of
from scannery.runtime.http1 import Response, ResponseParser, health_request

if TYPE_CHECKING:
    import ssl

__all__ = ["Connection", "dial"]


_READ_BYTES = 1 << 16
"""Holds most answers whole."""
_BLOCK_S = 0.005
_MAX_WAIT_S = 3600.0


class Connection:
    """A connection in the clear.

    The socket blocks for 5 ms, which is longer than most calls take: with a timeout of its own, Python polls before
    each read and write, and releases the interpreter's lock each time. Longer waits poll until the deadline.

    Args:
        sock: connected.

    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._parser = ResponseParser()
        self._readable = select.poll()
        self._readable.register(sock, select.POLLIN)
        self.worker = Worker("", 1)
        self.used_s = time.monotonic()
        """When it last answered."""
        self._set_up()

    def _set_up(self) -> None:
        self._socket.settimeout(None)
        block = struct.pack("ll", 0, int(_BLOCK_S * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, block)

    def exchange(self, request: bytes, until_s: float) -> Response:
        """Send a request and return its response.

        Args:
            request: head and body.
            until_s: the deadline, by `time.monotonic`.

        Raises:
            UnsentError: the connection broke before all of the request was sent.
            OSError: it broke later, or the deadline passed; after each of these it must not be used any more.

        """
        try:
            if not self._send(request, until_s):
                # A refusal, behind which nothing else can be sent: a part of this request is missing.
                return self._response(until_s)._replace(reusable=False)
        except TimeoutError:
            raise
        except OSError as error:
            raise UnsentError(f"the connection broke: {error}") from error
        return self._response(until_s)

    def _response(self, until_s: float) -> Response:
        response = None
        while response is None:
            response = self._parser.feed(self._receive(until_s))
        return response

    def _send(self, request: bytes, until_s: float) -> bool:
        """Send a request; return False if the server answered before all of it was sent."""
        try:
            sent = self._socket.send(request)
        except BlockingIOError:
            sent = 0
        while sent < len(request):
            if not self.quiet:
                return False
            ready = select.poll()
            ready.register(self._socket, select.POLLIN | select.POLLOUT)
            _wait(ready, until_s)
            with suppress(BlockingIOError):
                sent += self._socket.send(memoryview(request)[sent:])
        return True

    def _receive(self, until_s: float) -> bytes:
        while True:
            if until_s - time.monotonic() < 10 * _BLOCK_S:
                _wait(self._readable, until_s)
            try:
                return _not_ended(self._socket.recv(_READ_BYTES))
            except BlockingIOError:
                _wait(self._readable, until_s)

    @property
    def quiet(self) -> bool:
        """Whether nothing arrived while it was idle; the end of the connection would have."""
        return not self._readable.poll(0)

    def close(self) -> None:
        """End the connection and release the socket."""
        self.end()
        self.release()

    def end(self) -> None:
        """End the connection, also for a thread that waits on it; the socket remains that thread's."""
        # The method of the base class: that of TLS frees what another thread is using.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def ended(self) -> None:
        """Do nothing: whichever thread waits on it closes it."""

    def release(self) -> None:
        """Release the socket; in a process that has it too, by a fork, the connection stays."""
        self._socket.close()


class _Socket(socket.socket):
    """A socket without a ResourceWarning: a client that was never closed must not cause one.

    A finalizer of `Connection` would not do: in a cycle, that of the socket may run first.
    """

    def __del__(self) -> None:
        self.close()


class _TlsConnection(Connection):
    """A connection by TLS, where each wait has to be Python's."""

    def _set_up(self) -> None:
        """Leave the socket as it is."""

    def _send(self, request: bytes, until_s: float) -> bool:
        self._socket.settimeout(_left_s(until_s))
        self._socket.sendall(request)
        return True

    def _receive(self, until_s: float) -> bytes:
        self._socket.settimeout(_left_s(until_s))
        return _not_ended(self._socket.recv(_READ_BYTES))

    def __del__(self) -> None:
        # As `_Socket` does; Python makes the sockets of TLS.
        self._socket.close()


def dial(endpoint: Endpoint, tls: ssl.SSLContext | None, until_s: float) -> Connection:
    """Return a connection on which the expected server answers.

    Raises:
        OSError: there is none before the deadline, or another server answers.

    """
    address = (endpoint.address or endpoint.host, endpoint.port)
    sock: socket.socket = _Socket(fileno=socket.create_connection(address, _left_s(until_s)).detach())
    try:
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)
        if tls is not None:
            sock.settimeout(_left_s(until_s))
            sock = tls.wrap_socket(sock, server_hostname=endpoint.host)
        connection = (Connection if tls is None else _TlsConnection)(sock)
        response = connection.exchange(health_request(endpoint.authority), until_s)
        connection.worker = worker_of(response, endpoint)
    except BaseException:
        sock.close()
        raise
    return connection


def _not_ended(data: bytes) -> bytes:
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


def _wait(ready: Any, until_s: float) -> None:
    # Rounded up, so that it does not poll several times just before the deadline.
    if not ready.poll(ceil(1000 * _left_s(until_s))):
        _left_s(until_s)


def _left_s(until_s: float) -> float:
    left_s = until_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("the deadline passed")
    return min(left_s, _MAX_WAIT_S)
