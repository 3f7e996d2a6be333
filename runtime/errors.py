"""What the engine and its servers refuse or fail with.

ServingError
├── InvalidRequestError       the request is wrong; `field` says where
├── UnknownIndexError         no such index is served
├── UnknownDatapointError     a query by id names none
├── UnsupportedError          a call or field of the contract that this server does not serve
├── EncoderUnavailableError   a text query, and the index has no encoder or it cannot be used
├── EncoderUnreachableError   a text, and the process that encodes does not answer; it may later
├── LexicalUnavailableError   lexical or hybrid search, and the index has no words
├── RerankerUnavailableError  reranking, and the index has no reranker or it cannot be used
├── DeadlineError             the caller's time is up
├── OverloadedError           refused at once rather than late
├── ConditionError            a write whose condition does not hold; nothing was written
├── ReadOnlyError             the index takes no writes
├── UnauthenticatedError      no or wrong credentials
├── PermissionDeniedError     the credentials do not allow it
├── ConfigError               the server cannot be started like this; `field` names the option
├── BindError                 the address cannot be listened on
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
    "OverloadedError",
    "PermissionDeniedError",
    "ReadOnlyError",
    "RerankerUnavailableError",
    "ServingError",
    "UnauthenticatedError",
    "UnknownDatapointError",
    "UnknownIndexError",
    "UnsupportedError",
]


class ServingError(Exception):
    """Base of every error that `scannery.serving` raises on purpose.

    Attributes:
        field: the field of the request that the error is about, or None.
        retry_after_s: when trying again makes sense, in seconds, or None.

    """

    def __init__(self, message: str, *, field: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class InvalidRequestError(ServingError, ValueError):
    """The request is wrong, and will be wrong again."""

    @classmethod
    def at(cls, field: str, what: str) -> InvalidRequestError:
        """Return the error whose message begins with the field that it is about."""
        return cls(f"{field}: {what}", field=field)


class UnknownIndexError(ServingError, LookupError):
    """No such index is served."""

    @classmethod
    def missing(cls, names: Iterable[str], store: str) -> UnknownIndexError:
        """Return the error about chosen indexes that a store does not have."""
        return cls(f"there is no index {', '.join(sorted(names))} in {store}", field="indexes")


class UnknownDatapointError(ServingError, LookupError):
    """A query by id names a datapoint that the index does not have."""


class UnsupportedError(ServingError):
    """A call or field of the contract that this server does not serve."""


class EncoderUnavailableError(ServingError):
    """The index cannot be asked with text."""


class EncoderUnreachableError(ServingError, ConnectionError):
    """The process that encodes texts does not answer; what needs no encoder goes on."""

    def __str__(self) -> str:
        # OSError would print its own idea of the arguments.
        return self.message


class LexicalUnavailableError(ServingError):
    """The index cannot be asked by words."""


class RerankerUnavailableError(ServingError):
    """The hits of the index cannot be reranked."""


class DeadlineError(ServingError, TimeoutError):
    """The caller's time is up."""


class OverloadedError(ServingError):
    """Too much is going on; try again after `retry_after_s`."""


class ConditionError(ServingError):
    """A datapoint is not in the state in which the caller wanted to write it; nothing was written."""


class ReadOnlyError(ServingError):
    """The index takes no writes: it lies in a bucket, or where nothing can be written."""


class UnauthenticatedError(ServingError):
    """No credentials, or wrong ones. The message is the same for each request."""


class PermissionDeniedError(ServingError):
    """The credentials are right, and do not allow this."""


class ConfigError(ServingError, ValueError):
    """The server cannot be started with these options."""


class BindError(ServingError, OSError):
    """The address cannot be listened on."""

    def __str__(self) -> str:
        # OSError would print its own idea of the arguments.
        return self.message


class ClosedError(ServingError):
    """The engine is shutting down."""
