"""gRPC statuses to errors: the one table back."""

from __future__ import annotations

from grpc import StatusCode

from scannery.client import errors
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["DETAIL_KEY", "error_from_status"]

DETAIL_KEY = "scannery-error-bin"
"""Trailing metadata that holds a serialised `ErrorDetail`."""

_ERRORS: dict[StatusCode, type[errors.ScanneryError]] = {
    StatusCode.CANCELLED: errors.CancelledError,
    StatusCode.INVALID_ARGUMENT: errors.InvalidArgumentError,
    StatusCode.OUT_OF_RANGE: errors.InvalidArgumentError,
    StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    StatusCode.NOT_FOUND: errors.NotFoundError,
    StatusCode.ALREADY_EXISTS: errors.AlreadyExistsError,
    StatusCode.PERMISSION_DENIED: errors.PermissionDeniedError,
    StatusCode.UNAUTHENTICATED: errors.UnauthenticatedError,
    StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhaustedError,
    StatusCode.FAILED_PRECONDITION: errors.FailedPreconditionError,
    StatusCode.ABORTED: errors.FailedPreconditionError,
    StatusCode.UNIMPLEMENTED: errors.UnimplementedError,
    StatusCode.UNAVAILABLE: errors.UnavailableError,
    StatusCode.DATA_LOSS: errors.DataLossError,
}


def error_from_status(code: StatusCode, message: str, detail: ErrorDetail | None) -> errors.ScanneryError:
    """Return the error for a status; codes that nobody should see become InternalError."""
    kind = _ERRORS.get(code, errors.InternalError)
    if detail is None:
        return kind(message)
    retry_after_s = detail.retry_after_ms / 1000 if detail.retry_after_ms else None
    return kind(detail.message or message, field=detail.field or None, retry_after_s=retry_after_s)
