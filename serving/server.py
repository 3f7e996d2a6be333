"""The gRPC server of one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from typing_extensions import Self

from scannery.indexer import Store
from scannery.serving.catalog import Catalog, Watcher
from scannery.serving.config import ServerConfig, split_address
from scannery.serving.dispatch import Dispatcher, abort
from scannery.serving.encoding import EncoderPool
from scannery.serving.errors import BindError, UnauthenticatedError, UnknownIndexError
from scannery.serving.metrics import ServerMetrics
from scannery.serving.metrics.publishing import Publisher
from scannery.serving.metrics.registry import Dump
from scannery.serving.preload import Preloaded
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.interceptor import Gate, Refuse
from scannery.serving.security.tls import server_credentials
from scannery.serving.service import INDEX_SERVICE, SEARCH_SERVICE, Service

__all__ = ["Server", "health_name"]

_LOG = logging.getLogger(__name__)
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

MAX_REFUSALS = 1024
MAX_CALLS_PER_CONNECTION = 512


def health_name(index: str) -> str:
    """Return what an index is called in the health service; the server as a whole is the empty name."""
    return f"index/{index}"


class Server:
    """Serves the indexes of a store. A context manager: entering starts it, leaving drains and stops it.

    >>> with Server(ServerConfig(store="./store", listen="127.0.0.1:0")) as server:  # doctest: +SKIP
    ...     client = scannery.connect(server.address)
    """

    def __init__(
        self,
        config: ServerConfig,
        *,
        preloaded: Preloaded | None = None,
        publish: Callable[[bytes], object] | None = None,
        before: Dump | None = None,
    ) -> None:
        """Take the options; the rest is for workers under a supervisor.

        Args:
            config: how to serve.
            preloaded: what is open already.
            publish: takes the metrics, every second; None: they are served here, if `config.metrics_listen` says so.
            before: metrics to go on from.

        """
        self.config = config
        self.address = config.listen
        """Where it listens; the real port once it is started."""
        store = Store.open(config.store)
        preloaded = preloaded or Preloaded(EncoderPool(device=config.device, reranker=config.reranker))
        self._catalog = Catalog(
            store,
            only=config.indexes or None,
            encoders=preloaded.encoders,
            opened=preloaded.indexes.get,
            log=Path(config.log) if config.log else None,
        )
        self._service = Service(self._catalog)
        self._health = health.HealthServicer()
        self._watcher = Watcher(self._catalog, every_s=config.check_every_s, after=self._report_health)
        self._reported: set[str] = set()
        self._grpc: grpc.Server | None = None
        self._stopped = threading.Event()
        self._authenticator = Authenticator(config.security)
        self.metrics = ServerMetrics()
        self.metrics.registry.restore(before or {})
        self._publisher = Publisher(self.metrics, config, publish)
        self._dispatcher = Dispatcher(self._service, config, self.metrics)
        self._measure(preloaded.encoders)

    def start(self) -> None:
        """Open the indexes, listen, and answer.

        Raises:
            BindError: the address is taken, or is not one of this machine.
            UnknownIndexError: the store has not all of the chosen indexes.
            NotFoundError, StoreError: the store cannot be read.

        """
        self._watcher.start()
        try:
            self._check_indexes()
            self._listen()
            self._publisher.start()
        except BaseException:
            self.stop(0)
            raise

    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, let those that run finish (for at most `drain_s`), and close everything."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._health.enter_graceful_shutdown()
        if self._grpc is not None:
            self._grpc.stop(self.config.drain_s if drain_s is None else drain_s).wait()
        self._dispatcher.close()
        self._publisher.stop()
        self._watcher.stop()
        self._service.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def metrics_address(self) -> str:
        """Where the metrics are, if they are served here."""
        return self._publisher.address

    def _measure(self, encoders: EncoderPool) -> None:
        metrics, admission, catalog = self.metrics, self._dispatcher.admission, self._catalog
        metrics.in_flight.asks(lambda: {(): admission.in_flight})
        metrics.limit.asks(lambda: {(): admission.limit})
        metrics.version.asks(lambda: {(m.index,): m.version for m in catalog.manifests()})
        metrics.rows.asks(lambda: {(m.index,): m.rows for m in catalog.manifests()})
        metrics.up.asks(lambda: {(name,): float(answers) for name, answers in catalog.states().items()})
        encoders.observe(
            batch=metrics.batch_texts.observe,
            cached=lambda known, count: metrics.cached.inc(("hit" if known else "miss",), count),
        )

    def _check_indexes(self) -> None:
        states = self._catalog.states()
        if missing := sorted(set(self.config.indexes) - states.keys()):
            raise UnknownIndexError(
                f"there is no index {', '.join(missing)} in {self.config.store}", field="indexes"
            )
        if not states:
            _LOG.warning(
                "there is no index in %s yet; it will be served as soon as there is", self.config.store
            )

    def _listen(self) -> None:
        config = self.config
        refuse = self._dispatcher.refusal
        probe = _probe(self._health, refuse) if config.security.public_health else None
        server = grpc.server(
            # Calls that wait for their body or their turn each hold a thread, which costs next to nothing.
            ThreadPoolExecutor(config.threads + config.queue, thread_name_prefix="scannery-request"),
            interceptors=[Gate(self._authenticator, refuse, probe=probe)],
            options=_options(config),
            # A backstop for what is refused faster than it can be told; admission is what limits.
            maximum_concurrent_rpcs=2 * (config.threads + config.queue) + MAX_REFUSALS,
        )
        server.add_generic_rpc_handlers((self._dispatcher,))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        if config.security.shows_reflection:
            names = (SEARCH_SERVICE, INDEX_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, server)
        self.address = _bound(server, config)
        server.start()
        self._grpc = server
        self._health.set("", _SERVING)
        _LOG.info("listening on %s", self.address)

    def _report_health(self) -> None:
        states = self._catalog.states()
        for name, answers in states.items():
            self._health.set(health_name(name), _SERVING if answers else _NOT_SERVING)
        for name in self._reported - states.keys():
            self._health.set(health_name(name), _NOT_SERVING)
        self._reported |= states.keys()


def _options(config: ServerConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", config.max_request_bytes),
        ("grpc.max_send_message_length", -1),
        # On by default, and then two servers share a port in silence.
        ("grpc.so_reuseport", int(config.share_port)),
        # Connections that never finish their handshake, that died without a word, and that nobody uses.
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.max_connection_idle_ms", 30 * 60_000),
        # Clients may ask as often; a flood of pings ends their connection.
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION),
    ]


def _bound(server: grpc.Server, config: ServerConfig) -> str:
    host, _ = split_address(config.listen)
    try:
        if config.security.tls_cert:
            port = server.add_secure_port(config.listen, server_credentials(config.security))
        else:
            port = server.add_insecure_port(config.listen)
    except RuntimeError as error:
        raise BindError(f"cannot listen on {config.listen}: {error}", field="listen") from error
    if port == 0:
        raise BindError(f"cannot listen on {config.listen}: is the port taken?", field="listen")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _probe(servicer: health.HealthServicer, refuse: Refuse) -> grpc.RpcMethodHandler[Any, Any]:
    """Return the health check for strangers: of the server as a whole, and of no index."""
    refused = UnauthenticatedError("valid credentials are needed")

    def check(
        request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service:
            abort(context, refused)
        response: health_pb2.HealthCheckResponse = servicer.Check(request, context)
        return response

    return grpc.unary_unary_rpc_method_handler(
        check,
        request_deserializer=health_pb2.HealthCheckRequest.FromString,
        response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
    )
