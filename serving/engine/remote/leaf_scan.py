"""The result of a scan over the leaves of a cluster, of which any page can be read.

Without an order, the datapoints of the groups follow each other. With one, the leaves return once what each row is
ordered by, exactly as their segments have it; the root orders the rows of all groups as one server does, and keeps
their positions. The datapoints of a page are read from their groups. A position is the same datapoint on each leaf of a
group, so that a scan continues with another leaf, and with another root. The number of a row is not: leaves drop
deleted rows from memory at different moments.

Shapes: G groups, R rows of the result, P rows of a page.

Rows that leaves return for a write, checked before anything of them is written.

A root appends what it makes of them to the log, and all processes must be able to read each record of it: one with rows
that do not fit the index would keep all of them from opening it.

Shapes: N rows, D dimensions.

The rows that writes need, from the leaves of a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import MAX_MAGNITUDE, Manifest
from scannery.indexer.datapoints.named_vectors import has_vector, vector_column
from scannery.indexer.datapoints.schema import MAX_ID_BYTES
from scannery.live.memtable import LiveState
from scannery.live.row_tables import stored_schema
from scannery.live.writing.filtered_write import MAX_BATCH_BYTES
from scannery.live.writing.write_views import (
    FetchedView,
    MatchingRows,
    NamedRows,
    view_of_matching,
    view_of_named,
)
from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.contract import LEAF_READ_ROWS, LEAF_SCAN
from scannery.serving.engine.remote.state_reader import Leaves, StateReader
from scannery.serving.engine.scanning.row_order import ordered_by
from scannery.serving.engine.scanning.scan_result import Page, check_sortable, decoded_keys
from scannery.serving.engine.wire_fields import read_table
from scannery.serving.request.scan import RowOrder, ScanQuery
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.leaf_pb2 import At, LeafRows, LeafRowsRequest
from scannery.v1.search_pb2 import ScanRequest
from scannery.v1.types_pb2 import Filter

__all__ = ["LeafScan", "LeafWriteRows", "group_shares"]


_MOST_FOR_NUMPY = 10**9
"""Datapoints of which NumPy's hypergeometric distribution chooses fewer than these."""


