"""`DataObjectService`: data objects of collections, each a datapoint of our index."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from google.protobuf.empty_pb2 import Empty

from scannery.indexer import AlreadyExistsError
from scannery.runtime.errors import ConditionError, InvalidRequestError, StaleEtagError, UnknownResourceError
from scannery.serving.vertex.shared.calls import Call, ForeignMethod
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v2.collections import Collection, Collections
from scannery.serving.vertex.v2.embedding import document_vectors
from scannery.serving.vertex.v2.objects import (
    SparseVector,
    StoredObject,
    message_of,
    parsed_vectors,
    stored_object,
)
from scannery.serving.vertex.v2.resource_names import (
    CollectionName,
    checked_id,
    parsed_collection,
    parsed_object,
)
from scannery.serving.vertex.v2.values import struct_of
from scannery.v1 import index_pb2, search_pb2
from scannery.vertex.v2 import data_objects_pb2 as pb

__all__ = ["GivenObject", "ObjectMethods", "Objects"]

ValueT = TypeVar("ValueT")
MAX_BATCH = 1000
_UPSERT = re.compile(r"upserts\[(\d+)\]\.(?:datapoint\.)?")
MAX_ATTEMPTS = 10
"""Attempts of an update without an etag while others write the same data object."""


@dataclass(frozen=True, slots=True)
class GivenObject:
    """A data object of a request that was parsed."""

    id: str
    data: Mapping[str, Any]
    dense: Mapping[str, np.ndarray]
    """By field, float32 (D,)."""
    sparse: SparseVector | None
    path: str
    """Front of its fields in errors."""


class _Change(NamedTuple):
    """An update of a request that was parsed."""

    given: GivenObject
    mask: tuple[str, ...]
    etag: str


class ObjectMethods:
    """Create, get, update and delete data objects."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._collections, self._objects = collections, Objects(facade)
        service = "DataObjectService"
        self.methods = (
            ForeignMethod(service, "CreateDataObject", pb.CreateDataObjectRequest, self.create, "write"),
            ForeignMethod(
                service,
                "BatchCreateDataObjects",
                pb.BatchCreateDataObjectsRequest,
                self.create_batch,
                "write",
            ),
            ForeignMethod(service, "GetDataObject", pb.GetDataObjectRequest, self.get, "read"),
            ForeignMethod(service, "UpdateDataObject", pb.UpdateDataObjectRequest, self.update, "write"),
            ForeignMethod(
                service,
                "BatchUpdateDataObjects",
                pb.BatchUpdateDataObjectsRequest,
                self.update_batch,
                "write",
            ),
            ForeignMethod(service, "DeleteDataObject", pb.DeleteDataObjectRequest, self.delete, "write"),
            ForeignMethod(
                service,
                "BatchDeleteDataObjects",
                pb.BatchDeleteDataObjectsRequest,
                self.delete_batch,
                "write",
            ),
        )

    def create(self, request: pb.CreateDataObjectRequest, call: Call) -> pb.DataObject:
        """Create a data object."""
        collection = self._collection(request.parent, "parent")
        return self._created(collection, [request], [""], call)[0]

    def create_batch(
        self, request: pb.BatchCreateDataObjectsRequest, call: Call
    ) -> pb.BatchCreateDataObjectsResponse:
        """Create data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        paths = _paths(len(request.requests))
        for each, path in zip(request.requests, paths, strict=True):
            _check_parent(each.parent, request.parent, f"{path}parent")
        return pb.BatchCreateDataObjectsResponse(
            data_objects=self._created(collection, request.requests, paths, call)
        )

    def get(self, request: pb.GetDataObjectRequest, call: Call) -> pb.DataObject:
        """Return a data object."""
        name, identifier = parsed_object(request.name, "name")
        collection = self._collections.get(name, "name", recent=True)
        [found] = self._objects.read(collection, [identifier], call)
        if found is None:
            raise _unknown(name, identifier, "name")
        return message_of(found, name, collection.schema)

    def update(self, request: pb.UpdateDataObjectRequest, call: Call) -> pb.DataObject:
        """Change a data object that exists."""
        name, _ = parsed_object(request.data_object.name, "data_object.name")
        collection = self._collections.get(name, "data_object.name", recent=True)
        [written] = self._objects.change(collection, [_change(request, collection, "")], call)
        return message_of(written, name, collection.schema)

    def update_batch(
        self, request: pb.BatchUpdateDataObjectsRequest, call: Call
    ) -> pb.BatchUpdateDataObjectsResponse:
        """Change data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        paths = _paths(len(request.requests))
        changes = []
        for each, path in zip(request.requests, paths, strict=True):
            name, _ = parsed_object(each.data_object.name, f"{path}data_object.name")
            _check_parent(str(name), request.parent, f"{path}data_object.name")
            changes.append(_change(each, collection, path))
        self._objects.change(collection, changes, call)
        return pb.BatchUpdateDataObjectsResponse()

    def delete(self, request: pb.DeleteDataObjectRequest, call: Call) -> Empty:
        """Remove a data object."""
        name, identifier = parsed_object(request.name, "name")
        collection = self._collections.get(name, "name", recent=True)
        self._objects.delete(collection, {identifier: request.etag}, call)
        return Empty()

    def delete_batch(self, request: pb.BatchDeleteDataObjectsRequest, call: Call) -> Empty:
        """Remove data objects, all or none."""
        collection = self._collection(request.parent, "parent")
        etags: dict[str, str] = {}
        for each, path in zip(request.requests, _paths(len(request.requests)), strict=True):
            name, identifier = parsed_object(each.name, f"{path}name")
            _check_parent(str(name), request.parent, f"{path}name")
            if identifier in etags:
                raise InvalidRequestError.at(f"{path}name", f"{identifier!r:.200} is there twice")
            etags[identifier] = each.etag
        self._objects.delete(collection, etags, call)
        return Empty()

    def _collection(self, parent: str, field: str) -> Collection:
        return self._collections.get(parsed_collection(parent, field), field, recent=True)

    def _created(
        self,
        collection: Collection,
        requests: Sequence[pb.CreateDataObjectRequest],
        paths: Sequence[str],
        call: Call,
    ) -> list[pb.DataObject]:
        given = [
            _given(each.data_object, collection, each.data_object_id, path)
            for each, path in zip(requests, paths, strict=True)
        ]
        written = self._objects.create(collection, given, call)
        return [message_of(each, collection.name, collection.schema) for each in written]


