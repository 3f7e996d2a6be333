"""Datapoints by id, and what roots need of them besides: the texts and vectors that they are searched by.

A part of the datapoints that a filter allows, for the scan of a root.

Shapes: P rows of the part.

The rows that a write at a root needs: those that it names, or those that its filter allows.

Shapes: R rows of a segment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from scannery.indexer import REVISION_COLUMN, Segment, id_hashes
from scannery.indexer.datapoints.named_vectors import without_vectors
from scannery.live.row_tables import fitting_rows, stored_schema, whole_rows
from scannery.live.writing.resolve import RowsBySegment
from scannery.live.writing.write_views import RowFilter, matching_rows
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.held_snapshots import HeldSnapshot, HeldSnapshots
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.passages import passages_of
from scannery.serving.engine.row_source import LocalRows
from scannery.serving.engine.scanning.scan_result import ScanResult, encoded_keys
from scannery.serving.engine.top_k import Ranking
from scannery.serving.engine.wire_fields import table_bytes
from scannery.serving.request.filter import parse_filter
from scannery.serving.request.options import parse_fields
from scannery.serving.request.query import check_within, parse_identifier
from scannery.serving.request.scan import ScanQuery, parse_scan
from scannery.serving.services.leaf.states import seen_of
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.leaf_pb2 import At
from scannery.v1.search_pb2 import ScanRequest
from scannery.v1.types_pb2 import Datapoint

__all__ = ["fetched", "needed_rows", "scanned"]


def fetched(snapshot: Snapshot, request: pb.LeafFetchRequest, deadline: Deadline) -> pb.LeafFetchResponse:
    """Return what a request asks of the datapoints that the snapshot has.

    Raises:
        InvalidRequestError: names the field.
        DeadlineError: the deadline passed.

    """
    for field, names in (("ids", request.ids), ("document_ids", request.document_ids)):
        check_within(field, len(names), 0, limits.MAX_LEAF_IDS)
    ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
    _check_names(snapshot, request.searched_vectors)
    located = [
        (number, location)
        for number, identifier in enumerate(ids)
        if (location := snapshot.find(identifier)) is not None
    ]
    deadline.check()
    answers = [pb.LeafDatapoint(place=number) for number, _ in located]
    locations = [location for _, location in located]
    if request.datapoint:
        for answer, datapoint in zip(answers, _datapoints(snapshot, request, locations), strict=True):
            answer.datapoint.CopyFrom(datapoint)
    deadline.check()
    if request.searched_text and locations:
        for answer, text in zip(answers, _texts(snapshot, locations), strict=True):
            answer.searched_text = text or ""
    for name in request.searched_vectors:
        space = snapshot.space(name)
        for answer, location in zip(answers, locations, strict=True):
            vector_D = space.vector_of(*location)
            if vector_D is not None:
                answer.searched_vectors[name].packed = vector_D.astype("<f4").tobytes()
    deadline.check()
    passages = passages_of(snapshot, request.document_ids)
    return pb.LeafFetchResponse(
        found=answers,
        passages=table_bytes(passages.table) if len(passages.rows) else b"",
        has_only_documents=passages.has_only_documents,
    )


def _datapoints(
    snapshot: Snapshot, request: pb.LeafFetchRequest, locations: Sequence[tuple[int, int]]
) -> list[Datapoint]:
    spec = snapshot.manifest.spec
    fields = parse_fields(request.return_fields, spec, vector=request.return_vector)
    return Hydrator(snapshot.segments, spec, fields, group_by=None).datapoints(locations)


def _texts(snapshot: Snapshot, locations: Sequence[tuple[int, int]]) -> list[str | None]:
    numbers, rows = np.array(locations, np.int64).T
    return LocalRows(snapshot).searched_texts(Ranking(numbers, rows, np.zeros(len(rows), np.float32)))


def _check_names(snapshot: Snapshot, names: Sequence[str]) -> None:
    manifest = snapshot.manifest
    vector_names = manifest.vector_names
    for number, name in enumerate(names):
        if name not in vector_names:
            raise InvalidRequestError.at(
                f"searched_vectors[{number}]", f"index {manifest.index!r} has no vectors {name!r:.80}"
            )


def scanned(
    kept: HeldSnapshots,
    held: HeldSnapshot,
    request: pb.LeafScanRequest,
    deadline: Deadline,
    *,
    seconds: Callable[[], int],
) -> pb.LeafScanResponse:
    """Return a part of the datapoints of a snapshot, or what they are ordered by.

    Args:
        kept: keeps the results of scans.
        held: the snapshot.
        request: of a root.
        deadline: checked between segments.
        seconds: as of `ScanResult`.

    Raises:
        InvalidRequestError: names the field.
        DeadlineError: the deadline passed.

    """
    snapshot = held.snapshot.as_seen(seen_of(request.at))
    query = _query(request, snapshot)

    def made() -> ScanResult:
        return ScanResult(snapshot, query, deadline, seconds=seconds)

    result = kept.result(held, _digest(request), made)
    answer = pb.LeafScanResponse(total=result.total)
    if request.HasField("order_by"):
        _put_keys(answer, result, request, snapshot, deadline)
    elif request.positions or request.most:
        _put_datapoints(answer, result, request, deadline)
    return answer


def _put_keys(
    answer: pb.LeafScanResponse,
    result: ScanResult,
    request: pb.LeafScanRequest,
    snapshot: Snapshot,
    deadline: Deadline,
) -> None:
    check_within("most", request.most, 1, limits.MAX_LEAF_KEYS)
    order = parse_scan(ScanRequest(order_by=request.order_by), snapshot.manifest.spec).order
    assert order is not None
    answer.keys = encoded_keys(result.keys(_position(request, result), request.most, order, deadline))


def _put_datapoints(
    answer: pb.LeafScanResponse, result: ScanResult, request: pb.LeafScanRequest, deadline: Deadline
) -> None:
    if request.positions:
        page = result.page_at(_positions(request, result), deadline, second=request.second)
    else:
        check_within("most", request.most, 1, limits.MAX_SCAN_PAGE)
        page = result.page(_position(request, result), request.most, deadline, second=request.second)
    answer.datapoints, answer.sizes = page.data, page.sizes_P.astype("<u4").tobytes()


def _query(request: pb.LeafScanRequest, snapshot: Snapshot) -> ScanQuery:
    scan = ScanRequest(
        return_fields=request.return_fields,
        return_vector=request.return_vector,
        sample=request.sample,
        seed=request.seed,
    )
    if request.HasField("where"):
        scan.where.CopyFrom(request.where)
    return parse_scan(scan, snapshot.manifest.spec)


def _digest(request: pb.LeafScanRequest) -> bytes:
    """Return a hash of what all parts of a scan have in common."""
    common = pb.LeafScanRequest()
    common.CopyFrom(request)
    for field in ("position", "most", "positions", "order_by", "second"):
        common.ClearField(field)
    common.at.CopyFrom(At(seen=request.at.seen) if request.at.HasField("seen") else At())
    return hashlib.blake2b(common.SerializeToString(deterministic=True), digest_size=16).digest()


def _position(request: pb.LeafScanRequest, result: ScanResult) -> int:
    return check_within("position", request.position, 0, result.total)


def _positions(request: pb.LeafScanRequest, result: ScanResult) -> np.ndarray:
    """Return the positions that are asked for, int64 (P,)."""
    if len(request.positions) % 8:
        raise InvalidRequestError.at(
            "positions", f"{len(request.positions)} bytes are not a whole number of positions"
        )
    positions_P = np.frombuffer(request.positions, "<u8")
    check_within("positions", len(positions_P), 1, limits.MAX_SCAN_PAGE)
    check_within("positions", int(positions_P.max()), 0, result.total - 1)
    return positions_P.astype(np.int64)


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
    rows = list(_matching(snapshot, request, deadline))
    return pb.LeafRows(
        tables=_streams(_first(snapshot, rows, request)), matching=sum(len(rows_R) for _, rows_R in rows)
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


def _first(snapshot: Snapshot, rows: RowsBySegment, request: pb.LeafRowsRequest) -> Iterator[pa.Table]:
    """Yield the tables of the first rows, as many as were asked for."""
    remaining, remaining_bytes = request.limit, request.most_bytes
    for segment, rows_R in rows if remaining else ():
        chosen_R = rows_R[:remaining]
        fitting_R = fitting_rows(segment, chosen_R, remaining_bytes) if request.whole else chosen_R
        if remaining == request.limit and not len(fitting_R):
            fitting_R = chosen_R[:1]
        if len(fitting_R):
            table = _table(snapshot, segment, fitting_R, request)
            yield table
            remaining, remaining_bytes = remaining - len(fitting_R), max(0, remaining_bytes - table.nbytes)
        if not remaining or len(fitting_R) < len(chosen_R):
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
