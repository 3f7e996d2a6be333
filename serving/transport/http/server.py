"""The listening socket of HTTP, its connections, and the event-loop thread.

The HTTP port of one process, and the gRPC metadata that announces it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from functools import cache, partial

import uvloop

from scannery.runtime.errors import BindError
from scannery.serving.bridging.bridges import Bridges
from scannery.serving.config import ListenConfig, WorkerContext, joined_address, split_address
from scannery.serving.contract import HTTP_KEY, SERVER_KEY
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.security.authentication import Authorizer, TlsSockets
from scannery.serving.transport.health import Health
from scannery.serving.transport.http.connection import Connection
from scannery.serving.transport.http.handler import Handler, Pages
from scannery.serving.transport.http.head import Responses
from scannery.serving.transport.http.openapi import description
from scannery.serving.transport.lifecycle import RequestLifecycle

__all__ = ["HttpEndpoint"]


_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 1024
"""Connections of a process."""
CHECK_EVERY_S = 1.0
"""Interval at which time limits are checked."""
ACCEPTED_AT_ONCE = 64
SPARED_S = 10.0
"""A connection of a known caller that was active within this time is not closed to make room."""
_DEAD_AFTER = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
"""TCP keepalive: seconds of silence before the first of 3 probes, and between probes."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class HttpServer:
    """Accepts connections, and runs them on an event loop in its own thread."""

    def __init__(
        self,
        address: str,
        handler: Handler,
        *,
        tls: TlsSockets | None,
        share_port: bool,
        every: Callable[[], object],
    ) -> None:
        """Bind and listen; `start` begins to accept.

        Args:
            address: `host:port`; port 0 takes a free one.
            handler: answers requests.
            tls: certificates; None: no TLS.
            share_port: listen with SO_REUSEPORT.
            every: called once a second.

        Raises:
            BindError: the address is in use, or is not of this machine.

        """
        self._handler, self._tls, self._every = handler, tls, every
        self._listening = _bound_socket(address, share_port=share_port)
        self.port: int = self._listening.getsockname()[1]
        """The actual port."""
        self._loop = uvloop.new_event_loop()
        handler.loop, handler.lost = self._loop, self._lost
        self._connections: dict[int, Connection] = {}
        self._opening: set[asyncio.Task[object]] = set()
        self._accepts = self._draining = False
        self._thread = threading.Thread(target=self._run, name="scannery-http", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, drain_s: float) -> None:
        """Refuse new requests, wait up to `drain_s` seconds for answers, and close all connections."""
        if self._thread.ident is not None:
            self._loop.call_soon_threadsafe(self._drain, drain_s)
            self._thread.join()
        self._listening.close()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._watch_port()
        self._loop.call_later(CHECK_EVERY_S, self._check)
        self._loop.run_forever()

    def _drain(self, drain_s: float) -> None:
        self._draining = True
        if self._accepts:
            self._loop.remove_reader(self._listening)
            self._accepts = False
        self._listening.close()
        for connection in list(self._connections.values()):
            connection.end()
        self._loop.call_later(drain_s, self._end)
        if not self._connections:
            self._loop.stop()

    def _end(self) -> None:
        for connection in list(self._connections.values()):
            connection.abort()
        # After the `connection_lost` callbacks.
        self._loop.call_later(0.01, self._loop.stop)

    def _watch_port(self) -> None:
        if not self._accepts and not self._draining:
            self._accepts = True
            self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, _ = self._listening.accept()
            except OSError as error:  # no more connections, or the peer is gone
                if error.errno in _EXHAUSTED:
                    # The connection stays in the queue: stop polling until a descriptor may be free.
                    self._loop.remove_reader(self._listening)
                    self._accepts = False
                return
            if len(self._connections) >= MAX_CONNECTIONS and not self._make_room():
                accepted.close()
                continue
            self._connect(accepted)

    def _connect(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        connection = Connection(self._handler, self._tls.context if self._tls else None)
        self._connections[id(connection)] = connection
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: connection, accepted))
        self._opening.add(task)
        task.add_done_callback(partial(self._opened, connection, accepted))

    def _opened(self, connection: Connection, accepted: socket.socket, task: asyncio.Task[object]) -> None:
        self._opening.discard(task)
        if not task.cancelled() and task.exception() is not None:
            accepted.close()
            self._lost(connection)

    def _make_room(self) -> bool:
        """Close the oldest connection without a known caller, or else the longest idle one; return False if none.

        Connections of unknown callers must not keep known callers out.
        """
        idle_connection = next((each for each in self._connections.values() if not each.is_known), None)
        if idle_connection is None:
            idle = [each for each in self._connections.values() if each.is_idle]
            idle_connection = min(idle, key=lambda each: each.active_s, default=None)
            if idle_connection is not None and time.monotonic() - idle_connection.active_s < SPARED_S:
                idle_connection = None
        if idle_connection is None:
            return False
        idle_connection.abort()
        del self._connections[id(idle_connection)]
        return True

    def _lost(self, connection: Connection) -> None:
        self._connections.pop(id(connection), None)
        if self._draining and not self._connections:
            self._loop.stop()

    def _check(self) -> None:
        now_s = time.monotonic()
        for connection in list(self._connections.values()):
            try:
                connection.check_time(now_s)
            except Exception:  # noqa: BLE001  an error of one connection must not stop the others
                _LOG.exception("a connection is closed")
                connection.abort()
        self._watch_port()
        self._every()
        self._loop.call_later(CHECK_EVERY_S, self._check)


