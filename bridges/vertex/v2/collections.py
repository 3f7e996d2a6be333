"""The collections of a store: what is known of each besides its index.

The index has the name of the collection, so that keys that are limited to some indexes fit collections, too.
Names of collections are therefore unique in a server: one belongs to the project and location that it was created with.

The birth of a collection: first its index, then its record, so that no collection is seen without an index.

A server that dies in between leaves an index without a record. The index remembers which request has created it: the
same request takes it over. Another one for the same name replaces it if it was never written to, and
is too old for its creation to be still running. The replacing request says so first, in the write that checks that
there is no record: then the request that has created the index cannot record it any more (`Collections.put`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from google.protobuf.json_format import MessageToDict, ParseDict

from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import is_visible, unknown_resource
from scannery.bridges.vertex.shared.state import JsonDocument, Resources
from scannery.bridges.vertex.v2.data_schema import DataSchema
from scannery.bridges.vertex.v2.resource_names import CollectionName
from scannery.bridges.vertex.v2.values import struct_of
from scannery.bridges.vertex.v2.vector_schema import VectorSchema, parsed_schema
from scannery.indexer import AlreadyExistsError, NotFoundError, latest_version, read_manifest
from scannery.live.log.registry import registered
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.bridging import CURRENT, check_method
from scannery.v1 import index_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = [
    "ABANDONED_AFTER_S",
    "COLLECTIONS",
    "Births",
    "Collection",
    "CollectionIndex",
    "Collections",
    "Once",
    "birth_mark",
    "record_of",
    "stored_index",
]


COLLECTIONS = "collections"
"""Kind of the resources in the state."""
REQUESTS = "collection-requests"
CLAIMS = "collection-claims"
"""Kind of the requests that replace an index without a record, by the name of the collection."""
CLAIMED_US = 600 * 10**6
"""How long others wait for such a request, which takes milliseconds; long, since the clocks of two servers differ."""
KEPT_REQUEST_US = 3600 * 10**6
"""How long a request id is remembered, as the service documents."""
MAX_REQUESTS = 1000
MAX_REQUEST_ID = 64


class _WithId(Protocol):
    request_id: str

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802  as messages have it
        """Return the bytes of the message."""


@dataclass(frozen=True, slots=True)
class Once:
    """A request that is done once, however often it is sent with the same id. Raises InvalidRequestError."""

    id: str
    """`request_id`; empty: it has none."""
    content: str
    """What it asks for."""

    def __post_init__(self) -> None:
        if len(self.id) > MAX_REQUEST_ID:
            raise InvalidRequestError.at(
                "request_id", f"must have at most {MAX_REQUEST_ID} characters, got {len(self.id)}"
            )

    @classmethod
    def of(cls, request: _WithId) -> Once:
        """Return a request by its id and the digest of its content."""
        digest = hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16).hexdigest()
        return cls(request.request_id, f"{type(request).__name__} {digest}")

    @property
    def key(self) -> str:
        """The id, apart from those of other callers: none learns which ids others have used."""
        principal = CURRENT.get()
        return self.id if principal is None else f"{principal.name}:{self.id}"


@dataclass(frozen=True, slots=True)
class CollectionIndex:
    """An index of a field: its name and its distance."""

    id: str
    field: str
    metric: int
    """A DistanceMetric, not 0."""
    unit_length: bool
    """Whether dot products are those of vectors scaled to length 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """A collection as it is stored. Immutable."""

    name: CollectionName
    message: pb.Collection
    schema: VectorSchema
    data_schema: DataSchema | None
    distances: Mapping[str, str]
    """Distance of our vectors by dense field: `dot` or `cosine`."""
    indexes: Mapping[str, CollectionIndex]
    record: Mapping[str, Any]
    """Record in the state."""

    @property
    def index(self) -> str:
        """Name of our index."""
        return self.name.id


