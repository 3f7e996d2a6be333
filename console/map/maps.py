"""Samples of an index placed by UMAP, one at a time, and kept while the index stays as it is."""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from scannery.client.errors import FailedPreconditionError, ResourceExhaustedError
from scannery.client.request.calls import SCAN
from scannery.client.transport.base import AsyncTransport
from scannery.runtime.errors import CodedError
from scannery.v1.search_pb2 import ScanRequest
from scannery.v1.types_pb2 import Datapoint

__all__ = ["MAX_POINTS", "PlacedMap", "PlacedMaps"]

MAX_POINTS, LEAST_POINTS = 50_000, 10
MAX_VECTOR_BYTES = 256 << 20
MAX_KEPT, MAX_WAITING = 8, 8
PAGE_ROWS = 5000
PAGE_TIMEOUT_S, PROCESS_TIMEOUT_S = 60.0, 900.0

_LOG = logging.getLogger(__name__)


@dataclass
class PlacedMap:
    """A map, and how far it is."""

    state: Literal["waiting", "reading", "placing", "done", "failed"] = "waiting"
    error: str = ""
    """What ended it."""
    ids: Sequence[str] = ()
    positions_N2: np.ndarray | None = None
    """uint16, from left to right and from top to bottom; both axes have the same unit."""
    started_s: float = field(default_factory=time.monotonic)


class PlacedMaps:
    """The maps of a console.

    Args:
        transport: to the server or the store.

    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._maps: dict[tuple[str, ...], PlacedMap] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()

    def of(self, key: tuple[str, ...], scan: ScanRequest, vector: str, metric: str) -> PlacedMap:
        """Return the map of a key, begun if there is none; one that failed is returned once.

        Args:
            key: the caller, the state of the index and the request.
            scan: of the sample, with vectors.
            vector: name of the vectors; empty: the unnamed ones.
            metric: `cosine` or `euclidean`.

        Raises:
            ResourceExhaustedError: too many maps are being placed.

        """
        entry = self._maps.pop(key, None)
        if entry is not None and entry.state == "failed":
            return entry  # and tried again when it is asked for again
        if entry is None:
            if len(self._tasks) >= MAX_WAITING:
                raise ResourceExhaustedError(
                    "the console places as many maps as it can; try again in a minute"
                )
            entry = PlacedMap()
            # The task has the context of the request, with the caller's key.
            task = asyncio.get_running_loop().create_task(self._run(entry, scan, vector, metric))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._maps[key] = entry  # the last used is the last
        for old, before in list(self._maps.items())[:-MAX_KEPT]:
            if before.state in ("done", "failed"):
                del self._maps[old]
        return entry

    async def close(self) -> None:
        """End all work."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _run(self, entry: PlacedMap, scan: ScanRequest, vector: str, metric: str) -> None:
        try:
            async with self._turn:
                entry.state = "reading"
                ids, vectors_ND = await self._vectors(scan, vector)
                if len(ids) < LEAST_POINTS:
                    raise FailedPreconditionError(
                        f"a map by UMAP needs {LEAST_POINTS} datapoints with vectors"
                    )
                entry.state = "placing"
                positions_N2 = await _placed(vectors_ND, metric)
            entry.ids, entry.positions_N2, entry.state = ids, _scaled(positions_N2), "done"
        except CodedError as error:
            entry.state, entry.error = "failed", error.message
        except Exception:  # noqa: BLE001  a defect of one map does not end the console
            entry.state, entry.error = "failed", "the console has a defect; see its log"
            _LOG.exception("a map failed")

    async def _vectors(self, scan: ScanRequest, vector: str) -> tuple[list[str], np.ndarray]:
        """Return ids and vectors of the sample, float32 (N, D); fewer where they would fill the memory."""
        ids: list[str] = []
        parts: list[np.ndarray] = []
        size = 0
        scan.page_size = PAGE_ROWS
        while True:
            page = await self._transport.call(SCAN, scan, PAGE_TIMEOUT_S)
            names, part_ND = await asyncio.to_thread(_read, page.datapoints, vector)
            ids += names
            parts.append(part_ND)
            size += part_ND.nbytes
            scan.page_token, scan.index = page.next_page_token, page.index or scan.index
            if not scan.page_token or size >= MAX_VECTOR_BYTES:
                return ids, np.concatenate(
                    [part for part in parts if len(part)] or [np.zeros((0, 1), np.float32)]
                )


def _read(points: Sequence[Datapoint], name: str) -> tuple[list[str], np.ndarray]:
    ids, vectors = [], []
    for point in points:
        vector = point.vectors.get(name) if name else point.vector if point.HasField("vector") else None
        if vector is not None:
            ids.append(point.id)
            vectors.append(np.frombuffer(vector.packed, "<f4"))
    return ids, np.stack(vectors) if vectors else np.zeros((0, 1), np.float32)


async def _placed(vectors_ND: np.ndarray, metric: str) -> np.ndarray:
    with tempfile.TemporaryDirectory(prefix="scannery-map-") as folder:
        source, target = Path(folder, "vectors.npy"), Path(folder, "positions.npy")
        await asyncio.to_thread(np.save, source, vectors_ND)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "scannery.console.map.umap_process", str(source), str(target), metric),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, errors = await asyncio.wait_for(process.communicate(), PROCESS_TIMEOUT_S)
        except TimeoutError:
            raise FailedPreconditionError("UMAP took too long; take a smaller sample") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it was ended"]
            raise FailedPreconditionError(f"UMAP failed: {lines[-1][:300]}")
        return np.asarray(np.load(target))


def _scaled(positions_N2: np.ndarray) -> np.ndarray:
    """Return positions from 0 to 65535, with the same unit on both axes and the middle in the middle."""
    low_2, high_2 = positions_N2.min(axis=0), positions_N2.max(axis=0)
    unit = max(float((high_2 - low_2).max()), 1e-9)
    centred_N2 = (positions_N2 - (low_2 + high_2) / 2) / unit + 0.5
    return np.asarray(np.clip(np.rint(centred_N2 * 65535), 0, 65535), np.uint16)
