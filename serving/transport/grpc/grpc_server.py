"""The gRPC port of one process: its options, methods, health and reflection."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable, Sequence

import grpc

from scannery.runtime.errors import BindError
from scannery.serving.config import ListenConfig, joined_address, split_address
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.security.authentication import Authorizer, Certificates
from scannery.serving.transport.grpc.call_limits import CallTimeouts
from scannery.serving.transport.grpc.dispatcher import Dispatcher, Metadata
from scannery.serving.transport.grpc.standard_services import AuthInterceptor, StandardServices
from scannery.serving.transport.health import Health
from scannery.serving.transport.lifecycle import RequestLifecycle

__all__ = ["GrpcServer"]

MAX_REFUSALS = 1024
MAX_CALLS_PER_CONNECTION = 512
MAX_CONNECTIONS = 16384
"""Connections of a process; also at most half of its file descriptors, since it needs some for its own files."""
MAX_HEADER_BYTES = 16 << 10
PING_EVERY_MS = 500
IDLE_S = 300
"""Connections without calls are closed after this time; clients reconnect when needed."""


class GrpcServer:
    """Listens for gRPC calls."""

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        authorizer: Authorizer,
        threads: CallThreads,
        config: ListenConfig,
        *,
        health: Health,
        services: Sequence[str],
        http_metadata: Callable[[], Metadata] = tuple,
        share_port: bool = False,
    ) -> None:
        """Prepare; `start` binds the port.

        Args:
            lifecycle: the RPC methods, admission and counting, shared with HTTP.
            authorizer: authentication and scopes.
            threads: run the calls.
            config: address, limits, security.
            health: state of the server.
            services: names of the services, for reflection.
            http_metadata: returns the trailing metadata for calls that ask for the HTTP port.
            share_port: listen with SO_REUSEPORT, so that several processes can share the port.

        """
        self._config, self._authorizer, self._threads = config, authorizer, threads
        self._share_port = share_port
        self._health = health
        self.certificates = Certificates(config.security) if config.security.tls_cert else None
        """None: no TLS."""
        self._timeouts = CallTimeouts()
        self._dispatcher = Dispatcher(lifecycle, config, authorizer, self._timeouts, http_metadata)
        shown = tuple(services) if config.security.shows_reflection else ()
        self._standard = StandardServices(self._health, config, authorizer, self._timeouts, shown)
        self.scopes = self._standard.scopes
        """Required scopes of health and reflection, by method path."""
        self._server: grpc.Server | None = None
        self._ended: threading.Event | None = None

    def start(self) -> str:
        """Listen and answer; return the address with the actual port. Raises BindError."""
        config = self._config
        probe = self._standard.probe() if config.security.public_health else None
        server = grpc.server(
            self._threads,  # type: ignore[arg-type]  # gRPC calls only `submit`
            interceptors=[AuthInterceptor(self._authorizer, self._dispatcher.refusal, probe=probe)],
            options=self._options(),
            # Backstop for calls that arrive faster than refusals are sent; admission is the actual limit.
            maximum_concurrent_rpcs=2 * (config.threads + config.queue) + MAX_REFUSALS,
        )
        server.add_generic_rpc_handlers((self._dispatcher, self._standard))
        address = self._bind(server)
        server.start()
        self._server = server
        self._health.begin()
        return address

    def refuse(self, drain_s: float) -> None:
        """Refuse new calls, and cancel running ones after `drain_s` seconds. Returns at once; `stop` waits."""
        self._health.stop()
        self._ended = self._server.stop(drain_s) if self._server is not None else None

    def stop(self) -> None:
        """Wait for running calls and end all threads; call `refuse` first."""
        if self._ended is not None:
            self._ended.wait()
        self._dispatcher.close()
        self._standard.close()
        self._timeouts.stop()

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._config.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            # Applies before authentication.
            ("grpc.max_metadata_size", MAX_HEADER_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
            # On by default; two unrelated servers would then share a port.
            ("grpc.so_reuseport", int(self._share_port)),
            # For connections that never finish the handshake, whose peer is gone, or that are idle.
            ("grpc.server_handshake_timeout_ms", 10_000),
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
            ("grpc.max_allowed_incoming_connections", _max_connections()),
            # Shortest interval of client pings; more frequent ones end the connection with its calls. Some clients ping
            # once a second, by timers that are not exact.
            ("grpc.http2.min_ping_interval_without_data_ms", PING_EVERY_MS),
            ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
        ]

    def _bind(self, server: grpc.Server) -> str:
        listen = self._config.listen
        host, _ = split_address(listen)
        try:
            if self.certificates is not None:
                port = server.add_secure_port(listen, self.certificates.credentials)
            else:
                port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise BindError(f"cannot listen on {listen}: {error}", field="listen") from error
        if port == 0:
            raise BindError(f"cannot listen on {listen}: is the port taken?", field="listen")
        return joined_address(host, port)


def _max_connections() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, descriptors // 2)
    )
