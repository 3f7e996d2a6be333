"""Versions of an index on every wire: the list, recall against cost, and the way back."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client import VersionInfo
from scannery.indexer import Store, parse_spec, read_manifest
from scannery.indexer.versions.versions import manifest_key
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import SecurityConfig
from scannery.serving.embedded import open_embedded
from scannery.serving.security.api_keys import KeyFile
from scannery.v1 import index_pb2 as pb
from tests.data import clustered, datapoints
from tests.served import WIRES, connected, copied, publish_version, serving

SPEC = parse_spec(
    {
        "index": "tuned",
        "source": {"id": "id", "vector": "v"},
        "scann": {"exact_below_rows": 1000},
        "live": {"gc_every_s": 3600},
    }
)
ROWS = 2000


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    store = Store.open(folder / "store", create=True)
    publish_version(store, SPEC, datapoints(SPEC, clustered(ROWS, 8)), folder)
    return folder / "store"


@pytest.mark.system
@pytest.mark.parametrize("wire", WIRES)
def test_versions_are_listed_described_and_rolled_back(origin: Path, tmp_path: Path, wire: str) -> None:
    store = copied(origin, tmp_path)
    with connected(store, wire) as client:
        client.alias("live", "tuned")
        index = client.index("live")
        index.alter(attributes={"show": "string"})
        index.upsert([{"id": "new", "vector": [1.0] * 8, "attributes": {"show": "a"}}])
        second, first = index.versions()
        assert (second.version, second.current, second.parent, second.kind) == (2, True, 1, "alter")
        assert (first.version, first.current, first.parent, first.rows) == (1, False, None, ROWS)
        assert first.recall is not None
        assert first.recall.target == SPEC.target_recall
        assert first.size_bytes == read_manifest(Store.open(store), "tuned", 1).size_bytes
        assert first.curves == ()
        assert first.spec == {}
        assert index.versions(1) == [second]

        assert index.version(1).spec["attributes"] == {}
        current = index.version()
        assert (current.version, current.spec["attributes"]) == (2, {"show": "string"})
        check_curve(current)

        with pytest.raises(scannery.NotFoundError, match="no version 9"):
            index.version(9)
        with pytest.raises(scannery.NotFoundError, match="no version 9"):
            index.rollback(9)
        with pytest.raises(scannery.FailedPreconditionError, match="at version 2, not 1") as caught:
            index.rollback(1, if_version=1)
        assert caught.value.field == "if_version"
        assert [each.version for each in index.versions()] == [2, 1]
        back = index.rollback(1, if_version=2)
        assert (back.version, back.attributes, back.aliases) == (3, {}, ("live",))
        assert index.stats().version == 3
        assert [hit.id for hit in index.search([1.0] * 8, 1)] == ["new"], "it is in the log, not in a version"
        newest = index.versions()[0]
        assert (newest.version, newest.kind, newest.content_of) == (3, "rollback", 1)
        for missing in (index.versions, index.version, lambda: index.rollback(1)):
            index.name = "nothing"
            with pytest.raises(scannery.NotFoundError, match="no index 'nothing'"):
                missing()


def check_curve(version: VersionInfo) -> None:
    [curve] = version.curves
    assert (curve.name, curve.k, curve.rows) == ("", 10, ROWS)
    targets = [point.target for point in curve.points]
    assert targets == sorted(set(targets))
    assert SPEC.target_recall in targets
    for point in curve.points:
        assert point.recall >= point.target
        assert (point.exact_rows, point.leaves > 0) in ((0, True), (ROWS, False))
    [used] = [point for point in curve.points if point.target == SPEC.target_recall]
    assert version.recall is not None
    assert used.recall == pytest.approx(version.recall.measured, abs=1e-4)


def test_an_asynchronous_client(origin: Path, tmp_path: Path) -> None:
    async def versions() -> tuple[list[int], int]:
        async with scannery.aio.connect(copied(origin, tmp_path)) as client:
            index = client.index("tuned")
            await index.rollback((await index.version()).version)
            return [each.version for each in await index.versions()], (await index.stats()).version

    assert asyncio.run(versions()) == ([2, 1], 2)


@pytest.mark.system
def test_a_damaged_version_is_listed_and_repaired_by_a_rollback(origin: Path, tmp_path: Path) -> None:
    path = copied(origin, tmp_path)
    store = Store.open(path)
    with serving(path) as server, scannery.connect(server.address) as client:
        index = client.index("tuned")
        for recall in (0.8, 0.85):
            index.alter(target_recall=recall)
        store.write(manifest_key("tuned", 3), b"{}")
        damaged, *intact = index.versions()
        assert (damaged.version, damaged.current, damaged.created_at) == (3, True, None)
        assert "damaged" in damaged.problem
        assert not any(each.problem for each in intact)
        assert index.rollback(2, if_version=3).version == 4
        assert index.stats().spec["target_recall"] == 0.8


def test_pages_of_versions(origin: Path, tmp_path: Path) -> None:
    path, method = copied(origin, tmp_path), "/scannery.v1.IndexService/ListVersions"
    with scannery.connect(path) as client:
        for number in range(4):
            client.index("tuned").alter(target_recall=0.8 + number / 100)
    with closing(open_embedded(path)) as engine:

        def page(**fields: Any) -> pb.ListVersionsResponse:
            answer = engine.call(method, pb.ListVersionsRequest(index="tuned", **fields), 30)
            assert isinstance(answer, pb.ListVersionsResponse)
            return answer

        pages = [page(page_size=2)]
        while token := pages[-1].next_page_token:
            pages.append(page(page_size=2, page_token=token))
        numbers = [[(each.version, each.current) for each in one.versions] for one in pages]
        assert numbers == [[(5, True), (4, False)], [(3, False), (2, False)], [(1, False)]]
        for wrong in ({"page_size": 0}, {"page_size": 101}, {"page_token": "x"}):
            with pytest.raises(InvalidRequestError, match=next(iter(wrong))):
                page(**wrong)


@pytest.mark.system
def test_who_may_see_versions_and_roll_back(origin: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeyFile(path)
    _, reader = keys.create("reader")
    _, stranger = keys.create("stranger", scopes=["admin", "read"], indexes=["mine"])
    _, admin = keys.create("admin", scopes=["admin"])
    with serving(copied(origin, tmp_path), security=SecurityConfig(keys_file=str(path))) as server:

        def index(key: str) -> scannery.Index:
            return scannery.connect(server.address, api_key=key).index("tuned")

        assert [each.version for each in index(reader).versions()] == [1]
        with pytest.raises(scannery.PermissionDeniedError, match="'admin'"):
            index(reader).rollback(1)
        with pytest.raises(scannery.PermissionDeniedError, match="'read'"):
            index(admin).versions()
        for call in (index(stranger).versions, index(stranger).version, lambda: index(stranger).rollback(1)):
            with pytest.raises(scannery.NotFoundError, match="no index 'tuned'"):
                call()
        assert index(admin).rollback(1).version == 2
