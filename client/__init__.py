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
    Deleted,
    EncoderInfo,
    Explanation,
    Hit,
    Hits,
    IndexInfo,
    RecallInfo,
    SegmentInfo,
    SegmentPlan,
    Written,
)
from scannery.client.writes import NewDatapoint, Update

__all__ = [
    "AlreadyExistsError",
    "Blend",
    "CancelledError",
    "Client",
    "DataLossError",
    "Datapoint",
    "DeadlineExceededError",
    "Deleted",
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
    "NewDatapoint",
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
    "Update",
    "Where",
    "Written",
    "aio",
    "connect",
]