def _bound_socket(address: str, *, share_port: bool) -> socket.socket:
    host, port = split_address(address)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if share_port:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Accepted sockets inherit these.
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
            f"http: cannot listen on {address}: {error.strerror or error}", field="http"
        ) from error
    return listening


class HttpEndpoint:
    """The HTTP port of one process, if the options turn it on."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        authorizer: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        context: WorkerContext,
        health: Health,
        bridges: Bridges,
    ) -> None:
        """Prepare; `start` binds the port.

        Args:
            lifecycle: the RPC methods, admission and counting, shared with gRPC.
            authorizer: authentication and scopes.
            threads: run requests that may block.
            config: the options.
            context: of the worker that this process is.
            health: state of the server.
            bridges: other APIs below paths of their own.

        """
        self._config, self._context = config, context
        self._responses = Responses(
            server=context.server_id, worker=secrets.token_hex(8), workers=context.workers
        )
        openapi = cache(lambda: description(lifecycle.methods.over_http, credentials=config.security.tokens))
        pages = Pages(config, authorizer, health, openapi)
        self._handler = (
            Handler(lifecycle, authorizer, threads, config, self._responses, pages, bridges)
            if config.http_address
            else None
        )
        self._server: HttpServer | None = None
        self.metadata: tuple[tuple[str, str], ...] = ()
        """Trailing metadata for gRPC calls that ask for the HTTP port; empty: HTTP is off."""

    @property
    def port(self) -> int:
        """The port; 0: HTTP is off."""
        return self._server.port if self._server else 0

    def start(self) -> None:
        """Listen and answer; raises BindError and ConfigError."""
        config, context = self._config, self._context
        if self._handler is None:
            return
        host, port = split_address(config.http_address)
        self._server = HttpServer(
            joined_address(host, port or context.http_port),
            self._handler,
            tls=TlsSockets(config.security) if config.security.tls_cert else None,
            share_port=context.share_port,
            every=self._responses.tell_time,
        )
        self._server.start()
        # A configured port may belong to several servers behind one name; an automatic one is of this server.
        chosen = config.http != "auto" and split_address(config.http)[1]
        server = "" if chosen else context.server_id
        self.metadata = ((HTTP_KEY, str(self.port)), (SERVER_KEY, server))

    def stop(self, drain_s: float) -> None:
        """Answer the running requests within `drain_s` seconds, and close all connections."""
        server, self._server, self.metadata = self._server, None, ()
        if server is not None:
            server.stop(drain_s)
