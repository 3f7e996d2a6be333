"""Listens for the native protocol, and reads the requests of all connections."""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from scannery.runtime.errors import BindError
from scannery.serving.config import split_address
from scannery.serving.native.connection import READ, Connection
from scannery.serving.native.frames import BrokenFrameError, Frame

__all__ = ["NativeListener"]

_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
"""Of a process; further ones are closed at once."""
LOOK_EVERY_S = 1.0
"""At what takes too long."""
AT_ONCE = MAX_CONNECTIONS
"""Connections that are read before any of them is answered: all that wait. Whoever is left to wait in the kernel is not
seen by admission, which then refuses nobody, however late they are answered."""
FRAMES_AT_ONCE = 1024
"""Likewise of frames, in equal parts of all connections that have any."""
ACCEPTED_AT_ONCE = 64
_DEAD_AFTER = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""Seconds of silence before a peer is asked whether it is there, and between that and the two other times."""

_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Wrap = Callable[[socket.socket], socket.socket]
Answer = Callable[[Sequence[tuple[Connection, Frame]]], None]


class NativeListener:
    """One port, and a thread that reads what comes. What was read together is answered together."""

    def __init__(
        self, address: str, answer: Answer, *, wrap: Wrap | None, share_port: bool, silence_s: float
    ) -> None:
        """Listen; nothing is read before `start`.

        Args:
            address: `host:port`; port 0 takes a free one.
            answer: takes requests on; called in the thread that reads, so what takes long goes elsewhere.
            wrap: makes a TLS socket of one that was accepted; None: in the clear.
            share_port: listen with SO_REUSEPORT.
            silence_s: a request that began must be here within so long, and so must an answer be read.

        Raises:
            BindError: the address is taken, or is not one of this machine.

        """
        self._answer, self._wrap, self._silence_s = answer, wrap, silence_s
        self._listening = _listening(address, share_port=share_port)
        self.port: int = self._listening.getsockname()[1]
        """The real one."""
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._connections: dict[int, Connection] = {}
        self._accepts = True
        self._stopping = threading.Event()
        self._drained_by_s = 0.0
        self._thread = threading.Thread(target=self._run, name="scannery-native", daemon=True)

    def start(self) -> None:
        """Read and answer, in a thread."""
        self._epoll.register(self._listening.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._thread.start()

    def stop(self, drain_s: float) -> None:
        """Take no more requests, wait until those that were read are answered (so long at most), and close all."""
        self._drained_by_s = time.monotonic() + drain_s
        self._stopping.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        self._listening.close()
        self._epoll.close()
        os.close(self._wake)

    def _run(self) -> None:
        look_at_s = time.monotonic() + LOOK_EVERY_S
        while not self._stopping.is_set():
            self._turn(LOOK_EVERY_S)
            now_s = time.monotonic()
            if now_s >= look_at_s:
                look_at_s = now_s + LOOK_EVERY_S
                self._close_overdue(now_s)
        self._epoll.unregister(self._listening.fileno())
        self._listening.close()
        # What has arrived is answered, whoever waits; then no more is read.
        self._turn(0)
        for connection in list(self._connections.values()):
            connection.end()
        while self._connections and time.monotonic() < self._drained_by_s:
            self._turn(0.05)
        for connection in list(self._connections.values()):
            self._release(connection)

    def _turn(self, wait_s: float) -> None:
        asked: list[tuple[Connection, Frame]] = []
        told = self._epoll.poll(wait_s, AT_ONCE)
        most = FRAMES_AT_ONCE // max(1, len(told))
        for number, events in told:
            if (connection := self._connections.get(number)) is not None:
                asked += self._heard(connection, events, most)
            elif number == self._wake:
                os.eventfd_read(self._wake)
            elif not self._stopping.is_set():
                self._accept()
        if not asked:
            return
        try:
            self._answer(asked)
        except Exception:  # noqa: BLE001  whatever it is, the next turn needs the thread
            # It cannot be told what was answered: whoever was not, asks again.
            _LOG.exception("native connections are closed")
            for connection, _ in asked:
                connection.close()

    def _heard(self, connection: Connection, events: int, most: int) -> list[tuple[Connection, Frame]]:
        frames: list[Frame] = []
        try:
            if events & select.EPOLLOUT:
                connection.flush()
            frames = connection.received(readable=bool(events & select.EPOLLIN), most=most)
        except BrokenFrameError as error:
            _LOG.debug("a native connection is closed: %s", error)
            connection.close()
        except Exception:  # noqa: BLE001  whatever one of them causes, the others need the thread
            _LOG.exception("a native connection is closed")
            connection.close()
        if not connection.is_open or events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP):
            # Whoever hung up, or sent their last word, waits for no answer.
            self._release(connection)
            return []
        return [(connection, frame) for frame in frames]

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except OSError as error:  # no more of them, or it is gone already
                if error.errno in _EXHAUSTED:
                    # It stays there to be accepted: do not hear of it all the time until a descriptor is free.
                    self._watch_port(0)
                return
            if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
                accepted.close()
                continue
            self._take_on(accepted)

    def _make_room(self) -> bool:
        """Close the connection that has been silent for longest since it came: strangers must not keep others out."""
        silent = next((each for each in self._connections.values() if each.metadata is None), None)
        if silent is not None:
            self._release(silent)
        return silent is not None

    def _take_on(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            wrapped = self._wrap(accepted) if self._wrap else accepted
        except OSError:
            accepted.close()
            return
        connection = Connection(wrapped, self._epoll.modify)
        try:
            self._epoll.register(connection.number, READ)
        except OSError:
            connection.release()
            return
        self._connections[connection.number] = connection

    def _watch_port(self, events: int) -> None:
        self._accepts = bool(events)
        self._epoll.modify(self._listening.fileno(), events)

    def _close_overdue(self, now_s: float) -> None:
        for connection in list(self._connections.values()):
            if connection.overdue(now_s, self._silence_s):
                self._release(connection)
        if not self._accepts:
            self._watch_port(select.EPOLLIN)

    def _release(self, connection: Connection) -> None:
        del self._connections[connection.number]
        with suppress(OSError):
            # A forked child may have it open, and then closing it here would not end its events.
            self._epoll.unregister(connection.number)
        connection.release()


def _listening(address: str, *, share_port: bool) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Of what is accepted here, too.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, number in _DEAD_AFTER:
                listening.setsockopt(socket.IPPROTO_TCP, option, number)
            listening.bind(where)
            listening.listen(1024)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise BindError(
            f"native: cannot listen on {address}: {error.strerror or error}", field="native"
        ) from error
    return listening
