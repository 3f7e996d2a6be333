"""Where a process speaks the native protocol, and what it tells clients of that over gRPC."""

from __future__ import annotations

import secrets

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import UnsupportedError
from scannery.serving.config import ListenConfig, WorkerContext, joined_address, split_address
from scannery.serving.native.answers import NativeAnswers
from scannery.serving.native.frames import PROTOCOL
from scannery.serving.native.listener import NativeListener
from scannery.serving.scheduling.thread_pool import CallThreads
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.tls import TlsSockets
from scannery.serving.services.registry import MethodRegistry, UnaryMethod
from scannery.serving.transport.lifecycle import RequestLifecycle
from scannery.v1.native_pb2 import GetEndpointRequest, GetEndpointResponse, NativeWelcome

__all__ = ["GET_ENDPOINT", "Native"]

NATIVE_SERVICE = "scannery.v1.NativeService"
GET_ENDPOINT = f"/{NATIVE_SERVICE}/GetEndpoint"


class Native:
    """The native protocol of one process, if it speaks it."""

    def __init__(
        self,
        service: MethodRegistry,
        answering: RequestLifecycle,
        entry: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        context: WorkerContext,
    ) -> None:
        """Take what answers; nothing listens before `start`."""
        self.methods = {GET_ENDPOINT: UnaryMethod(GetEndpointRequest, self.endpoint, "read")}
        """How clients learn of it, for the gRPC server."""
        self._config, self._context = config, context
        # At a port that was chosen for it, whoever answers is the right one: several servers may share a name.
        server = context.server_id if config.native == "auto" else ""
        welcome = NativeWelcome(
            protocol=PROTOCOL, server=server, worker=secrets.randbits(63), workers=context.workers
        )
        self._server = server
        self._answers = NativeAnswers(service, answering, entry, threads, config, welcome)
        self._listener: NativeListener | None = None

    @property
    def services(self) -> tuple[str, ...]:
        """Names of the gRPC services that say where, for reflection."""
        return (NATIVE_SERVICE,) if self._config.native_address else ()

    @property
    def port(self) -> int:
        """Where it listens; 0: nowhere."""
        listener = self._listener
        return listener.port if listener else 0

    def start(self) -> None:
        """Listen and answer; raises BindError and ConfigError."""
        config = self._config
        if not config.native_address:
            return
        host, port = split_address(config.native_address)
        self._listener = NativeListener(
            joined_address(host, port or self._context.native_port),
            self._answers,
            wrap=TlsSockets(config.security).wrap if config.security.tls_cert else None,
            share_port=self._context.share_port,
            silence_s=config.body_timeout_s,
        )
        self._listener.start()

    def stop(self, drain_s: float) -> None:
        """Close connections as their requests are answered, all of them within so long."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.stop(drain_s)

    def endpoint(self, request: GetEndpointRequest, deadline: Deadline) -> GetEndpointResponse:
        """Say where it is; UnsupportedError if nowhere."""
        port = self.port
        if not port:
            raise UnsupportedError("this server does not speak the native protocol")
        return GetEndpointResponse(port=port, server=self._server)
