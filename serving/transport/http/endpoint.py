"""The HTTP port of one process, and the gRPC metadata that announces it."""

from __future__ import annotations

import secrets
from functools import cache

from scannery.serving.config import ListenConfig, WorkerContext, joined_address, split_address
from scannery.serving.contract import HTTP_KEY, SERVER_KEY
from scannery.serving.scheduling.thread_pool import CallThreads
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.tls import TlsSockets
from scannery.serving.transport.health import Health
from scannery.serving.transport.http.handler import Handler
from scannery.serving.transport.http.openapi import description
from scannery.serving.transport.http.pages import Pages
from scannery.serving.transport.http.responses import Responses
from scannery.serving.transport.http.server import HttpServer
from scannery.serving.transport.lifecycle import RequestLifecycle

__all__ = ["HttpEndpoint"]


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
    ) -> None:
        """Prepare; `start` binds the port.

        Args:
            lifecycle: the RPC methods, admission and counting, shared with gRPC.
            authorizer: authentication and scopes.
            threads: run requests that may block.
            config: the options.
            context: of the worker that this process is.
            health: state of the server.

        """
        self._config, self._context = config, context
        self._responses = Responses(
            server=context.server_id, worker=secrets.token_hex(8), workers=context.workers
        )
        openapi = cache(lambda: description(lifecycle.methods.over_http, credentials=config.security.tokens))
        pages = Pages(config, authorizer, health, openapi)
        self._handler = (
            Handler(lifecycle, authorizer, threads, config, self._responses, pages)
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
