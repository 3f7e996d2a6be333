"""A sample of the vectors of queries, which an administrator can read to tune an index with (`scannery index tune`).

Only servers that were started with `--keep-queries` keep any: queries can be personal data. Each worker keeps a uniform
sample of its queries per index (reservoir sampling), in memory only, and copies it to memory that the workers share, so
that one call returns the queries of all.
"""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from scannery.indexer import Manifest
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError, UnknownIndexError
from scannery.runtime.periodic_task import PeriodicTask
from scannery.runtime.shared_blobs import SharedBlobs
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.contract import KEPT_QUERIES
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb
from scannery.v1 import search_pb2, types_pb2

__all__ = ["KeptQueries", "KeptQueryMethods"]

EVERY_S = 1.0
MOST_RETURNED = 10_000
_LENGTH = struct.Struct("<I")


@dataclass(slots=True)
class _Reservoir:
    """A uniform sample of the queries of one index."""

    index_id: str | None
    dimensions: int
    seen: int = 0
    """Queries that were asked."""
    vectors: list[np.ndarray] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Shared:
    """The sample of one worker."""

    seen: int
    vectors_QD: np.ndarray


class KeptQueries(PeriodicTask):
    """The queries that one worker keeps. Safe to use from several threads."""

    def __init__(
        self,
        most: int,
        blobs: SharedBlobs,
        slot: int,
        *,
        manifest_of: Callable[[str], Manifest],
        known_vector: Callable[[str, str], np.ndarray | None],
        random: Callable[[], float] = random.random,
    ) -> None:
        """Start a thread that shares the queries with the other workers.

        Args:
            most: queries per index.
            blobs: memory that the workers share.
            slot: of this worker.
            manifest_of: returns the manifest of an index by its name.
            known_vector: returns the vector of a text for an index if it is cached, None otherwise.
            random: returns a number from 0 to 1.

        """
        super().__init__("kept-queries", self._work, every_s=EVERY_S)
        self._most, self._blobs, self._slot = most, blobs, slot
        self._manifest_of, self._known_vector, self._random = manifest_of, known_vector, random
        self._reservoirs: dict[str, _Reservoir] = {}
        self._lock = threading.Lock()
        self._changed = False
        self.start()

    def offer(self, request: search_pb2.SearchRequest | search_pb2.SearchManyRequest) -> None:
        """Keep some of the queries of an answered request, each with the probability that makes the sample uniform."""
        if request.options.vectors or request.options.mode == search_pb2.MODE_LEXICAL:
            return
        manifest = self._manifest_of(request.index)
        with self._lock:
            reservoir = self._reservoirs.get(request.index)
            if reservoir is None or reservoir.index_id != manifest.index_id:
                reservoir = _Reservoir(manifest.index_id, manifest.dimensions)
                self._reservoirs[request.index] = reservoir
            for vector_of in _queries_of(request, self._known_vector):
                reservoir.seen += 1
                if len(reservoir.vectors) < self._most:
                    place = len(reservoir.vectors)
                else:
                    place = int(self._random() * reservoir.seen)
                    if place >= self._most:
                        continue
                vector_D = vector_of()
                if vector_D is not None and len(vector_D) == reservoir.dimensions:
                    reservoir.vectors[place : place + 1] = [vector_D]
                    self._changed = True

    def of(self, manifest: Manifest, limit: int) -> tuple[np.ndarray, int]:
        """Return queries of all workers for an index, float32 (at most `limit`, D), and how many were asked."""
        self._publish_changed()
        name, wanted = manifest.index, (manifest.index_id, manifest.dimensions)
        found = [
            shared
            for slot in range(self._blobs.count)
            for shared in _decoded(self._blobs.read(slot), name, *wanted)
        ]
        if not found:
            return np.empty((0, manifest.dimensions), np.float32), 0
        # Weighted sampling without replacement (Efraimidis, Spirakis): a query of a worker that was asked more stands
        # for more.
        generator = np.random.default_rng()
        keys = np.concatenate(
            [
                generator.random(len(each.vectors_QD)) ** (len(each.vectors_QD) / max(each.seen, 1))
                for each in found
            ]
        )
        best = np.argsort(-keys)[:limit]
        return np.concatenate([each.vectors_QD for each in found])[best], sum(each.seen for each in found)

    def _work(self) -> None:
        self._forget_dropped()
        self._publish_changed()

    def _forget_dropped(self) -> None:
        """Drop the queries of indexes that do not exist any more: they can be personal data."""
        for name, reservoir in list(self._reservoirs.items()):
            try:
                same = self._manifest_of(name).index_id == reservoir.index_id
            except UnknownIndexError:
                same = False
            if not same:
                with self._lock:
                    if self._reservoirs.get(name) is reservoir:
                        del self._reservoirs[name]
                        self._changed = True

    def _publish_changed(self) -> None:
        if self._changed:
            with self._lock:
                self._changed = False
                self._blobs.write(self._slot, self._encoded())

    def _encoded(self) -> bytes:
        """Return all samples as bytes; of those that are too large together, the same share of each."""
        size = sum(4 * each.dimensions * len(each.vectors) for each in self._reservoirs.values())
        share = min(1.0, 0.9 * self._blobs.most_bytes / max(size, 1))
        heads, bodies = [], []
        for name, each in self._reservoirs.items():
            vectors = each.vectors[: int(share * len(each.vectors))] if share < 1 else each.vectors
            heads.append([name, each.index_id, each.dimensions, each.seen, len(vectors)])
            bodies += [vector_D.tobytes() for vector_D in vectors]
        head = json.dumps(heads).encode()
        return _LENGTH.pack(len(head)) + head + b"".join(bodies)


