"""The handler of maps: datapoints of a scan, each with a position in two dimensions instead of its vector."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.errors import InvalidRequestError, VectorsUnavailableError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.held_snapshots import HeldSnapshot
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.scanning.projection import Basis, sample_size
from scannery.serving.engine.scanning.scan_result import ScanPages
from scannery.serving.limits import DEFAULT_PROJECT_PAGE
from scannery.serving.request.filter import FIXED_FIELDS
from scannery.serving.request.scan import PageToken
from scannery.serving.security.access import Seen
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.scan import Scans, as_seen, digest_of
from scannery.serving.services.shards import Shards
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, Value

__all__ = ["Projections"]

DEFAULT_LIMIT, MAX_LIMIT = 100_000, 500_000
MAX_PAGE = 10_000
MAX_ATTRIBUTES = 16
KEPT_BYTES = 16 << 20
"""Memory of the bases that are kept."""
LEAST_ROWS = 1_000
"""Datapoints of a version from which its map is made of them alone; with fewer, it is made of live updates, too."""

_Key = tuple[str, int, int, str, Seen | None]


class Projections:
    """The handler of Project. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, shards: Shards, scans: Scans) -> None:
        """Prepare.

        Args:
            catalog: has the indexes.
            shards: have the rows.
            scans: read them page by page.

        """
        self._catalog, self._shards, self._scans = catalog, shards, scans
        self._bases: BoundedCache[_Key, Basis] = BoundedCache(KEPT_BYTES)
        self.methods = {
            f"/{SEARCH_SERVICE}/Project": UnaryMethod(pb.ProjectRequest, self.project, "read", narrowed=True)
        }

    def project(self, request: pb.ProjectRequest, deadline: Deadline) -> pb.ProjectResponse:
        """Return a page of a map; raises as `Scans.read`."""
        limit = _within(request, "limit", DEFAULT_LIMIT, MAX_LIMIT)
        size = _within(request, "page_size", DEFAULT_PROJECT_PAGE, MAX_PAGE)
        names = list(dict.fromkeys(request.attributes))
        if len(names) > MAX_ATTRIBUTES:
            raise InvalidRequestError.at(
                "attributes", f"must have at most {MAX_ATTRIBUTES} items, got {len(names)}"
            )
        scan = pb.ScanRequest(
            index=request.index,
            where=request.where if request.HasField("where") else None,
            return_fields=names or ["id"],
            return_vector=True,
            sample=limit,
            seed=request.seed,
            page_token=request.page_token,
            min_sequence=request.min_sequence,
        )

        def page(held: HeldSnapshot, token: PageToken) -> pb.ProjectResponse:
            return self._page(request, scan, size, held, token, deadline)

        return self._scans.read(scan, deadline, page)

    def _page(
        self,
        request: pb.ProjectRequest,
        scan: pb.ScanRequest,
        size: int,
        held: HeldSnapshot,
        token: PageToken,
        deadline: Deadline,
    ) -> pb.ProjectResponse:
        snapshot, name = as_seen(held), request.vector
        _check_fields(request, snapshot)
        basis = self._basis(snapshot, name, deadline)
        result = self._scans.result(scan, held, token, deadline)
        attributes = dict.fromkeys(request.attributes)
        columns = [_Column(each, declared=each in snapshot.manifest.spec.attributes) for each in attributes]
        ids, positions, end = [], [np.zeros((0, 2), np.uint16)], token.position
        # Part by part: the vectors of a page may have hundreds of megabytes.
        for part, after in _parts(result, end, size, deadline):
            end = after
            points, vectors_ND = _with_vectors(part, name, snapshot)
            ids += [point.id for point in points]
            positions.append(basis.positions(vectors_ND))
            for column in columns:
                column.add(points)
        positions_N2 = np.concatenate(positions)
        base = token.snapshot_text(snapshot.manifest, digest_of(scan))
        return pb.ProjectResponse(
            ids=ids,
            x=positions_N2[:, 0].astype("<u2").tobytes(),
            y=positions_N2[:, 1].astype("<u2").tobytes(),
            attributes=[column.message() for column in columns],
            next_page_token=f"{base}.{end}" if end < result.total else "",
            total=result.total,
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            index=snapshot.manifest.index,
            explained=basis.explained,
        )

    def _basis(self, snapshot: Snapshot, name: str, deadline: Deadline) -> Basis:
        """Return what gives vectors of a name their positions, the same in all processes that serve the version."""
        manifest = snapshot.index.whole_manifest
        # Live updates are left out, so that the map stays as it is while they come.
        whole = manifest.rows >= LEAST_ROWS and snapshot.seen is None
        sequence = manifest.log_sequence if whole else snapshot.sequence
        key = (manifest.index_id or manifest.index, manifest.version, sequence, name, snapshot.seen)
        if (kept := self._bases.find(key)) is not None:
            return kept
        if sequence != snapshot.sequence:
            second = snapshot.index.second
            held = self._catalog.held_snapshot(
                manifest.index, manifest.version, sequence, second, deadline=deadline
            )
            snapshot = held.snapshot
        info = manifest.vectors[name]
        count = sample_size(info.dimensions)
        scan = pb.ScanRequest(index=manifest.index, return_fields=["id"], return_vector=True, sample=count)
        pages = self._shards.pages(snapshot, scan, deadline)
        parts = [_with_vectors(part, name, snapshot)[1] for part, _ in _parts(pages, 0, count, deadline)]
        nothing_1D = np.zeros((1, info.dimensions), np.float32)
        sample_SD = np.concatenate([part for part in parts if len(part)] or [nothing_1D])
        basis = Basis.of(sample_SD, manifest.spec.of_vectors(name).distance)
        self._bases.keep(key, basis, basis.size_bytes)
        return basis


