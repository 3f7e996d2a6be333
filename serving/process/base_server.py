"""The base of servers: ports, authentication, admission, health, metrics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from typing_extensions import Self

from scannery.serving.bridging.bridges import Bridges
from scannery.serving.config import ListenConfig, WorkerContext
from scannery.serving.observation.query_observer import Observe
from scannery.serving.scheduling.admission import with_reserve
from scannery.serving.scheduling.affinity import on_core
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.security.authentication import Authenticator, Authorizer, Certificates
from scannery.serving.security.principal import Needed
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.telemetry import tracing
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.metrics.exposition import Publisher
from scannery.serving.transport.grpc.grpc_server import GrpcServer
from scannery.serving.transport.health import Health
from scannery.serving.transport.http import HttpEndpoint
from scannery.serving.transport.lifecycle import RequestLifecycle

if TYPE_CHECKING:
    from scannery.serving.audit.trail import AuditTrail
    from scannery.serving.traffic.recorder import TrafficRecorder

__all__ = ["BaseServer"]

_LOG = logging.getLogger(__name__)


class BaseServer:
    """Answers the requests of one process. A context manager: entering starts it, leaving drains and stops it.

    A subclass opens what it serves in `_open`, and closes it in `_close`.
    """

    traced_as = "scannery"
    """Service name in traces."""

    def __init__(
        self,
        config: ListenConfig,
        methods: MethodRegistry,
        *,
        services: Sequence[str],
        context: WorkerContext,
        metrics: ServerMetrics | None = None,
        observe: Observe = lambda index, queries, request_of: None,
        traffic: TrafficRecorder | None = None,
        audit: AuditTrail | None = None,
        private: ListenConfig | None = None,
        bridges: Bridges | None = None,
    ) -> None:
        """Prepare; `start` binds the ports.

        Args:
            config: the options.
            methods: the RPC methods.
            services: names of the services, for reflection.
            context: of the worker that this process is.
            metrics: of this process; None: new ones.
            observe: called with each answered search.
            traffic: gives ids to answers, and logs some; None: they have none.
            audit: records calls, while the server runs; None: there is no audit log.
            private: options of another gRPC port; None: there is none.
            bridges: APIs of others; None: there are none. The server closes them.

        """
        self._bridges = bridges = bridges or Bridges()
        methods = bridges.added_to(methods)
        self.address = config.listen
        """gRPC address; has the actual port after `start`."""
        self.metrics = metrics or ServerMetrics()
        self.metrics.registry.restore(context.counted)
        self.context = context
        self._drain_s = config.drain_s
        self._ended = False
        # A call that waits for its body or a permit holds a thread, which is cheap.
        self._threads = CallThreads(with_reserve(config.threads + config.queue), "scannery-request")
        authenticator = Authenticator(config.security)
        self._authorizer = Authorizer(authenticator, self._scope_of, about=config.about)
        self._lifecycle = RequestLifecycle(
            methods, config, self.metrics, workers=context.workers, observe=observe, traffic=traffic, audit=audit,
        )  # fmt: skip
        self._audit = audit
        self.admission = admission = self._lifecycle.admission
        self._health = Health()
        self._http = HttpEndpoint(
            self._lifecycle, self._authorizer, self._threads, config, context, self._health, bridges
        )
        self._grpc = GrpcServer(
            self._lifecycle, self._authorizer, self._threads, config, health=self._health,
            services=services, http_metadata=lambda: self._http.metadata, share_port=context.share_port,
        )  # fmt: skip
        self._private: GrpcServer | None = None
        if private is not None:
            self._private = GrpcServer(
                self._lifecycle,
                Authorizer(
                    authenticator,
                    lambda path: methods.scope_of(path) if path in bridges.private_methods else None,
                ),
                self._threads, private, health=self._health, services=(), share_port=context.share_port,
            )  # fmt: skip
        self.private_address = private.listen if private else ""
        """Address of that port; has the actual port after `start`."""
        self._publisher = Publisher(self.metrics, config.metrics_listen, context)
        self.metrics.in_flight.asks(lambda: {(): admission.in_flight})
        self.metrics.limit.asks(lambda: {(): admission.limit})
        self.metrics.stale_credentials.asks(partial(_stale, authenticator, self._grpc.certificates))

    @property
    def metrics_address(self) -> str:
        """Address of the metrics; empty: not served by this process."""
        return self._publisher.address

    @property
    def http_port(self) -> int:
        """Port of HTTP after `start`; 0: HTTP is off."""
        return self._http.port

    def start(self) -> None:
        """Open what is served, listen, and answer.

        Raises:
            BindError: an address is in use, or is not of this machine.
            ConfigError: the folder of the audit log cannot be used.
            ServingError, IndexerError: an index, encoder or store cannot be opened.

        """
        tracing.start(self.traced_as)
        try:
            if self._audit is not None:
                self._audit.start()
            self._open()
            on_core(self.context.core, self._listen)
            self._publisher.start()
        except BaseException:
            self.stop(0)
            raise

    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, wait up to `drain_s` seconds for running ones, and close everything."""
        if self._ended:
            return
        self._ended = True
        drain_s = self._drain_s if drain_s is None else drain_s
        ports = [port for port in (self._grpc, self._private) if port is not None]
        for port in ports:
            port.refuse(drain_s)
        self._http.stop(drain_s)
        for port in ports:
            port.stop()
        self._threads.close()
        self._publisher.stop()
        self._bridges.close()
        self._close()
        if self._audit is not None:
            self._audit.stop()
        tracing.stop()

    def _open(self) -> None:
        """Open what is served; called before the ports are bound."""

    def _close(self) -> None:
        """Close what is served; called without running requests, also if `_open` failed."""

    def _scope_of(self, path: str) -> Needed | None:
        return self._lifecycle.methods.scope_of(path) or self._grpc.scopes.get(path)

    def _listen(self) -> None:
        self._http.start()
        self.address = self._grpc.start()
        if self._private is not None:
            self.private_address = self._private.start()
        _LOG.info("listening on %s; HTTP: %s", self.address, self._http.port or "off")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _stale(authenticator: Authenticator, certificates: Certificates | None) -> dict[tuple[str, ...], float]:
    return {
        ("credentials",): authenticator.stale_s,
        ("certificate",): certificates.stale_s if certificates else 0.0,
    }
