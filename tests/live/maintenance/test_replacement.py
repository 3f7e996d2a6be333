"""The whole content of an index replaced at once, beside writes, seals and changes of the spec."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.indexer import AlreadyExistsError, Store, StoreError, commit, parse_spec, read_manifest
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.replacement import Replacement
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import InvalidRequestError
from tests.data import datapoints

pytestmark = pytest.mark.system

ROWS, DIMENSIONS = 40, 4
SPEC: dict[str, Any] = {
    "index": "i",
    "source": {"id": "id", "vector": "v", "text": "text"},
    "attributes": {"color": "string"},
    "vectors": "optional",
    "shards": 3,
    "lexical": True,
}
VECTORS_ND = np.random.default_rng(0).standard_normal((ROWS, DIMENSIONS)).astype(np.float32)


def rows(color: str) -> pa.Table:
    columns = {"color": [color] * ROWS, "text": [f"word{row}" for row in range(ROWS)]}
    return datapoints(parse_spec(SPEC), VECTORS_ND, columns=columns)


def vectorless(table: pa.Table, count: int) -> pa.Table:
    """Return a table with other ids, of which no row has a vector."""
    ids = pa.array([f"x{row}" for row in range(count)])
    some = table.slice(0, count).drop_columns(["embedding"])
    for name in ("id", "document_id"):
        some = some.set_column(some.schema.get_field_index(name), name, ids)
    return some


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with scannery.connect(tmp_path / "store", create=True) as client:
        client.create_index(SPEC, dimensions=DIMENSIONS)
    return Store.open(tmp_path / "store")


def contents(store: Store) -> dict[str, Any]:
    """Return the colors of all datapoints by id, as a new reader sees them."""
    with scannery.connect(store.uri) as client:
        return {point.id: point.attributes.get("color") for point in client.index("i").scan()}


def test_rows_of_all_shards_with_and_without_vectors(store: Store):
    table = rows("red")
    with Replacement(store, "i") as replacement:
        replacement.add(table.slice(0, 15))
        replacement.add(table.slice(15))
        replacement.add(vectorless(table, 5))
        published = replacement.publish()
    assert {entry.shard for entry in published.segments} == {0, 1, 2}
    assert {entry.vectors for entry in published.segments} == {True, False}
    assert contents(store) == dict.fromkeys(
        [*table.column("id").to_pylist(), *(f"x{n}" for n in range(5))], "red"
    )
    with scannery.connect(store.uri) as client:
        index = client.index("i")
        assert index.search(VECTORS_ND[7], k=1)[0].id == table.column("id")[7].as_py()
        assert index.search("word9", mode="lexical", k=1)[0].text == "word9"


def test_a_reader_moves_to_the_new_content(store: Store):
    with scannery.connect(store.uri) as client:
        index = client.index("i")
        index.upsert([{"id": "old", "vector": VECTORS_ND[0]}])
        with Replacement(store, "i") as replacement:
            replacement.add(rows("red"))
            index.upsert([{"id": "later", "vector": VECTORS_ND[0]}])
            replacement.publish()
        until_s = time.monotonic() + 60
        while index.count() != ROWS + 1:
            assert time.monotonic() < until_s
            time.sleep(0.05)
        assert [point and point.id for point in index.get(["old", "later"])] == [None, "later"]
        # It goes on to take writes, and to seal them.
        index.upsert([{"id": "last", "vector": VECTORS_ND[0]}])
    assert seal(store, "i") is not None
    assert {"later", "last"} <= contents(store).keys()


def test_a_change_of_the_spec_meanwhile_stays(store: Store):
    with scannery.connect(store.uri) as client, Replacement(store, "i") as replacement:
        replacement.add(rows("red"))
        client.index("i").alter(attributes={"size": "int"})
        replacement.publish()
    with scannery.connect(store.uri) as client:
        index = client.index("i")
        index.upsert([{"id": "new", "vector": VECTORS_ND[0], "attributes": {"size": 3}}])
        assert index.count(where={"size": 3}) == 1
        assert index.count(where={"color": "red"}) == ROWS


def closed(replacement: Replacement, store: Store) -> None:
    replacement.close()


def duplicated(replacement: Replacement, store: Store) -> None:
    replacement.add(rows("blue"))
    with pytest.raises(InvalidRequestError, match="same one"):
        replacement.publish()


def created_again(replacement: Replacement, store: Store) -> None:
    with scannery.connect(store.uri) as client:
        before = [*client.index("i").scan()]
        drop(store, "i", force=True)  # as a server drops an index
    with scannery.connect(store.uri) as client:
        client.create_index(SPEC, dimensions=DIMENSIONS)
        client.index("i").upsert(
            [{"id": p.id, "vector": VECTORS_ND[0], "attributes": p.attributes} for p in before]
        )
    with pytest.raises(AlreadyExistsError, match="created again"):
        replacement.publish()


def rebuilt(change: dict[str, Any]) -> Callable[[Replacement, Store], None]:
    """Return what publishes a version with the same vectors and another spec, as a full build does."""

    def rebuild(replacement: Replacement, store: Store) -> None:
        now = read_manifest(store, "i")
        spec = parse_spec({**SPEC, **change})
        commit(store, now.model_copy(update={"parent": now.version, "spec": spec}))
        with pytest.raises(AlreadyExistsError, match="built"):
            replacement.publish()

    return rebuild


def without_lease(replacement: Replacement, store: Store) -> None:
    """Lose the lease, as when the machine sleeps for an hour, so that sealing cuts the log."""
    with scannery.connect(store.uri) as client:
        store.delete(replacement._lease.key)
        for _ in range(2):
            client.index("i").upsert(
                [{"id": "old", "vector": VECTORS_ND[0], "attributes": {"color": "white"}}]
            )
            assert seal(store, "i") is not None
    with pytest.raises(StoreError, match="lease"):
        replacement.publish()


@pytest.mark.parametrize(
    "fail",
    [
        closed,
        duplicated,
        created_again,
        without_lease,
        rebuilt({"distance": "dot"}),
        rebuilt({"lexical": False}),
    ],
)
def test_failures_leave_the_old_content(store: Store, fail: Callable[[Replacement, Store], None]):
    with scannery.connect(store.uri) as client:
        client.index("i").upsert([{"id": "old", "vector": VECTORS_ND[0], "attributes": {"color": "white"}}])
    with Replacement(store, "i") as replacement:
        replacement.add(rows("red"))
        fail(replacement, store)
    assert contents(store) == {"old": "white"}
    assert read_manifest(store, "i").statistics["mode"] != "replace"
