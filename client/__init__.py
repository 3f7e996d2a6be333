"""The SDK: connect, search, filters, errors."""

from scannery.client import aio
from scannery.client.client import Client, Index
from scannery.client.connect import connect
from scannery.client.errors import (
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    ScanneryError,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
)
from scannery.client.filters import Where
from scannery.client.queries import Blend, Fusion, Like, Mode, QueryLike, SearchOptions, Sparse
from scannery.client.results import (
    Datapoint,
    EncoderInfo,
    Explanation,
    Hit,
    Hits,
    IndexInfo,
    RecallInfo,
    SegmentInfo,
    SegmentPlan,
)

__all__ = [
    "AlreadyExistsError",
    "Blend",
    "CancelledError",
    "Client",
    "DataLossError",
    "Datapoint",
    "DeadlineExceededError",
    "EncoderInfo",
    "Explanation",
    "FailedPreconditionError",
    "Fusion",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "InternalError",
    "InvalidArgumentError",
    "Like",
    "Mode",
    "NotFoundError",
    "PermissionDeniedError",
    "QueryLike",
    "RecallInfo",
    "ResourceExhaustedError",
    "ScanneryError",
    "SearchOptions",
    "SegmentInfo",
    "SegmentPlan",
    "Sparse",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Where",
    "aio",
    "connect",
]
