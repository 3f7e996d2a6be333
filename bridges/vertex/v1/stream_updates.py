"""IndexService: datapoints written and removed one batch at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from google.protobuf.field_mask_pb2 import FieldMask

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.v1.datapoints import CROWDING, attribute_values, own_datapoint, payload_of
from scannery.bridges.vertex.v1.registry import STREAM, KnownIndex, Registry
from scannery.indexer import IndexSpec
from scannery.runtime.errors import ConditionError, InvalidRequestError, UnknownDatapointError
from scannery.serving.bridging import Engine, check_count, limits
from scannery.v1 import index_pb2, search_pb2, types_pb2
from scannery.vertex.v1 import index_pb2 as pb

__all__ = ["StreamUpdateMethods"]

_RESTRICTS, _METADATA = "all_restricts", "embedding_metadata"
_MASKS = (_RESTRICTS, _METADATA)
_RESTRICTING = ("string", "string_list", "int", "float")
"""Types of declared attributes that hold tokens or numbers."""
_ATTEMPTS = 5
"""Attempts to change datapoints that others write at the same time."""
_PREFIX = re.compile(r"upserts\[(\d+)\]\.datapoint\.?([A-Za-z_]*)[^:]*")
_FIELDS = {
    "id": "datapoint_id",
    "vector": "feature_vector",
    "sparse_vector": "sparse_embedding",
    "attributes": "restricts",
    "payload_json": "embedding_metadata",
}
"""The service's names of the fields of our datapoints."""


class StreamUpdateMethods:
    """Upsert and remove datapoints."""

    def __init__(self, facade: Facade, registry: Registry) -> None:
        """Write into the indexes of a server."""
        self._facade, self._registry = facade, registry
        service = "IndexService"
        self.methods = (
            ForeignMethod(
                service, "UpsertDatapoints", pb.UpsertDatapointsRequest, self.upsert, "write", narrowed=True
            ),
            ForeignMethod(
                service, "RemoveDatapoints", pb.RemoveDatapointsRequest, self.remove, "write", narrowed=True
            ),
        )

    def upsert(self, request: pb.UpsertDatapointsRequest, call: Call) -> pb.UpsertDatapointsResponse:
        """Write datapoints, all or none."""
        index = self._streamed(request.index)
        check_count("datapoints", len(request.datapoints), limits.MAX_UPSERTS)
        if request.update_mask.paths:
            self._update(index, request, call)
        else:
            self._replace(index, request, call)
        return pb.UpsertDatapointsResponse()

    def remove(self, request: pb.RemoveDatapointsRequest, call: Call) -> pb.RemoveDatapointsResponse:
        """Delete datapoints; unknown ids are no error."""
        index = self._streamed(request.index)
        check_count("datapoint_ids", len(request.datapoint_ids), limits.MAX_DELETES)
        message = index_pb2.DeleteRequest(index=index.name.id, ids=request.datapoint_ids)
        try:
            self._facade.engine.delete(message, call.deadline)
        except InvalidRequestError as error:
            text, field = (
                part.replace("ids[", "datapoint_ids[", 1) for part in (error.message, error.field or "")
            )
            raise InvalidRequestError(text, field=field) from error
        return pb.RemoveDatapointsResponse()

    def _streamed(self, name: str) -> KnownIndex:
        index = self._registry.find_recent(name, "index")
        if index.update_method != STREAM:
            raise ConditionError(
                "index: it is written by batches (BATCH_UPDATE); create one with STREAM_UPDATE to write datapoints",
                field="index",
            )
        return index

    def _replace(self, index: KnownIndex, request: pb.UpsertDatapointsRequest, call: Call) -> None:
        spec = index.manifest.spec
        batch = _Batch()
        for number, point in enumerate(request.datapoints):
            batch.add(number, index_pb2.Upsert(datapoint=own_datapoint(point, spec, f"datapoints[{number}]")))
        batch.write(self._facade.engine, index.name.id, call)

    def _update(self, index: KnownIndex, request: pb.UpsertDatapointsRequest, call: Call) -> None:
        """Change parts of datapoints that exist.

        All attributes of a datapoint are replaced, of which its present ones must be known: it is read, and written if
        it has not changed since.
        """
        for path in request.update_mask.paths:
            if path not in _MASKS:
                raise InvalidRequestError.at("update_mask", f"{path!r:.80} is not one of {', '.join(_MASKS)}")
        for attempt in range(_ATTEMPTS):
            batch = self._batch_of(index, request, call)
            try:
                batch.write(self._facade.engine, index.name.id, call)
            except ConditionError:
                if attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return

    def _batch_of(self, index: KnownIndex, request: pb.UpsertDatapointsRequest, call: Call) -> _Batch:
        ids = [point.datapoint_id for point in request.datapoints]
        answer = self._facade.engine.get(search_pb2.GetRequest(index=index.name.id, ids=ids), call.deadline)
        present = {point.id: point for point in answer.datapoints}
        batch = _Batch()
        for number, point in enumerate(request.datapoints):
            path = f"datapoints[{number}]"
            before = present.get(point.datapoint_id)
            if before is None:
                raise UnknownDatapointError(
                    f"{path}.datapoint_id: the index has no datapoint {point.datapoint_id!r:.200}; an update_mask "
                    "changes those that exist",
                    field=f"{path}.datapoint_id",
                )
            batch.add(number, _changed(point, before, request.update_mask, index.manifest.spec, path))
        return batch


