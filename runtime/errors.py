"""What an error means to a caller on each wire and to a shell, and the errors of the engine and its servers.

ServingError
├── InvalidRequestError       a field of the request is invalid; `field` names it
├── UnknownIndexError         the server has no such index
├── UnknownDatapointError     a query by id names a datapoint that does not exist
├── UnknownResourceError      there is no endpoint, operation, … of this name
├── StaleEtagError            the resource has changed since the caller read it
├── UnsupportedError          the server does not implement the method or field
├── EncoderUnavailableError   text was given, and the index has no usable encoder
├── EncoderUnreachableError   text was given, and the encoder process does not respond now
├── LexicalUnavailableError   lexical or hybrid search of an index without term statistics
├── VectorsUnavailableError   dense or hybrid search of an index without vectors, or by a datapoint without one
├── FeedbackUnavailableError  feedback was given where answers have no ids
├── RerankerUnavailableError  reranking was requested, and the index has no usable reranker
├── DeadlineError             the deadline of the request passed
├── OverloadedError           the request was rejected because of load
│   ├── QuotaError            a limit of the caller is used up
│   ├── MemoryCeilingError    the ceiling of the server's memory leaves no room
│   └── OtherVersionError     the index goes over to a version for which the write was not prepared
├── FullError                 the caller may have no more rows in the index
├── UnavailableError          another server of the cluster does not answer now
│   └── StateGoneError        the leaves do not have the state that was asked for
├── PreconditionError         another server of the cluster says that the index does not allow the request
├── ConditionError            the condition of a write does not hold; nothing was written
├── ReadOnlyError             the index takes no writes
├── SnapshotGoneError         the snapshot of a scan cannot be opened any more
├── StateUnavailableError     a leaf does not have the state that a root reads
├── AuditError                the audit log of the server cannot be written, so that it answers no call
├── UnauthenticatedError      credentials are missing or invalid
├── PermissionDeniedError     the credentials do not allow the method
├── ConfigError               an option of the server is invalid; `field` names it
├── BindError                 the server cannot listen on the address
└── ClosedError               the engine is shutting down
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

__all__ = [
    "DEFECT",
    "NO",
    "NOT_ALLOWED",
    "NOT_FOUND",
    "NOT_NOW",
    "PARTIAL",
    "STATUSES",
    "USAGE",
    "AuditError",
    "BindError",
    "ClosedError",
    "Code",
    "CodedError",
    "ConditionError",
    "ConfigError",
    "DeadlineError",
    "EncoderUnavailableError",
    "EncoderUnreachableError",
    "FeedbackUnavailableError",
    "FullError",
    "InvalidRequestError",
    "LexicalUnavailableError",
    "MemoryCeilingError",
    "OtherVersionError",
    "OverloadedError",
    "PermissionDeniedError",
    "PreconditionError",
    "QuotaError",
    "ReadOnlyError",
    "RerankerUnavailableError",
    "ServingError",
    "SnapshotGoneError",
    "StaleEtagError",
    "StateGoneError",
    "StateUnavailableError",
    "Status",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnknownResourceError",
    "UnsupportedError",
    "VectorsUnavailableError",
]


NO, USAGE, NOT_FOUND, NOT_NOW, DEFECT, NOT_ALLOWED, PARTIAL = range(1, 8)
"""Exit codes of the command; `scannery.cli.errors` has their meanings."""

Code = Literal[
    "CANCELLED", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
]  # fmt: skip
"""Name of a gRPC status."""


class Status(NamedTuple):
    """What a gRPC status is elsewhere."""

    http: int
    """Status of HTTP, as Connect defines it."""
    exit_code: int
    """Exit code of the command. NOT_NOW: trying again later makes sense."""


STATUSES: dict[str, Status] = {
    "CANCELLED": Status(499, NOT_NOW),
    "UNKNOWN": Status(500, DEFECT),
    "INVALID_ARGUMENT": Status(400, USAGE),
    "DEADLINE_EXCEEDED": Status(504, NOT_NOW),
    "NOT_FOUND": Status(404, NOT_FOUND),
    "ALREADY_EXISTS": Status(409, NOT_NOW),
    "PERMISSION_DENIED": Status(403, NOT_ALLOWED),
    "RESOURCE_EXHAUSTED": Status(429, NOT_NOW),
    "FAILED_PRECONDITION": Status(400, USAGE),
    "ABORTED": Status(409, DEFECT),
    "OUT_OF_RANGE": Status(400, DEFECT),
    "UNIMPLEMENTED": Status(501, USAGE),
    "INTERNAL": Status(500, DEFECT),
    "UNAVAILABLE": Status(503, NOT_NOW),
    "DATA_LOSS": Status(500, DEFECT),
    "UNAUTHENTICATED": Status(401, NOT_ALLOWED),
}
"""Statuses by the name of the gRPC status."""


class CodedError(Exception):
    """Base of every error that the product raises on purpose.

    A class says in its header what an error of it means; what it does not say is as in its base:

        class UnknownIndexError(ServingError, LookupError, code="NOT_FOUND", quotes_request=True)

    Attributes:
        message: the text of the error.
        field: the field, option or key that the error is about, or None.
        retry_after_s: seconds to wait before trying again, or None.
        code: name of the gRPC status, from which the statuses of HTTP and Connect and the exit code follow.
        exit_code: of the command; said where it is not that of the code.
        private: the caller of a server cannot be the cause, and is answered INTERNAL without the message.
        quotes_request: the message quotes nothing but the request, so that paths in it are no secrets of the server.

    """

    code = "INTERNAL"
    exit_code = DEFECT
    private = False
    quotes_request = False

    def __init_subclass__(
        cls,
        *,
        code: Code | None = None,
        exit_code: int | None = None,
        private: bool | None = None,
        quotes_request: bool | None = None,
    ) -> None:
        super().__init_subclass__()
        if code is not None:
            cls.code, cls.exit_code = code, STATUSES[code].exit_code
        if exit_code is not None:
            cls.exit_code = exit_code
        if private is not None:
            cls.private = private
        if quotes_request is not None:
            cls.quotes_request = quotes_request

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        # OSError, a base of some of these, formats its arguments differently.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Beam pickles exceptions, and default pickling loses keyword-only arguments.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[CodedError], args: tuple[Any, ...], state: dict[str, Any]) -> CodedError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class ServingError(CodedError):
    """Base of every error that `scannery.serving` raises on purpose."""


class InvalidRequestError(ServingError, ValueError, code="INVALID_ARGUMENT", quotes_request=True):
    """A field of the request is invalid; repeating the request cannot succeed."""

    @classmethod
    def at(cls, field: str, what: str) -> InvalidRequestError:
        """Return the error for a field, with the message "`field`: `what`"."""
        return cls(f"{field}: {what}", field=field)


class UnknownIndexError(ServingError, LookupError, code="NOT_FOUND", quotes_request=True):
    """No such index is served."""

    @classmethod
    def missing(cls, names: Iterable[str], store: str) -> UnknownIndexError:
        """Return the error about chosen indexes that a store does not have."""
        return cls(f"there is no index {', '.join(sorted(names))} in {store}", field="indexes")


class UnknownDatapointError(ServingError, LookupError, code="NOT_FOUND", quotes_request=True):
    """A query by id names a datapoint that does not exist."""

    @classmethod
    def named(cls, identifier: str, index: str, path: str) -> UnknownDatapointError:
        """Return the error of an id at a path in the request."""
        return cls(f"{path}: index {index!r} has no datapoint {identifier!r:.200}", field=path)


class UnknownResourceError(
    ServingError, LookupError, code="NOT_FOUND", exit_code=DEFECT, quotes_request=True
):
    """There is no resource of this name, or the caller may not see it."""


class StaleEtagError(ServingError, code="ABORTED", quotes_request=True):
    """The resource has changed since the caller read it; nothing was written."""


class UnsupportedError(ServingError, code="UNIMPLEMENTED", quotes_request=True):
    """The server does not implement the method or field."""


class EncoderUnavailableError(ServingError, code="FAILED_PRECONDITION"):
    """The index has no encoder, or it cannot be used: text cannot be encoded."""


class EncoderUnreachableError(ServingError, ConnectionError, code="UNAVAILABLE"):
    """The encoder process does not respond; requests without text still succeed."""


class LexicalUnavailableError(ServingError, code="FAILED_PRECONDITION"):
    """The index has no term statistics: lexical and hybrid search are not possible."""


class VectorsUnavailableError(ServingError, code="FAILED_PRECONDITION"):
    """The index, or the datapoint that a query names, has no vector: dense and hybrid search are not possible."""


class FeedbackUnavailableError(ServingError, code="FAILED_PRECONDITION"):
    """The server gives no ids to answers, and takes no feedback on them."""


class RerankerUnavailableError(ServingError, code="FAILED_PRECONDITION", exit_code=DEFECT):
    """The index has no reranker, or it cannot be used."""


class DeadlineError(ServingError, TimeoutError, code="DEADLINE_EXCEEDED"):
    """The deadline of the request passed."""


class OverloadedError(ServingError, code="RESOURCE_EXHAUSTED"):
    """The request was rejected because of load; try again after `retry_after_s`."""


class QuotaError(OverloadedError):
    """The caller has used up one of its limits; it may go on after `retry_after_s`. Other callers are not concerned."""


class FullError(ServingError, code="RESOURCE_EXHAUSTED"):
    """A write would leave more rows than a limit of its caller allows; nothing was written. Deletions make room."""


class MemoryCeilingError(OverloadedError):
    """The ceiling of the server's memory leaves no room for a version or for new rows: none was opened or written."""


