"""The rows that writes need, from the leaves of a cluster."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from scannery.live.memtable import LiveState
from scannery.live.writing.filtered_write import MAX_BATCH_BYTES
from scannery.live.writing.matching_rows import MatchingRows
from scannery.live.writing.write_views import FetchedView, NamedRows, view_of_matching, view_of_named
from scannery.runtime.deadline import Deadline
from scannery.serving.contract import LEAF_READ_ROWS
from scannery.serving.engine.remote.leaf_tables import checked_tables
from scannery.serving.engine.remote.state_reader import Leaves
from scannery.serving.engine.wire_tables import read_table
from scannery.v1.leaf_pb2 import At, LeafRows, LeafRowsRequest
from scannery.v1.types_pb2 import Filter

__all__ = ["LeafWriteRows"]


class LeafWriteRows:
    """A `RowReader` that asks all groups: which shard has an id is not known. Safe to use from several threads."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves

    def named(self, needed: NamedRows, own: LiveState, deadline: Deadline) -> FetchedView:
        """Return what a write by ids reads; raises as leaves answer."""
        asked = LeafRowsRequest(ids=needed.ids, document_ids=needed.document_ids, whole=needed.whole)
        tables = _tables(self._asked(asked, own, deadline), own, whole=needed.whole)
        return view_of_named(own.manifest, own.sequence, tables, needed)

    def matching(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> FetchedView:
        """Return what a write by filter reads; raises as leaves answer."""
        asked = _request(wanted)
        asked.limit, asked.most_bytes = wanted.limit, MAX_BATCH_BYTES // self._leaves.groups
        answers = self._asked(asked, own, deadline)
        tables = _tables(answers, own, whole=wanted.whole)
        complete = sum(table.num_rows for table in tables) == sum(each.matching for each in answers)
        return view_of_matching(own.manifest, own.sequence, tables, complete=complete)

    def count(self, wanted: MatchingRows, own: LiveState, deadline: Deadline) -> int:
        """Return how many rows a filter allows; raises as leaves answer."""
        return sum(each.matching for each in self._asked(_request(wanted), own, deadline))

    def _asked(self, request: LeafRowsRequest, own: LiveState, deadline: Deadline) -> list[LeafRows]:
        manifest = own.manifest
        request.at.CopyFrom(
            At(
                index=manifest.index,
                index_id=manifest.index_id or "",
                version=manifest.version,
                sequence=own.sequence,
            )
        )
        return list(self._leaves.call(LEAF_READ_ROWS, request, LeafRows, deadline, at=request.at).values())


def _request(wanted: MatchingRows) -> LeafRowsRequest:
    where = Filter() if wanted.where is None else Filter.FromString(wanted.where.message)
    return LeafRowsRequest(where=where, until_sequence=wanted.until_sequence, whole=wanted.whole)


def _tables(answers: Iterable[LeafRows], own: LiveState, *, whole: bool) -> list[pa.Table]:
    tables = (read_table(data) for answer in answers for data in answer.tables)
    return checked_tables(tables, own.manifest, whole=whole)
