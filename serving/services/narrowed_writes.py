"""Writes of callers who see a part of an index: what they write must be of it, and nothing else is changed.

Shapes: N rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import AllowedRows, Manifest, MemorySegment, Segment
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, canonical_json
from scannery.indexer.datapoints.named_vectors import is_vector_column, parts_by_vector
from scannery.live.prepare import PartialUpdate, Upserts
from scannery.live.writing.write_views import RowFilter
from scannery.runtime.errors import PermissionDeniedError
from scannery.runtime.retry import Deadline
from scannery.serving.request.filter import TEXT_FIELD, AllOf, Node
from scannery.serving.security.access import Access, Seen
from scannery.serving.security.principal import current_access
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.snapshot import Snapshot, filter_of
from scannery.v1.types_pb2 import Filter, FilterList

__all__ = ["NarrowedWriter", "row_filter"]


@dataclass(frozen=True, slots=True)
class NarrowedWriter:
    """A caller who sees a part of an index, and writes to it."""

    seen: Seen
    where: Filter
    """The filter of `seen`."""
    fields: frozenset[str]
    """Fields that the filter names."""
    access: Access
    """What opens the part: it tells the values that all of its rows have."""

    @classmethod
    def of_caller(cls, index: str) -> NarrowedWriter | None:
        """Return the caller of the current request; None: it sees all of the index.

        Raises:
            PermissionDeniedError: it sees some fields alone: a datapoint is written with all of them.

        """
        access = current_access(index)
        if access is None or access.seen is None:
            return None
        if access.seen.fields is not None:
            raise PermissionDeniedError("these credentials open some fields alone, and cannot write")
        where = access.seen.where
        return cls(access.seen, where, frozenset(_fields(where)), access)

    def with_values(self, upserts: Upserts, manifest: Manifest) -> Upserts:
        """Return datapoints with the values that all rows of the part have, where they have none for the attribute.

        Raises:
            PermissionDeniedError: an update changes an attribute that decides who sees a row.

        """
        for change in upserts.partial:
            self.check_change(change)
        rows = upserts.rows
        for name, value in self.access.values.items():
            typed = _TYPED.get(manifest.spec.attributes.get(name, ""))
            if typed is not None and rows.column(name).null_count:
                at = rows.schema.get_field_index(name)
                filled = _filled(rows.column(name), typed(getattr(value, value.WhichOneof("kind") or "")))
                rows = rows.set_column(at, rows.schema.field(at), filled)
        if manifest.spec.dynamic and rows.num_rows:
            rows = _with_dynamic(rows, self.access.undeclared_values(manifest.spec.attributes))
        return replace(upserts, rows=rows)

    def check_rows(self, rows: pa.Table, manifest: Manifest) -> None:
        """Raise PermissionDeniedError if a row would not be of the part.

        Args:
            rows: with the columns of `written_schema`.
            manifest: of the index.

        """
        where = filter_of(self.seen, manifest)
        if where is None or not rows.num_rows:
            return
        spec, masks = manifest.spec, FilterCache()
        if TEXT_FIELD not in self.fields:
            spec = spec.model_copy(update={"lexical": None})
        for part in parts_by_vector(rows):
            allowed = masks.allowed(MemorySegment.of(part, spec), where)
            if allowed.count < part.num_rows:
                first = int(np.flatnonzero(~allowed.mask_N)[0])
                name = part.column("id")[first].as_py()
                raise PermissionDeniedError(
                    f"upserts: datapoint {name!r:.200} does not pass the filter of these credentials",
                    field="upserts",
                )

    def check_change(self, change: PartialUpdate) -> None:
        """Raise PermissionDeniedError if a change is one of an attribute that decides who sees a row."""
        changed = {name for name in change.values if not is_vector_column(name)} | change.dynamic.keys()
        for name in sorted(self.fields):
            if name in changed or name.partition(".")[0] in changed:
                path = f"{change.path}.datapoint.attributes" if change.path else "attributes"
                raise PermissionDeniedError(
                    f"{path}.{name:.80}: cannot be changed with these credentials, whose filter depends on it",
                    field=path,
                )

    def rows(self, snapshot: Snapshot, deadline: Deadline) -> RowFilter | None:
        """Return the rows that the writer sees; None: all."""
        where = filter_of(self.seen, snapshot.manifest)
        return None if where is None else row_filter(snapshot.masks, where, self.where, deadline)

    def both(self, where: Node | None, message: Filter, manifest: Manifest) -> tuple[Node | None, Filter]:
        """Return a filter of a request together with that of the part, parsed and as a message."""
        of_part = filter_of(self.seen, manifest)
        if where is None or of_part is None:
            return (of_part, self.where) if where is None else (where, message)
        return AllOf((where, of_part)), Filter(all_of=FilterList(filters=[message, self.where]))


def row_filter(masks: FilterCache, where: Node, message: Filter, deadline: Deadline) -> RowFilter:
    """Return a filter for writes; `message`: the same, for other processes."""
    return RowFilter(partial(_matching, masks, where, deadline), message.SerializeToString())


def _matching(
    masks: FilterCache, where: Node, deadline: Deadline, segment: Segment, *, alive: AllowedRows | None = None
) -> AllowedRows:
    return masks.allowed(segment, where, alive, deadline=deadline)


_TYPED: Mapping[str, Callable[[Any], Any]] = {
    "string": str,
    "string_list": lambda value: [value],
    "int": int,
    "float": float,
    "bool": bool,
}
"""Value of an attribute for that of an equality, by the type of the attribute; of others, callers give it."""


def _filled(column: pa.ChunkedArray, value: Any) -> pa.ChunkedArray:
    """Return the values of an attribute with one in place of those that are missing."""
    values = [value if each is None else each for each in column.to_pylist()]
    return pa.chunked_array([pa.array(values, column.type)])


def _with_dynamic(rows: pa.Table, values: Mapping[str, Any]) -> pa.Table:
    """Return rows with values of undeclared attributes, where they have none of the name."""
    if not values:
        return rows
    at = rows.schema.get_field_index(DYNAMIC_COLUMN)
    texts = [canonical_json({**values, **json.loads(text or "{}")}) for text in rows.column(at).to_pylist()]
    return rows.set_column(at, rows.schema.field(at), pa.array(texts, rows.schema.field(at).type))


def _fields(where: Filter) -> Iterator[str]:
    """Yield the fields that a filter names."""
    kind = where.WhichOneof("kind")
    if kind == "condition":
        yield where.condition.field
    elif kind == "negation":
        yield from _fields(where.negation)
    elif kind is not None:
        for each in getattr(where, kind).filters:
            yield from _fields(each)
