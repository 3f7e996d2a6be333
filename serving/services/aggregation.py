"""Handlers that count the datapoints of an index and the values of its attributes."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.value_counts import (
    FieldCounts,
    TypeStats,
    ValueCount,
    most_frequent,
    type_stats,
)
from scannery.serving.request.filter import parse_filter
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.shards import Shards, View
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import search_pb2 as pb
from scannery.v1 import types_pb2

__all__ = ["Aggregation"]


class Aggregation:
    """Count, Facets and AttributeStats. Safe to use from several threads."""

    def __init__(self, shards: Shards) -> None:
        """Serve the indexes of `shards`."""
        self._shards = shards
        self.methods = {
            f"/{SEARCH_SERVICE}/Count": UnaryMethod(pb.CountRequest, self.count, "read", narrowed=True),
            f"/{SEARCH_SERVICE}/Facets": UnaryMethod(pb.FacetsRequest, self.facets, "read", narrowed=True),
            f"/{SEARCH_SERVICE}/AttributeStats": UnaryMethod(
                pb.AttributeStatsRequest, self.attribute_stats, "read", narrowed=True
            ),
        }

    def count(self, request: pb.CountRequest, deadline: Deadline) -> pb.CountResponse:
        """Return the number of datapoints that a filter allows."""

        def counted(view: View) -> pb.CountResponse:
            snapshot = view.snapshot
            count = view.count(request, parse_filter(request.where, snapshot.manifest.spec))
            return pb.CountResponse(
                count=count, version=snapshot.manifest.version, sequence=snapshot.sequence
            )

        return self._shards.read(request.index, request.min_sequence, deadline, counted)

    def facets(self, request: pb.FacetsRequest, deadline: Deadline) -> pb.FacetsResponse:
        """Return the most frequent values of an attribute."""
        limit = request.limit if request.HasField("limit") else limits.DEFAULT_FACETS
        if not 1 <= limit <= limits.MAX_FACETS:
            raise InvalidRequestError.at("limit", f"must be 1 to {limits.MAX_FACETS}, got {limit}")
        counts, snapshot = self._values(request, deadline)
        if _is_geo(request.attribute, snapshot):
            raise InvalidRequestError.at("attribute", f"{request.attribute} has places, which have no facets")
        value_counts = most_frequent(counts.kinds, limit)
        return pb.FacetsResponse(
            facets=[pb.Facet(value=_value(each), count=each.rows) for each in value_counts],
            distinct=counts.distinct,
            missing=counts.missing,
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
        )

    def attribute_stats(
        self, request: pb.AttributeStatsRequest, deadline: Deadline
    ) -> pb.AttributeStatsResponse:
        """Describe the values of an attribute."""
        _check_shares(request)
        counts, snapshot = self._values(request, deadline)
        declared = request.attribute in {"document_id", *snapshot.manifest.spec.attributes}
        stats = type_stats(counts.kinds, request.quantiles, declared=declared)
        if counts.rows and _is_geo(request.attribute, snapshot):
            stats = [TypeStats("geo", counts.rows, 0, None, None, [])]
        _check_size(stats)
        return pb.AttributeStatsResponse(
            rows=counts.rows,
            missing=counts.missing,
            distinct=counts.distinct,
            types=map(_stats, stats),
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
        )

    def _values(
        self, request: pb.FacetsRequest | pb.AttributeStatsRequest, deadline: Deadline
    ) -> tuple[FieldCounts, Snapshot]:
        def values(view: View) -> tuple[FieldCounts, Snapshot]:
            where = parse_filter(request.where, view.snapshot.manifest.spec)
            return view.values(request, where), view.snapshot

        return self._shards.read(request.index, request.min_sequence, deadline, values)


def _is_geo(name: str, snapshot: Snapshot) -> bool:
    """Return whether an attribute has places, which are not told apart as values."""
    return snapshot.manifest.spec.attributes.get(name) == "geo"


def _check_shares(request: pb.AttributeStatsRequest) -> None:
    if len(request.quantiles) > limits.MAX_QUANTILES:
        raise InvalidRequestError.at(
            "quantiles", f"must have at most {limits.MAX_QUANTILES} items, got {len(request.quantiles)}"
        )
    for number, share in enumerate(request.quantiles):
        if not 0 <= share <= 1:
            raise InvalidRequestError.at(f"quantiles[{number}]", f"must be 0 to 1, got {share}")


def _check_size(stats: Sequence[TypeStats]) -> None:
    """Check the size of an answer: each quantile of strings may have a MiB."""
    size = sum(len(each.value) for entry in stats for each in entry.quantiles if isinstance(each.value, str))
    if size > limits.MAX_FACETS_BYTES:
        raise InvalidRequestError.at(
            "quantiles",
            f"must be fewer: their values have {size >> 20} MiB, and an answer has at most "
            f"{limits.MAX_FACETS_BYTES >> 20}",
        )


def _stats(stats: TypeStats) -> pb.TypeStats:
    return pb.TypeStats(
        type=stats.name,
        values=stats.values,
        distinct=stats.distinct,
        min=None if stats.least is None else _value(stats.least),
        max=None if stats.greatest is None else _value(stats.greatest),
        quantiles=map(_value, stats.quantiles),
    )


def _value(count: ValueCount) -> types_pb2.Value:
    """Return a value with its exact type."""
    if count.kind == "timestamp":
        message = types_pb2.Value()
        message.timestamp_value.FromDatetime(count.value)
        return message
    return types_pb2.Value(**{f"{count.kind}_value": count.value})
