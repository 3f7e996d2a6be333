"""The rows that a write at a root needs: those that it names, or those that its filter allows.

Shapes: R rows of a segment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from scannery.indexer import REVISION_COLUMN, Segment, id_hashes
from scannery.indexer.datapoints.vector_presence import without_vectors
from scannery.live.row_sizes import fitting_rows
from scannery.live.row_tables import stored_schema, whole_rows
from scannery.live.writing.matching_rows import RowFilter, matching_rows
from scannery.live.writing.resolve import Places
from scannery.runtime.deadline import Deadline
from scannery.serving import limits
from scannery.serving.engine.wire_tables import table_bytes
from scannery.serving.request.filter import parse_filter
from scannery.serving.request.query import check_within
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb

__all__ = ["needed_rows"]

_NAMES = pa.schema([("id", pa.string()), ("document_id", pa.string()), pa.field(REVISION_COLUMN, pa.int64())])


def needed_rows(snapshot: Snapshot, request: pb.LeafRowsRequest, deadline: Deadline) -> pb.LeafRows:
    """Return the rows of a snapshot that a write needs.

    Raises:
        InvalidRequestError: names the field.
        DeadlineError: the deadline passed.

    """
    if not request.HasField("where"):
        named = _named(snapshot, request, deadline)
        return pb.LeafRows(
            tables=_streams(
                _table(snapshot, segment, rows_R, request) for segment, rows_R in named if len(rows_R)
            )
        )
    check_within("limit", request.limit, 0, limits.MAX_FILTERED_WRITES)
    found = list(_matching(snapshot, request, deadline))
    return pb.LeafRows(
        tables=_streams(_first(snapshot, found, request)), matching=sum(len(rows_R) for _, rows_R in found)
    )


def _named(
    snapshot: Snapshot, request: pb.LeafRowsRequest, deadline: Deadline
) -> Iterator[tuple[Segment, np.ndarray]]:
    for field, names in (("ids", request.ids), ("document_ids", request.document_ids)):
        check_within(field, len(names), 0, limits.MAX_LEAF_IDS)
    hashes = id_hashes(request.ids)
    for segment, alive in zip(snapshot.segments, snapshot.alive, strict=True):
        deadline.check()
        documents = map(segment.rows_of_document, request.document_ids)
        rows_R = np.unique(np.concatenate([segment.rows_of(request.ids, hashes), *documents]))
        rows_R = rows_R[rows_R >= 0]
        yield segment, rows_R if alive is None else rows_R[alive.mask_N[rows_R]]


def _matching(
    snapshot: Snapshot, request: pb.LeafRowsRequest, deadline: Deadline
) -> Iterator[tuple[Segment, np.ndarray]]:
    node, where = parse_filter(request.where, snapshot.manifest.spec), None
    if node is not None:
        where = RowFilter(partial(snapshot.masks.allowed, node=node, deadline=deadline), b"")
    until_sequence = request.until_sequence if request.HasField("until_sequence") else None
    return matching_rows(snapshot.index, where, until_sequence)


def _first(snapshot: Snapshot, found: Places, request: pb.LeafRowsRequest) -> Iterator[pa.Table]:
    """Yield the tables of the first rows, as many as were asked for."""
    left, left_bytes = request.limit, request.most_bytes
    for segment, rows_R in found if left else ():
        chosen_R = rows_R[:left]
        fitting_R = fitting_rows(segment, chosen_R, left_bytes) if request.whole else chosen_R
        if left == request.limit and not len(fitting_R):
            fitting_R = chosen_R[:1]
        if len(fitting_R):
            table = _table(snapshot, segment, fitting_R, request)
            yield table
            left, left_bytes = left - len(fitting_R), max(0, left_bytes - table.nbytes)
        if not left or len(fitting_R) < len(chosen_R):
            return


def _table(snapshot: Snapshot, segment: Segment, rows_R: np.ndarray, request: pb.LeafRowsRequest) -> pa.Table:
    table = whole_rows(segment, rows_R, stored_schema(snapshot.manifest) if request.whole else _NAMES)
    return table if segment.has_vectors else without_vectors(table)


def _streams(tables: Iterable[pa.Table]) -> list[bytes]:
    """Return tables as Arrow IPC streams, one for each schema."""
    by_schema: dict[pa.Schema, list[pa.Table]] = {}
    for table in tables:
        by_schema.setdefault(table.schema, []).append(table)
    return [table_bytes(pa.concat_tables(same)) for same in by_schema.values()]
