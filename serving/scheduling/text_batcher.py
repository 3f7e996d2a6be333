"""Texts of many callers, encoded together.

While one batch is encoded, further texts gather; the next batch takes all of them. So a batch is as large as the load
makes it, and a text that comes alone waits for nothing. One of the callers does the work: no thread is switched to on
the way of a single query.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.permits import CallerGoneError, still_wanted

__all__ = ["TextBatcher"]

MOST_TEXTS = 64
"""In a batch: enough for the throughput of a CPU, and few enough that nobody waits long for the others."""

Encode = Callable[[Sequence[str]], np.ndarray]


class _Job:
    __slots__ = ("done", "error", "leads", "texts", "vectors", "wanted")

    def __init__(self, texts: Sequence[str], wanted: Callable[[], bool]) -> None:
        self.texts = texts
        self.wanted = wanted
        self.vectors: Sequence[np.ndarray] = ()
        self.error: BaseException | None = None
        self.leads = False
        self.done = threading.Event()


class TextBatcher:
    """Joins the texts of concurrent callers. Safe to use from several threads."""

    def __init__(self, encode: Encode, *, most: int = MOST_TEXTS, observe: Callable[[float], None]) -> None:
        self._encode = encode
        self._most = most
        self._observe = observe
        self._lock = threading.Lock()
        self._gathered: deque[_Job] = deque()
        self._working = False

    def encode(self, texts: Sequence[str]) -> Sequence[np.ndarray]:
        """Return the vector of each text.

        Raises:
            GoneError: the caller hung up while it waited.
            Whatever the encoder raises for these texts; those of others do not matter.

        """
        job = _Job(texts, still_wanted())
        with self._lock:
            self._gathered.append(job)
            leads, self._working = not self._working, True
        if not leads:
            job.done.wait()
            leads = job.leads
        if leads:
            self._lead()
        if job.error is not None:
            raise job.error
        return job.vectors

    def _lead(self) -> None:
        """Encode what has gathered, the own texts among it, and hand over to the next."""
        batch = self._taken()
        try:
            self._work(batch)
        finally:
            with self._lock:
                following = self._gathered[0] if self._gathered else None
                self._working = following is not None
            for job in batch:
                job.done.set()
            if following is not None:
                following.leads = True
                following.done.set()

    def _taken(self) -> list[_Job]:
        with self._lock:
            batch = [self._gathered.popleft()]
            texts = len(batch[0].texts)
            while self._gathered and texts + len(self._gathered[0].texts) <= self._most:
                texts += len(self._gathered[0].texts)
                batch.append(self._gathered.popleft())
            return batch

    def _work(self, batch: list[_Job]) -> None:
        for job in batch:
            if not job.wanted():
                job.error = CallerGoneError()
        wanted = [job for job in batch if job.error is None]
        # Many ask the same at the same time when something happens in the world.
        texts = list(dict.fromkeys(text for job in wanted for text in job.texts))
        if not texts:
            return
        self._observe(len(texts))
        try:
            self._fill(wanted, texts)
        except Exception as error:  # noqa: BLE001  it belongs to one of them: each by itself finds out whose
            if len(wanted) == 1:
                wanted[0].error = error
                return
            for job in wanted:
                self._work([job])

    def _fill(self, jobs: list[_Job], texts: list[str]) -> None:
        with on_all_cores():
            vectors = dict(zip(texts, self._encode(texts), strict=True))
        for job in jobs:
            job.vectors = [vectors[text] for text in job.texts]
