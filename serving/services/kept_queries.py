"""A sample of the vectors of queries, which an administrator can read to tune an index with (`scannery index tune`).

Only servers that were started with `--keep-queries` keep any: queries can be personal data. Each worker keeps a uniform
sample of its queries per index (reservoir sampling), in memory only, and copies it to memory that the workers share, so
that one call returns the queries of all. They are forgotten when the index is dropped or replaced. The memory of a
worker for them is bounded: beyond it, the largest samples become smaller.
"""

from __future__ import annotations

import json
import random
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from scannery.indexer import Manifest
from scannery.runtime.errors import InvalidRequestError, UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.runtime.sharing import SharedBlobs
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.contract import KEPT_QUERIES
from scannery.serving.request.query import vector_components
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb
from scannery.v1 import search_pb2

__all__ = ["KeptQueries", "KeptQueryMethods"]

EVERY_S = 1.0
MOST_RETURNED = 10_000
INDEX_BYTES = 512
"""Counted for each index, besides its vectors."""
_LENGTH = struct.Struct("<I")


@dataclass(slots=True)
class _Reservoir:
    """A uniform sample of the queries of one index."""

    index_id: str | None
    dimensions: int
    most: int
    """Size of the sample; it only becomes smaller."""
    seen: int = 0
    """Queries that were asked."""
    vectors: list[np.ndarray] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Memory for the vectors."""
        return 4 * self.dimensions * len(self.vectors)

    def make_smaller(self, random: Callable[[], float]) -> None:
        """Forget a vector; the others remain a uniform sample."""
        place = int(random() * len(self.vectors))
        self.vectors[place] = self.vectors[-1]
        self.vectors.pop()
        self.most = len(self.vectors)


@dataclass(frozen=True, slots=True)
class _WorkerSample:
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
        super().__init__("kept-queries", self._publish_changed, every_s=EVERY_S)
        self._most, self._blobs, self._slot = most, blobs, slot
        self._manifest_of, self._known_vector, self._random = manifest_of, known_vector, random
        self._reservoirs: dict[str, _Reservoir] = {}
        self._lock, self._publishing = threading.Lock(), threading.Lock()
        self._bytes = 0
        """Bytes of all samples, at most those of the shared memory."""
        self._changed = False
        self.start()

    def offer(self, request: search_pb2.SearchRequest | search_pb2.SearchManyRequest) -> None:
        """Keep some of the queries of an answered request, each with the probability that makes the sample uniform."""
        if request.options.vectors or request.options.mode == search_pb2.MODE_LEXICAL:
            return
        try:
            manifest = self._manifest_of(request.index)
        except UnknownIndexError:  # dropped since it answered
            return
        with self._lock:
            reservoir = self._reservoir_of(manifest)
            for vector_of in _queries_of(request, self._known_vector):
                reservoir.seen += 1
                place = len(reservoir.vectors)
                if place >= reservoir.most:
                    place = int(self._random() * reservoir.seen)
                    if place >= reservoir.most:
                        continue
                vector_D = vector_of()
                if vector_D is not None and len(vector_D) == reservoir.dimensions:
                    before = reservoir.bytes
                    reservoir.vectors[place : place + 1] = [vector_D]
                    self._bytes += reservoir.bytes - before
                    self._bound()
                    self._changed = True

    def forget(self, name: str) -> None:
        """Forget the queries of an index that is gone."""
        with self._lock:
            self._changed |= self._remove(name)
        self._publish_changed()

    def _reservoir_of(self, manifest: Manifest) -> _Reservoir:
        reservoir = self._reservoirs.get(manifest.index)
        if reservoir is None or (reservoir.index_id, reservoir.dimensions) != (
            manifest.index_id,
            manifest.dimensions,
        ):
            self._remove(manifest.index)
            reservoir = _Reservoir(manifest.index_id, manifest.dimensions, self._most)
            self._reservoirs[manifest.index] = reservoir
            self._bytes += INDEX_BYTES
        return reservoir

    def _remove(self, name: str) -> bool:
        reservoir = self._reservoirs.pop(name, None)
        if reservoir is not None:
            self._bytes -= INDEX_BYTES + reservoir.bytes
        return reservoir is not None

    def _bound(self) -> None:
        while self._bytes > self._blobs.most_bytes:
            largest = max(self._reservoirs.values(), key=lambda each: each.bytes)
            if not largest.vectors:
                break
            before = largest.bytes
            largest.make_smaller(self._random)
            self._bytes += largest.bytes - before

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

    def _publish_changed(self) -> None:
        if not self._changed:
            return
        with self._publishing:
            with self._lock:  # searches wait for it
                self._changed = False
                samples = [
                    (name, replace(each, vectors=[*each.vectors])) for name, each in self._reservoirs.items()
                ]
            self._blobs.write(self._slot, _encoded(samples))


def _encoded(samples: Sequence[tuple[str, _Reservoir]]) -> bytes:
    """Return samples as bytes."""
    heads = [[name, each.index_id, each.dimensions, each.seen, len(each.vectors)] for name, each in samples]
    head = json.dumps(heads).encode()
    bodies = [vector_D.tobytes() for _, each in samples for vector_D in each.vectors]
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
            yield partial(vector_components, query.vector, "vector")
        elif kind == "text":
            yield partial(known_vector, request.index, query.text)


def _decoded(data: bytes, name: str, index_id: str | None, dimensions: int) -> Iterator[_WorkerSample]:
    """Yield the sample of an index that a worker has written, if there is one."""
    if not data:
        return
    [length] = _LENGTH.unpack_from(data)
    start = _LENGTH.size + length
    for each, own_id, size, seen, count in json.loads(data[_LENGTH.size : start]):
        end = start + 4 * size * count
        if (each, own_id, size) == (name, index_id, dimensions) and count:
            yield _WorkerSample(seen, np.frombuffer(data[start:end], np.float32).reshape(count, size))
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
