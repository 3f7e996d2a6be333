"""Queries and datapoints cut into batches, each of which one call takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.queries import QueryLike
from scannery.client.request.records import RecordReader, is_foreign, is_table, row_count, table_rows
from scannery.client.request.writes import RefusedRecord

__all__ = [
    "MAX_BATCH",
    "Errors",
    "QueryStream",
    "WriteBatch",
    "has_foreign",
    "must_wait",
    "query_batches",
    "read_batch",
    "size_of",
    "write_batches",
]

Errors: TypeAlias = Literal["raise", "return"]
"""What becomes of failures: `raise` ends at the first error, `return` gives each error in its place."""

QueryStream: TypeAlias = Iterable[QueryLike] | np.ndarray
"""Any number of queries, read as they are needed."""

MAX_BATCH_HITS = 100_000
MAX_BATCH = 1000
MAX_BATCH_BYTES = 16 << 20
"""About the bytes of the datapoints of one write; a server takes 64 MiB."""
MAX_IN_FLIGHT = 64
_MAX_DEPTH = 8
"""Values that are nested deeper are not measured: one may contain itself, which is refused later."""


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Datapoints that are written in one call."""

    points: list[Any]
    first: int
    """Position of the first of them in the input."""
    ids: frozenset[str]
    """Ids of datapoints and documents that the batch replaces."""


def query_batches(
    queries: QueryStream, k: int, batch_size: int, in_flight: int, errors: Errors
) -> Iterator[Any]:
    """Return the queries in batches; rows of an array as arrays.

    Raises:
        InvalidArgumentError: a size is out of range.

    """
    _check_sizes(batch_size, in_flight, errors)
    if isinstance(queries, (str, bytes)):
        raise InvalidArgumentError(f"queries: must be many, got one: {queries!r:.80}", field="queries")
    size = max(1, min(batch_size, MAX_BATCH_HITS // max(1, k)))
    return _cut_queries(queries, size)


def write_batches(
    points: Iterable[Any], batch_size: int, in_flight: int, errors: Errors
) -> Iterator[WriteBatch]:
    """Return the datapoints, or the rows of a table, in batches; no id comes twice in one batch.

    Raises:
        InvalidArgumentError: a size is out of range.

    """
    _check_sizes(batch_size, in_flight, errors)
    if is_table(points):
        return _cut_writes(table_rows(points), batch_size)
    if isinstance(points, (str, bytes, Mapping)) or not isinstance(points, Iterable):
        raise InvalidArgumentError(f"points: must be many datapoints, got {points!r:.80}", field="points")
    return _cut_writes(points, batch_size)


def has_foreign(batch: WriteBatch) -> bool:
    """Return whether the batch has records that only the spec of the index explains."""
    return any(map(is_foreign, batch.points))


def read_batch(batch: WriteBatch, reader: RecordReader) -> list[WriteBatch]:
    """Return the records of a batch as datapoints; in several batches if an id comes twice, as it then shows."""
    points = map(reader.datapoint, batch.points)
    return list(_cut_writes(points, len(batch.points), first=batch.first))


def must_wait(batch: WriteBatch, under_way: Sequence[WriteBatch], in_flight: int) -> bool:
    """Return whether another batch must end first: calls may overtake each other, writes of one id must not."""
    return len(under_way) >= in_flight or any(
        not batch.ids.isdisjoint(previous.ids) for previous in under_way
    )


def size_of(items: object) -> int | None:
    """Return the number of items, None where it is not known beforehand."""
    if is_table(items):
        return row_count(items)
    return len(items) if isinstance(items, Sized) else None


def _check_sizes(batch_size: int, in_flight: int, errors: Errors) -> None:
    for name, value, maximum in (
        ("batch_size", batch_size, MAX_BATCH),
        ("in_flight", in_flight, MAX_IN_FLIGHT),
    ):
        if not 1 <= value <= maximum:
            raise InvalidArgumentError(f"{name}: must be 1 to {maximum}, got {value!r:.40}", field=name)
    if errors not in ("raise", "return"):
        raise InvalidArgumentError(f"errors: must be 'raise' or 'return', got {errors!r:.40}", field="errors")


def _cut_queries(queries: QueryStream, size: int) -> Iterator[Any]:
    if isinstance(queries, np.ndarray):
        # A matrix is sent as it is; its rows would each be converted.
        yield from (queries[start : start + size] for start in range(0, len(queries), size))
        return
    iterator = iter(queries)
    while batch := list(islice(iterator, size)):
        yield batch


def _cut_writes(points: Iterable[Any], size: int, first: int = 0) -> Iterator[WriteBatch]:
    batch: list[Any] = []
    ids: set[str] = set()
    batch_bytes = 0
    for point in points:
        point_ids, point_bytes = _ids(point), _bytes_of(point)
        is_full = len(batch) >= size or batch_bytes + point_bytes > MAX_BATCH_BYTES
        if batch and (is_full or not ids.isdisjoint(point_ids)):
            yield WriteBatch(batch, first, frozenset(ids))
            first += len(batch)
            batch, ids, batch_bytes = [], set(), 0
        batch.append(point)
        ids |= point_ids
        batch_bytes += point_bytes
    if batch:
        yield WriteBatch(batch, first, frozenset(ids))


def _bytes_of(value: Any, depth: int = 0) -> int:
    """Return about the bytes of a value in a request, rather too many than too few."""
    if isinstance(value, str):
        return len(value) if value.isascii() else 4 * len(value)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, np.ndarray):
        return value.nbytes
    if depth < _MAX_DEPTH and isinstance(value, Mapping):
        return sum(_bytes_of(key, depth + 1) + _bytes_of(each, depth + 1) for key, each in value.items())
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        is_vector = bool(value) and isinstance(value[0], (int, float))
        return 8 * len(value) if is_vector else sum(_bytes_of(each, depth + 1) for each in value)
    return 8


def _ids(point: Any) -> set[str]:
    # What is wrong with a datapoint shows when it is written. Passages of one document may share a batch.
    if isinstance(point, RefusedRecord):
        return {point.id} if point.id else set()
    return {str(point["id"])} if isinstance(point, Mapping) and "id" in point else set()
