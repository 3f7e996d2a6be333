"""Write requests, checked: from messages to what is to be written. As strict as a build, and all or nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.field_mask_pb2 import FieldMask

from scannery.embed.text.transcripts import spoken_text
from scannery.indexer import (
    DYNAMIC_COLUMN,
    SPAN,
    InvalidRecordError,
    Manifest,
    RejectedRow,
    SizeLimits,
    validate,
    vector_column,
)
from scannery.indexer.datapoints.dynamic import check_dynamic_name
from scannery.live.prepare import Condition, Conditional, Deletion, PartialUpdate, Upserts
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.request.datapoint_columns import datapoint_columns
from scannery.serving.request.filter import unknown_name
from scannery.serving.request.query import check_count, parse_identifier
from scannery.serving.request.vector_model import check_vector_model
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, Value

__all__ = ["check_request_id", "parse_attribute_change", "parse_delete", "parse_upsert"]

_SIZES = SizeLimits(
    title=limits.MAX_TITLE_BYTES,
    text=limits.MAX_TEXT_BYTES,
    payload=limits.MAX_PAYLOAD_BYTES,
    attribute=limits.MAX_ATTRIBUTE_BYTES,
    strings=limits.MAX_STRINGS,
)
_COLUMNS = {"title": "title", "payload_json": "payload"}
"""Columns of the fields that a mask can name besides attributes."""
_NEVER_IN_PART = ("vector", "sparse_vector", "text", "document_id", "dynamic_json", *SPAN)
_ATTRIBUTES = "attributes."
_VECTORS = "vectors"
_NO_NAMES = "the index has no named vectors; add some with AlterIndex, or `named_vectors` in its spec"


class _Changes(NamedTuple):
    """What an item with a mask changes; the last fields of `PartialUpdate`."""

    values: dict[str, Any]
    """New values by column."""
    dynamic: dict[str, Any]
    """New values of dynamic attributes by name, None for those to remove."""
    encoded: tuple[str, ...]
    """Names of vectors to encode again."""


def parse_upsert(request: pb.UpsertRequest, manifest: Manifest, deadline: Deadline) -> Upserts:
    """Return the datapoints to write.

    Raises:
        InvalidRequestError: names the first item and field that is wrong.
        DeadlineError: the deadline passed; it is checked between datapoints.

    """
    check_request_id(request.request_id)
    check_count("upserts", len(request.upserts), limits.MAX_UPSERTS)
    _check_model(request, manifest)
    batch = _Batch(list(request.upserts), manifest, deadline)
    special = [
        number
        for number, item in enumerate(batch.items)
        if item.HasField("update_mask") or item.HasField("condition")
    ]
    masks = [number for number in special if batch.items[number].update_mask.paths]
    numbers: Sequence[int] = range(len(batch.items))
    if masks:
        numbers = sorted({*numbers} - {*masks})
    rows, conditions = batch.rows(numbers), batch.conditions(special)
    changes = batch.changes(masks) if masks else {}
    batch.check()
    return Upserts(
        rows=rows,
        numbers=numbers,
        partial=tuple(
            PartialUpdate(_path(number), batch.items[number].datapoint.id, *values)
            for number, values in changes.items()
        ),
        conditional=tuple(
            Conditional(_path(number), batch.items[number].datapoint.id, condition)
            for number, condition in conditions.items()
        ),
    )


def _check_model(request: pb.UpsertRequest, manifest: Manifest) -> None:
    """Raise InvalidRequestError unless the model that is declared is that of all vectors which the request has."""
    if not request.vector_model:
        return
    names = {name for item in request.upserts for name in item.datapoint.vectors}
    if any(item.datapoint.HasField("vector") for item in request.upserts):
        names.add("")
    for name in sorted(names & manifest.vectors.keys()):
        check_vector_model(request.vector_model, manifest.of_vectors(name), name)


class _Batch:
    """The items of a request, and the first error of each that has one."""

    def __init__(self, items: Sequence[pb.Upsert], manifest: Manifest, deadline: Deadline) -> None:
        self.items, self._deadline = items, deadline
        self._manifest, self._spec = manifest, manifest.spec
        self._named = manifest.named_vectors
        self._errors: dict[int, InvalidRequestError] = {}
        self._ids: set[str] = set()

    def rows(self, numbers: Sequence[int]) -> pa.Table:
        """Return the datapoints of some items, which are replaced whole, as rows."""
        table = self._validated(numbers, partial=False)
        if self._spec.source.chunk is not None:
            for number in numbers:
                self._check_cut(number, self.items[number].datapoint)
        return table

    def changes(self, numbers: Sequence[int]) -> dict[int, _Changes]:
        """Return the new values of some items, of which only what the mask names is written."""
        for number in numbers:
            self._check_mask(number, self.items[number])
        table = self._validated(numbers, partial=True)
        if self._errors:
            return {}
        changes = {}
        for number, row in zip(numbers, table.to_pylist(), strict=True):
            self._deadline.check()
            changes[number] = self._changes(_mask(self.items[number]), row)
        return changes

    def _changes(self, mask: Sequence[str], row: dict[str, Any]) -> _Changes:
        fields = [name for name in mask if not _is_vector(name)]
        dynamic = [name for name in fields if self._is_dynamic(name)]
        dynamic_values = json.loads(row.get(DYNAMIC_COLUMN) or "{}") if dynamic else {}
        values = {
            column: row[column] for column in map(_column, (name for name in fields if name not in dynamic))
        }
        vectors, encoded = self._changed_vectors(mask, row, values.keys())
        return _Changes(
            values | {vector_column(name): vector for name, vector in vectors.items()},
            {name: dynamic_values.get(name) for name in map(_column, dynamic)},
            encoded,
        )

    def _changed_vectors(
        self, mask: Sequence[str], row: Mapping[str, Any], changed: Set[str]
    ) -> tuple[dict[str, np.ndarray | None], tuple[str, ...]]:
        """Return new vectors by name, None for those to remove, and the names of vectors to encode again.

        Those are encoded of which a mask changes the text, or leaves out the vector while it names all.
        """
        replaced = {name for name in self._named if _VECTORS in mask or f"{_VECTORS}.{name}" in mask}
        before = {name: row[vector_column(name)] for name in replaced}
        encoded = {
            name
            for name in self._spec.named_encoders
            if (name not in replaced or (before[name] is None and f"{_VECTORS}.{name}" not in mask))
            and (name in replaced or self._spec.text_field(name) in changed)
        }
        vectors = {
            name: None if value is None else np.array(value, np.float32)
            for name, value in before.items()
            if name not in encoded
        }
        return vectors, tuple(sorted(encoded))

    def _is_dynamic(self, name: str) -> bool:
        attribute = name.removeprefix(_ATTRIBUTES)
        return self._spec.dynamic and attribute != name and attribute not in self._spec.attributes

    def conditions(self, numbers: Sequence[int]) -> dict[int, Condition]:
        """Return the conditions of some items, of those that have one."""
        conditions = {}
        for number in (number for number in numbers if self.items[number].HasField("condition")):
            try:
                conditions[number] = _condition(self.items[number].condition, f"{_path(number)}.condition")
            except InvalidRequestError as error:
                self._errors.setdefault(number, error)
        return conditions

    def check(self) -> None:
        """Raise the first error, if there is any; two items with one id are an error, too."""
        if len(self._ids) < len(self.items):
            first: dict[str, int] = {}
            for number, name in enumerate(item.datapoint.id for item in self.items):
                if (earlier := first.setdefault(name, number)) != number:
                    self._note(number, "datapoint.id", f"{name!r:.200} is also that of {_path(earlier)}")
        if self._errors:
            raise self._errors[min(self._errors)]

    def _validated(self, numbers: Sequence[int], *, partial: bool) -> pa.Table:
        points, spec = [self.items[number].datapoint for number in numbers], self._spec
        dimensions = {name: info.dimensions for name, info in self._manifest.vectors.items()}
        fields, unknown, unknown_vectors = datapoint_columns(
            points, spec, dimensions, check=self._deadline.check
        )
        self._ids.update(fields["id"].values)
        for row, name in unknown.items():
            what = unknown_name(name, spec.attributes, "attribute")
            self._note(numbers[row], f"datapoint.{_ATTRIBUTES}{name:.80}", what)
        for row, name in unknown_vectors.items():
            what = unknown_name(name, self._named, "named vector") if self._named else _NO_NAMES
            self._note(numbers[row], f"datapoint.vectors.{name:.80}", what)
        valid = validate(
            len(points),
            fields,
            spec,
            dimensions,
            embeds=spec.encoder is not None,
            partial=partial,
            limits=_SIZES,
            spoken=spoken_text,
            check=self._deadline.check,
        )
        for rejected in valid.rejected:
            error = rejected.error
            front = f"{_path(numbers[rejected.row])}.datapoint."
            self._errors.setdefault(
                numbers[rejected.row],
                InvalidRequestError(front + _all_of(rejected), field=f"{front}{error.field}"),
            )
        return valid.table

    def _check_cut(self, number: int, point: Datapoint) -> None:
        """Note what a text that is cut into passages cannot have; its times are those of passages without marks."""
        is_other = bool(point.document_id) and point.document_id != point.id
        placed = [name for name in ("text_start", "text_end") if point.HasField(name)]
        if point.HasField("vector") or not (is_other or placed):
            return
        self._note(
            number,
            f"datapoint.{'document_id' if is_other else placed[0]}",
            "is not for a text that is cut into passages: write the whole document, or give the passage a vector",
        )

    def _check_mask(self, number: int, item: pb.Upsert) -> None:
        """Note what is in the mask and cannot be changed, or in the item and not in the mask."""
        point, mask = item.datapoint, _mask(item)
        vectors = [_VECTORS, *(f"{_VECTORS}.{name}" for name in self._named)] if self._named else []
        fields = dict.fromkeys(
            (*_COLUMNS, *(f"{_ATTRIBUTES}{name}" for name in self._spec.attributes), *vectors)
        )
        for name in mask:
            if self._is_dynamic(name):
                self._check_name(number, name)
            elif name not in fields:
                self._note(number, "update_mask", f"{name!r:.80}: {unknown_name(name, fields, 'field')}")
        fields_set = {field.name for field, _ in point.ListFields()}
        for name in _NEVER_IN_PART:
            if name in fields_set:
                self._note(
                    number, f"datapoint.{name}", "cannot be changed with an update_mask; write it whole"
                )
        for name in (*_COLUMNS, *(f"{_ATTRIBUTES}{name}" for name in point.attributes)):
            if name not in mask and (name in fields_set or name not in _COLUMNS):
                self._note(number, f"datapoint.{name}", "is not in the update_mask")
        for name in point.vectors if _VECTORS not in mask else ():
            if f"{_VECTORS}.{name}" not in mask:
                self._note(number, f"datapoint.{_VECTORS}.{name:.80}", "is not in the update_mask")
        if item.condition.if_absent:
            self._note(number, "condition.if_absent", "makes no sense with an update_mask")

    def _check_name(self, number: int, name: str) -> None:
        try:
            check_dynamic_name(name.removeprefix(_ATTRIBUTES), path=name)
        except InvalidRecordError as error:
            self._note(number, "update_mask", error.message)

    def _note(self, number: int, field: str, what: str) -> None:
        self._errors.setdefault(number, InvalidRequestError.at(f"{_path(number)}.{field}", what))


def _all_of(rejected: RejectedRow) -> str:
    """Return everything that is wrong with a datapoint."""
    return "; ".join(error.message for error in (rejected.error, *rejected.more_errors))


def _path(number: int) -> str:
    return f"upserts[{number}]"


def _mask(item: pb.Upsert) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.update_mask.paths))


def _is_vector(name: str) -> bool:
    return name == _VECTORS or name.startswith(f"{_VECTORS}.")


def _column(name: str) -> str:
    return _COLUMNS.get(name) or name.removeprefix(_ATTRIBUTES)


def parse_attribute_change(
    attributes: Mapping[str, Value], manifest: Manifest, deadline: Deadline
) -> PartialUpdate:
    """Return new values of attributes for any datapoint, checked as those of an upsert.

    Raises:
        InvalidRequestError: names the attribute.
        DeadlineError: the deadline passed.

    """
    if not attributes:
        raise InvalidRequestError.at("attributes", "must name at least one attribute")
    declared = manifest.spec.attributes
    unknown = [name for name in attributes if name not in declared]
    if unknown and not manifest.spec.dynamic:
        raise InvalidRequestError.at(
            f"{_ATTRIBUTES}{unknown[0]:.80}", unknown_name(unknown[0], declared, "attribute")
        )
    mask = FieldMask(paths=[f"{_ATTRIBUTES}{name}" for name in attributes])
    point = Datapoint(id="any", attributes=attributes)
    batch = _Batch([pb.Upsert(datapoint=point, update_mask=mask)], manifest, deadline)
    changes = batch.changes([0])
    try:
        batch.check()
    except InvalidRequestError as error:
        raise _without_place(error) from error
    values, dynamic, encoded = changes[0]
    return PartialUpdate("", "", values, dynamic, encoded)


def _without_place(error: InvalidRequestError) -> InvalidRequestError:
    """Return an error of the first item as one of the request."""
    message, field = error.message, error.field or ""
    for front in (f"{_path(0)}.update_mask: ", f"{_path(0)}.datapoint."):
        message, field = message.removeprefix(front), field.removeprefix(front)
    return InvalidRequestError(message, field=field if field.startswith(_ATTRIBUTES) else "attributes")


def parse_delete(request: pb.DeleteRequest) -> Deletion:
    """Return what to delete.

    Raises:
        InvalidRequestError: names the field.

    """
    check_request_id(request.request_id)
    if not request.ids and not request.document_ids:
        raise InvalidRequestError.at("ids", "needs at least one id or document_id")
    for name, values in (("ids", request.ids), ("document_ids", request.document_ids)):
        if len(values) > limits.MAX_DELETES:
            raise InvalidRequestError.at(
                name, f"must have at most {limits.MAX_DELETES} items, got {len(values)}"
            )
    condition = _of_deletion(request.condition, "condition") if request.HasField("condition") else None
    ids = _distinct(request.ids, "ids")
    return Deletion(
        ids=ids,
        document_ids=_distinct(request.document_ids, "document_ids"),
        condition=condition,
        conditions=_of_deletions(request, ids),
    )


def _of_deletions(request: pb.DeleteRequest, ids: Sequence[str]) -> tuple[Condition, ...]:
    """Return the condition of each id, none if the request has none."""
    count = len(request.conditions)
    if not count:
        return ()
    if request.HasField("condition"):
        raise InvalidRequestError.at("conditions", "cannot be combined with condition")
    if len(request.ids) != count or len(ids) != count:
        raise InvalidRequestError.at(
            "conditions",
            f"must be as many as the distinct ids, got {count} and {len(request.ids)} ids, {len(ids)} of them distinct",
        )
    return tuple(_of_deletion(each, f"conditions[{i}]") for i, each in enumerate(request.conditions))


def _of_deletion(message: pb.WriteCondition, path: str) -> Condition:
    condition = _condition(message, path)
    if condition.revision is None:
        raise InvalidRequestError.at(f"{path}.if_absent", "makes no sense for a deletion")
    return condition


def _distinct(texts: Sequence[str], field: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(parse_identifier(text, f"{field}[{i}]") for i, text in enumerate(texts)))


def check_request_id(request_id: str) -> None:
    """Check the length of the id of a request; raises InvalidRequestError."""
    size = len(request_id.encode())
    if size > limits.MAX_REQUEST_ID_BYTES:
        raise InvalidRequestError.at(
            "request_id", f"must have at most {limits.MAX_REQUEST_ID_BYTES} bytes, got {size}"
        )


def _condition(message: pb.WriteCondition, path: str) -> Condition:
    kind = message.WhichOneof("kind")
    if kind == "if_revision":
        return Condition(message.if_revision)
    if kind is None or not message.if_absent:
        raise InvalidRequestError.at(f"{path}.if_absent", "must be true, or if_revision must be set")
    return Condition(None)
