"""New versions, dropped indexes and late starts, while callers ask a root."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

import scannery
from scannery.indexer import Store, latest_version
from scannery.indexer.versions.dropping import drop_index
from scannery.serving import Server
from scannery.serving.process import server
from scannery.v1.leaf_pb2 import LeafStatusRequest
from scannery.v1.leaf_pb2_grpc import LeafServiceStub
from tests.cluster.processes import Traffic, wait_until
from tests.cluster.servers import leaf_server, root_server, started_cluster
from tests.data import clustered, datapoints, without_ids
from tests.served import DIMENSIONS, LIBRARY, library_table, make_library_store, publish_version
from tests.tools.ports import free_ports

pytestmark = pytest.mark.system

VECTORS_ND = clustered(60, DIMENSIONS, seed=11)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_library_store(tmp_path)


def ask(client: scannery.Client) -> scannery.Hits:
    return client.index("library").search(VECTORS_ND[0], 200, exact=True, timeout_s=20)


def version_of(server: Server) -> int:
    with scannery.connect(server.address) as client:
        return ask(client).version


def answered_ids(answers: list[scannery.Hits]) -> dict[int, set[frozenset[str]]]:
    """Return the sets of ids that were answered with each version."""
    found: dict[int, set[frozenset[str]]] = {}
    for hits in answers:
        found.setdefault(hits.version, set()).add(frozenset(hit.id for hit in hits))
    return found


def test_a_roll_out_and_a_rollback_under_load(store: Path, tmp_path: Path) -> None:
    opened = Store.open(store)
    # Each version lacks the best hits of the one before, in all shards.
    with started_cluster(store, 2, rows=2) as (root, _), Traffic(root.address, ask) as traffic:
        first = version_of(root)
        for moved in range(1, 4):
            with scannery.connect(root.address) as client:
                dead = [hit.id for hit in ask(client)[:20]]
            manifest = without_ids(opened, "library", dead)
            wait_until(lambda: version_of(root) == manifest.version)  # noqa: B023  # it is called in this round
            assert manifest.version == first + moved
        with scannery.connect(root.address) as client:
            back = client.index("library").rollback(first, if_version=manifest.version)
            assert client.index("library").versions(1)[0].content_of == first
        wait_until(lambda: version_of(root) == back.version)
        time.sleep(0.3)
    assert traffic.failures == []
    by_version = answered_ids(traffic.answers)
    assert set(by_version) <= set(range(first, back.version + 1))
    assert all(len(sets) == 1 for sets in by_version.values()), "each answer is of one version only"
    assert by_version[first] == by_version[back.version]


def test_a_root_moves_when_all_groups_have_the_version(store: Path) -> None:
    opened = Store.open(store)
    with ExitStack() as stack:
        quick = stack.enter_context(leaf_server(store, 0, 2))
        slow = stack.enter_context(leaf_server(store, 1, 2, check_every_s=3))
        root = stack.enter_context(root_server(store, f"{quick.address},{slow.address}"))
        first = version_of(root)
        second = without_ids(opened, "library", ["d1"]).version
        time.sleep(1.5)
        assert version_of(root) == first
        wait_until(lambda: version_of(root) == second)


def test_a_root_that_starts_while_a_group_opens_a_version_reads_the_one_before(store: Path) -> None:
    with ExitStack() as stack:
        quick = stack.enter_context(leaf_server(store, 0, 2))
        slow = stack.enter_context(leaf_server(store, 1, 2, check_every_s=1000))
        target = f"{quick.address},{slow.address}"
        root = stack.enter_context(root_server(store, target))
        first = version_of(root)
        second = without_ids(Store.open(store), "library", ["d1"]).version
        wait_until(lambda: newest_of(quick) == second)
        assert version_of(root) == first
        other = stack.enter_context(root_server(store, target))
        assert version_of(other) == first


def newest_of(leaf: Server) -> int:
    """Return the newest version that a leaf tells."""
    with grpc.insecure_channel(leaf.address) as channel:
        status = LeafServiceStub(channel).GetStatus(LeafStatusRequest(), timeout=20)
    [newest] = [one.at for one in status.indexes if one.at.index == "library" and not one.former]
    return int(newest.version)


def test_an_index_is_dropped_and_made_again(store: Path, tmp_path: Path) -> None:
    opened = Store.open(store)
    with started_cluster(store, 2) as (root, _), scannery.connect(root.address) as client:
        assert len(ask(client)) == 200
        drop_index(opened, "library", force=True)
        wait_until(lambda: not _has(client, "library"))
        table = datapoints(LIBRARY, VECTORS_ND, ids=[f"new{row}" for row in range(len(VECTORS_ND))])
        publish_version(opened, LIBRARY, table, tmp_path, shards=4)
        wait_until(lambda: _has(client, "library"))
        hits = ask(client)
        assert len(hits) == len(VECTORS_ND)
        assert all(hit.id.startswith("new") for hit in hits)


def _has(client: scannery.Client, name: str) -> bool:
    try:
        client.index(name).count()
    except (scannery.NotFoundError, scannery.UnavailableError):
        return False
    return True


def test_a_root_before_its_leaves_and_before_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LEAVES_WITHIN_S", 0.5)
    path = tmp_path / "late"
    store = Store.open(path, create=True)
    ports = free_ports(2)
    target = ",".join(f"127.0.0.1:{port}" for port in ports)
    with ExitStack() as stack:
        root = stack.enter_context(root_server(path, target))
        client = stack.enter_context(scannery.connect(root.address, retries=False))
        with pytest.raises(scannery.NotFoundError, match="library"):
            ask(client)
        publish_version(store, LIBRARY, library_table(), tmp_path, shards=3)
        wait_until(lambda: _error(client) is scannery.UnavailableError)
        for group, port in enumerate(ports):
            stack.enter_context(leaf_server(path, group, 2, listen=f"127.0.0.1:{port}"))
        wait_until(lambda: _error(client) is None)
        assert len(ask(client)) == 200
        assert ask(client).version == latest_version(store, "library")


def _error(client: scannery.Client) -> type[Exception] | None:
    try:
        ask(client)
    except scannery.ScanneryError as error:
        return type(error)
    return None


def test_leaves_that_disagree_about_the_number_of_groups(store: Path) -> None:
    with ExitStack() as stack:
        numbers = [(0, 2), (1, 2), (2, 3)]
        leaves = [stack.enter_context(leaf_server(store, *number)) for number in numbers]
        target = ",".join(leaf.address for leaf in leaves)
        root = stack.enter_context(root_server(store, target))
        alone = stack.enter_context(leaf_server(store, 0, 1))
        whole = stack.enter_context(root_server(store, alone.address))
        found = []
        for server in (root, whole):
            with scannery.connect(server.address) as client:
                found.append([(hit.id, hit.score) for hit in ask(client)])
        assert found[0] == found[1]