class LeafScan:
    """The datapoints of a scan, in their order. Safe to use from several threads."""

    def __init__(
        self,
        readers: Callable[[Deadline], StateReader],
        request: ScanRequest,
        query: ScanQuery,
        deadline: Deadline,
        *,
        seconds: Callable[[], int],
    ) -> None:
        """Ask all groups how many datapoints they have, and what they are ordered by if the query has an order.

        Args:
            readers: returns the reader of the snapshot for one request.
            request: of the caller.
            query: the same, parsed.
            deadline: of the request.
            seconds: returns the second since 1970: pages are without what has expired by then.

        Raises:
            InvalidRequestError: more datapoints than MAX_SORTED_ROWS would have to be sorted or sampled.
            ServingError: as leaves answer.

        """
        self._readers, self._seconds = readers, seconds
        reader = readers(deadline)
        template = _template(reader, request)
        answers = reader.all(LEAF_SCAN, template, pb.LeafScanResponse)
        self._counts_G = np.array([answers[group].total for group in range(reader.groups)], np.int64)
        self._templates = [template] * reader.groups
        total = self.total
        chosen = query.sample if 0 < query.sample < total else total
        if chosen < total or query.order is not None:
            check_sortable(chosen, total)
        if chosen < total:
            self._counts_G, self._templates = _sampled(self._counts_G, chosen, query.seed, template)
        self._first_G = np.cumsum(self._counts_G) - self._counts_G
        """Position of the first datapoint of each group among those of all, in the order of groups."""
        self._order_R: np.ndarray | None = None
        if query.order is not None and chosen:
            order_R = self._ordered(reader, request, query.order)
            self._order_R = order_R.astype(np.uint32) if self.total < 1 << 32 else order_R

    @property
    def total(self) -> int:
        """Datapoints of all pages."""
        return int(self._counts_G.sum())

    @property
    def size_bytes(self) -> int:
        """Memory that this takes."""
        return 0 if self._order_R is None else self._order_R.nbytes

    def page(self, position: int, limit: int, deadline: Deadline) -> Page:
        """As `ScanPages.page`; raises as leaves answer."""
        end = min(position + limit, self.total)
        if position >= end:
            return Page(b"", np.zeros(0, np.int64))
        if self._order_R is None:
            groups_P, requests = self._parts(position, end)
        else:
            groups_P, requests = self._at(self._order_R[position:end].astype(np.int64))
        answers = self._readers(deadline).each(LEAF_SCAN, requests, pb.LeafScanResponse)
        return _joined(groups_P, answers)

    def _parts(self, start: int, end: int) -> tuple[np.ndarray, dict[int, pb.LeafScanRequest]]:
        """Return the group of each datapoint between two positions, int64 (P,), and the requests for them."""
        before_G = self._first_G
        counts_G = np.clip(end - before_G, 0, self._counts_G) - np.clip(start - before_G, 0, self._counts_G)
        requests = {
            group: self._request(group, position=max(start - int(before_G[group]), 0), limit=count)
            for group, count in enumerate(counts_G.tolist())
            if count
        }
        return np.repeat(np.arange(len(counts_G)), counts_G), requests

    def _at(self, positions_P: np.ndarray) -> tuple[np.ndarray, dict[int, pb.LeafScanRequest]]:
        """Return the group of the datapoint at each position, int64 (P,), and the requests for them."""
        groups_P = np.searchsorted(self._first_G, positions_P, "right") - 1
        # A group without datapoints begins where the next one does; the last of them has the datapoint.
        requests = {}
        for group in np.unique(groups_P).tolist():
            positions = positions_P[groups_P == group] - self._first_G[group]
            requests[group] = self._request(group, positions=positions.astype("<u8").tobytes())
        return groups_P, requests

    def _request(
        self, group: int, *, position: int = 0, limit: int = 0, positions: bytes = b""
    ) -> pb.LeafScanRequest:
        second = self._seconds()
        request = pb.LeafScanRequest(position=position, most=limit, positions=positions, second=second)
        request.MergeFrom(self._templates[group])
        return request

    def _ordered(self, reader: StateReader, request: ScanRequest, order: RowOrder) -> np.ndarray:
        """Return the positions of all rows of the result, in the order of groups, in their order, int64 (R,)."""
        positions, keys = [], []
        for start in range(0, int(self._counts_G.max()), limits.MAX_LEAF_KEYS):
            requests = {}
            for group in np.flatnonzero(self._counts_G > start).tolist():
                requests[group] = self._request(group, position=start, limit=limits.MAX_LEAF_KEYS)
                requests[group].order_by.CopyFrom(request.order_by)
            for group, each in reader.each(LEAF_SCAN, requests, pb.LeafScanResponse).items():
                end = min(start + limits.MAX_LEAF_KEYS, int(self._counts_G[group]))
                positions.append(np.arange(start, end) + self._first_G[group])
                keys.append(each.keys)
        order_R = ordered_by(decoded_keys(keys), order)
        if len(order_R) != self.total:
            raise ServingError("leaves returned another number of rows than they said")
        ordered_R: np.ndarray = np.concatenate(positions)[order_R]
        return ordered_R


def _template(reader: StateReader, request: ScanRequest) -> pb.LeafScanRequest:
    template = pb.LeafScanRequest(
        at=reader.at, return_fields=sorted(set(request.return_fields)), return_vector=request.return_vector
    )
    if request.HasField("where"):
        template.where.CopyFrom(request.where)
    return template


