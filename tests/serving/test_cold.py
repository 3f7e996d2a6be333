"""Servers of cold indexes answer as others do, or say what they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.runtime.errors import ConfigError
from scannery.serving import Server, ServerConfig
from tests.cluster.processes import Process
from tests.cluster.servers import leaf_server, root_server
from tests.data import clustered
from tests.object_server import ObjectServer, object_server
from tests.served import DIMENSIONS, copied, make_library_store, make_text_store, serving
from tests.tools.ports import free_ports

pytestmark = pytest.mark.system

QUERY = clustered(700, DIMENSIONS, seed=5)[650]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library_store(tmp_path_factory.mktemp("cold"))


@pytest.fixture(scope="module")
def both(store: Path) -> Iterator[tuple[scannery.Client, scannery.Client]]:
    """Clients of a server of unpacked segments, and of one of cold ones."""
    with serving(store) as one, serving(store, cold=("all",)) as other:
        assert all(segment.is_cold for segment in other._catalog.snapshot("library").segments)
        with scannery.connect(one.address) as warm, scannery.connect(other.address) as cold:
            yield warm, cold


def shown(hits: Any) -> list[Any]:
    return [(hit.id, hit.score, hit.text, hit.attributes, hit.payload) for hit in hits]


CALLS: dict[str, Callable[[Any], Any]] = {
    "search": lambda index: shown(index.search(QUERY, k=20)),
    "exact": lambda index: shown(index.search(QUERY, k=7, exact=True)),
    "filter": lambda index: shown(
        index.search(QUERY, k=10, where={"show": "gotime", "year": {"$gte": 2010}})
    ),
    "few": lambda index: shown(index.search(QUERY, k=10, where={"year": 2003, "live": True})),
    "crowding": lambda index: shown(index.search(QUERY, k=10, max_per_group=1)),
    "offset": lambda index: shown(index.search(QUERY, k=10, offset=15)),
    "many": lambda index: [shown(hits) for hits in index.search_many([QUERY] * 9 + [-QUERY], k=5)],
    "get": lambda index: [(row.id, row.vector, row.text) for row in index.get(["d3", "d599"], vectors=True)],
    "vectors": lambda index: [hit.vector for hit in index.search(QUERY, k=5, vectors=True)],
    "count": lambda index: index.count(where={"tags": "a"}),
    "facets": lambda index: index.facets("show", where={"live": True}),
    "scan": lambda index: sorted(row.id for row in index.scan(where={"show": "jsparty"})),
    "by id": lambda index: shown(index.search(scannery.Like("d17"), k=5)),
    "ranking": lambda index: shown(index.search(QUERY, k=20, ranking="score + 0.5 * default(rating, 2)")),
    "ranking and filter": lambda index: shown(
        index.search(QUERY, k=20, ranking="year - score", where={"show": "gotime"}, max_per_group=1)
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_a_cold_server_answers_as_another(
    call: Callable[[Any], Any], both: tuple[scannery.Client, scannery.Client]
):
    warm, cold = both
    wanted, found = call(warm.index("library")), call(cold.index("library"))
    if isinstance(wanted, list) and wanted and isinstance(wanted[0], np.ndarray):
        np.testing.assert_array_equal(wanted, found)
    else:
        assert repr(found) == repr(wanted)


def test_search_by_words_is_refused(tmp_path: Path):
    store = make_text_store(tmp_path, lexical=True)
    with serving(store, cold=("texts",), device="cpu") as server, scannery.connect(server.address) as client:
        index = client.index("texts")
        for mode in ("lexical", "hybrid"):
            for query in ("bread", '"bread"'):
                with pytest.raises(scannery.ScanneryError, match=r"mode: .*--cold"):
                    index.search(query, k=3, mode=mode)
        assert index.search("how to bake", k=1)[0].id == "bread"  # without a mode: by vector
        assert index.search("how to bake", k=1, highlight=True)[0].snippet is not None


@pytest.mark.parametrize("tier", ["cold", "compact"])
def test_updates_are_found_and_keep_vectors_as_they_were_given(store: Path, tmp_path: Path, tier: str):
    with (
        serving(copied(store, tmp_path), **{tier: ("library",)}) as server,
        scannery.connect(server.address) as client,
    ):
        index = client.index("library")
        best = index.search(QUERY, k=2)
        done = index.upsert([{"id": "new", "vector": QUERY, "attributes": {"show": "gotime"}}])
        found = index.search(QUERY, k=2, min_sequence=done.sequence)
        assert [hit.id for hit in found] == ["new", best[0].id]
        removed = index.delete(["new", best[0].id])
        assert index.search(QUERY, k=1, min_sequence=removed.sequence)[0].id == best[1].id
        [before] = index.get(["d5"], vectors=True)
        index.update([{"id": "d5", "attributes": {"year": 1999}}])
        [now] = index.get(["d5"], vectors=True)
        assert before is not None
        assert now is not None
        assert now.attributes["year"] == 1999
        assert before.vector is not None
        np.testing.assert_array_equal(now.vector, before.vector)


@pytest.fixture
def bucket(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("SCANNERY_COLD_BYTES", "0")
    with object_server(monkeypatch) as server:
        for path in copied(store, tmp_path).rglob("*"):
            if path.is_file():
                name = path.relative_to(tmp_path / "copy").as_posix()
                server.objects[f"/bucket/store/{name}"] = path.read_bytes()
        yield server


def test_deadlines_are_kept_while_the_bucket_is_slow(bucket: ObjectServer):
    config = ServerConfig(store="s3://bucket/store", listen="127.0.0.1:0", cold=("*",), drain_s=1)
    with Server(config) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        wanted = [hit.id for hit in index.search(QUERY, k=5)]
        bucket.bytes_per_s = 3e4
        with pytest.raises(scannery.ScanneryError, match="(?i)deadline"):
            index.search(QUERY, k=5, timeout_s=0.3)
        assert index.count() == 600  # needs no vectors
        bucket.bytes_per_s = None
        assert [hit.id for hit in index.search(QUERY, k=5)] == wanted


def test_options_that_do_not_fit():
    with pytest.raises(ConfigError, match="cold: 'b' is not among"):
        ServerConfig(store="s", indexes=("a",), cold=("b",))
    assert ServerConfig(store="s", indexes=("a",), cold=("*",)).cold == ("*",)


def test_cold_leaves_answer_as_one_server(store: Path, both: tuple[scannery.Client, scannery.Client]):
    warm, _ = both
    with ExitStack() as stack:
        leaves = [stack.enter_context(leaf_server(store, group, 2, cold=("all",))) for group in range(2)]
        assert all(
            segment.is_cold for leaf in leaves for segment in leaf._catalog.snapshot("library").segments
        )
        root = stack.enter_context(root_server(store, ",".join(leaf.address for leaf in leaves)))
        client = stack.enter_context(scannery.connect(root.address))
        for name in ("exact", "filter", "crowding", "get", "count"):
            call = CALLS[name]
            assert repr(call(client.index("library"))) == repr(call(warm.index("library"))), name


def test_a_root_is_not_cold(store: Path):
    with pytest.raises(ConfigError, match="cold: is for leaves"):
        root_server(store, "127.0.0.1:1", cold=("all",))


def test_forked_workers_read_a_bucket(bucket: ObjectServer, both: tuple[scannery.Client, scannery.Client]):
    warm, _ = both
    [port] = free_ports(1)
    process = Process("s3://bucket/store", port, "--cold", "library", "--cold", "flat", "--workers", "2")
    process.start()
    try:
        process.wait()
        for _ in range(4):  # each connection is one of the workers
            with scannery.connect(process.address) as client:
                assert CALLS["exact"](client.index("library")) == CALLS["exact"](warm.index("library"))
    finally:
        process.kill()
