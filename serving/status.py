"""The table from errors to gRPC status codes, and back for answers of other servers."""

from __future__ import annotations

import logging
import re
import secrets
from typing import Any

from google.protobuf.message import DecodeError
from grpc import StatusCode

from scannery.indexer import errors as indexer
from scannery.live.log.mutation_log import LogGapError, LogReplacedError, WrongLogError
from scannery.runtime import errors as serving
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["DETAIL_KEY", "error_from_status", "received_detail", "status_for_callers", "status_of"]

_LOG = logging.getLogger(__name__)

DETAIL_KEY = "scannery-error-bin"
"""Trailing metadata that holds a serialised `ErrorDetail`."""

# All trailing metadata together may take 8 KiB, and the message is sent twice, percent-encoded (three bytes for each
# byte that is not ASCII) and in base64, besides its beginning in `grpc-status-details-bin`.
_MAX_MESSAGE_BYTES = 900
_MAX_FIELD_BYTES = 400

# The first matching class wins, so base classes come last.
_CODES: tuple[tuple[type[Exception], StatusCode], ...] = (
    (serving.InvalidRequestError, StatusCode.INVALID_ARGUMENT),
    (serving.UnknownIndexError, StatusCode.NOT_FOUND),
    (serving.UnknownDatapointError, StatusCode.NOT_FOUND),
    (serving.UnknownResourceError, StatusCode.NOT_FOUND),
    (serving.StaleEtagError, StatusCode.ABORTED),
    (serving.UnsupportedError, StatusCode.UNIMPLEMENTED),
    (serving.EncoderUnavailableError, StatusCode.FAILED_PRECONDITION),
    (serving.EncoderUnreachableError, StatusCode.UNAVAILABLE),
    (serving.LexicalUnavailableError, StatusCode.FAILED_PRECONDITION),
    (serving.VectorsUnavailableError, StatusCode.FAILED_PRECONDITION),
    (serving.RerankerUnavailableError, StatusCode.FAILED_PRECONDITION),
    (serving.DeadlineError, StatusCode.DEADLINE_EXCEEDED),
    (serving.OverloadedError, StatusCode.RESOURCE_EXHAUSTED),
    (serving.UnavailableError, StatusCode.UNAVAILABLE),
    (serving.PreconditionError, StatusCode.FAILED_PRECONDITION),
    (serving.ConditionError, StatusCode.FAILED_PRECONDITION),
    (serving.ReadOnlyError, StatusCode.FAILED_PRECONDITION),
    (serving.SnapshotGoneError, StatusCode.FAILED_PRECONDITION),
    (serving.StateUnavailableError, StatusCode.OUT_OF_RANGE),
    (serving.UnauthenticatedError, StatusCode.UNAUTHENTICATED),
    (serving.PermissionDeniedError, StatusCode.PERMISSION_DENIED),
    (serving.ClosedError, StatusCode.UNAVAILABLE),
    (indexer.InvalidRecordError, StatusCode.INVALID_ARGUMENT),
    (indexer.NotFoundError, StatusCode.NOT_FOUND),
    (indexer.AlreadyExistsError, StatusCode.ALREADY_EXISTS),
    (indexer.InUseError, StatusCode.FAILED_PRECONDITION),
    (indexer.CorruptError, StatusCode.DATA_LOSS),
    (WrongLogError, StatusCode.FAILED_PRECONDITION),
    (LogReplacedError, StatusCode.UNAVAILABLE),
    (LogGapError, StatusCode.UNAVAILABLE),
    (indexer.FormatError, StatusCode.FAILED_PRECONDITION),
    (indexer.StoreUriError, StatusCode.INVALID_ARGUMENT),
    (indexer.StoreError, StatusCode.UNAVAILABLE),
    (MemoryError, StatusCode.RESOURCE_EXHAUSTED),
)


# What another server answers about the request: to our caller, the same. The other codes are about that server.
_RECEIVED: dict[StatusCode, type[serving.ServingError]] = {
    StatusCode.INVALID_ARGUMENT: serving.InvalidRequestError,
    StatusCode.NOT_FOUND: serving.UnknownResourceError,
    StatusCode.ABORTED: serving.StaleEtagError,
    StatusCode.UNIMPLEMENTED: serving.UnsupportedError,
    StatusCode.FAILED_PRECONDITION: serving.PreconditionError,
    StatusCode.DEADLINE_EXCEEDED: serving.DeadlineError,
    StatusCode.RESOURCE_EXHAUSTED: serving.OverloadedError,
}

# Their messages quote only the request.
_OF_THE_REQUEST = (
    serving.InvalidRequestError,
    serving.UnknownIndexError,
    serving.UnknownDatapointError,
    serving.UnknownResourceError,
    serving.StaleEtagError,
    serving.UnsupportedError,
    serving.ConditionError,
    serving.SnapshotGoneError,
    serving.StateUnavailableError,
    indexer.InvalidRecordError,
)
_PLACE = re.compile(r"(?<![\w/.])(?:[a-z][a-z0-9+.-]*:/|\.{0,2})/[^\s'\",;)]+")
"""The path of a folder or file, or the URI of a bucket."""


def status_for_callers(error: Exception) -> tuple[StatusCode, str, ErrorDetail]:
    """Return `status_of` with the server's paths and buckets removed from the message.

    The full message is logged under a number, which the returned message names.
    """
    code, message, detail = status_of(error)
    redacted, places = _PLACE.subn("[...]", message)
    if not places or isinstance(error, _OF_THE_REQUEST):
        return code, message, detail
    number = secrets.token_hex(4)
    _LOG.warning("error %s: %s", number, error)
    detail.message = redacted = f"{redacted} (the server's log has the full message of error {number})"
    return code, redacted, detail


def status_of(error: Exception) -> tuple[StatusCode, str, ErrorDetail]:
    """Return the gRPC status, message and detail for an error.

    An error outside the table becomes INTERNAL without its text, which may reveal server internals; the caller of this
    function logs it.
    """
    code = next((code for kind, code in _CODES if isinstance(error, kind)), None)
    if code is None:
        message = f"internal error ({type(error).__name__}); see the server's log"
        return StatusCode.INTERNAL, message, ErrorDetail(message=message)
    message = _shortened(str(error) or type(error).__name__, _MAX_MESSAGE_BYTES)
    field = getattr(error, "field", None) or ""
    retry_after_s: float = getattr(error, "retry_after_s", None) or 0
    detail = ErrorDetail(
        field=_shortened(field, _MAX_FIELD_BYTES), message=message, retry_after_ms=round(retry_after_s * 1000)
    )
    return code, message, detail


def error_from_status(code: StatusCode, message: str, detail: ErrorDetail) -> serving.ServingError | None:
    """Return the error that another server's answer stands for; None: its code says nothing about the request."""
    kind = _RECEIVED.get(code)
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