class Collections:
    """The collections of a state. Safe to use from several threads and processes."""

    def __init__(self, state: JsonDocument, *, clock: Callable[[], float] = time.time) -> None:
        """Read and write a state.

        Args:
            state: of the store.
            clock: returns seconds since 1970.

        """
        self._state, self._clock = state, clock
        self._loaded_collections: dict[str, Collection] = {}

    def get(self, name: CollectionName, field: str, *, recent: bool = False) -> Collection:
        """Return a collection.

        Args:
            name: of it.
            field: of the request, for the error.
            recent: whether it may be as it was half a second ago, which takes no access to the store.

        Raises:
            UnknownResourceError: there is none that the caller can see.
            PermissionDeniedError: the caller may not call this method for it.

        """
        resources = self._state.recent() if recent else self._state.read()
        record = resources.get(COLLECTIONS, {}).get(name.id)
        if record is None and recent:
            return self.get(name, field)  # it may have been created just now
        if record is None or record["location"] != name.location or not is_visible(name.id):
            raise unknown_resource(name, field)
        check_method("", name.id, narrowed=True)
        return self._loaded(name, record)

    def below(self, location: str) -> list[Collection]:
        """Return the collections of a location that the caller can see, by name."""
        return [
            self._loaded(CollectionName(location, id), record)
            for id, record in sorted(self._state.read().get(COLLECTIONS, {}).items())
            if record["location"] == location and is_visible(id)
        ]

    def record(self, id: str) -> Mapping[str, Any] | None:
        """Return what is stored of the collection with an id, at any location and for any caller; None: nothing."""
        return self._state.read().get(COLLECTIONS, {}).get(id)

    def put(
        self,
        name: CollectionName,
        record: Mapping[str, Any],
        *,
        instead_of: Mapping[str, Any] | None,
        once: Once,
        mark: str = "",
    ) -> Collection:
        """Write a collection, and return it.

        Args:
            name: of it.
            record: new content.
            instead_of: the record that it replaces; None: there is none.
            once: the request, which is remembered in the same write.
            mark: of the request, if it creates the collection.

        Raises:
            AlreadyExistsError: there is a record, and `instead_of` is None; or another request has claimed the name.
            UnknownResourceError: that which it replaces is gone, or was changed since.

        """

        def change(resources: Resources) -> None:
            records = resources.setdefault(COLLECTIONS, {})
            if records.get(name.id) != instead_of:
                if instead_of is None:
                    raise _exists(name)
                raise unknown_resource(f"{name} as it was read: another request has changed it", "name")
            if instead_of is None:
                self._check_claim(resources, name, mark)
            resources.get(CLAIMS, {}).pop(name.id, None)
            records[name.id] = dict(record)
            self._remember(resources, once)

        self._state.change(change)
        return self._loaded(name, record)

    def claim(self, name: CollectionName, mark: str) -> None:
        """Keep other requests from recording a collection, since its index is about to be replaced.

        Raises:
            AlreadyExistsError: there is a record, or another request has claimed the name.

        """

        def change(resources: Resources) -> None:
            if name.id in resources.get(COLLECTIONS, {}):
                raise _exists(name)
            self._check_claim(resources, name, mark)
            resources.setdefault(CLAIMS, {})[name.id] = {"mark": mark, "at_us": self.now_us()}

        self._state.change(change)

    def remove(self, collection: Collection, *, once: Once) -> None:
        """Forget a collection, unless it is gone or was created again, and remember the request."""

        def change(resources: Resources) -> None:
            records = resources.get(COLLECTIONS, {})
            if records.get(collection.index) == collection.record:
                del records[collection.index]
            self._remember(resources, once)

        self._state.change(change)

    def answered(self, once: Once) -> bool:
        """Return whether a request has succeeded within the last hour; InvalidRequestError if its id was another's."""
        if not once.id:
            return False
        outcome = self._state.read().get(REQUESTS, {}).get(once.key)
        if outcome is None or self.now_us() - outcome["at_us"] > KEPT_REQUEST_US:
            return False
        if outcome["asked"] != once.content:
            raise InvalidRequestError.at("request_id", "was used for another request")
        return True

    def _check_claim(self, resources: Resources, name: CollectionName, mark: str) -> None:
        claim = resources.get(CLAIMS, {}).get(name.id)
        if claim and claim["mark"] != mark and self.now_us() - claim["at_us"] < CLAIMED_US:
            raise AlreadyExistsError(
                f"collection_id: another request creates {str(name)!r:.300}", field="collection_id"
            )

    def _remember(self, resources: Resources, once: Once) -> None:
        if not once.id:
            return
        now, kept = self.now_us(), resources.setdefault(REQUESTS, {})
        kept[once.key] = {"asked": once.content, "at_us": now}
        for key, _ in sorted(kept.items(), key=lambda item: item[1]["at_us"])[:-MAX_REQUESTS]:
            del kept[key]
        for key in [key for key, each in kept.items() if now - each["at_us"] > KEPT_REQUEST_US]:
            del kept[key]

    def now_us(self) -> int:
        """Return the time in microseconds since 1970."""
        return int(self._clock() * 1e6)

    def _loaded(self, name: CollectionName, record: Mapping[str, Any]) -> Collection:
        collection = self._loaded_collections.get(name.id)
        if collection is None or collection.record is not record:
            collection = self._loaded_collections[name.id] = _loaded(name, record)
        return collection


def _exists(name: CollectionName) -> AlreadyExistsError:
    return AlreadyExistsError(f"collection_id: there is {str(name)!r:.300}", field="collection_id")


