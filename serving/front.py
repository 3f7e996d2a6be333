"""What every server of ours has: a port, a gate, health, metrics. What it serves is given."""

from __future__ import annotations

import logging
import resource
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType

import grpc
from typing_extensions import Self

from scannery.serving.admission import with_reserve
from scannery.serving.affinity import on_core
from scannery.serving.answering import Answering, Offer
from scannery.serving.config import ListenConfig, joined_address, split_address
from scannery.serving.dispatch import Dispatcher
from scannery.serving.errors import BindError
from scannery.serving.health import Health
from scannery.serving.methods import Methods
from scannery.serving.metrics import ServerMetrics
from scannery.serving.metrics.publishing import Publisher
from scannery.serving.metrics.registry import Dump
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.entry import Entry
from scannery.serving.security.interceptor import Gate
from scannery.serving.security.principals import Scope
from scannery.serving.security.tls import Certificates
from scannery.serving.slow import SlowCalls
from scannery.serving.standard import Standard
from scannery.serving.threads import CallThreads
from scannery.serving.transport.http import HttpEndpoint

__all__ = ["Front", "Running"]

_LOG = logging.getLogger(__name__)

MAX_REFUSALS = 1024
MAX_CALLS_PER_CONNECTION = 512
MAX_CONNECTIONS = 16384
"""Of a process, and at most half of the descriptors that it may have: it needs some to read its own files."""
MAX_HEADER_BYTES = 16 << 10
IDLE_S = 300
"""Connections without calls are closed after so long; clients open others when they need them."""


class Front:
    """Takes the requests of one process."""

    def __init__(
        self,
        config: ListenConfig,
        methods: Methods,
        *,
        services: Sequence[str],
        publish: Callable[[bytes], object] | None = None,
        before: Dump | None = None,
        offer: Offer = lambda request: None,
    ) -> None:
        """Take what is served.

        Args:
            config: how to listen.
            methods: what is served.
            services: their names, for reflection.
            publish: takes the metrics, every second; None: they are served here, if `config.metrics_listen` says so.
            before: metrics to go on from.
            offer: called with each search that was answered.

        """
        self.config = config
        self.address = config.listen
        """Where it listens; the real port once it is started."""
        self.metrics = ServerMetrics()
        self.metrics.registry.restore(before or {})
        self._health = Health()
        self._grpc: grpc.Server | None = None
        self._stopped = threading.Event()
        # Calls that wait for their body or their turn each hold a thread, which costs next to nothing.
        self._threads = CallThreads(with_reserve(config.threads + config.queue), "scannery-request")
        authenticator = Authenticator(config.security)
        self._entry = Entry(authenticator, self._scope_of)
        self._certificates = Certificates(config.security) if config.security.tls_cert else None
        self._publisher = Publisher(self.metrics, config, publish)
        answering = Answering(methods, config, self.metrics, offer=offer)
        self._methods = methods
        self._slow = SlowCalls()
        self._http = HttpEndpoint(methods, answering, self._entry, self._threads, config, self._health)
        self._dispatcher = Dispatcher(methods, answering, config, self._entry, self._slow, self._http)
        shown = services if config.security.shows_reflection else ()
        self._standard = Standard(self._health, config, self._entry, self._slow, shown)
        admission = self.admission = answering.admission
        self.metrics.in_flight.asks(lambda: {(): admission.in_flight})
        self.metrics.limit.asks(lambda: {(): admission.limit})
        self.metrics.stale_credentials.asks(partial(_stale, authenticator, self._certificates))

    @property
    def metrics_address(self) -> str:
        """Where the metrics are, if they are served here."""
        return self._publisher.address

    @property
    def http_port(self) -> int:
        """Where HTTP is answered once it is started; 0: nowhere."""
        return self._http.port

    def start(self) -> None:
        """Listen, and answer.

        Raises:
            BindError: the address is taken, or is not one of this machine.

        """
        on_core(self.config.core, self._listen)
        self._publisher.start()

    def stop(self, drain_s: float | None = None) -> bool:
        """Refuse new requests, and let those that run finish, for at most `drain_s`; False if it was stopped before."""
        if self._stopped.is_set():
            return False
        self._stopped.set()
        self._health.stop()
        drain_s = self.config.drain_s if drain_s is None else drain_s
        stopped = self._grpc.stop(drain_s) if self._grpc is not None else None
        self._http.stop(drain_s)
        if stopped is not None:
            stopped.wait()
        self._dispatcher.close()
        self._standard.close()
        self._slow.close()
        self._threads.close()
        self._publisher.stop()
        return True

    def report_health(self, states: dict[str, bool]) -> None:
        """Say by name in the health service what answers; names that are missing now do not."""
        self._health.report(states)

    def _scope_of(self, path: str) -> Scope | None:
        return self._methods.scope_of(path) or self._standard.scopes.get(path)

    def _listen(self) -> None:
        config = self.config
        probe = self._standard.probe() if config.security.public_health else None
        server = grpc.server(
            self._threads,  # type: ignore[arg-type]  # it submits to them, and no more
            interceptors=[Gate(self._entry, self._dispatcher.refusal, probe=probe)],
            options=_options(config),
            # A backstop for what is refused faster than it can be told; admission is what limits.
            maximum_concurrent_rpcs=2 * (config.threads + config.queue) + MAX_REFUSALS,
        )
        server.add_generic_rpc_handlers((self._dispatcher, self._standard))
        self._http.start()
        self.address = _bound(server, config, self._certificates)
        server.start()
        self._grpc = server
        self._health.begin()
        _LOG.info("listening on %s; HTTP: %s", self.address, self._http.port or "off")


def _options(config: ListenConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # Before anybody knows whose they are.
        ("grpc.max_metadata_size", MAX_HEADER_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_HEADER_BYTES),
        # On by default, and then two servers share a port in silence.
        ("grpc.so_reuseport", int(config.share_port)),
        # Connections that never finish their handshake, that died without a word, and that nobody uses.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ("grpc.max_allowed_incoming_connections", _most_connections()),
        # Clients may ask as often; a flood of pings ends their connection.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    ]


def _most_connections() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, descriptors // 2)
    )


def _bound(server: grpc.Server, config: ListenConfig, certificates: Certificates | None) -> str:
    host, _ = split_address(config.listen)
    try:
        if certificates is not None:
            port = server.add_secure_port(config.listen, certificates.credentials)
        else:
            port = server.add_insecure_port(config.listen)
    except RuntimeError as error:
        raise BindError(f"cannot listen on {config.listen}: {error}", field="listen") from error
    if port == 0:
        raise BindError(f"cannot listen on {config.listen}: is the port taken?", field="listen")
    return joined_address(host, port)


def _stale(authenticator: Authenticator, certificates: Certificates | None) -> dict[tuple[str, ...], float]:
    return {
        ("credentials",): authenticator.stale_s,
        ("certificate",): certificates.stale_s if certificates else 0.0,
    }


class Running(ABC):
    """A server behind a front. A context manager: entering starts it, leaving drains and stops it."""

    _front: Front

    @property
    def http_port(self) -> int:
        """Where HTTP is answered once it is started; 0: nowhere."""
        return self._front.http_port

    @property
    def address(self) -> str:
        """Where it listens; the real port once it is started."""
        return self._front.address

    @property
    def metrics_address(self) -> str:
        """Where the metrics are, if they are served here."""
        return self._front.metrics_address

    @abstractmethod
    def start(self) -> None:
        """Listen, and answer; raises BindError and what is in the way of answering."""

    @abstractmethod
    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, let those that run finish (for at most `drain_s`), and close everything."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
