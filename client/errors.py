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

from scannery.runtime.errors import CodedError

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


class ScanneryError(CodedError):
    """Base of every error of the SDK.

    Attributes:
        message: one sentence.
        field: the argument that it is about, as a path like `where.year.$gte`, or None.
        retry_after_s: when trying again makes sense, in seconds, or None.

    """


class InvalidArgumentError(ScanneryError, ValueError, code="INVALID_ARGUMENT"):
    """The request is wrong, and will be wrong again."""


class NotFoundError(ScanneryError, LookupError, code="NOT_FOUND"):
    """There is no such store, index or datapoint."""


class AlreadyExistsError(ScanneryError, code="ALREADY_EXISTS"):
    """It exists, and the call wanted it not to."""


class FailedPreconditionError(ScanneryError, code="FAILED_PRECONDITION"):
    """The index is not in a state in which this can be done."""


class UnauthenticatedError(ScanneryError, code="UNAUTHENTICATED"):
    """The server wants credentials."""


class PermissionDeniedError(ScanneryError, code="PERMISSION_DENIED"):
    """The credentials do not allow this."""


class ResourceExhaustedError(ScanneryError, code="RESOURCE_EXHAUSTED"):
    """The server is overloaded, or a limit is reached."""


class DeadlineExceededError(ScanneryError, TimeoutError, code="DEADLINE_EXCEEDED"):
    """There was no answer within the timeout."""


class CancelledError(ScanneryError, code="CANCELLED"):
    """The call was cancelled."""


class UnavailableError(ScanneryError, ConnectionError, code="UNAVAILABLE"):
    """There is no server at the target, or it is going away."""


class UnimplementedError(ScanneryError, NotImplementedError, code="UNIMPLEMENTED"):
    """The server does not serve the call or the field."""


class DataLossError(ScanneryError, code="DATA_LOSS"):
    """The index at rest is damaged."""


class InternalError(ScanneryError, code="INTERNAL"):
    """The server has a defect; its log says more."""