class Objects:
    """The data objects of collections, without messages. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Read and write the indexes of a server."""
        self._facade = facade

    def read(
        self, collection: Collection, identifiers: Sequence[str], call: Call
    ) -> list[StoredObject | None]:
        """Return data objects by id, with their vectors; None where there is none."""
        request = search_pb2.GetRequest(index=collection.index, ids=identifiers, return_vector=True)
        found = {
            point.id: stored_object(point, collection.schema)
            for point in self._facade.engine.get(request, call.deadline).datapoints
        }
        return [found.get(identifier) for identifier in identifiers]

    def create(
        self,
        collection: Collection,
        given: Sequence[GivenObject],
        call: Call,
        *,
        replace_existing: bool = False,
    ) -> list[StoredObject]:
        """Write new data objects, all or none, and return them.

        Args:
            collection: theirs.
            given: 1 to 1000, ids distinct.
            call: with the deadline.
            replace_existing: whether ids that exist are replaced.

        Raises:
            AlreadyExistsError: there is a data object with one of the ids.

        """
        now = time.time_ns() // 1000
        objects = [
            StoredObject(
                id=each.id,
                data=each.data,
                dense=each.dense,
                sparse=each.sparse,
                create_time_us=now,
                update_time_us=now,
            )
            for each in given
        ]
        embedded = self._embedded(collection, objects, call)
        condition = None if replace_existing else index_pb2.WriteCondition(if_absent=True)
        paths = [each.path for each in given]
        try:
            return self._written(collection, embedded, [condition] * len(embedded), paths, call)
        except ConditionError as error:
            match = _UPSERT.match(error.message)
            number = int(match[1]) if match else 0
            field = f"{paths[number]}data_object_id"
            raise AlreadyExistsError(
                f"{field}: there is a data object {embedded[number].id!r:.200}", field=field
            ) from error

    def change(self, collection: Collection, changes: Sequence[_Change], call: Call) -> list[StoredObject]:
        """Change data objects that exist, all or none, and return them.

        Raises:
            UnknownResourceError: one does not exist.
            StaleEtagError: one has another etag than the request says, or others write it all the time.

        """
        for _ in range(MAX_ATTEMPTS):
            before = self.read(collection, [each.given.id for each in changes], call)
            after = [
                self._changed(collection, each, known) for each, known in zip(changes, before, strict=True)
            ]
            embedded = self._embedded(collection, after, call)
            conditions = [index_pb2.WriteCondition(if_revision=each.revision) for each in after]
            paths = [each.given.path for each in changes]
            try:
                return self._written(collection, embedded, conditions, paths, call)
            except ConditionError:
                call.deadline.check()  # another request was quicker: read again, and compare etags again
        raise StaleEtagError("data_object.etag: other requests write the data object all the time; try again")

    def delete(self, collection: Collection, etags: Mapping[str, str], call: Call) -> None:
        """Remove data objects by id, all or none, those with an etag only if they still have it.

        Raises:
            UnknownResourceError: one does not exist.
            StaleEtagError: one has another etag.

        """
        for number, (found, (identifier, etag)) in enumerate(
            zip(self.read(collection, list(etags), call), etags.items(), strict=True)
        ):
            path = f"requests[{number}]." if len(etags) > 1 else ""
            if found is None:
                raise _unknown(collection.name, identifier, f"{path}name")
            _check_etag(etag, found, f"{path}etag")
        self._delete(collection, etags, call)

    def _delete(self, collection: Collection, etags: Mapping[str, str], call: Call) -> None:
        request = index_pb2.DeleteRequest(index=collection.index, ids=list(etags))
        given = {etag for etag in etags.values() if etag}
        if len(given) == 1 and all(etags.values()):
            # Written between the check and here, it has another revision.
            request.condition.if_revision = int(given.pop(), 16)
        try:
            self._facade.engine.delete(request, call.deadline)
        except ConditionError as error:
            raise StaleEtagError(
                "etag: the data object has changed since it was read", field="etag"
            ) from error

    def _changed(self, collection: Collection, change: _Change, before: StoredObject | None) -> StoredObject:
        """Return a data object after a change, without vectors that the server is to make again."""
        given, path = change.given, change.given.path
        if before is None:
            raise _unknown(collection.name, given.id, f"{path}data_object.name")
        _check_etag(change.etag, before, f"{path}data_object.etag")
        data = _replaced(before.data, given.data, change.mask, "data")
        dense = _replaced(before.dense, given.dense, change.mask, "vectors")
        sparse = before.sparse
        if "vectors" in change.mask or f"vectors.{collection.schema.sparse}" in change.mask:
            sparse = given.sparse
        _check_data(collection, data, f"{path}data_object.data")
        made = {name for name in before.made if name not in given.dense}
        if data != before.data:
            # Their text may be another one now.
            dense = {name: vector for name, vector in dense.items() if name not in made}
        return replace(
            before,
            data=data,
            dense=dense,
            sparse=sparse,
            made=frozenset(made),
            update_time_us=max(time.time_ns() // 1000, before.update_time_us + 1),
        )

    def _embedded(
        self, collection: Collection, objects: Sequence[StoredObject], call: Call
    ) -> list[StoredObject]:
        """Return data objects with the vectors that models make of them, where none is given."""
        found = list(objects)
        for field in collection.schema.dense.values():
            if not field.model:
                continue
            numbers = [number for number, each in enumerate(found) if field.name not in each.dense]
            vectors = document_vectors(
                self._facade, collection, field, [found[number].data for number in numbers], call.deadline
            )
            for number, vector_D in zip(numbers, vectors, strict=True):
                if vector_D is not None:
                    each = found[number]
                    found[number] = replace(
                        each, dense={**each.dense, field.name: vector_D}, made=each.made | {field.name}
                    )
        return found

    def _written(
        self,
        collection: Collection,
        objects: Sequence[StoredObject],
        conditions: Sequence[index_pb2.WriteCondition | None],
        paths: Sequence[str],
        call: Call,
    ) -> list[StoredObject]:
        """Write data objects, and return them with their new revision; errors have the fields of the request."""
        upserts = [
            index_pb2.Upsert(datapoint=each.datapoint(collection.schema), condition=condition)
            for each, condition in zip(objects, conditions, strict=True)
        ]
        request = index_pb2.UpsertRequest(index=collection.index, upserts=upserts)
        try:
            answer = self._facade.engine.upsert(request, call.deadline)
        except InvalidRequestError as error:
            raise _in_terms_of_request(error, paths) from error
        return [replace(each, revision=answer.sequence) for each in objects]


def _given(
    message: pb.DataObject, collection: Collection, identifier: str, path: str, *, whole: bool = True
) -> GivenObject:
    """Return a data object of a request, checked; `whole`: its data must satisfy the schema."""
    checked_id(identifier, f"{path}data_object_id", strict=False)
    data = struct_of(message.data, f"{path}data_object.data")
    if whole:
        _check_data(collection, data, f"{path}data_object.data")
    dense, sparse = parsed_vectors(message.vectors, collection.schema, f"{path}data_object.vectors")
    return GivenObject(identifier, data, dense, sparse.get(collection.schema.sparse), path)


def _change(request: pb.UpdateDataObjectRequest, collection: Collection, path: str) -> _Change:
    """Return an update, with the checks that do not need the data object."""
    message = request.data_object
    _, identifier = parsed_object(message.name, f"{path}data_object.name")
    given = _given(message, collection, identifier, path, whole=False)
    mask = list(request.update_mask.paths)
    if mask == ["*"]:
        mask = ["data", "vectors"]
    if not mask:
        mask = [
            name
            for name, has in (("data", message.HasField("data")), ("vectors", bool(message.vectors)))
            if has
        ]
    known = {*collection.schema.dense, collection.schema.sparse} - {""}
    for each in mask:
        first, _, name = each.partition(".")
        if first not in ("data", "vectors") or each.endswith("."):
            raise InvalidRequestError.at(
                f"{path}update_mask",
                f"must have data, vectors, data.FIELD, vectors.FIELD or *, got {each!r:.80}",
            )
        if first == "vectors" and name and name not in known:
            raise InvalidRequestError.at(f"{path}update_mask", f"there is no vector field {name!r:.80}")
    return _Change(given, tuple(mask), message.etag)


def _replaced(
    before: Mapping[str, ValueT], given: Mapping[str, ValueT], mask: Sequence[str], part: str
) -> dict[str, ValueT]:
    """Return one part of a data object with what a mask names; a name that is not given is removed."""
    if part in mask:
        return dict(given)
    after = dict(before)
    for path in mask:
        name = path.removeprefix(f"{part}.")
        if name == path:
            continue
        if name in given:
            after[name] = given[name]
        else:
            after.pop(name, None)
    return after


def _check_data(collection: Collection, data: Mapping[str, Any], path: str) -> None:
    if collection.data_schema is not None:
        collection.data_schema.check(data, path)


def _check_etag(given: str, found: StoredObject, field: str) -> None:
    if given and given != found.etag:
        raise StaleEtagError(
            f"{field}: the data object has changed since it was read: its etag is {found.etag!r}, got {given!r:.80}",
            field=field,
        )


def _check_parent(given: str, parent: str, field: str) -> None:
    """Check the collection of one request of a batch; it may be left out."""
    if given and given != parent:
        raise InvalidRequestError.at(
            field, f"must be in {parent!r:.200}, as the batch is, got {given!r:.200}"
        )


def _paths(count: int) -> list[str]:
    """Return the front of fields in errors for each request of a batch; InvalidRequestError for a wrong number."""
    if not 1 <= count <= MAX_BATCH:
        raise InvalidRequestError.at("requests", f"must be 1 to {MAX_BATCH}, got {count}")
    return [f"requests[{number}]." for number in range(count)]


def _unknown(name: CollectionName, identifier: str, field: str) -> UnknownResourceError:
    return UnknownResourceError(f"{field}: there is no {name.data_object(identifier)!r:.300}", field=field)


def _in_terms_of_request(error: InvalidRequestError, paths: Sequence[str]) -> InvalidRequestError:
    """Return an error about a datapoint as one about the data object of the request."""

    def named(match: re.Match[str]) -> str:
        return f"{paths[int(match[1])]}data_object."

    return InvalidRequestError(
        _UPSERT.sub(named, error.message), field=_UPSERT.sub(named, error.field) if error.field else None
    )
