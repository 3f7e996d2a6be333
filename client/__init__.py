"""The SDK: connect, search, filters, errors."""

from scannery.client import aio
from scannery.client._sync.client import Client
from scannery.client._sync.index import Index
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
from scannery.client.request.filters import Where
from scannery.client.request.queries import Blend, Fusion, Like, Mode, QueryLike, SearchOptions, Sparse
from scannery.client.request.writes import NewDatapoint, Update
from scannery.client.response.results import (
    BulkWritten,
    Datapoint,
    Deleted,
    EncoderInfo,
    Explanation,
    Hit,
    Hits,
    IndexInfo,
    NotWritten,
    RecallInfo,
    SegmentInfo,
    SegmentPlan,
    Written,
)

__all__ = [
    "AlreadyExistsError",
    "Blend",
    "BulkWritten",
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
    "NotWritten",
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