def _sampled(
    counts_G: np.ndarray, chosen: int, seed: int, template: pb.LeafScanRequest
) -> tuple[np.ndarray, list[pb.LeafScanRequest]]:
    """Return how many datapoints of each group are chosen, int64 (G,), and what chooses them.

    Each choice of `chosen` datapoints of all groups is equally likely.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    chosen_G = group_shares(counts_G, chosen, random)
    templates = []
    for count in chosen_G.tolist():
        message = pb.LeafScanRequest(sample=count, seed=int(random.integers(1 << 63)))
        message.MergeFrom(template)
        templates.append(message)
    return chosen_G, templates


def group_shares(counts_G: np.ndarray, chosen: int, random: np.random.Generator) -> np.ndarray:
    """Return how many of some datapoints, chosen at random from all, are of each group, int64 (G,)."""
    total = int(counts_G.sum())
    if total < _MOST_FOR_NUMPY:
        shares_G: np.ndarray = random.multivariate_hypergeometric(counts_G, chosen, method="marginals")
        return shares_G
    # Equally likely numbers until enough of them are distinct.
    sample = np.zeros(0, np.int64)
    while len(sample) < chosen:
        sample = np.union1d(sample, random.integers(total, size=chosen - len(sample)))
    return np.diff(np.searchsorted(sample, np.cumsum(counts_G)), prepend=0)


def _joined(groups_P: np.ndarray, answers: Mapping[int, pb.LeafScanResponse]) -> Page:
    """Return the datapoints of a page, as many of the first ones as were returned and fit into an answer."""
    sizes_P = np.full(len(groups_P), -1, np.int64)
    starts_P = np.zeros(len(groups_P), np.int64)
    for group, answer in answers.items():
        sizes = np.frombuffer(answer.sizes, "<u4").astype(np.int64)
        positions = np.flatnonzero(groups_P == group)[: len(sizes)]
        sizes_P[positions], starts_P[positions] = sizes, np.cumsum(sizes) - sizes
    missing = np.flatnonzero(sizes_P < 0)
    there = int(missing[0]) if len(missing) else len(sizes_P)
    fitting = int(np.searchsorted(np.cumsum(sizes_P[:there]), limits.MAX_SCAN_PAGE_BYTES, "right"))
    count = min(there, max(fitting, 1))
    parts = _spliced(groups_P[:count], starts_P[:count], sizes_P[:count], answers)
    return Page(b"".join(parts), sizes_P[:count])


def _spliced(
    groups_P: np.ndarray,
    starts_P: np.ndarray,
    sizes_P: np.ndarray,
    answers: Mapping[int, pb.LeafScanResponse],
) -> Sequence[memoryview]:
    views = {group: memoryview(answer.datapoints) for group, answer in answers.items()}
    spans = zip(groups_P.tolist(), starts_P.tolist(), (starts_P + sizes_P).tolist(), strict=True)
    return [views[group][start:end] for group, start, end in spans]


def checked_tables(tables: Iterable[pa.Table], manifest: Manifest, *, whole: bool) -> list[pa.Table]:
    """Return the columns of tables that rows of an index have.

    Args:
        tables: of the leaves of all groups.
        manifest: of the index.
        whole: whether all columns were asked for, and not id, document and revision alone.

    Raises:
        ServingError: no leaf of ours has such rows.

    """
    schema = stored_schema(manifest)
    columns_of = [_known_columns(table, schema) for table in tables]
    for table in columns_of:
        for name in ("id", "document_id"):
            _check_names(table, name)
        if whole:
            _check_vectors(table, manifest)
    _check_distinct(columns_of)
    return columns_of


def _known_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the columns that the schema has, too; a leaf of the next release may have others."""
    if len(set(table.column_names)) < table.num_columns:
        raise _wrong("columns of the same name")
    fields = [field for field in schema if field.name in table.column_names]
    for field in fields:
        kind = table.schema.field(field.name).type
        if not kind.equals(field.type):
            raise _wrong(f"a column {field.name!r} of {kind}, and not of {field.type}")
    return table.select([field.name for field in fields])


def _check_names(table: pa.Table, name: str) -> None:
    if name not in table.column_names or table.column(name).null_count:
        raise _wrong(f"rows without {name!r}")
    sizes = pc.min_max(pc.binary_length(table.column(name))).as_py()
    if table.num_rows and not 1 <= sizes["min"] <= sizes["max"] <= MAX_ID_BYTES:
        raise _wrong(f"values of {name!r} that are empty, or longer than {MAX_ID_BYTES} bytes")


