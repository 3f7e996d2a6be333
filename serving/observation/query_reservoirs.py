"""A sample of the vectors of queries, which an administrator can read to tune an index with (`scannery index tune`).

Only servers that were started with `--keep-queries` have any: queries can be personal data. Each query has a random
key, and a worker keeps those with the least keys of each index: a uniform sample, in memory only. It copies them to
memory that the workers share, so that one call returns the queries of all. They are forgotten when the index is dropped
or replaced. The memory of a worker for them is bounded: beyond it, the largest samples become smaller.
"""

from __future__ import annotations

import heapq
import itertools
import marshal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scannery.indexer import Manifest
from scannery.runtime.sharing import SharedBlobs
from scannery.serving.observation.query_sample import IndexSample, SearchMessage, queries_of
from scannery.serving.request.query import vector_components
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.v1 import search_pb2

__all__ = ["QueryReservoirs"]

EVERY_S = 1.0
SHARE = 0.02
"""Most share of a core for publishing: large samples are published less often, so that the budget lasts for others."""
INDEX_BYTES = 512
"""Counted for each index, besides its vectors."""
KEY_BYTES = 8


@dataclass(slots=True)
class _Reservoir:
    """The queries of one index with the least keys."""

    manifest: Manifest
    size: int
    """Most queries; it only becomes smaller."""
    seen: int = 0
    """Queries that the sample was drawn from."""
    entries: list[tuple[float, int, np.ndarray]] = field(default_factory=list)
    """A heap of negated key, number and vector: the first has the greatest key. (Numbers differ, so that no vectors are
    compared.)"""

    @property
    def bound(self) -> float:
        """The key from which on a query is not in the sample; 1 until it is full."""
        if len(self.entries) < self.size:
            return 1.0
        return -self.entries[0][0] if self.entries else 0.0

    @property
    def size_bytes(self) -> int:
        """Memory of the sample, also in that which workers share."""
        return INDEX_BYTES + self.entry_bytes * len(self.entries)

    @property
    def entry_bytes(self) -> int:
        """Bytes of a key with its vector."""
        return KEY_BYTES + 4 * self.manifest.dimensions

    def encoded(self) -> bytes:
        """Return keys and vectors as bytes."""
        records = np.empty(len(self.entries), _record(self.manifest.dimensions))
        if self.entries:  # far faster than an array of the tuples
            records["key"] = [-negated for negated, *_ in self.entries]
            np.stack([vector_D for *_, vector_D in self.entries], out=records["vector_D"])
        return records.tobytes()