def record_of(
    location: str,
    message: pb.Collection,
    schema: VectorSchema,
    *,
    distances: Mapping[str, str],
    created_us: int,
    updated_us: int,
    indexes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what is kept of a collection, as JSON."""
    kept = pb.Collection()
    kept.CopyFrom(message)
    for field in ("name", "create_time", "update_time"):
        kept.ClearField(field)
    return {
        "location": location,
        "collection": MessageToDict(kept, preserving_proto_field_name=True),
        "spaces": schema.spaces,
        "models": {field.model_id: field.model for field in schema.dense.values() if field.model},
        "distances": dict(distances),
        "created_us": created_us,
        "updated_us": updated_us,
        "indexes": dict(indexes or {}),
    }


def stored_index(collection: Collection, identifier: str) -> pb.Index:
    """Return the description of an index of a collection; UnknownResourceError if there is none."""
    record = collection.record["indexes"].get(identifier)
    name = collection.name.index_name(identifier)
    if record is None:
        raise unknown_resource(name)
    message = ParseDict(record["index"], pb.Index(name=name))
    message.create_time.FromMicroseconds(record["created_us"])
    message.update_time.FromMicroseconds(record["updated_us"])
    return message


def _loaded(name: CollectionName, record: Mapping[str, Any]) -> Collection:
    message = ParseDict(record["collection"], pb.Collection(name=str(name)))
    message.create_time.FromMicroseconds(record["created_us"])
    message.update_time.FromMicroseconds(record["updated_us"])
    indexes = {}
    for identifier, each in record["indexes"].items():
        index = ParseDict(each["index"], pb.Index())
        unit = index.dense_scann.feature_norm_type == pb.DenseScannIndex.UNIT_L2_NORM
        metric = index.distance_metric or pb.DOT_PRODUCT
        indexes[identifier] = CollectionIndex(identifier, index.index_field, metric, unit)
    schema_message = message.data_schema if message.HasField("data_schema") else message.schema
    schema = struct_of(schema_message, "data_schema")
    return Collection(
        name=name,
        message=message,
        schema=parsed_schema(message.vector_schema, record["models"], spaces=record["spaces"]),
        data_schema=DataSchema(schema) if schema else None,
        distances=record["distances"],
        indexes=indexes,
        record=record,
    )


ABANDONED_AFTER_S = 30.0
"""Age of an index without a record. Between the two there is one write, of milliseconds."""
_MARK = "collection-"
"""Front of the ids of requests that create indexes of collections."""


class Births:
    """Creates the indexes of collections. Safe to use from several threads and processes."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Create indexes in the store of a server."""
        self._facade, self._collections = facade, collections

    def exists(self, index: str) -> bool:
        """Return whether the store has an index, also if this process has not opened it yet."""
        return latest_version(self._facade.catalog.store, index) is not None

    def index(
        self,
        name: CollectionName,
        spec: Mapping[str, Any],
        schema: VectorSchema,
        mark: str,
        record: Mapping[str, Any] | None,
        call: Call,
    ) -> index_pb2.IndexInfo:
        """Create the index of a collection, and return its description.

        Args:
            name: of the collection.
            spec: of the index.
            schema: its vectors.
            mark: of the request.
            record: of a collection of that name; its index may be gone.
            call: with the deadline.

        Raises:
            AlreadyExistsError: there is a collection or an index of that name.

        """
        error = AlreadyExistsError(
            f"collection_id: there is a collection or an index {name.id!r}; names are unique in a server",
            field="collection_id",
        )
        # Who may not see the name learns nothing: the engine refuses it below.
        taken = record is not None and self.exists(name.id) and is_visible(name.id)
        if taken:
            raise error
        unnamed = sum(field.dimensions for field in schema.dense.values() if not field.space)

        def create() -> index_pb2.IndexInfo:
            return self._facade.engine.create_index(
                spec, dimensions=unnamed, deadline=call.deadline, request_id=mark
            )

        try:
            return create()
        except AlreadyExistsError as taken_error:
            if record is not None or not self._is_abandoned(name.id):
                raise error from taken_error
        self._collections.claim(name, mark)
        self._facade.engine.drop_index(name.id, call.deadline, missing_ok=True)
        return create()

    def _is_abandoned(self, index: str) -> bool:
        """Return whether an index was created for a collection that was never recorded, long ago, and never written."""
        store = self._facade.catalog.store
        try:
            first = read_manifest(store, index, 1)
        except NotFoundError:
            return False
        age_s = (datetime.now(timezone.utc) - first.created_at).total_seconds()
        return (
            str(first.statistics.get("request_id", "")).startswith(_MARK)
            and age_s > ABANDONED_AFTER_S
            # In the store: what another process has written may not be visible here yet.
            and registered(store, index) is None
            and latest_version(store, index) == 1
        )


def birth_mark(name: CollectionName, message: pb.Collection) -> str:
    """Return what an index remembers of the request that creates it, from the collection as the request has it."""
    content = str(name).encode() + message.SerializeToString(deterministic=True)
    return f"{_MARK}{hashlib.blake2b(content, digest_size=16).hexdigest()}"