class OtherVersionError(OverloadedError):
    """The index goes over to a version for which the write was not prepared: prepare it again for the newest one."""


class UnavailableError(ServingError, ConnectionError, code="UNAVAILABLE"):
    """Another server of the cluster does not answer now; try again after `retry_after_s`."""


class StateGoneError(UnavailableError):
    """The leaves do not have the state that was asked for: too old or too new. Ask with a newer one."""


class PreconditionError(ServingError, code="FAILED_PRECONDITION"):
    """Another server of the cluster says that the index does not allow the request; repeating it cannot succeed."""


class ConditionError(ServingError, code="FAILED_PRECONDITION", quotes_request=True):
    """The condition of a write (`if_absent`, `if_revision`) does not hold; nothing was written."""


class ReadOnlyError(ServingError, code="FAILED_PRECONDITION", exit_code=DEFECT):
    """The index takes no writes: its store is a bucket, or its folder cannot be written."""


class SnapshotGoneError(ServingError, code="FAILED_PRECONDITION", exit_code=DEFECT, quotes_request=True):
    """The snapshot of a scan is not held any more, and its version or its mutations are gone: it has to begin again."""


class StateUnavailableError(ServingError, LookupError, code="OUT_OF_RANGE", quotes_request=True):
    """A leaf of a cluster does not have the state that a root reads: it was replaced, or is not open yet."""


class AuditError(ServingError, code="UNAVAILABLE"):
    """The audit log of the server cannot be written, so that it answers no call; nothing was changed."""


class UnauthenticatedError(ServingError, code="UNAUTHENTICATED"):
    """No credentials, or wrong ones. The message is the same for each request."""


class PermissionDeniedError(ServingError, code="PERMISSION_DENIED"):
    """The credentials are valid, and do not allow the method."""


class ConfigError(ServingError, ValueError, code="INVALID_ARGUMENT", private=True):
    """An option of the server is invalid."""


class BindError(ServingError, OSError, code="UNAVAILABLE", private=True):
    """The server cannot listen on the address."""


class ClosedError(ServingError, code="UNAVAILABLE"):
    """The engine is shutting down."""
