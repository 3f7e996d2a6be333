"""A part of the datapoints that a filter allows, for the scan of a root.

Shapes: P rows of the part.
"""

from __future__ import annotations

import hashlib

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.catalog.held_snapshots import HeldSnapshot, HeldSnapshots
from scannery.serving.engine.scanning.scan_result import ScanResult
from scannery.serving.engine.scanning.wire_keys import encoded_keys
from scannery.serving.request.query import check_within
from scannery.serving.request.scan import ScanQuery, parse_scan
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.search_pb2 import ScanRequest

__all__ = ["scanned"]


def scanned(
    kept: HeldSnapshots, held: HeldSnapshot, request: pb.LeafScanRequest, deadline: Deadline
) -> pb.LeafScanResponse:
    """Return a part of the datapoints of a snapshot, or what they are ordered by.

    Args:
        kept: keeps the results of scans.
        held: the snapshot.
        request: of a root.
        deadline: checked between segments.

    Raises:
        InvalidRequestError: names the field.
        DeadlineError: the deadline passed.

    """
    query = _query(request, held.snapshot)

    def made() -> ScanResult:
        return ScanResult(held.snapshot, query, deadline)

    result = kept.result(held, _digest(request), made)
    answer = pb.LeafScanResponse(total=result.total)
    if request.HasField("order_by"):
        _put_keys(answer, result, request, held.snapshot, deadline)
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
        page = result.page_at(_positions(request, result), deadline)
    else:
        check_within("most", request.most, 1, limits.MAX_SCAN_PAGE)
        page = result.page(_position(request, result), request.most, deadline)
    answer.datapoints, answer.sizes = page.data, page.sizes_P.astype("<u4").tobytes()


def _query(request: pb.LeafScanRequest, snapshot: Snapshot) -> ScanQuery:
    given = ScanRequest(
        return_fields=request.return_fields,
        return_vector=request.return_vector,
        sample=request.sample,
        seed=request.seed,
    )
    if request.HasField("where"):
        given.where.CopyFrom(request.where)
    return parse_scan(given, snapshot.manifest.spec)


def _digest(request: pb.LeafScanRequest) -> bytes:
    """Return a hash of what all parts of a scan have in common."""
    common = pb.LeafScanRequest()
    common.CopyFrom(request)
    for field in ("at", "position", "most", "positions", "order_by"):
        common.ClearField(field)
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
