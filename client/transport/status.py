"""Codes of gRPC and Connect to errors: the one table back."""

from __future__ import annotations

from scannery.client import errors
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["DETAIL_KEY", "MAX_PUSHBACK_MS", "PUSHBACK_KEY", "client_closed", "error_from_status"]

DETAIL_KEY = "scannery-error-bin"
"""Trailing metadata of gRPC that holds a serialised `ErrorDetail`."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata of gRPC with the delay after which a refused call may be repeated."""
MAX_PUSHBACK_MS = 600_000
"""Longest delay that is believed."""

_ERRORS: dict[str, type[errors.ScanneryError]] = {
    "canceled": errors.CancelledError,
    "cancelled": errors.CancelledError,
    "invalid_argument": errors.InvalidArgumentError,
    "out_of_range": errors.InvalidArgumentError,
    "deadline_exceeded": errors.DeadlineExceededError,
    "not_found": errors.NotFoundError,
    "already_exists": errors.AlreadyExistsError,
    "permission_denied": errors.PermissionDeniedError,
    "unauthenticated": errors.UnauthenticatedError,
    "resource_exhausted": errors.ResourceExhaustedError,
    "failed_precondition": errors.FailedPreconditionError,
    "aborted": errors.FailedPreconditionError,
    "unimplemented": errors.UnimplementedError,
    "unavailable": errors.UnavailableError,
    "data_loss": errors.DataLossError,
}
"""By code in lower case; gRPC writes "cancelled", Connect "canceled"."""


def error_from_status(code: str, message: str, detail: ErrorDetail | None) -> errors.ScanneryError:
    """Return the error for a code; codes that are not in the table are defects of the server."""
    kind = _ERRORS.get(code.lower(), errors.InternalError)
    if detail is None:
        return kind(message)
    retry_after_s = detail.retry_after_ms / 1000 if detail.retry_after_ms else None
    return kind(detail.message or message, field=detail.field or None, retry_after_s=retry_after_s)


def client_closed() -> errors.ScanneryError:
    """Return the error of a call on a closed client."""
    return errors.CancelledError("the client is closed")
