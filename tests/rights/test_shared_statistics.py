"""Callers whose searches by words are weighed by all rows, as with a filter in the request of who sees them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import ConfigError, StateUnavailableError
from scannery.runtime.retry import Deadline
from scannery.serving import LeavesConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.engine.remote.state_reader import at_as_seen
from scannery.serving.security import KeyFile
from scannery.serving.security.access import parse_access
from scannery.serving.services.leaf.states import LeafStates
from scannery.v1.leaf_pb2 import At
from tests.cluster.servers import CHECK_EVERY_S, leaf_server

pytestmark = pytest.mark.system

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]
ROWS = 90
QUERIES = ("alpha", "beta gamma", "kappa zeta alpha", "gama", '"alpha beta"', "hidden")
WHERE = {"tenant": "a"}


def point(number: int, chosen: random.Random) -> dict[str, Any]:
    tenant = "ab"[number % 3 > 0]  # b has most rows
    # Words are frequent for one of the tenants alone.
    words = chosen.choices(WORDS[:6] if tenant == "a" else WORDS[4:], k=chosen.randrange(3, 12))
    return {
        "id": f"d{number}",
        "document_id": f"doc{number // 6}",
        "text": " ".join(words) + (" hidden" if tenant == "b" else ""),
        "vector": [chosen.gauss(0, 1) for _ in range(4)],
        "attributes": {"tenant": tenant},
    }


@dataclass
class Talks:
    """The index as callers have it who see all, or one tenant, with statistics of its rows or shared ones."""

    all: Any
    own: Any
    shared: Any
    leaves: list[Server]


def spec(scope: str) -> dict[str, Any]:
    return {
        "index": "talks",
        "source": {"id": "id", "vector": "vector", "text": "text", "document_id": "document_id"},
        "attributes": {"tenant": "string"},
        "lexical": {"scope": scope},
        "shards": 3,
    }


@pytest.fixture(params=["server", "cluster"])
def talks(tmp_path: Path, request: pytest.FixtureRequest, scope: str) -> Iterator[Talks]:
    store, chosen = tmp_path / "store", random.Random(4)
    points: Any = [point(number, chosen) for number in range(ROWS)]
    with scannery.connect(store, create=True) as client:
        index = client.create_index(spec(scope), dimensions=4)
        index.upsert(points[: ROWS // 2])
        assert seal(Store.open(store), "talks") is not None
        index.upsert(points[ROWS // 2 :])
        index.delete(["d1", "d3"])
    file = KeyFile(tmp_path / "keys.json")
    entry = {"index": "*", "where": WHERE}
    keys = [
        file.create("k", access=access)[1] for access in ([], [entry], [{**entry, "statistics": "shared"}])
    ]
    with ExitStack() as stack:
        groups = 2 if request.param == "cluster" else 0
        leaves = [stack.enter_context(leaf_server(store, each, groups)) for each in range(groups)]
        options: dict[str, Any] = {}
        if leaves:
            target = LeavesConfig(target=",".join(leaf.address for leaf in leaves))
            options = {"role": "root", "leaves": target, "check_every_s": CHECK_EVERY_S}
        security = SecurityConfig(keys_file=str(file.path))
        config = ServerConfig(store=str(store), listen="127.0.0.1:0", security=security, drain_s=5, **options)
        server = stack.enter_context(Server(config))
        indexes: list[Any] = [
            stack.enter_context(scannery.connect(server.address, api_key=key, tls=False)).index("talks")
            for key in keys
        ]
        yield Talks(all=indexes[0], own=indexes[1], shared=indexes[2], leaves=leaves)


def scored(index: Any, query: str, **options: Any) -> list[tuple[str, float]]:
    return [(hit.id, hit.score) for hit in index.search(query, k=50, mode="lexical", **options)]


@pytest.mark.parametrize("scope", ["passage", "document"])
def test_scores_are_those_of_the_filter_in_a_request(talks: Talks) -> None:
    differ = 0
    for query in QUERIES:
        expected = scored(talks.all, query, where=WHERE)
        assert scored(talks.shared, query) == expected
        assert [scored(talks.shared, query)] == [
            [(hit.id, hit.score) for hit in hits]
            for hits in talks.shared.search_many([query], k=50, mode="lexical")
        ]
        assert {name for name, _ in expected} <= {hit.id for hit in talks.own.scan()}
        differ += scored(talks.own, query) != expected
    assert differ >= 4
    # Rows stay hidden.
    assert talks.shared.count() == talks.own.count() == len(list(talks.shared.scan()))
    assert scored(talks.shared, "hidden") == []
    assert talks.shared.search("hidden", k=5, mode="lexical", where={"tenant": "b"}) == []


@pytest.mark.parametrize("scope", ["passage", "document"])
def test_explanations_have_the_statistics_of_the_scores(talks: Talks) -> None:
    differ = 0
    for query in ("alpha", "epsilon zeta", "gama"):
        [name, *_] = [name for name, _ in scored(talks.shared, query)]
        expected = talks.all.explain(query, name, mode="lexical", where=WHERE).lexical.words
        assert talks.shared.explain(query, name, mode="lexical").lexical.words == expected
        differ += talks.own.explain(query, name, mode="lexical").lexical.words != expected
    assert differ == 3


@pytest.mark.parametrize("scope", ["passage"])
def test_whoami_tells_it(talks: Talks) -> None:
    [entry] = talks.shared._client.whoami().access
    assert entry == {"index": "*", "where": WHERE, "statistics": "shared"}
    [entry] = talks.own._client.whoami().access
    assert "statistics" not in entry


@pytest.mark.parametrize("scope", ["passage"])
def test_a_leaf_that_does_not_know_it_finds_no_state(talks: Talks) -> None:
    for leaf in talks.leaves:
        catalog = leaf._catalog
        manifest = catalog.snapshot("talks").manifest
        at = At(
            index="talks", index_id=manifest.index_id or "", version=manifest.version,
            sequence=catalog.snapshot("talks").sequence,
        )  # fmt: skip
        [access] = parse_access([{"index": "*", "where": WHERE, "statistics": "shared"}])
        assert access.seen is not None
        part = at_as_seen(at, access.seen)
        assert LeafStates(catalog).snapshot(part, Deadline.after(60)).seen == access.seen
        former = At.FromString(part.SerializeToString())
        former.seen.ClearField("sharing_index_id")  # as it is read by a release without the field
        with pytest.raises(StateUnavailableError):
            LeafStates(catalog).snapshot(former, Deadline.after(60))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"where": WHERE, "statistics": "all"}, "statistics: must be own or shared, got 'all'"),
        ({"where": WHERE, "statistics": ["shared"]}, "statistics: must be own or shared"),
        ({"statistics": "shared"}, "statistics: without a filter"),
    ],
)
def test_wrong_entries_are_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_access([{"index": "*", **entry}])