def _queries_of(
    request: search_pb2.SearchRequest | search_pb2.SearchManyRequest,
    known_vector: Callable[[str, str], np.ndarray | None],
) -> Iterator[Callable[[], np.ndarray | None]]:
    """Yield for each query by vector or text a function that returns its vector; None: it is not known."""
    if isinstance(request, search_pb2.SearchManyRequest) and not request.queries:
        vectors_QD = np.frombuffer(request.vectors.packed, np.float32).reshape(-1, request.vectors.dimensions)
        for row_D in vectors_QD:
            yield row_D.copy
        return
    queries = [request.query] if isinstance(request, search_pb2.SearchRequest) else request.queries
    for query in queries:
        kind = query.WhichOneof("kind")
        if kind == "vector":
            yield partial(_vector_of, query.vector)
        elif kind == "text":
            yield partial(known_vector, request.index, query.text)


def _vector_of(message: types_pb2.Vector) -> np.ndarray:
    if message.packed:
        return np.frombuffer(message.packed, np.float32).copy()
    return np.array(message.values, np.float32)


def _decoded(data: bytes, name: str, index_id: str | None, dimensions: int) -> Iterator[_Shared]:
    """Yield the sample of an index that a worker has written, if there is one."""
    if not data:
        return
    [length] = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    for each, own_id, size, seen, count in json.loads(data[_LENGTH.size : start]):
        end = start + 4 * size * count
        if (each, own_id, size) == (name, index_id, dimensions) and count:
            yield _Shared(seen, np.frombuffer(data[start:end], np.float32).reshape(count, size))
        start = end


class KeptQueryMethods:
    """GetKeptQueries over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog, kept: Callable[[], KeptQueries | None]) -> None:
        """Serve the queries of `kept`; None: none are kept."""
        self._catalog, self._kept = catalog, kept
        self.methods = {KEPT_QUERIES: UnaryMethod(pb.GetKeptQueriesRequest, self.get, "admin")}

    def get(self, request: pb.GetKeptQueriesRequest, deadline: Deadline) -> pb.GetKeptQueriesResponse:
        """Return a sample of the vectors of queries of an index."""
        limit = request.limit if request.HasField("limit") else MOST_RETURNED
        if not 1 <= limit <= MOST_RETURNED:
            raise InvalidRequestError.at("limit", f"must be 1 to {MOST_RETURNED}, got {limit}")
        manifest = self._catalog.snapshot(request.index).manifest
        kept = self._kept()
        if kept is None:
            return pb.GetKeptQueriesResponse()
        vectors_QD, seen = kept.of(manifest, limit)
        response = pb.GetKeptQueriesResponse(keeps=True, seen=seen)
        if len(vectors_QD):
            response.vectors.packed, response.vectors.dimensions = vectors_QD.tobytes(), manifest.dimensions
        return response
