"""Leaves that are killed or stopped while callers search: processes of the command, with real signals."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

import scannery
from tests.cluster.processes import Cluster, Process, Traffic, often, running_cluster, wait_until
from tests.served import DIMENSIONS, ROWS, make_library_store

pytestmark = pytest.mark.system

GROUPS, ROWS_OF_LEAVES = often(2, 4), 2
RATE = often(50, 100)
"""Searches a second."""
SHARDS = often(3, 8)
KNOWN_AFTER_S = 1.5
"""A root asks leaves for their status each half second, and waits as long after a connection failed."""
STOPPED_P99_S = 0.25
"""On a busy machine, the quiet latencies vary more than threefold."""
QUERY = np.random.default_rng(3).standard_normal(DIMENSIONS).astype(np.float32)


def ask(client: scannery.Client) -> scannery.Hits:
    return client.index("library").search(QUERY, 10, exact=True, timeout_s=10)


def ask_partial(client: scannery.Client) -> scannery.Hits:
    return client.index("library").search(QUERY, 10, exact=True, allow_partial=True, timeout_s=10)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    store = make_library_store(tmp_path_factory.mktemp("killed"), shards=SHARDS)
    with running_cluster(store, GROUPS, ROWS_OF_LEAVES) as found:
        yield found


def whole(cluster: Cluster) -> scannery.Hits:
    """Return the answer of all groups."""
    with scannery.connect(cluster.root.address) as client:
        return ask(client)


@pytest.mark.parametrize("kills", [often(6, 300)])
def test_no_search_fails_or_is_partial_while_a_leaf_is_killed_each_second(
    cluster: Cluster, kills: int
) -> None:
    settle(cluster)
    right = [(hit.id, hit.score) for hit in whole(cluster)]
    chosen = random.Random(kills)
    with Traffic(cluster.root.address, ask_partial, rate=RATE) as traffic:
        for _ in range(kills):
            time.sleep(1)
            wait_until(lambda: bool(with_a_partner(cluster)))
            leaf = chosen.choice(with_a_partner(cluster))
            leaf.kill()
            leaf.start()
    assert traffic.failures == []
    print(f"{kills} kills, {len(traffic.answers)} searches, p99 {traffic.p99_s() * 1e3:.0f} ms")
    assert len(traffic.answers) > 5 * kills
    for hits in traffic.answers:
        assert hits.coverage is not None
        assert hits.coverage.complete
        assert [(hit.id, hit.score) for hit in hits] == right


def with_a_partner(cluster: Cluster) -> list[Process]:
    """Return the leaves whose partner in the other row has served for so long that the root knows it."""
    pairs = [
        (cluster.leaves[row][group], cluster.leaves[1 - row][group])
        for row in (0, 1)
        for group in range(GROUPS)
    ]
    return [leaf for leaf, partner in pairs if (partner.serves_for_s() or 0) > KNOWN_AFTER_S]


def test_a_stopped_leaf_does_not_hold_searches_up(cluster: Cluster) -> None:
    settle(cluster)
    with Traffic(cluster.root.address, ask) as quiet:
        time.sleep(3)
    stopped = cluster.leaves[0][1]
    with Traffic(cluster.root.address, ask) as traffic:
        time.sleep(0.5)
        stopped.send(signal.SIGSTOP)
        time.sleep(3)
        stopped.send(signal.SIGCONT)
    assert traffic.failures == []
    print(f"p99: quiet {quiet.p99_s() * 1e3:.1f} ms, one leaf stopped {traffic.p99_s() * 1e3:.1f} ms")
    assert traffic.p99_s() < max(3 * quiet.p99_s(), STOPPED_P99_S)


def test_a_group_without_leaves_is_named_or_left_out_and_comes_back(cluster: Cluster) -> None:
    settle(cluster)
    both = [row[1] for row in cluster.leaves]
    for leaf in both:
        leaf.kill()
    with scannery.connect(cluster.root.address, retries=False) as client:
        with pytest.raises(scannery.UnavailableError, match="group 1"):
            ask(client)
        hits = ask_partial(client)
        assert hits.coverage is not None
        assert not hits.coverage.complete
        lost = len(range(1, SHARDS, GROUPS))
        assert (hits.coverage.shards, hits.coverage.shards_answered) == (SHARDS, SHARDS - lost)
        assert 0 < hits.coverage.rows_answered < hits.coverage.rows == ROWS
        [many] = client.index("library").search_many([QUERY], 10, allow_partial=True, exact=True)
        assert [hit.id for hit in many] == [hit.id for hit in hits]
        with pytest.raises(scannery.UnavailableError, match="group 1"):
            client.index("library").count()
        both[0].start()
        both[0].wait()
        wait_until(lambda: complete(client))
        both[1].start()
        both[1].wait()


def complete(client: scannery.Client) -> bool:
    coverage = ask_partial(client).coverage
    return coverage is not None and coverage.complete


def settle(cluster: Cluster) -> None:
    """Wait until all leaves serve, and the root knows them."""
    for process in cluster.all:
        process.wait()
    wait_until(lambda: len(with_a_partner(cluster)) == GROUPS * ROWS_OF_LEAVES)
