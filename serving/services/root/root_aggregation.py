"""Counts of the datapoints of a cluster, and of the values of attributes: each group counts, and the root adds up."""

from __future__ import annotations

from scannery.runtime.deadline import Deadline
from scannery.serving.catalog.root_catalog import RootCatalog
from scannery.serving.contract import LEAF_COUNT
from scannery.serving.engine.value_counts import decoded, merged
from scannery.serving.request.field_names import dynamic_name
from scannery.serving.request.filter import parse_filter
from scannery.serving.services.aggregation import Aggregation, CountedValues, field_of
from scannery.serving.services.root.states import States
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import LeafCountRequest, LeafCounts
from scannery.v1.search_pb2 import AttributeStatsRequest, CountRequest, CountResponse, FacetsRequest
from scannery.v1.types_pb2 import Filter

__all__ = ["RootAggregation"]


class RootAggregation(Aggregation):
    """Count, Facets and AttributeStats over leaves. Safe to use from several threads."""

    def __init__(self, catalog: RootCatalog, states: States) -> None:
        super().__init__(catalog)
        self._states = states

    def count(self, request: CountRequest, deadline: Deadline) -> CountResponse:
        """Return the number of datapoints that a filter allows."""

        def counted(snapshot: Snapshot) -> CountResponse:
            found = self._counted(snapshot, request.where, "", deadline)
            return CountResponse(
                count=sum(each.rows for each in found),
                version=snapshot.manifest.version,
                sequence=snapshot.sequence,
            )

        return self._states.read(request.index, request.min_sequence, deadline, counted)

    def _values(self, request: FacetsRequest | AttributeStatsRequest, deadline: Deadline) -> CountedValues:
        def counted(snapshot: Snapshot) -> CountedValues:
            declared = dynamic_name(field_of(request.attribute, snapshot)) is None
            found = self._counted(snapshot, request.where, request.attribute, deadline)
            return CountedValues(merged([decoded(each) for each in found], declared=declared), snapshot)

        return self._states.read(request.index, request.min_sequence, deadline, counted)

    def _counted(
        self, snapshot: Snapshot, where: Filter, attribute: str, deadline: Deadline
    ) -> list[LeafCounts]:
        parse_filter(where, snapshot.manifest.spec)
        reader = self._states.of(snapshot, deadline).reader
        asked = LeafCountRequest(at=reader.at, where=where, attribute=attribute)
        return list(reader.all(LEAF_COUNT, asked, LeafCounts).values())
