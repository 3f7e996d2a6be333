"""Columns that an index gets while others write: who does not know them yet, takes none from a row.

The servers here look for versions only when a test says so; real ones do each second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client import Index
from scannery.indexer import SegmentCache
from tests.model.actors import LocalActor

DIMENSIONS = 2
VECTOR = [1.0, 2.0]
NAMED = [3.0, 4.0, 5.0]
ADDED: dict[str, dict[str, Any]] = {
    "attribute": {"attributes": {"added": "int"}},
    "named vector": {"named_vectors": {"added": {"dimensions": 3}}},
    "dynamic": {"dynamic": True},
}
POINTS: dict[str, dict[str, Any]] = {
    "attribute": {"attributes": {"added": 7, "stamp": 1}},
    "named vector": {"attributes": {"stamp": 1}, "vectors": {"added": NAMED}},
    "dynamic": {"attributes": {"stamp": 1, "free": "text"}},
}


def by_id(index: Index) -> object:
    return index.update([{"id": "x", "attributes": {"stamp": 2}}])


def by_filter(index: Index) -> object:
    return index.update(where={"stamp": 1}, attributes={"stamp": 2})


def blind(index: Index) -> object:
    return index.upsert([{"id": "y", "vector": VECTOR, "attributes": {"stamp": 2}}])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("altered", dimensions=DIMENSIONS, attributes={"stamp": "int"})
        index.upsert([{"id": name, "vector": VECTOR, "attributes": {"stamp": 0}} for name in ("x", "z")])
    return tmp_path / "store"


@pytest.fixture
def actor(path: Path) -> Iterator[Callable[[str], LocalActor]]:
    with ExitStack() as stack:

        def opened(name: str) -> LocalActor:
            made = LocalActor.opened(name, path, "altered", SegmentCache(path.parent / "cache"))
            stack.callback(made.close)
            return made

        yield opened


@pytest.mark.parametrize("late", ["s2", "e2"])
@pytest.mark.parametrize("write", [by_id, by_filter, blind])
@pytest.mark.parametrize("what", list(ADDED))
def test_a_process_of_the_version_before_keeps_new_columns(
    actor: Callable[[str], LocalActor], what: str, write: Callable[[Index], object], late: str
) -> None:
    first, second = actor("s1"), actor(late)
    second.index.stats()
    first.index.alter(**ADDED[what])
    first.index.upsert([{"id": "x", "vector": VECTOR, **POINTS[what]}])
    write(second.index)
    second.look()
    for each in (second, actor("e1")):
        [row] = each.index.get(["x"], vectors=True)
        wanted = POINTS[what]["attributes"] | ({} if write is blind else {"stamp": 2})
        assert row.attributes == wanted
        assert {name: list(vector) for name, vector in row.vectors.items()} == POINTS[what].get("vectors", {})
