"""An index whose datapoints expire, by a clock that tests set, and what each method shows of it."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import scannery
from scannery.client import Client, Index
from scannery.client.transport.embedded import EmbeddedTransport
from scannery.indexer import Store
from scannery.runtime.times import WallSeconds
from scannery.serving.catalog.roles import embedded_catalog
from scannery.serving.embedded import EmbeddedEngine

START = 4_000_000_000
"""By the clock of the machine, which background tasks have, nothing has expired."""
VECTOR = [1.0, 0.0, 0.0, 0.0]
EXPIRING: dict[str, Any] = {
    "index": "notes",
    "source": {"id": "id", "vector": "vector", "text": "text"},
    "shards": 2,
    "lexical": True,
    "attributes": {"expires_at": "timestamp", "number": "int"},
    # Nothing is sealed unless a test does it.
    "live": {"seal_rows": 100_000, "merge_segments": 2, "expire": "expires_at"},
}


class Clock:
    """Seconds since 1970 that a test sets."""

    def __init__(self) -> None:
        self.now_s = float(START)

    def __call__(self) -> float:
        """Return the time."""
        return self.now_s


@contextmanager
def opened(path: Path, clock: Clock) -> Iterator[Client]:
    """Open a store, embedded, by a clock."""
    catalog = embedded_catalog(Store.open(path, create=True), seconds=WallSeconds(clock))
    with Client(EmbeddedTransport(EmbeddedEngine(catalog)), timeout_s=60.0) as client:
        yield client


def time_of(second: float) -> dt.datetime:
    """Return a time so many seconds after START."""
    return dt.datetime.fromtimestamp(START, dt.timezone.utc) + dt.timedelta(seconds=second)


def note(identifier: str, second: float | None, *, number: int = 0, **fields: Any) -> scannery.NewDatapoint:
    """Return a datapoint that expires so many seconds after START, None: never, with further fields."""
    expires_at = None if second is None else time_of(second)
    point: Any = {
        "id": identifier,
        "vector": VECTOR,
        "text": f"whale {identifier}",
        "attributes": {"number": number} | ({} if expires_at is None else {"expires_at": expires_at}),
        **fields,
    }
    return point


LIKE = 12
"""Datapoints of which similar ones are searched for."""


def shown(index: Index, ids: list[str], k: int = 50) -> dict[str, set[str]]:
    """Return what each method shows of some datapoints, or of how many there are, as so many ids."""
    answers = {"dense": {hit.id for hit in index.search(VECTOR, k)}}
    answers["lexical"] = {hit.id for hit in index.search("whale", k, mode="lexical")}
    answers["exact"] = {hit.id for hit in index.search(VECTOR, k, exact=True)}
    answers["filtered"] = {hit.id for hit in index.search(VECTOR, k, where={"number": {"$gte": 0}})}
    answers["get"] = {point.id for point in index.get(ids) if point is not None}
    answers["scan"] = {point.id for point in index.scan()}
    names = sorted(answers["get"])
    answers["like"] = set()
    # One that is there shows all others, so of many a dozen are asked for, by chance.
    some = random.Random(f"{ids} {names}").sample(ids, min(len(ids), LIKE))
    for identifier in (*some, *names[:1]):
        with suppress(scannery.NotFoundError):
            answers["like"] |= {identifier} | {hit.id for hit in index.search(scannery.Like(identifier), k)}
    count = len(names)
    for method, total in (
        ("count", index.count()),
        ("stats", index.stats().rows),
        ("facets", sum(each.count for each in index.facets("number"))),
    ):
        answers[method] = set(names) if total == count else {f"{total} instead of {count}"}
    return answers


def random_second(rng: random.Random, now: float) -> float | None:
    """Return when a datapoint expires: soon, long ago or never."""
    return rng.choice([None, now + rng.randint(-3, 30), now + rng.random() * 20, now + 1000])
