# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""The wire of gRPC."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from scannery.client.request.calls import Method
from scannery.client.transport.base import Headers
from scannery.client.transport.channels import CHANNELS, Channels, ask, channel, close
from scannery.client.transport.credentials import Credentials
from scannery.client.transport.retries import (
    DETAIL_KEY,
    MAX_PUSHBACK_MS,
    PUSHBACK_KEY,
    Attempts,
    client_closed,
    error_from_status,
    hint,
)
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["GrpcWire"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class GrpcWire:
    """Attempts at calls over gRPC.

    Args:
        target: of gRPC.
        credentials: have the files for TLS.
        channels: connections.

    """

    def __init__(self, target: str, credentials: Credentials, channels: int = CHANNELS) -> None:
        self._target = target
        # Channels are made at the first call: connect() may be called outside of a running event loop.
        self._channels = Channels(target, credentials, channels, channel)

    def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer; see `Wire.call`."""
        return (self.ask(method, request, attempts, metadata))[0]

    def ask(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> tuple[ResponseT, Iterable[Any] | None]:
        """Return the answer, and its trailing metadata."""
        try:
            lane = self._channels.take()
            try:
                return ask(lane.rpc(method), request, attempts.left_s, metadata)
            finally:
                self._channels.done(lane)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        except (ValueError, grpc.aio.UsageError) as error:  # the channel is closed
            raise client_closed() from error

    def _translated(self, error: grpc.RpcError) -> Exception:
        # The errors of calls are both RpcError and Call; the stubs do not say so.
        code: grpc.StatusCode = error.code()
        message: str = error.details() or code.name.lower()
        detail = _detail(error.trailing_metadata())
        lost = code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        if detail is not None:
            # This client cancels no calls: a server that is stopping dropped it.
            return error_from_status("unavailable" if lost else code.name, message, detail)
        # Of gRPC itself, not of the handlers.
        if lost:
            return ConnectionError(message)
        return error_from_status(code.name, f"{self._target}: {message}{hint(message)}", None)

    def close(self) -> None:
        """End all connections; later calls fail."""
        close(self._channels.close())


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
