"""Scannery turns a corpus into a search service."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scannery.client import (
        AlreadyExistsError,
        Blend,
        CancelledError,
        Client,
        DataLossError,
        Datapoint,
        DeadlineExceededError,
        Examples,
        FailedPreconditionError,
        Hit,
        Hits,
        Index,
        IndexInfo,
        InternalError,
        InvalidArgumentError,
        Like,
        NotFoundError,
        PermissionDeniedError,
        ResourceExhaustedError,
        ScanneryError,
        Sparse,
        UnauthenticatedError,
        UnavailableError,
        UnimplementedError,
        Words,
        aio,
    )
    from scannery.client.connect import connect  # by its module, whose name the package's function shares

__version__ = "0.1.0"

__all__ = [
    "AlreadyExistsError",
    "Blend",
    "CancelledError",
    "Client",
    "DataLossError",
    "Datapoint",
    "DeadlineExceededError",
    "Examples",
    "FailedPreconditionError",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "InternalError",
    "InvalidArgumentError",
    "Like",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "ScanneryError",
    "Sparse",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Words",
    "__version__",
    "aio",
    "connect",
]


def __getattr__(name: str) -> Any:
    # The client is imported when one of its names is first used (PEP 562): `scannery --help`, a worker of Beam and a
    # server import modules of this package and need none of them.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from scannery import client

    found = globals()[name] = getattr(client, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
