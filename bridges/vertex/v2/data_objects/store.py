"""The data objects of collections, read and written as datapoints of our indexes."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from scannery.bridges.vertex.shared.calls import Call
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import check_etag
from scannery.bridges.vertex.v2.callers import VECTORS, common_values, may_read
from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.data_objects.messages import (
    Change,
    GivenObject,
    StoredObject,
    check_data,
    etag_of_revision,
    stored_object,
)
from scannery.bridges.vertex.v2.embedding import document_vectors
from scannery.bridges.vertex.v2.resource_names import CollectionName
from scannery.indexer import AlreadyExistsError
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    PermissionDeniedError,
    StaleEtagError,
    UnknownResourceError,
)
from scannery.v1 import index_pb2, search_pb2

__all__ = ["Objects", "unknown_object"]

ValueT = TypeVar("ValueT")
_UPSERT = re.compile(r"upserts\[(\d+)\]\.(?:datapoint\.)?")
MAX_ATTEMPTS = 10
"""Attempts of a write that depends on what is stored, while others write the same data objects."""


class Objects:
    """The data objects of collections, without messages. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Read and write the indexes of a server."""
        self._facade = facade

    def read(
        self, collection: Collection, identifiers: Sequence[str], call: Call
    ) -> list[StoredObject | None]:
        """Return data objects by id, with what the caller may read of them; None where there is none."""
        vectors = may_read(collection, VECTORS)
        request = search_pb2.GetRequest(index=collection.index, ids=identifiers, return_vector=vectors)
        by_id = {
            point.id: stored_object(point, collection.schema)
            for point in self._facade.engine.get(request, call.deadline).datapoints
        }
        return [by_id.get(identifier) for identifier in identifiers]

    def common_values(self, collection: Collection) -> dict[str, Any]:
        """Return the values that all data objects have which the caller sees, by field of the data."""
        return common_values(collection, self._facade.catalog.manifest(collection.index).spec.attributes)

    def create(
        self, collection: Collection, objects: Sequence[GivenObject], call: Call
    ) -> list[StoredObject]:
        """Write new data objects, all or none, and return them.

        Args:
            collection: theirs.
            objects: 1 to 1000, ids distinct.
            call: with the deadline.

        Raises:
            AlreadyExistsError: there is a data object with one of the ids.

        """
        absent = index_pb2.WriteCondition(if_absent=True)
        try:
            return self.put(collection, objects, [absent] * len(objects), call)
        except ConditionError as error:
            match = _UPSERT.match(error.message)
            number = int(match[1]) if match else 0
            field = f"{objects[number].path}data_object_id"
            raise AlreadyExistsError(
                f"{field}: there is a data object {objects[number].id!r:.200}", field=field
            ) from error

    def put(
        self,
        collection: Collection,
        new_objects: Sequence[GivenObject],
        conditions: Sequence[index_pb2.WriteCondition | None],
        call: Call,
    ) -> list[StoredObject]:
        """Write whole data objects, all or none, and return them; those with the same ids are replaced.

        Args:
            collection: theirs.
            new_objects: 1 to 1000, ids distinct.
            conditions: of each; None: it is written in any case.
            call: with the deadline.

        Raises:
            ConditionError: a condition does not hold.

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
            for each in new_objects
        ]
        embedded = self._embedded(collection, objects, call)
        return self._write(collection, embedded, conditions, [each.path for each in new_objects], call)

    def revisions(self, collection: Collection, identifiers: Sequence[str], call: Call) -> dict[str, int]:
        """Return the revisions of data objects by id; those that do not exist are left out."""
        request = search_pb2.GetRequest(index=collection.index, ids=identifiers, return_fields=["payload"])
        return {
            point.id: point.revision for point in self._facade.engine.get(request, call.deadline).datapoints
        }

    def change(self, collection: Collection, changes: Sequence[Change], call: Call) -> list[StoredObject]:
        """Change data objects that exist, all or none, and return them.

        Raises:
            UnknownResourceError: one does not exist.
            StaleEtagError: one has another etag than the request says, or others write it all the time.

        """
        for _ in range(MAX_ATTEMPTS):
            before = self.read(collection, [each.object.id for each in changes], call)
            after = [
                self._changed(collection, each, stored) for each, stored in zip(changes, before, strict=True)
            ]
            embedded = self._embedded(collection, after, call)
            conditions = [index_pb2.WriteCondition(if_revision=each.revision) for each in after]
            paths = [each.object.path for each in changes]
            try:
                return self._write(collection, embedded, conditions, paths, call)
            except ConditionError:
                call.deadline.check()  # another request was quicker: read again, and compare etags again
        raise StaleEtagError("data_object.etag: other requests write the data object all the time; try again")

    def delete(self, collection: Collection, etags: Mapping[str, str], call: Call) -> None:
        """Remove data objects by id, all or none, those with an etag only if they still have it.

        Raises:
            UnknownResourceError: one does not exist.
            StaleEtagError: one has another etag, or others write it all the time.

        """
        for _ in range(MAX_ATTEMPTS):
            revisions = self.revisions(collection, list(etags), call)
            for number, (identifier, etag) in enumerate(etags.items()):
                path = f"requests[{number}]." if len(etags) > 1 else ""
                if identifier not in revisions:
                    raise unknown_object(collection.name, identifier, f"{path}name")
                check_etag(etag, etag_of_revision(revisions[identifier]), f"{path}etag")
            request = index_pb2.DeleteRequest(index=collection.index, ids=list(etags))
            for identifier in etags:
                # Written between the check and the deletion, it has another revision.
                request.conditions.add(if_revision=revisions[identifier])
            try:
                self._facade.engine.delete(request, call.deadline)
            except ConditionError:
                call.deadline.check()  # another request was quicker: compare again
            else:
                return
        raise StaleEtagError("etag: other requests write the data objects all the time; try again")

    def _changed(self, collection: Collection, change: Change, before: StoredObject | None) -> StoredObject:
        """Return a data object after a change, without vectors that the server is to make again."""
        update, path = change.object, change.object.path
        if before is None:
            raise unknown_object(collection.name, update.id, f"{path}data_object.name")
        check_etag(change.etag, before.etag, f"{path}data_object.etag")
        data = {
            **self.common_values(collection),
            **_replaced(before.data, update.data, change.mask, "data"),
        }
        dense = _replaced(before.dense, update.dense, change.mask, "vectors")
        sparse = before.sparse
        if "vectors" in change.mask or f"vectors.{collection.schema.sparse}" in change.mask:
            sparse = update.sparse
        check_data(collection, data, f"{path}data_object.data")
        made = {name for name in before.made if name not in update.dense}
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
        embedded = list(objects)
        for field in collection.schema.dense.values():
            if not field.model:
                continue
            numbers = [number for number, each in enumerate(embedded) if field.name not in each.dense]
            vectors = document_vectors(
                self._facade, collection, field, [embedded[number].data for number in numbers], call.deadline
            )
            for number, vector_D in zip(numbers, vectors, strict=True):
                if vector_D is not None:
                    each = embedded[number]
                    embedded[number] = replace(
                        each, dense={**each.dense, field.name: vector_D}, made=each.made | {field.name}
                    )
        return embedded

    def _write(
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
        except PermissionDeniedError as error:
            message = error.message.removeprefix("upserts: datapoint")
            raise (
                error
                if message == error.message
                else PermissionDeniedError(f"data_object:{message}", field="data_object")
            ) from error
        return [replace(each, revision=answer.sequence) for each in objects]


def _replaced(
    before: Mapping[str, ValueT], changes: Mapping[str, ValueT], mask: Sequence[str], part: str
) -> dict[str, ValueT]:
    """Return one part of a data object with what a mask names; a name that is not given is removed."""
    if part in mask:
        return dict(changes)
    after = dict(before)
    for path in mask:
        name = path.removeprefix(f"{part}.")
        if name == path:
            continue
        if name in changes:
            after[name] = changes[name]
        else:
            after.pop(name, None)
    return after


def unknown_object(name: CollectionName, identifier: str, field: str) -> UnknownResourceError:
    """Return the error about a data object that does not exist."""
    return UnknownResourceError(f"{field}: there is no {name.data_object(identifier)!r:.300}", field=field)


def _in_terms_of_request(error: InvalidRequestError, paths: Sequence[str]) -> InvalidRequestError:
    """Return an error about a datapoint as one about the data object of the request."""

    def named(match: re.Match[str]) -> str:
        return f"{paths[int(match[1])]}data_object."

    return InvalidRequestError(
        _UPSERT.sub(named, error.message), field=_UPSERT.sub(named, error.field) if error.field else None
    )
