"""Which rows of a segment a filter allows.

Shapes: N rows of a segment.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache, partial, reduce

import numpy as np

from scannery.indexer import FEW_ROWS, AllowedRows, Segment
from scannery.runtime.bounded_cache import BoundedCache
from scannery.serving.request.filter import AllOf, AnyOf, Compare, Exists, IsIn, Node, Not, size_of
from scannery.serving.snapshot.attribute_index import AttributePostings, Field, IdField

__all__ = ["FilterCache", "evaluate", "few_rows"]


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
    """Return the numbers of the rows that match, int64, ascending; None unless an index shows at most `most`."""
    match node:
        case Compare(name, operator, value):
            return field(name).few(operator, value, most)
        case IsIn(name, wanted):
            return field(name).few_among(wanted, most)
    return None


_Key = tuple[str, Node, "weakref.ref[AllowedRows] | None"]
"""A segment, a filter, and the live rows. Each write makes new live rows, and an entry must not keep the old ones: it
refers to them weakly, and is never found again once they are freed."""


class FilterCache:
    """Allowed rows by segment and filter, and the attribute indexes of the fields that filters name.

    Segments are known by their hash, so a cache serves all versions of an index. Safe to use from several threads.
    """

    def __init__(self, max_bytes: int = 64 << 20, *, max_index_bytes: int = 512 << 20) -> None:
        # Live rows are part of the key by identity: an open version has one such object for each segment.
        self._allowed: BoundedCache[_Key, AllowedRows] = BoundedCache(max_bytes)
        self._postings: BoundedCache[tuple[str, str], AttributePostings] = BoundedCache(max_index_bytes)

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
        return self._allowed.size_bytes + self._postings.size_bytes

    def allowed(self, segment: Segment, node: Node, alive: AllowedRows | None = None) -> AllowedRows:
        """Return the rows of a segment that a filter allows, and that are among the live ones if these are given."""
        key = (segment.entry.sha256, node, None if alive is None else weakref.ref(alive))
        known = self._allowed.find(key)
        if known is None:
            # Evaluated without a lock: two threads may evaluate the same filter, and neither waits.
            known = self._evaluated(segment, node, alive)
            self._allowed.keep(key, known, size_of(node) + known.size_bytes)
        return known

    def mask(self, segment: Segment, node: Node) -> np.ndarray:
        """Return the rows of a segment that a filter allows, bool (N,), read-only."""
        return self.allowed(segment, node).mask_N

    def _evaluated(self, segment: Segment, node: Node, alive: AllowedRows | None) -> AllowedRows:
        most = int(FEW_ROWS * segment.rows)
        if alive is not None:
            # The filter alone is cached too: it stays valid when rows are deleted.
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
        def postings() -> AttributePostings:
            column = segment.column(name)
            # With the type: after a rollback, an attribute that a segment lacks may be added again with another one.
            key = (segment.entry.sha256, f"{name} {column.type}")
            known = self._postings.find(key)
            if known is None:
                known = AttributePostings(column)
                self._postings.keep(key, known, known.size_bytes)
            return known

        return IdField(segment, postings) if name == "id" else postings()
