"""Which rows of a segment a filter allows.

Shapes: N rows of a segment.

The index of the ids of a segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from typing_extensions import assert_never

from scannery.indexer import AllowedRows, Segment, id_hashes
from scannery.indexer.datapoints.places import GEO_TYPE
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.retry import Deadline
from scannery.serving.request.filter import (
    TEXT_FIELD,
    AllOf,
    AnyOf,
    Compare,
    Condition,
    Empty,
    Exists,
    GeoWithin,
    HasAll,
    HasPhrase,
    IsIn,
    MatchOperator,
    Node,
    Not,
    StringMatch,
    dynamic_name,
    form_of,
    size_of,
)
from scannery.serving.snapshot.attribute_index import NO_ROWS, AttributePostings, Field, Operator, ValueRuns
from scannery.serving.snapshot.dynamic_index import DynamicField
from scannery.serving.snapshot.geo_index import GeoIndex
from scannery.serving.snapshot.row_sets import (
    ListedRows,
    OtherRows,
    RowSet,
    allowed_rows,
    rows_in_all,
    rows_in_any,
)
from scannery.serving.snapshot.search_times import SearchTimes
from scannery.serving.snapshot.text_field import TextField, rows_with_phrase

__all__ = ["FilterCache", "matching_rows"]


class IdField(Field):
    """The ids of a segment, which has a hash index of them; postings are made for order and beginnings only."""

    def __init__(self, segment: Segment, postings: Callable[[], Field]) -> None:
        super().__init__(segment.rows)
        self._segment = segment
        self._postings = postings

    def among(self, values: Iterable[Any]) -> RowSet:
        """As `Field.among`."""
        names = list(values)
        rows = self._segment.rows_of(names, id_hashes(names))
        return self._listed(rows[rows >= 0])

    def compare(self, operator: Operator, value: Any) -> RowSet:
        """As `Field.compare`."""
        return self.among([value]) if operator == "eq" else self._postings().compare(operator, value)

    def matches(self, operator: MatchOperator, value: str) -> RowSet:
        """As `Field.matches`."""
        return self._postings().matches(operator, value)

    def exists(self) -> RowSet:
        """As `Field.exists`: each row has an id."""
        return OtherRows(self._listed(NO_ROWS))

    def runs(self) -> Sequence[ValueRuns]:
        """As `Field.runs`."""
        return self._postings().runs()


def matching_rows(node: Node, field: Callable[[str], Field], rows: int) -> RowSet:
    """Return the rows of a segment that match a filter.

    Args:
        node: the filter.
        field: returns the index of a field.
        rows: N, the rows of the segment.

    """
    match node:
        case AllOf(parts):
            return rows_in_all([matching_rows(part, field, rows) for part in parts], rows)
        case AnyOf(parts):
            return rows_in_any([matching_rows(part, field, rows) for part in parts], rows)
        case Not(part):
            return OtherRows(matching_rows(part, field, rows))
        case _:
            return _with_condition(node, field(node.field))


def _with_condition(condition: Condition, field: Field) -> RowSet:
    match condition:
        case Compare(_, operator, value):
            matching = field.compare(operator, value)
        case IsIn(_, values):
            matching = field.among(values)
        case HasAll(_, values):
            matching = field.has_all(values)
        case StringMatch(_, kind, text):
            matching = field.matches(kind, text)
        case HasPhrase(_, phrase):
            matching = field.with_phrase(phrase)
        case GeoWithin(_, area):
            matching = field.within(area)
        case Exists():
            matching = field.exists()
        case Empty():
            matching = field.empty()
        case _:
            assert_never(condition)
    return matching


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


SizedT = TypeVar("SizedT", bound=_Sized)
_Indexed: TypeAlias = AttributePostings | DynamicField | GeoIndex
_Key = tuple[str, Node, "weakref.ref[AllowedRows] | None"]
"""A segment, a filter, and the live rows. Each write makes new live rows, and an entry must not keep the old ones: it
refers to them weakly, and is never found again once they are freed."""


NEVER = Deadline.after(None)
_MAX_TIMES_BYTES = 1 << 20
"""Memory of the times of about a thousand kinds of searches."""


class FilterCache:
    """Allowed rows by segment and filter, and the attribute indexes of the fields that filters name.

    Segments are known by their hash, so a cache serves all versions of an index. Safe to use from several threads.
    """

    def __init__(
        self,
        max_bytes: int = 64 << 20,
        *,
        max_index_bytes: int = 512 << 20,
        shared: FilterCache | None = None,
    ) -> None:
        """Keep nothing yet.

        Args:
            max_bytes: bound of the allowed rows.
            max_index_bytes: bound of the attribute indexes.
            shared: cache of other indexes, whose memory and bounds this one shares; None: it has its own.

        """
        # Live rows are part of the key by identity: an open version has one such object for each segment.
        self._allowed: BoundedCache[_Key, AllowedRows] = (
            BoundedCache(max_bytes) if shared is None else shared._allowed
        )
        self._indexes: BoundedCache[Hashable, Any] = (
            BoundedCache(max_index_bytes) if shared is None else shared._indexes
        )
        self._times: BoundedCache[Hashable, SearchTimes] = BoundedCache(_MAX_TIMES_BYTES)

    @property
    def hits(self) -> int:
        """Filters found in the cache."""
        return self._allowed.hits

    @property
    def misses(self) -> int:
        """Filters not found in the cache."""
        return self._allowed.misses

    @property
    def size_bytes(self) -> int:
        """Memory of the cache and the attribute indexes."""
        return self._allowed.size_bytes + self._indexes.size_bytes

    def allowed(
        self,
        segment: Segment,
        node: Node,
        alive: AllowedRows | None = None,
        *,
        deadline: Deadline | None = None,
    ) -> AllowedRows:
        """Return the rows of a segment that a filter allows.

        Args:
            segment: the segment.
            node: the filter.
            alive: the live rows, of which those are returned that the filter allows; None: all rows.
            deadline: checked before and while each index of a field is made.

        Raises:
            DeadlineError: the deadline passed.

        """
        key = (segment.entry.sha256, node, None if alive is None else weakref.ref(alive))
        allowed = self._allowed.find(key)
        if allowed is None:
            # Evaluated without a lock: two threads may evaluate the same filter, and neither waits.
            if alive is None:
                allowed = allowed_rows(self._matching(segment, node, deadline), segment)
            else:
                # The filter alone is cached too: it stays valid when rows are deleted.
                allowed = self.allowed(segment, node, deadline=deadline).within(alive)
            if not allowed.refers_to_others:
                self._allowed.keep(key, allowed, size_of(node) + allowed.size_bytes)
        return allowed

    def derived(self, segment: Segment, key: Hashable, make: Callable[[], SizedT]) -> SizedT:
        """Return what a function makes of the attributes of a segment, kept by a key with the attribute indexes."""
        derived: SizedT | None = self._indexes.find((segment.entry.sha256, key))
        if derived is None:
            # Made without a lock: two threads may make the same, and neither waits.
            derived = make()
            self._indexes.keep((segment.entry.sha256, key), derived, derived.size_bytes)
        return derived

    def times(self, node: Node, *context: Hashable) -> SearchTimes | None:
        """Return the times of the latest searches in a context by filters of the same form; None: it has none."""
        form = form_of(node)
        if form is None:
            return None
        times = self._times.find((form, context))
        if times is None:
            times = SearchTimes(alike=False)
            self._times.keep((form, context), times, size_of(node))
        return times

    def mask(self, segment: Segment, node: Node) -> np.ndarray:
        """Return the rows of a segment that a filter allows, bool (N,), read-only."""
        return self.allowed(segment, node).mask_N

    def _matching(self, segment: Segment, node: Node, deadline: Deadline | None) -> RowSet:
        """Return the rows that a filter allows."""
        if isinstance(node, HasPhrase):
            rows_R = rows_with_phrase(segment, node.phrase, (deadline or NEVER).check)
            return ListedRows(rows_R, segment.rows)
        used: dict[str, Field] = {}  # a field may be too large to be kept any longer

        def field(name: str) -> Field:
            if name not in used:
                used[name] = self.field(segment, name, deadline)
            return used[name]

        matching = matching_rows(node, field, segment.rows)
        for name in used:
            self._recount(segment, name)
        return matching

    def _recount(self, segment: Segment, name: str) -> None:
        """Count what a filter added to the index of a field."""
        key = (segment.entry.sha256, _name_and_type(segment, name))
        index = self._indexes.find(key)
        if index is not None:
            self._indexes.recount(key, index.size_bytes)

    def field(self, segment: Segment, name: str, deadline: Deadline | None = None) -> Field:
        """Return the index of a field of a segment, made now if it is not in the cache.

        Args:
            segment: the segment.
            name: of the field in filters: see `field_name`.
            deadline: checked before and while an index is made: a filter may name many fields.

        Raises:
            DeadlineError: the deadline passed.

        """
        if name == TEXT_FIELD:
            # Kept for itself, whatever filter it is part of: its rows have been read.
            return TextField(
                segment.rows,
                lambda phrase: ListedRows(
                    self.allowed(segment, HasPhrase(name, phrase), deadline=deadline).rows, segment.rows
                ),
            )
        indexed = partial(self._indexed, segment, name, deadline or NEVER)
        is_id = name == "id" or (name == "document_id" and segment.has_only_documents)
        return IdField(segment, indexed) if is_id else indexed()

    def _indexed(self, segment: Segment, name: str, deadline: Deadline) -> _Indexed:
        def make() -> _Indexed:
            deadline.check()
            return _index_of(segment, name, deadline)

        return self.derived(segment, _name_and_type(segment, name), make)


def _name_and_type(segment: Segment, name: str) -> str:
    # With the type: after a rollback, an attribute that a segment lacks may be added again with another one.
    return f"{name} {segment.column_types.get(name, '')}"


def _index_of(segment: Segment, name: str, deadline: Deadline) -> _Indexed:
    attribute = dynamic_name(name)
    if attribute is not None or name not in segment.column_types:
        # Segments of before an attribute was declared may have it as a dynamic one, or not at all.
        return DynamicField.of(segment, attribute or name, deadline.check)
    if segment.column_types[name] == str(GEO_TYPE):
        return GeoIndex(segment.column(name))
    return AttributePostings(segment.value_postings(name))
