"""The standard gRPC services: health, and reflection where it is enabled.

They have their own threads and a limit for each kind of call, so that requests never wait for them. All of their
methods are registered as streams: gRPC would read the body of a unary method in a request thread.

Authenticates each call by its headers, before its body is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from scannery.runtime.errors import (
    InvalidRequestError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnsupportedError,
)
from scannery.serving.config import ListenConfig
from scannery.serving.security.authentication import Authorizer
from scannery.serving.security.principal import ANONYMOUS, CURRENT, Scope, current_principal
from scannery.serving.transport.grpc.call_limits import CallLimit, CallTimeouts, abort, caller_of, cancelling
from scannery.serving.transport.health import SERVING, UNKNOWN, Health
from scannery.serving.transport.lifecycle import decoded

__all__ = ["AuthInterceptor", "Refuse", "StandardServices"]


if TYPE_CHECKING:
    Interceptor = grpc.ServerInterceptor[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    Interceptor = grpc.ServerInterceptor


HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Refuse = Callable[[Exception, str], "grpc.RpcMethodHandler[Any, Any]"]
"""Returns a handler that answers a call of a method with an error without reading the request."""


class AuthInterceptor(Interceptor):
    """Passes authenticated calls that the caller's scopes allow, and refuses others."""

    def __init__(
        self, authorizer: Authorizer, refuse: Refuse, *, probe: grpc.RpcMethodHandler[Any, Any] | None
    ) -> None:
        """Create the interceptor.

        Args:
            authorizer: authentication and scopes.
            refuse: returns the handler for a refused call.
            probe: answers health checks without credentials; None: they are refused.

        """
        self._authorizer = authorizer
        self._refuse = refuse
        self._probe = probe

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the call, or one that refuses it; sets the principal."""
        details: Any = handler_call_details
        try:
            principal = self._authorizer.caller(details.invocation_metadata)
            # Also for a refusal, which is recorded with its caller.
            CURRENT.set(principal)
            self._authorizer.check(details.method, principal)
        except (UnauthenticatedError, PermissionDeniedError, UnsupportedError) as error:
            if details.method == HEALTH_CHECK and self._probe is not None:
                return self._probe
            return self._refuse(error, details.method)
        return continuation(handler_call_details)


if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler


MAX_READING = 16
"""Calls that wait for their body."""
BODY_TIMEOUT_S = 5.0
"""Time limit for that body."""
MAX_BODY_BYTES = 512
"""Longest body: a health check names one index."""
MAX_WATCHED = 64
MAX_REFLECTING = 8
CHECK_EVERY_S = 1.0
"""Interval at which the credentials of health watchers are checked."""

_WATCH = "/grpc.health.v1.Health/Watch"
_REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
_REFLECTION_V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
"""Its messages are those of the older version, under another name."""

_UNSENT, _GONE = -1, -2
"""Values in place of a health status: none was sent yet; the caller hung up."""

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
MessageT = TypeVar("MessageT", bound=Message)


class StandardServices(GenericHandler):
    """Health and reflection of one server."""

    def __init__(
        self,
        states: Health,
        config: ListenConfig,
        authorizer: Authorizer,
        timeouts: CallTimeouts,
        names: Sequence[str],
    ) -> None:
        """Start the threads.

        Args:
            states: state of the server and its indexes.
            config: time limits.
            authorizer: authenticates the callers of streams again at intervals.
            timeouts: cancels calls whose body is late.
            names: of the services that reflection lists; empty: no reflection.

        """
        self._states, self._authorizer, self._timeouts = states, authorizer, timeouts
        self._body_timeout_s = min(BODY_TIMEOUT_S, config.body_timeout_s)
        self._max_request_s = config.max_request_s
        self._reading, self._watched, self._reflecting = map(
            CallLimit, (MAX_READING, MAX_WATCHED, MAX_REFLECTING)
        )
        # Calls that were just cancelled may still hold their threads.
        max_threads = 2 * (MAX_READING + MAX_WATCHED + MAX_REFLECTING)
        self._threads = ThreadPoolExecutor(max_threads, thread_name_prefix="scannery-standard")
        stream, unary = grpc.stream_stream_rpc_method_handler, grpc.stream_unary_rpc_method_handler
        self._handlers: dict[str, tuple[Scope, Callable[..., Handler], Callable[..., Any]]] = {
            HEALTH_CHECK: ("read", unary, self._check),
            _WATCH: ("read", stream, self._watch),
        }
        if names:
            # Its stubs are untyped.
            self._reflection: Any = reflection.ReflectionServicer(
                (*names, health.SERVICE_NAME, reflection.SERVICE_NAME)
            )
            self._handlers[_REFLECTION] = self._handlers[_REFLECTION_V1] = ("read", stream, self._reflect)
        self.scopes: dict[str, Scope] = {path: scope for path, (scope, _, _) in self._handlers.items()}
        """Required scopes by method path."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Handler | None:
        """Return the handler of a call; None: the method is not of these services."""
        details: Any = handler_call_details
        handler = self._handlers.get(details.method)
        if handler is None:
            return None
        _, kind, behaviour = handler
        return self._handler(kind, behaviour)

    def probe(self) -> Handler:
        """Return the health check for callers without credentials: it reports the whole server.

        The body is not read, since it could be as long as that of a request, and arrive slowly.
        """

        def check(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            return _answer(self._states.status("", ANONYMOUS))

        return self._handler(grpc.stream_unary_rpc_method_handler, check)

    def close(self) -> None:
        """End the threads."""
        self._states.wake()
        self._threads.shutdown(wait=False)

    def _handler(self, kind: Callable[..., Handler], behaviour: Callable[..., Any]) -> Handler:
        def called(messages: Iterator[bytes], context: grpc.ServicerContext) -> Any:
            return behaviour(messages, context)

        called.experimental_thread_pool = self._threads  # type: ignore[attr-defined]  # gRPC looks for it there
        return kind(called)

    def _check(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        request = self._read(health_pb2.HealthCheckRequest, messages, context)
        if request is None:
            return b""
        status = self._states.status(request.service, current_principal())
        if status == UNKNOWN:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return b""
        return _answer(status)

    def _watch(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        request = self._read(health_pb2.HealthCheckRequest, messages, context)
        if request is None:
            return
        principal, metadata = current_principal(), context.invocation_metadata()
        context.add_callback(self._states.wake)
        status = _UNSENT

        def now() -> int:
            return self._states.status(request.service, principal) if context.is_active() else _GONE

        with self._watched.entered(caller_of(context).account, context):
            while context.is_active():
                before, status = status, self._states.changed(now, status, CHECK_EVERY_S)
                try:
                    principal = self._authorizer.principal(_WATCH, metadata)
                except Exception as error:  # noqa: BLE001  the table of statuses has every one
                    abort(context, error)
                if status not in (before, _GONE):
                    yield _answer(status)
                if self._states.stopping and status != SERVING:
                    return  # or the drain would wait for the watchers

    def _reflect(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        metadata = context.invocation_metadata()

        def requests() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            for data in messages:
                yield decoded(reflection_pb2.ServerReflectionRequest, data)

        with (
            self._reflecting.entered(caller_of(context).account, context),
            self._timeouts.watched(
                cancelling(context),
                self._max_request_s,
                lambda: self._authorizer.admits(_REFLECTION, metadata),
            ),
        ):
            try:
                for answer in self._reflection.ServerReflectionInfo(requests(), context):
                    yield answer.SerializeToString()
            except grpc.RpcError:
                return  # the caller went away
            except Exception as error:  # noqa: BLE001  the table of statuses has every one
                abort(context, error)

    def _read(
        self, kind: type[MessageT], messages: Iterator[bytes], context: grpc.ServicerContext
    ) -> MessageT | None:
        """Return the message of a call; None if its caller hung up or was too slow."""
        try:
            with (
                self._reading.entered(caller_of(context).account, context),
                self._timeouts.watched(cancelling(context), self._body_timeout_s),
            ):
                data = next(messages, b"")
        except grpc.RpcError:
            return None
        try:
            if len(data) > MAX_BODY_BYTES:
                raise InvalidRequestError(
                    f"the request must have at most {MAX_BODY_BYTES} bytes, got {len(data)}"
                )
            return decoded(kind, data)
        except InvalidRequestError as error:
            abort(context, error)


def _answer(status: int) -> bytes:
    return bytes(health_pb2.HealthCheckResponse(status=status).SerializeToString())
