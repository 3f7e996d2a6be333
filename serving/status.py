"""Errors as gRPC statuses, and back for answers of other servers."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any

from google.protobuf.message import DecodeError
from grpc import StatusCode

from scannery.runtime.errors import (
    CodedError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    PreconditionError,
    ServingError,
    StaleEtagError,
    UnknownResourceError,
    UnsupportedError,
)
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["DETAIL_KEY", "error_from_status", "received_detail", "status_for_callers", "status_of"]

_LOG = logging.getLogger(__name__)

DETAIL_KEY = "scannery-error-bin"
"""Trailing metadata that holds a serialised `ErrorDetail`."""

# All trailing metadata together may take 8 KiB, and the message is sent twice, percent-encoded (three bytes for each
# byte that is not ASCII) and in base64, besides its beginning in `grpc-status-details-bin`.
_MAX_MESSAGE_BYTES = 900
_MAX_FIELD_BYTES = 400

# What another server answers about the request: to our caller, the same. The other codes are about that server.
_RECEIVED: dict[str, type[ServingError]] = {
    kind.code: kind
    for kind in (
        InvalidRequestError, UnknownResourceError, StaleEtagError, UnsupportedError, PreconditionError, DeadlineError,
        OverloadedError,
    )
}  # fmt: skip
_PATH = re.compile(r"(?<![\w/.])(?:[a-z][a-z0-9+.-]*:/|\.{0,2})/[^\s'\",;)]+")
"""The path of a folder or file, or the URI of a bucket."""


def status_for_callers(error: Exception) -> tuple[StatusCode, str, ErrorDetail]:
    """Return `status_of` with the server's paths and buckets removed from the message.

    The full message is logged under a number, which the returned message names.
    """
    code, message, detail = status_of(error)
    redacted, paths = _PATH.subn("[...]", message)
    if not paths or (isinstance(error, CodedError) and error.quotes_request):
        return code, message, detail
    number = secrets.token_hex(4)
    _LOG.warning("error %s: %s", number, error)
    detail.message = redacted = f"{redacted} (the server's log has the full message of error {number})"
    return code, redacted, detail


def status_of(error: Exception) -> tuple[StatusCode, str, ErrorDetail]:
    """Return the gRPC status, message and detail for an error.

    INTERNAL comes without the text of the error, which may reveal the server's internals; the caller of this function
    logs it.
    """
    code, field, retry_after_s = StatusCode.INTERNAL, None, None
    if isinstance(error, CodedError) and not error.private:
        code, field, retry_after_s = StatusCode[error.code], error.field, error.retry_after_s
    elif isinstance(error, MemoryError):
        code = StatusCode.RESOURCE_EXHAUSTED
    if code is StatusCode.INTERNAL:
        message = f"internal error ({type(error).__name__}); see the server's log"
        return code, message, ErrorDetail(message=message)
    message = _shortened(str(error) or type(error).__name__, _MAX_MESSAGE_BYTES)
    detail = ErrorDetail(
        field=_shortened(field or "", _MAX_FIELD_BYTES),
        message=message,
        retry_after_ms=round((retry_after_s or 0) * 1000),
    )
    return code, message, detail


def error_from_status(code: StatusCode, message: str, detail: ErrorDetail) -> ServingError | None:
    """Return the error that another server's answer stands for; None: its code says nothing about the request."""
    kind = _RECEIVED.get(code.name)
    if kind is None:
        return None
    return kind(message, field=detail.field or None, retry_after_s=detail.retry_after_ms / 1000 or None)


def received_detail(metadata: Any) -> ErrorDetail:
    """Return the detail in the trailing metadata of another server's answer; empty: there is none."""
    for key, value in metadata or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            try:
                return ErrorDetail.FromString(value)
            except DecodeError:
                break
    return ErrorDetail()


def _shortened(text: str, size_bytes: int) -> str:
    # Messages may quote requests, whose text may hold surrogates, which UTF-8 cannot encode.
    data = text.encode("utf-8", "replace")
    return (data if len(data) <= size_bytes else data[:size_bytes]).decode("utf-8", "ignore")