def _check_distinct(tables: Sequence[pa.Table]) -> None:
    """Raise ServingError if two rows have one id: each row has one shard, and each shard one group."""
    if tables:
        ids = pa.concat_tables([table.select(["id"]) for table in tables]).column("id")
        if pc.count_distinct(ids).as_py() < len(ids):
            raise _wrong("two rows of one id")


def _check_vectors(table: pa.Table, manifest: Manifest) -> None:
    if manifest.spec.vectors == "required" and not has_vector(table).all():
        raise _wrong("rows without a vector")
    for name, info in manifest.vectors.items():
        if vector_column(name) in table.column_names:
            _check_numbers(table.column(vector_column(name)), max(1, info.dimensions))


def _check_numbers(vectors: pa.ChunkedArray, dimensions: int) -> None:
    """Raise ServingError unless all vectors that are there have D numbers within the bounds of written ones."""
    present = vectors.drop_null()
    if not len(present):
        return
    sizes = pc.min_max(pc.list_value_length(present)).as_py()
    numbers = np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in present.chunks])
    if {*sizes.values()} != {dimensions} or len(numbers) != dimensions * len(present):
        raise _wrong(f"vectors that have not {dimensions} dimensions")
    if not (np.abs(numbers) <= MAX_MAGNITUDE).all():  # of NaN, too
        raise _wrong("vectors that are not finite")


def _wrong(what: str) -> ServingError:
    return ServingError(f"a leaf returned {what}")


class LeafWriteRows:
    """A `RowReader` that asks all groups: which shard has an id is not known. Safe to use from several threads."""

    def __init__(self, leaves: Leaves) -> None:
        self._leaves = leaves

    def named(self, needed: NamedRows, local: LiveState, deadline: Deadline) -> FetchedView:
        """Return what a write by ids reads; raises as leaves answer."""
        request = LeafRowsRequest(ids=needed.ids, document_ids=needed.document_ids, whole=needed.whole)
        tables = _tables(self._call(request, local, deadline), local, whole=needed.whole)
        return view_of_named(local.manifest, local.sequence, tables, needed)

    def matching(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> FetchedView:
        """Return what a write by filter reads; raises as leaves answer."""
        request = _request(selection)
        request.limit, request.most_bytes = selection.limit, MAX_BATCH_BYTES // self._leaves.groups
        answers = self._call(request, local, deadline)
        tables = _tables(answers, local, whole=selection.whole)
        complete = sum(table.num_rows for table in tables) == sum(each.matching for each in answers)
        return view_of_matching(local.manifest, local.sequence, tables, complete=complete)

    def count(self, selection: MatchingRows, local: LiveState, deadline: Deadline) -> int:
        """Return how many rows a filter allows; raises as leaves answer."""
        return sum(each.matching for each in self._call(_request(selection), local, deadline))

    def _call(self, request: LeafRowsRequest, local: LiveState, deadline: Deadline) -> list[LeafRows]:
        manifest = local.manifest
        request.at.CopyFrom(
            At(
                index=manifest.index,
                index_id=manifest.index_id or "",
                version=manifest.version,
                sequence=local.sequence,
                second=local.second,
            )
        )
        return list(self._leaves.call(LEAF_READ_ROWS, request, LeafRows, deadline, at=request.at).values())


def _request(selection: MatchingRows) -> LeafRowsRequest:
    where = Filter() if selection.where is None else Filter.FromString(selection.where.message)
    return LeafRowsRequest(where=where, until_sequence=selection.until_sequence, whole=selection.whole)


def _tables(answers: Iterable[LeafRows], local: LiveState, *, whole: bool) -> list[pa.Table]:
    tables = (read_table(data) for answer in answers for data in answer.tables)
    return checked_tables(tables, local.manifest, whole=whole)
