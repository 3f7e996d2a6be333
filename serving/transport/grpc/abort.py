"""From an error to the end of a gRPC call."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc

from scannery.serving.status import DETAIL_KEY, status_for_callers

__all__ = ["abort"]

_LOG = logging.getLogger(__name__)


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status of an error."""
    code, message, detail = status_for_callers(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    told = context.trailing_metadata() or ()
    context.set_trailing_metadata((*told, (DETAIL_KEY, detail.SerializeToString())))
    context.abort(code, message)
