"""An index under readers and a writer, and what it must hold afterwards."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import scannery
from scannery.runtime.search_modes import Mode

MODES: tuple[Mode, ...] = ("dense", "hybrid", "lexical")
__all__ = ["INDEX", "Traffic", "text_of"]

INDEX = "talks"
PAUSE_S = {"read": 0.2, "write": 0.06}
"""Between two requests of a reader, and of the writer: an exchange, of half a second, has eight of either beside it,
and the migration has the cores, which texts to encode would else take from it for minutes."""
WORDS = [
    "river",
    "mountain",
    "guitar",
    "python",
    "market",
    "garden",
    "ocean",
    "train",
    "coffee",
    "history",
    "music",
]


def text_of(number: int, revision: int, words: int = 12) -> str:
    """Return the text of a document in one of its revisions."""
    chosen = random.Random(1000 * number + revision)
    return f"{' '.join(chosen.choice(WORDS) for _ in range(words))} number {number} revision {revision}"


class Traffic:
    """Readers and a writer; `expected` is what the index must hold, `failures` must stay empty."""

    def __init__(
        self, target: str, documents: int, *, words: int = 12, readers: int = 3, seed: int = 1
    ) -> None:
        self.failures: list[str] = []
        self.answers = self.writes = 0
        self.slowest_write_s = 0.0
        self.expected: dict[int, int | None] = dict.fromkeys(range(documents), 0)
        self._target, self._words, self._chosen = target, words, random.Random(seed)
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(readers)]
        self._threads.append(threading.Thread(target=self._write))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it within the context."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _read(self, seed: int) -> None:
        chosen = random.Random(seed)
        with scannery.connect(self._target, timeout_s=120) as client:
            index = client.index(INDEX)
            while not self._ended.is_set():
                mode: Mode = chosen.choice(MODES)
                try:
                    hits = index.search(text_of(chosen.randrange(20), 0, self._words), k=3, mode=mode)
                    self.failures += [] if hits else [f"no hit, {mode}"]
                except scannery.ScanneryError as error:
                    self.failures.append(f"search, {mode}: {error!r}")
                self.answers += 1
                time.sleep(PAUSE_S["read"])

    def _write(self) -> None:
        with scannery.connect(self._target, timeout_s=120) as client:
            index = client.index(INDEX)
            while not self._ended.is_set():
                number = self._chosen.choice(
                    [len(self.expected), self._chosen.randrange(20, len(self.expected))]
                )
                revision = self._chosen.randrange(1, 100)
                began_s = time.monotonic()
                try:
                    if number in self.expected and revision < 30:
                        index.delete(document_ids=[f"d{number}"])
                        self.expected[number] = None
                    else:
                        text = text_of(number, revision, self._words)
                        index.upsert([{"id": f"d{number}", "text": text}])
                        self.expected[number] = revision
                except scannery.ScanneryError as error:
                    self.failures.append(f"write: {error!r}")
                self.writes += 1
                self.slowest_write_s = max(self.slowest_write_s, time.monotonic() - began_s)
                time.sleep(PAUSE_S["write"])

    def problems(self, index: scannery.Index) -> list[str]:
        """Return what an index holds that it must not, and what it lacks."""
        texts: dict[str, list[tuple[int, str]]] = {}
        for datapoint in index.scan():
            texts.setdefault(datapoint.document_id, []).append(
                (datapoint.text_start or 0, datapoint.text or "")
            )
        stored = {name: " ".join(text for _, text in sorted(parts)).split() for name, parts in texts.items()}
        wanted = {
            f"d{number}": text_of(number, revision, self._words).split()
            for number, revision in self.expected.items()
            if revision is not None
        }
        return [name for name in stored.keys() | wanted.keys() if stored.get(name) != wanted.get(name)]