class QueryReservoirs:
    """The samples of one worker; publishing them is a task of the observer. Safe to use from several threads."""

    name = "query-reservoirs"

    def __init__(
        self,
        size: int,
        blobs: SharedBlobs,
        slot: int,
        *,
        manifest_of: Callable[[str], Manifest],
        known_vector: Callable[[str, str], np.ndarray | None],
    ) -> None:
        """Begin without queries.

        Args:
            size: queries per index.
            blobs: memory that the workers share.
            slot: of this worker.
            manifest_of: returns the manifest of an index by its name.
            known_vector: returns the vector of a text for an index if it is cached, None otherwise.

        """
        self._size, self._blobs, self._slot = size, blobs, slot
        self._manifest_of, self._known_vector = manifest_of, known_vector
        self._reservoirs: dict[str, _Reservoir] = {}
        self._lock, self._publishing = threading.Lock(), threading.Lock()
        self._numbers = itertools.count()
        self._bytes = 0
        """Bytes of all samples, counted as they change: there may be thousands, and searches wait for the lock."""
        self._changed = False

    def bound(self, index: str, queries: int) -> float:
        """Count queries of an index, and return the key from which on they are not in its sample.

        Raises what `manifest_of` does.
        """
        manifest = self._manifest_of(index)
        with self._lock:
            reservoir = self._reservoirs.get(index)
            if reservoir is None or _identity(reservoir.manifest) != _identity(manifest):
                self._remove(index)
                reservoir = self._reservoirs[index] = _Reservoir(manifest, self._size)
                self._bytes += reservoir.size_bytes
                self._changed = True
            reservoir.seen += queries
            return reservoir.bound

    def add(self, index: str, request: SearchMessage, keys: Sequence[float]) -> None:
        """Add the queries of an answered request whose keys are among the least, if their vectors are at hand."""
        if request.options.vectors or request.options.mode == search_pb2.MODE_LEXICAL:
            return
        query = queries_of(request)
        with self._lock:
            reservoir = self._reservoirs.get(index)
            if reservoir is None:
                return
            for number, key in enumerate(keys):
                if key >= reservoir.bound:
                    continue
                vector_D = self._vector(index, query(number))
                if vector_D is None or len(vector_D) != reservoir.manifest.dimensions:
                    continue
                full = len(reservoir.entries) >= reservoir.size
                entry = -key, next(self._numbers), vector_D
                if full:
                    heapq.heappushpop(reservoir.entries, entry)
                else:
                    heapq.heappush(reservoir.entries, entry)
                    self._bytes += reservoir.entry_bytes
                    self._shrink()
                self._changed = True

    def forget(self, index: str) -> None:
        """Forget the queries of an index that is gone, in the shared memory too."""
        with self._lock:
            self._changed |= self._remove(index)
        self.publish()

    def _remove(self, index: str) -> bool:
        """Remove the sample of an index if there is one, and return whether there was."""
        reservoir = self._reservoirs.pop(index, None)
        if reservoir is not None:
            self._bytes -= reservoir.size_bytes
        return reservoir is not None

    def sample(self, manifest: Manifest, limit: int) -> tuple[np.ndarray, int]:
        """Return queries of all workers for an index, float32 (at most `limit`, D), and of how many they are."""
        self.publish()
        record, seen = _record(manifest.dimensions), 0
        samples = [np.empty(0, record)]
        for slot in range(self._blobs.count):
            data = self._blobs.read(slot)  # by `marshal`: of a process of this server, and never at rest
            there = marshal.loads(data).get(_identity(manifest)) if data else None
            if there is not None:
                seen += there[0]
                samples.append(np.frombuffer(there[1], record))
        merged = np.concatenate(samples)
        # The least keys of all: a worker that answered more queries has more of them.
        return merged["vector_D"][np.argsort(merged["key"])[:limit]], seen

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        """As `ObserverTask.run`: publish the queries, on a busy server too: callers of other workers want them."""
        if not self._changed:
            return EVERY_S
        started_s = time.thread_time()
        with spare.spend(pause=False):
            self.publish()
        return max(EVERY_S, (time.thread_time() - started_s) / SHARE)

    def publish(self) -> None:
        """Copy the queries to the shared memory if they have changed."""
        if not self._changed:
            return
        with self._publishing:
            with self._lock:  # searches wait for it
                self._changed = False
                samples = [replace(each, entries=[*each.entries]) for each in self._reservoirs.values()]
            content = {_identity(each.manifest): (each.seen, each.encoded()) for each in samples}
            self._blobs.write(self._slot, marshal.dumps(content))

    def _vector(self, index: str, query: search_pb2.Query) -> np.ndarray | None:
        """Return the vector of a query by vector or text; None: it is not known."""
        kind = query.WhichOneof("kind")
        if kind == "vector":
            return vector_components(query.vector, "vector")
        return self._known_vector(index, query.text) if kind == "text" else None

    def _shrink(self) -> None:
        """Forget the greatest keys of the largest samples until the shared memory suffices."""
        while self._bytes > self._blobs.most_bytes:
            largest = max(self._reservoirs.values(), key=lambda each: each.size_bytes)
            if not largest.entries:
                break
            heapq.heappop(largest.entries)
            self._bytes -= largest.entry_bytes
            largest.size = len(largest.entries)


def _identity(manifest: Manifest) -> tuple[str, str | None, int]:
    """Return what versions of an index have in common, and another one that takes its name has not."""
    return manifest.index, manifest.index_id, manifest.dimensions


def _record(dimensions: int) -> np.dtype[np.void]:
    """Return the type of a key with its vector."""
    return np.dtype([("key", np.float64), ("vector_D", np.float32, (dimensions,))])
