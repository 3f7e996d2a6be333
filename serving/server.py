"""The gRPC server of one process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import NoReturn, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from typing_extensions import Self

from scannery.indexer import Store
from scannery.serving.catalog import Catalog, Watcher
from scannery.serving.config import ServerConfig, split_address
from scannery.serving.deadline import Deadline
from scannery.serving.encoding import EncoderPool
from scannery.serving.errors import (
    BindError,
    InvalidRequestError,
    OverloadedError,
    UnknownIndexError,
)
from scannery.serving.service import INDEX_SERVICE, SEARCH_SERVICE, Service, UnaryMethod
from scannery.serving.status import DETAIL_KEY, status_of
from scannery.v1 import index_pb2, search_pb2

__all__ = ["Server", "health_name"]

_LOG = logging.getLogger(__name__)
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

MessageT = TypeVar("MessageT", bound=Message)


def health_name(index: str) -> str:
    """Return what an index is called in the health service; the server as a whole is the empty name."""
    return f"index/{index}"


class Server:
    """Serves the indexes of a store. A context manager: entering starts it, leaving drains and stops it.

    >>> with Server(ServerConfig(store="./store", listen="127.0.0.1:0")) as server:  # doctest: +SKIP
    ...     client = scannery.connect(server.address)
    """

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.address = config.listen
        """Where it listens; the real port once it is started."""
        store = Store.open(config.store)
        self._catalog = Catalog(
            store, only=config.indexes or None, encoders=EncoderPool(device=config.device)
        )
        self._service = Service(self._catalog)
        self._health = health.HealthServicer()
        self._watcher = Watcher(self._catalog, every_s=config.check_every_s, after=self._report_health)
        self._reported: set[str] = set()
        self._grpc: grpc.Server | None = None
        self._stopped = threading.Event()
        # A stream keeps its thread; half of them always stay free for single requests.
        self._streams = threading.BoundedSemaphore(max(1, config.threads // 2))

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
        except BaseException:
            self._watcher.stop()
            raise

    def stop(self, drain_s: float | None = None) -> None:
        """Refuse new requests, let those that run finish (for at most `drain_s`), and close everything."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._health.enter_graceful_shutdown()
        if self._grpc is not None:
            self._grpc.stop(self.config.drain_s if drain_s is None else drain_s).wait()
        self._watcher.stop()
        self._service.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

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
        server = grpc.server(
            ThreadPoolExecutor(config.threads, thread_name_prefix="scannery-request"),
            options=[
                ("grpc.max_receive_message_length", config.max_request_bytes),
                ("grpc.max_send_message_length", -1),
                # On by default, and then two servers share a port in silence.
                ("grpc.so_reuseport", int(config.share_port)),
            ],
            maximum_concurrent_rpcs=config.threads + config.queue,
        )
        self._add_services(server)
        host, _ = split_address(config.listen)
        try:
            port = server.add_insecure_port(config.listen)
        except RuntimeError as error:
            raise BindError(f"cannot listen on {config.listen}: {error}", field="listen") from error
        if port == 0:
            raise BindError(f"cannot listen on {config.listen}: is the port taken?", field="listen")
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        server.start()
        self._grpc = server
        self._health.set("", _SERVING)
        _LOG.info("listening on %s", self.address)

    def _add_services(self, server: grpc.Server) -> None:
        handlers: dict[str, dict[str, grpc.RpcMethodHandler[bytes, bytes]]] = {
            SEARCH_SERVICE: {"SearchStream": grpc.stream_stream_rpc_method_handler(self._search_stream)},
            INDEX_SERVICE: {"UpsertStream": grpc.stream_stream_rpc_method_handler(self._upsert_stream)},
        }
        for path, method in self._service.methods.items():
            _, service, name = path.split("/")
            handlers[service][name] = grpc.unary_unary_rpc_method_handler(self._unary(path, method))
        server.add_generic_rpc_handlers(
            tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in handlers.items())
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SEARCH_SERVICE, INDEX_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)

    def _unary(self, path: str, method: UnaryMethod) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def handle(data: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                request = _decoded(method.request, data)
                response = self._service.call(path, request, self._deadline(context))
                return response.SerializeToString()
            except Exception as error:  # noqa: BLE001  the table knows every one
                _abort(context, error)

        return handle

    def _search_stream(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self._streams.acquire(blocking=False):
            _abort(context, OverloadedError("too many open streams", retry_after_s=1.0))
        try:
            requests = (_decoded(search_pb2.SearchStreamRequest, data) for data in messages)
            for response in self._service.search_stream(requests, self._deadline(context)):
                yield response.SerializeToString()
        except InvalidRequestError as error:
            _abort(context, error)
        finally:
            self._streams.release()

    def _upsert_stream(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        if not self._streams.acquire(blocking=False):
            _abort(context, OverloadedError("too many open streams", retry_after_s=1.0))
        try:
            requests = (_decoded(index_pb2.UpsertRequest, data) for data in messages)
            for response in self._service.upsert_stream(requests, self._deadline(context)):
                yield response.SerializeToString()
        except Exception as error:  # noqa: BLE001  the table knows every one
            _abort(context, error)
        finally:
            self._streams.release()

    def _deadline(self, context: grpc.ServicerContext) -> Deadline:
        return Deadline.after(min(context.time_remaining(), self.config.max_request_s))

    def _report_health(self) -> None:
        states = self._catalog.states()
        for name, answers in states.items():
            self._health.set(health_name(name), _SERVING if answers else _NOT_SERVING)
        for name in self._reported - states.keys():
            self._health.set(health_name(name), _NOT_SERVING)
        self._reported |= states.keys()


def _decoded(kind: type[MessageT], data: bytes) -> MessageT:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(f"the request is not a {kind.DESCRIPTOR.full_name}") from error


def _abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    code, message, detail = status_of(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
    context.abort(code, message)
