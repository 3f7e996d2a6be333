"""Which rows of a segment a filter allows.

Shapes: N rows of a segment.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache, partial, reduce
from typing import Generic, Protocol, TypeVar

import numpy as np

from scannery.indexer import FEW_ROWS, AllowedRows, Segment
from scannery.serving.filters import AllOf, AnyOf, Compare, Exists, IsIn, Node, Not
from scannery.serving.postings import Field, IdField, Postings

__all__ = ["MaskCache", "evaluate", "few_rows"]


def evaluate(node: Node, field: Callable[[str], Field], rows: int) -> np.ndarray:
    """Return the mask of the rows that match, bool (N,). `field` gives the index of a field."""
    match node:
        case AllOf(parts):
            masks = (evaluate(part, field, rows) for part in parts)
            return reduce(np.logical_and, masks, np.ones(rows, bool))
        case AnyOf(parts):
            return reduce(np.logical_or, (evaluate(part, field, rows) for part in parts))
        case Not(part):
            return ~evaluate(part, field, rows)
        case Exists(name):
            return field(name).exists()
        case Compare(name, operator, value):
            return field(name).compare(operator, value)
        case IsIn(name, wanted):
            return field(name).among(wanted)


def few_rows(node: Node, field: Callable[[str], Field], most: int) -> np.ndarray | None:
    """Return the numbers of the rows that match, int64, ascending, if one look at an index tells that they are few."""
    match node:
        case Compare(name, operator, value):
            return field(name).few(operator, value, most)
        case IsIn(name, wanted):
            return field(name).few_among(wanted, most)
    return None


class _Sized(Protocol):
    @property
    def size_bytes(self) -> int: ...


KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT", bound=_Sized)


class _Bounded(Generic[KeyT, ValueT]):
    """Values by key within a bound of memory, least recently used first out. Safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._values: OrderedDict[KeyT, tuple[ValueT, int]] = OrderedDict()
        self.size_bytes = 0
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: KeyT, make: Callable[[], ValueT]) -> ValueT:
        """Return the value of a key, made if it is not there."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                self.hits += 1
                return found[0]
            self.misses += 1
        # Made outside of the lock: two threads may make the same value, and none waits for another's.
        value = make()
        self._keep(key, value, value.size_bytes)
        return value

    def _keep(self, key: KeyT, value: ValueT, size_bytes: int) -> None:
        with self._lock:
            if key in self._values or size_bytes > self._max_bytes:
                return
            self._values[key] = (value, size_bytes)
            self.size_bytes += size_bytes
            while self.size_bytes > self._max_bytes:
                _, (_, dropped_bytes) = self._values.popitem(last=False)
                self.size_bytes -= dropped_bytes


class MaskCache:
    """What filters allow, by segment and filter, and the indexes of the fields they name.

    Segments are known by their hash, so a cache serves all versions of an index. Safe to use from several threads.
    """

    def __init__(self, max_bytes: int = 64 << 20, *, max_index_bytes: int = 512 << 20) -> None:
        # Of live rows the very object is part of the key: a version has one for each segment as long as it is open.
        self._allowed: _Bounded[tuple[str, Node, AllowedRows | None], AllowedRows] = _Bounded(max_bytes)
        self._postings: _Bounded[tuple[str, str], Postings] = _Bounded(max_index_bytes)

    @property
    def hits(self) -> int:
        """How often a filter was known."""
        return self._allowed.hits

    @property
    def misses(self) -> int:
        """How often it was not."""
        return self._allowed.misses

    def allowed(self, segment: Segment, node: Node, alive: AllowedRows | None = None) -> AllowedRows:
        """Return the rows of a segment that a filter allows, and that are among the live ones if these are given."""
        key = (segment.entry.sha256, node, alive)
        return self._allowed.get(key, partial(self._evaluated, segment, node, alive))

    def mask(self, segment: Segment, node: Node) -> np.ndarray:
        """Return the rows of a segment that a filter allows, bool (N,), read-only."""
        return self.allowed(segment, node).mask_N

    def _evaluated(self, segment: Segment, node: Node, alive: AllowedRows | None) -> AllowedRows:
        most = int(FEW_ROWS * segment.rows)
        if alive is not None:
            # The filter alone is kept too: it outlives every set of deleted rows.
            matching = self.allowed(segment, node)
            if matching.count <= most:
                return segment.allow(matching.rows[alive.mask_N[matching.rows]])
            mask_N = matching.mask_N & alive.mask_N
        else:
            field = cache(partial(self._field, segment))  # it may be too large to be kept any longer
            rows = few_rows(node, field, most)
            if rows is not None:
                return segment.allow(rows)
            mask_N = evaluate(node, field, segment.rows)
        mask_N.setflags(write=False)
        return segment.allow(mask_N)

    def _field(self, segment: Segment, name: str) -> Field:
        def postings() -> Postings:
            return self._postings.get((segment.entry.sha256, name), lambda: Postings(segment.column(name)))

        return IdField(segment, postings) if name == "id" else postings()
