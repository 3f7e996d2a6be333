"""Errors of the engine and its servers.

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
├── RerankerUnavailableError  reranking was requested, and the index has no usable reranker
├── DeadlineError             the deadline of the request passed
├── OverloadedError           the request was rejected because of load
│   └── OtherVersionError     the index goes over to a version for which the write was not prepared
├── UnavailableError          another server of the cluster does not answer now
│   └── StateGoneError        the leaves do not have the state that was asked for
├── PreconditionError         another server of the cluster says that the index does not allow the request
├── ConditionError            the condition of a write does not hold; nothing was written
├── ReadOnlyError             the index takes no writes
├── SnapshotGoneError         the snapshot of a scan cannot be opened any more
├── StateUnavailableError     a leaf does not have the state that a root reads
├── UnauthenticatedError      credentials are missing or invalid
├── PermissionDeniedError     the credentials do not allow the method
├── ConfigError               an option of the server is invalid; `field` names it
├── BindError                 the server cannot listen on the address
└── ClosedError               the engine is shutting down
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = [
    "BindError",
    "ClosedError",
    "ConditionError",
    "ConfigError",
    "DeadlineError",
    "EncoderUnavailableError",
    "EncoderUnreachableError",
    "InvalidRequestError",
    "LexicalUnavailableError",
    "OtherVersionError",
    "OverloadedError",
    "PermissionDeniedError",
    "PreconditionError",
    "ReadOnlyError",
    "RerankerUnavailableError",
    "ServingError",
    "SnapshotGoneError",
    "StaleEtagError",
    "StateGoneError",
    "StateUnavailableError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnknownResourceError",
    "UnsupportedError",
    "VectorsUnavailableError",
]


class ServingError(Exception):
    """Base of every error that `scannery.serving` raises on purpose.

    Attributes:
        message: the text of the error.
        field: the field of the request that the error is about, or None.
        retry_after_s: seconds to wait before trying again, or None.

    """

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        """Set the attributes from the arguments of the same names."""
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        # OSError, a base of some of these, formats its arguments differently.
        return self.message


class InvalidRequestError(ServingError, ValueError):
    """A field of the request is invalid; repeating the request cannot succeed."""

    @classmethod
    def at(cls, field: str, what: str) -> InvalidRequestError:
        """Return the error for a field, with the message "`field`: `what`"."""
        return cls(f"{field}: {what}", field=field)


class UnknownIndexError(ServingError, LookupError):
    """No such index is served."""

    @classmethod
    def missing(cls, names: Iterable[str], store: str) -> UnknownIndexError:
        """Return the error about chosen indexes that a store does not have."""
        return cls(f"there is no index {', '.join(sorted(names))} in {store}", field="indexes")


class UnknownDatapointError(ServingError, LookupError):
    """A query by id names a datapoint that does not exist."""

    @classmethod
    def named(cls, identifier: str, index: str, path: str) -> UnknownDatapointError:
        """Return the error of an id at a path in the request."""
        return cls(f"{path}: index {index!r} has no datapoint {identifier!r:.200}", field=path)


class UnknownResourceError(ServingError, LookupError):
    """There is no resource of this name, or the caller may not see it."""


class StaleEtagError(ServingError):
    """The resource has changed since the caller read it; nothing was written."""


class UnsupportedError(ServingError):
    """The server does not implement the method or field."""


class EncoderUnavailableError(ServingError):
    """The index has no encoder, or it cannot be used: text cannot be encoded."""


class EncoderUnreachableError(ServingError, ConnectionError):
    """The encoder process does not respond; requests without text still succeed."""


class LexicalUnavailableError(ServingError):
    """The index has no term statistics: lexical and hybrid search are not possible."""


class VectorsUnavailableError(ServingError):
    """The index, or the datapoint that a query names, has no vector: dense and hybrid search are not possible."""


class RerankerUnavailableError(ServingError):
    """The index has no reranker, or it cannot be used."""


class DeadlineError(ServingError, TimeoutError):
    """The deadline of the request passed."""


class OverloadedError(ServingError):
    """The request was rejected because of load; try again after `retry_after_s`."""


class OtherVersionError(OverloadedError):
    """The index goes over to a version for which the write was not prepared: prepare it again for the newest one."""


class UnavailableError(ServingError, ConnectionError):
    """Another server of the cluster does not answer now; try again after `retry_after_s`."""


class StateGoneError(UnavailableError):
    """The leaves do not have the state that was asked for: too old or too new. Ask with a newer one."""


class PreconditionError(ServingError):
    """Another server of the cluster says that the index does not allow the request; repeating it cannot succeed."""


class ConditionError(ServingError):
    """The condition of a write (`if_absent`, `if_revision`) does not hold; nothing was written."""


class ReadOnlyError(ServingError):
    """The index takes no writes: its store is a bucket, or its folder cannot be written."""


class SnapshotGoneError(ServingError):
    """The snapshot of a scan is not held any more, and its version or its mutations are gone: it has to begin again."""


class StateUnavailableError(ServingError, LookupError):
    """A leaf of a cluster does not have the state that a root reads: it was replaced, or is not open yet."""


class UnauthenticatedError(ServingError):
    """No credentials, or wrong ones. The message is the same for each request."""


class PermissionDeniedError(ServingError):
    """The credentials are valid, and do not allow the method."""


class ConfigError(ServingError, ValueError):
    """An option of the server is invalid."""


class BindError(ServingError, OSError):
    """The server cannot listen on the address."""


class ClosedError(ServingError):
    """The engine is shutting down."""
