# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Calls over gRPC, and over HTTP where the server offers it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.client.errors import ScanneryError
from scannery.client.request.calls import Method
from scannery.client.transport._sync.http import HttpCalls, RetryingTransport
from scannery.client.transport.base import Headers
from scannery.client.transport.channels import CHANNELS, Channels, ask, channel, close
from scannery.client.transport.credentials import Credentials
from scannery.client.transport.discovery import ASK, PROBE_TIMEOUT_S, Discovery
from scannery.client.transport.retries import (
    DETAIL_KEY,
    MAX_PUSHBACK_MS,
    PUSHBACK_KEY,
    Attempts,
    client_closed,
    error_from_status,
    grpc_hint,
)
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["GrpcTransport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class GrpcTransport(RetryingTransport):
    """Calls of a gRPC target. Those that may be repeated go over HTTP once its endpoint is found (discovery.py).

    Args:
        target: of gRPC.
        credentials: shown with each call.
        channels: gRPC connections.
        retries: False: one attempt at each call.
        http: False: gRPC only.

    """

    def __init__(
        self,
        target: str,
        credentials: Credentials | None = None,
        *,
        channels: int = CHANNELS,
        retries: bool = True,
        http: bool = True,
    ) -> None:
        credentials = credentials or Credentials()
        super().__init__(target, credentials, retries=retries)
        self._credentials = credentials
        # Channels are made at the first call: connect() may be called outside of a running event loop.
        self._channels = Channels(target, credentials, channels, channel)
        self._discovery = Discovery(target, credentials, on=http)
        self._http: HttpCalls | None = None

    def _attempt(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        http = self._found() if attempts.repeatable else None
        if http is not None and http.free:
            try:
                answer = http.call(method, request, metadata, attempts.left_s, repeatable=True)
            except ScanneryError:
                raise
            except OSError:
                # In the same attempt: asking twice does no harm.
                self._discovery.lost(http.endpoint)
            else:
                self._discovery.proved()
                return answer
        return self._over_grpc(method, request, metadata, attempts.left_s)

    def _found(self) -> HttpCalls | None:
        """Return how to call over HTTP, if the server was found to answer it."""
        endpoint, http = self._discovery.endpoint, self._http
        if endpoint is None or (http is not None and http.endpoint is endpoint):
            return http if endpoint is not None else None
        made = HttpCalls(endpoint, self._target, self._credentials, connect_timeout_s=PROBE_TIMEOUT_S)
        self._http = made
        if http is not None:
            http.retire()
        return made

    def _over_grpc(
        self, method: Method[RequestT, ResponseT], request: RequestT, metadata: Headers, timeout_s: float
    ) -> ResponseT:
        asks = self._discovery.asks()
        trailing: Iterable[Any] | None = None
        try:
            lane = self._channels.take()
            try:
                rpc = lane.rpc(method)
                sent = metadata + ASK if asks else metadata
                response, trailing = ask(rpc, request, timeout_s, sent)
            finally:
                self._channels.done(lane)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        except (ValueError, grpc.aio.UsageError) as error:  # the channel is closed
            raise client_closed() from error
        finally:
            if asks:
                self._discovery.failed() if trailing is None else self._discovery.told(trailing)
        self._reached = True
        answer: ResponseT = response
        return answer

    def _translated(self, error: grpc.RpcError) -> ScanneryError:
        # The errors of calls are both RpcError and Call; the stubs do not say so.
        code: grpc.StatusCode = error.code()
        message: str = error.details() or code.name.lower()
        detail = _detail(error.trailing_metadata())
        if detail is None:
            # Of gRPC itself, not of the handlers: say which server it was.
            message = f"{self._target}: {message}{grpc_hint(message)}"
            self._discovery.breaks += code is grpc.StatusCode.UNAVAILABLE
        else:
            self._reached = True
        if code is grpc.StatusCode.CANCELLED:
            # This client cancels no calls: a server that is stopping dropped it.
            code = grpc.StatusCode.UNAVAILABLE
        return error_from_status(code.name, message, detail)

    def close(self) -> None:
        """Close the connections."""
        super().close()
        close(self._channels.close())
        if self._http is not None:
            self._http.close()


def _detail(metadata: Iterable[Any] | None) -> ErrorDetail | None:
    values = dict(metadata or ())
    detail: ErrorDetail | None = None
    if isinstance(data := values.get(DETAIL_KEY), bytes):
        with suppress(DecodeError):
            detail = ErrorDetail.FromString(data)
    if detail is None and (delay_ms := str(values.get(PUSHBACK_KEY))).isdecimal():
        # A proxy in front of the server refused the call.
        detail = ErrorDetail(retry_after_ms=min(int(delay_ms), MAX_PUSHBACK_MS))
    return detail