class _Batch:
    """What is written at once: of datapoints with the same id, the last one."""

    def __init__(self) -> None:
        self._items: dict[str, tuple[int, index_pb2.Upsert]] = {}

    def add(self, number: int, item: index_pb2.Upsert) -> None:
        """Take a datapoint, by its number in the request."""
        self._items[item.datapoint.id] = number, item

    def write(self, engine: Engine, index: str, call: Call) -> None:
        """Write all or none; errors have the names of the request's fields."""
        items = [*self._items.values()]
        message = index_pb2.UpsertRequest(index=index, upserts=[item for _, item in items])
        try:
            engine.upsert(message, call.deadline)
        except InvalidRequestError as error:
            numbers = [number for number, _ in items]
            field = _translated(error.field or "", numbers)
            raise InvalidRequestError(_translated(error.message, numbers), field=field) from error


def _changed(
    point: pb.IndexDatapoint, before: types_pb2.Datapoint, mask: FieldMask, spec: IndexSpec, path: str
) -> index_pb2.Upsert:
    """Return the change of a datapoint; what is not in the mask stays."""
    datapoint = types_pb2.Datapoint(id=before.id)
    paths = []
    if _RESTRICTS in mask.paths:
        attributes = attribute_values(point, spec, path)
        for name, value in attributes.items():
            datapoint.attributes[name].CopyFrom(value)
        dynamic: dict[str, Any] = json.loads(before.dynamic_json) if before.dynamic_json else {}
        present = {name for name in before.attributes if spec.attributes.get(name) in _RESTRICTING}
        present |= {
            name for name, value in dynamic.items() if not isinstance(value, (bool, dict, type(None)))
        }
        names = ({*attributes} | present) - {CROWDING}
        paths += [f"attributes.{name}" for name in sorted(names)]
    if _METADATA in mask.paths:
        paths.append("payload_json")
        if point.HasField("embedding_metadata"):
            datapoint.payload_json = payload_of(point, path)
    if not paths:  # no restricts before, and none now
        paths = ["payload_json"]
        if before.HasField("payload_json"):
            datapoint.payload_json = before.payload_json
    return index_pb2.Upsert(
        datapoint=datapoint,
        update_mask=FieldMask(paths=paths),
        condition=index_pb2.WriteCondition(if_revision=before.revision),
    )


def _translated(text: str, numbers: Sequence[int]) -> str:
    """Return a text about one of our messages with the request's own numbers and names of fields."""
    return _PREFIX.sub(
        lambda match: f"datapoints[{numbers[int(match[1])]}].{_FIELDS.get(match[2], match[2])}".rstrip("."),
        text,
        count=1,
    )
