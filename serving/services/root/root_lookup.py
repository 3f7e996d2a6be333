"""Datapoints by id, from the leaves."""

from __future__ import annotations

from functools import partial

from scannery.runtime.deadline import Deadline
from scannery.serving import limits
from scannery.serving.contract import LEAF_FETCH, SEARCH_SERVICE
from scannery.serving.request.options import parse_fields
from scannery.serving.request.query import check_count, parse_identifier
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.root.states import States
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.leaf_pb2 import LeafFetchRequest, LeafFetchResponse
from scannery.v1.search_pb2 import GetRequest, GetResponse
from scannery.v1.types_pb2 import Datapoint

__all__ = ["RootLookup"]


class RootLookup:
    """The handler of Get. Safe to use from several threads."""

    def __init__(self, states: States) -> None:
        self._states = states
        self.methods = {f"/{SEARCH_SERVICE}/Get": UnaryMethod(GetRequest, self.get, "read")}

    def get(self, request: GetRequest, deadline: Deadline) -> GetResponse:
        """Return datapoints by id."""
        return self._states.read(
            request.index, request.min_sequence, deadline, partial(self._get, request, deadline)
        )

    def _get(self, request: GetRequest, deadline: Deadline, snapshot: Snapshot) -> GetResponse:
        check_count("ids", len(request.ids), limits.MAX_GET_IDS)
        parse_fields(request.return_fields, snapshot.manifest.spec, vector=request.return_vector)
        ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
        # A shard is chosen by the id of the document, which callers do not send: all groups are asked.
        asked = LeafFetchRequest(
            ids=ids,
            datapoint=True,
            return_fields=request.return_fields,
            return_vector=request.return_vector,
        )
        reader = self._states.of(snapshot, deadline).reader
        asked.at.CopyFrom(reader.at)
        found: dict[int, Datapoint] = {}
        for response in reader.all(LEAF_FETCH, asked, LeafFetchResponse).values():
            found.update((each.place, each.datapoint) for each in response.found)
        return GetResponse(
            datapoints=[found[place] for place in sorted(found)],
            missing_ids=[text for place, text in enumerate(ids) if place not in found],
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
        )
