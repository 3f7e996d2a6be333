"""What a call can fail with, whether the index is remote or embedded.

ScanneryError
├── InvalidArgumentError      the request is wrong; `field` says where           (also a ValueError)
├── NotFoundError             no such store, index or datapoint                  (also a LookupError)
├── AlreadyExistsError        it exists, and the call wanted it not to
├── FailedPreconditionError   right request, wrong state: no encoder for a text query, a condition does not hold
├── UnauthenticatedError      no or wrong credentials
├── PermissionDeniedError     the credentials do not allow it
├── ResourceExhaustedError    overload or a limit; `retry_after_s` says when to try again
├── DeadlineExceededError     no answer within the timeout                       (also a TimeoutError)
├── CancelledError            the call was cancelled
├── UnavailableError          no server there, or it is going away; safe to retry for reads (also a ConnectionError)
├── UnimplementedError        this server cannot do that                         (also a NotImplementedError)
├── DataLossError             the index at rest is damaged
└── InternalError             a defect of the server
"""

from __future__ import annotations

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "ScanneryError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class ScanneryError(Exception):
    """Base of every error of the SDK.

    Attributes:
        message: one sentence.
        field: the argument that it is about, as a path like `where.year.$gte`, or None.
        retry_after_s: when trying again makes sense, in seconds, or None.

    """

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are lost by the default pickling of exceptions.
        return _restore, (type(self), self.message, self.field, self.retry_after_s)


class InvalidArgumentError(ScanneryError, ValueError):
    """The request is wrong, and will be wrong again."""


class NotFoundError(ScanneryError, LookupError):
    """There is no such store, index or datapoint."""


class AlreadyExistsError(ScanneryError):
    """It exists, and the call wanted it not to."""


class FailedPreconditionError(ScanneryError):
    """The index is not in a state in which this can be done."""


class UnauthenticatedError(ScanneryError):
    """The server wants credentials."""


class PermissionDeniedError(ScanneryError):
    """The credentials do not allow this."""


class ResourceExhaustedError(ScanneryError):
    """The server is overloaded, or a limit is reached."""


class DeadlineExceededError(ScanneryError, TimeoutError):
    """There was no answer within the timeout."""


class CancelledError(ScanneryError):
    """The call was cancelled."""


class UnavailableError(ScanneryError, ConnectionError):
    """There is no server at the target, or it is going away."""


class UnimplementedError(ScanneryError, NotImplementedError):
    """The server does not serve the call or the field."""


class DataLossError(ScanneryError):
    """The index at rest is damaged."""


class InternalError(ScanneryError):
    """The server has a defect; its log says more."""


def _restore(
    kind: type[ScanneryError], message: str, field: str | None, retry_after_s: float | None
) -> ScanneryError:
    return kind(message, field=field, retry_after_s=retry_after_s)