def _within(
    request: pb.ProjectRequest, field: Literal["limit", "page_size"], default: int, maximum: int
) -> int:
    value: int = getattr(request, field) if request.HasField(field) else default
    if not 1 <= value <= maximum:
        raise InvalidRequestError.at(field, f"must be 1 to {maximum}, got {value}")
    return value


def _check_fields(request: pb.ProjectRequest, snapshot: Snapshot) -> None:
    manifest = snapshot.manifest
    if request.vector not in manifest.vectors:
        raise InvalidRequestError.at("vector", f"the index has no vectors {request.vector!r:.80}")
    if not manifest.vectors[request.vector].dimensions:
        raise VectorsUnavailableError("vector: the index has no vectors", field="vector")
    for name in request.attributes:
        if name not in manifest.spec.attributes and (name in FIXED_FIELDS or not manifest.spec.dynamic):
            raise InvalidRequestError.at("attributes", f"{name!r:.80} is not an attribute of the index")


def _parts(
    pages: ScanPages, position: int, size: int, deadline: Deadline
) -> Iterator[tuple[Sequence[Datapoint], int]]:
    """Yield the datapoints from a position, at most `size`, and the position after them: vectors fill a page early."""
    end = min(position + size, pages.total)
    while position < end:
        page = pages.page(position, end - position, deadline)
        position += len(page)
        yield pb.ScanResponse.FromString(page.data).datapoints, position


def _with_vectors(
    part: Sequence[Datapoint], name: str, snapshot: Snapshot
) -> tuple[list[Datapoint], np.ndarray]:
    """Return the datapoints that have a vector of a name, and these vectors, float32 (N, D)."""
    points, packed = [], []
    for point in part:
        vector = point.vectors.get(name) if name else point.vector if point.HasField("vector") else None
        if vector is not None:
            points.append(point)
            packed.append(vector.packed)
    dimensions = snapshot.manifest.vectors[name].dimensions
    return points, np.frombuffer(b"".join(packed), "<f4").reshape(-1, dimensions)


class _Column:
    """An attribute of datapoints: its distinct values, and the number of that of each datapoint."""

    def __init__(self, name: str, *, declared: bool) -> None:
        self._name, self._declared = name, declared
        self._values: dict[bytes, tuple[int, Value]] = {}
        self._codes: list[int] = []

    def add(self, points: Sequence[Datapoint]) -> None:
        """Append datapoints."""
        for point in points:
            value = point.attributes.get(self._name) if self._declared else _dynamic(point, self._name)
            if value is None:
                self._codes.append(0)
            else:
                number = len(self._values) + 1, value
                key = value.SerializeToString(deterministic=True)
                self._codes.append(self._values.setdefault(key, number)[0])

    def message(self) -> pb.ProjectedColumn:
        """Return the column."""
        values = [value for _, value in self._values.values()]
        codes = np.array(self._codes, "<u2").tobytes()
        return pb.ProjectedColumn(name=self._name, values=values, codes=codes)


def _dynamic(point: Datapoint, name: str) -> Value | None:
    """Return a dynamic attribute; None: the datapoint does not have it."""
    value: Any = json.loads(point.dynamic_json).get(name) if point.dynamic_json else None
    if value is None:
        return None
    if isinstance(value, bool):
        return Value(bool_value=value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return Value(int_value=value)
    if isinstance(value, float):
        return Value(float_value=value)
    if isinstance(value, str):
        return Value(string_value=value)
    return Value(json_value=json.dumps(value))
