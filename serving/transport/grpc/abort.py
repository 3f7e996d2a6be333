"""Ends a gRPC call with an error."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from scannery.serving.status import DETAIL_KEY, status_for_callers

__all__ = ["abort"]

_LOG = logging.getLogger(__name__)


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status and detail of `error`."""
    code, message, detail = status_for_callers(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    metadata = context.trailing_metadata() or ()
    context.set_trailing_metadata((*metadata, (DETAIL_KEY, detail.SerializeToString())))
    context.abort(code, message)
