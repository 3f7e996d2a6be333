"""The SDK: connect, search, filters, errors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from scannery.client._sync.client import Client
from scannery.client._sync.index import Index
from scannery.client._sync.scan import Scan
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
from scannery.client.request.queries import (
    Blend,
    Examples,
    Fusion,
    Like,
    Mode,
    QueryLike,
    SearchOptions,
    Sparse,
    Words,
)
from scannery.client.request.writes import NewDatapoint, Update
from scannery.client.response.aggregations import AttributeStats, Facet, Facets, TypeStats
from scannery.client.response.index_info import (
    EncoderInfo,
    IndexInfo,
    Migration,
    NamedVectorInfo,
    RecallCurve,
    RecallInfo,
    RecallPoint,
    SegmentInfo,
    VersionInfo,
)
from scannery.client.response.maps import Projection
from scannery.client.response.rank_explanation import (
    ConditionMatch,
    DenseRank,
    LexicalRank,
    RankExplanation,
    ScoreRank,
    WordScore,
)
from scannery.client.response.results import (
    BulkWritten,
    Context,
    Coverage,
    Datapoint,
    Deleted,
    Explanation,
    Hit,
    Hits,
    NotWritten,
    SegmentPlan,
    Snippet,
    Written,
)
from scannery.client.response.server_info import CallerInfo, Metric, MetricSample

if TYPE_CHECKING:
    from scannery.client import aio

__all__ = [
    "AlreadyExistsError",
    "AttributeStats",
    "Blend",
    "BulkWritten",
    "CallerInfo",
    "CancelledError",
    "Client",
    "ConditionMatch",
    "Context",
    "Coverage",
    "DataLossError",
    "Datapoint",
    "DeadlineExceededError",
    "Deleted",
    "DenseRank",
    "EncoderInfo",
    "Examples",
    "Explanation",
    "Facet",
    "Facets",
    "FailedPreconditionError",
    "Fusion",
    "Hit",
    "Hits",
    "Index",
    "IndexInfo",
    "InternalError",
    "InvalidArgumentError",
    "LexicalRank",
    "Like",
    "Metric",
    "MetricSample",
    "Migration",
    "Mode",
    "NamedVectorInfo",
    "NewDatapoint",
    "NotFoundError",
    "NotWritten",
    "PermissionDeniedError",
    "Projection",
    "QueryLike",
    "RankExplanation",
    "RecallCurve",
    "RecallInfo",
    "RecallPoint",
    "ResourceExhaustedError",
    "Scan",
    "ScanneryError",
    "ScoreRank",
    "SearchOptions",
    "SegmentInfo",
    "SegmentPlan",
    "Snippet",
    "Sparse",
    "TypeStats",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "Update",
    "VersionInfo",
    "Where",
    "WordScore",
    "Words",
    "Written",
    "aio",
    "connect",
]


def __getattr__(name: str) -> Any:
    # Imported when it is first used (PEP 562): the asynchronous client and asyncio are a third of the client's imports.
    if name == "aio":
        return import_module("scannery.client.aio")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
