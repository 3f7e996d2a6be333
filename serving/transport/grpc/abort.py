"""Ends a gRPC call with an error."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from scannery.serving.status import DETAIL_KEY, status_for_callers
from scannery.serving.transport.grpc.status_details import status_details

__all__ = ["abort"]

STATUS_KEY = "grpc-status-details-bin"
"""Trailing metadata with a `google.rpc.Status`, which clients in other languages look for."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata with the delay that gRPC's own retries obey."""

_LOG = logging.getLogger(__name__)


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status and detail of `error`."""
    code, message, detail = status_for_callers(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    metadata: list[tuple[str, str | bytes]] = [
        *(context.trailing_metadata() or ()),
        (DETAIL_KEY, detail.SerializeToString()),
        (STATUS_KEY, status_details(code, message, detail, error)),
    ]
    if detail.retry_after_ms:
        metadata.append((PUSHBACK_KEY, str(detail.retry_after_ms)))
    context.set_trailing_metadata(tuple(metadata))
    context.abort(code, message)
