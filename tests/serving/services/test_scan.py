"""Scans read one snapshot: page by page, in any order, while the index changes, in any process that has the token."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store, latest_version, read_manifest
from scannery.indexer.versions.garbage_collection import collect_garbage
from scannery.indexer.versions.leases import read_leases
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving import SecurityConfig
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.request.scan import PageToken, request_digest
from scannery.serving.security.api_keys import KeyFile
from scannery.serving.services.scan import Scans
from scannery.serving.services.shards import LocalShards
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb
from tests.served import DIMENSIONS, ROWS, copied, serving

pytestmark = pytest.mark.usefixtures("merges_by_hand")

SPEC = {
    "index": "notes",
    "source": {"id": "id", "vector": "vector"},
    "attributes": {"year": "int", "show": "string"},
    "live": {"merge_segments": 2},
}


def points(first: int, count: int, **attributes: Any) -> Any:
    return [
        {"id": f"n{i}", "vector": [1.0 + i % 7, 2.0], "attributes": {"year": 2000 + i % 10, **attributes}}
        for i in range(first, first + count)
    ]


def ids(scan: Any) -> list[str]:
    return [point.id for point in scan]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An index with two segments and rows in memory, some of them deleted or replaced."""
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        index = client.create_index(SPEC, dimensions=2)
        index.upsert(points(0, 30))
        seal(Store.open(path), "notes")
        index.upsert(points(30, 30))
        index.delete(["n3", "n31"])
        seal(Store.open(path), "notes")
        index.upsert(points(60, 20))
        index.upsert(points(5, 3, show="again"))
        index.delete(["n10", "n62"])
    return path


@pytest.fixture
def index(store: Path) -> Iterator[scannery.Index]:
    with scannery.connect(store) as client:
        yield client.index("notes")


EXPECTED = {f"n{i}" for i in range(80)} - {"n3", "n31", "n10", "n62"}


def changed(index: scannery.Index, store: Path) -> None:
    """Write, seal twice, merge and roll back."""
    opened = Store.open(store)
    index.upsert(points(100, 5))
    index.delete([f"n{i}" for i in range(20, 40)])
    seal(opened, "notes")
    index.upsert(points(0, 10, show="later"))
    seal(opened, "notes")
    assert merge(opened, "notes") is not None
    version = latest_version(opened, "notes")
    assert version is not None
    rollback(opened, "notes", version - 1)


@pytest.mark.system
def test_nothing_that_happens_between_two_pages_changes_a_scan(index: scannery.Index, store: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"order_by": "year"},
        {"order_by": "-id"},
        {"where": {"year": {"$lt": 2005}}},
        {"sample": 40},
    ]
    before = [list(index.scan(**options)) for options in kinds]
    running = [index.scan(page_size=10, **options) for options in kinds]
    found = [[next(scan) for _ in range(15)] for scan in running]
    changed(index, store)
    time.sleep(1.1)  # the embedded engine looks for versions once a second
    assert {"n100", "n104"} <= {point.id for point in index.scan()}
    for scan, expected, first in zip(running, before, found, strict=True):
        assert first + list(scan) == expected
        assert scan.total == len(expected)


@pytest.mark.system
def test_all_live_datapoints_are_returned_once(index: scannery.Index) -> None:
    found = ids(index.scan())
    assert len(found) == len(set(found))
    assert set(found) == EXPECTED
    assert found == ids(index.scan(page_size=7))


@pytest.mark.system
def test_another_process_continues_at_any_datapoint(index: scannery.Index, store: Path) -> None:
    everything = ids(index.scan(page_size=8))
    running = index.scan(page_size=8)
    tokens = [running.token, *(running.token for _ in running)]
    assert tokens[0] is None
    index.upsert(points(200, 5))  # in the log, after the snapshot
    for position in (1, 7, 8, 9, 40, len(everything) - 1, len(everything)):
        with scannery.connect(store) as other:
            rest = other.index("notes").scan(token=tokens[position])
            assert ids(rest) == everything[position:]
            assert rest.token == tokens[-1]


@pytest.mark.system
def test_rows_in_memory_have_one_order_however_they_were_applied(store: Path) -> None:
    rng = random.Random(3)
    with scannery.connect(store) as writer:
        index = writer.index("notes")
        for _ in range(60):  # one at a time here, all at once in the other process
            first = rng.randrange(300)
            index.upsert(points(first, rng.randrange(1, 30)))
            index.delete([f"n{rng.randrange(300)}" for _ in range(3)])
        everything = ids(index.scan())
        running = index.scan(page_size=50)
        next(running)
        with scannery.connect(store) as other:
            assert ids(other.index("notes").scan(token=running.token)) == everything[1:]


@pytest.mark.system
def test_a_snapshot_is_opened_again_after_a_seal_and_is_gone_after_two(
    index: scannery.Index, store: Path
) -> None:
    everything = ids(index.scan())
    running = index.scan(page_size=10)
    found = [next(running).id for _ in range(10)]
    index.upsert(points(200, 5))
    seal(Store.open(store), "notes")
    with scannery.connect(store) as other:
        assert found + ids(other.index("notes").scan(token=running.token)) == everything
    index.upsert(points(300, 5))
    seal(Store.open(store), "notes")
    with scannery.connect(store) as other:
        with pytest.raises(scannery.FailedPreconditionError, match="start again") as caught:
            next(other.index("notes").scan(token=running.token))
        assert caught.value.field == "page_token"
    assert found + ids(running) == everything  # here it is held


@pytest.mark.system
def test_a_server_keeps_version_and_log_for_a_running_scan(store: Path) -> None:
    opened = Store.open(store)
    with serving(store) as server, scannery.connect(server.address) as client:
        index = client.index("notes")
        everything = ids(index.scan())
        running = index.scan(page_size=10)
        found = [next(running).id for _ in range(10)]
        version, began = read_manifest(opened, "notes").version, read_manifest(opened, "notes").log_sequence
        until_s = time.monotonic() + 20
        while read_leases(opened, "notes").log_after != began and time.monotonic() < until_s:
            time.sleep(0.05)
        assert version in read_leases(opened, "notes").versions
        for first in (200, 300, 400):
            index.upsert(points(first, 5))
            seal(opened, "notes")
        collect_garbage(opened, "notes", keep=1, min_age=timedelta(0))
        # Another server, or another worker of this one.
        with scannery.connect(store) as other:
            assert found + ids(other.index("notes").scan(token=running.token)) == everything
        assert found + ids(running) == everything


@pytest.mark.system
@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_workers_and_restarted_servers_continue_a_scan(store: Path, wire: str) -> None:
    def connected(server: Any) -> scannery.Client:
        target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        return scannery.connect(target, http=wire == "HTTP")

    with serving(store) as first, serving(store) as second:  # noqa: SIM117  two lines
        with connected(first) as one, connected(second) as two:
            everything = ids(one.index("notes").scan(order_by="-year"))
            found: list[str] = []
            token = None
            for turn in range(12):
                running = (one, two)[turn % 2].index("notes").scan(order_by="-year", page_size=7, token=token)
                found += [point.id for _, point in zip(range(7), running, strict=False)]
                token = running.token
            assert found == everything
    with serving(store) as restarted, connected(restarted) as client:
        assert ids(client.index("notes").scan(order_by="-year", token=token)) == []


@pytest.mark.system
def test_a_token_is_of_one_index_and_one_request(index: scannery.Index, store: Path) -> None:
    running = index.scan(where={"year": 2001}, page_size=2)
    next(running)
    token = running.token
    assert token is not None
    assert ids(index.scan(where={"year": 2001}, page_size=9, token=token)) == ids(running)  # of any page size
    snapshot, _, position = token.rpartition(".")
    with scannery.connect(store) as client:
        other = client.create_index({**SPEC, "index": "other"}, dimensions=2)
        wrong: list[tuple[scannery.Index, dict[str, Any], str, str]] = [
            (other, {"where": {"year": 2001}}, token, "not a token of index 'other'"),
            (index, {"where": {"year": 2002}}, token, "another request"),
            (index, {}, token, "another request"),
            (index, {"where": {"year": 2001}, "fields": ["year"]}, token, "another request"),
            (index, {"where": {"year": 2001}, "vectors": True}, token, "another request"),
            (index, {"where": {"year": 2001}, "order_by": "id"}, token, "another request"),
            (index, {"where": {"year": 2001}, "sample": 3}, token, "another request"),
            (index, {"where": {"year": 2001}}, f"{snapshot}.{10**6}", "at most 7, got 1000000"),
            *(
                (index, {}, text, "not a token")
                for text in ("x", ".", "x.1", f"{snapshot}", f"{snapshot}.", f"{snapshot}.-1", f"{snapshot}.x",
                             f"{snapshot}.01", f"{snapshot[:-4]}.{position}", f"{snapshot}é.1", "A" * 10_000 + ".1")
            ),
        ]  # fmt: skip
        for asked, options, text, told in wrong:
            with pytest.raises(scannery.InvalidArgumentError, match=told) as caught:
                next(asked.scan(token=text, **options))
            assert caught.value.field == "page_token", text


@pytest.mark.system
def test_a_token_of_a_snapshot_that_no_scan_began_with_cannot_be_made(
    index: scannery.Index, store: Path
) -> None:
    # A caller knows all of a token but the id of the index: with a made-up one it is refused, whatever the version.
    manifest = read_manifest(Store.open(store), "notes")
    digest = request_digest(pb.ScanRequest(index="notes"))
    for version in (1, manifest.version, 99):
        made = PageToken(version=version, sequence=1, second=0, position=0)
        forged = made.snapshot_text(manifest.model_copy(update={"index_id": "0" * 32}), digest)
        with pytest.raises(scannery.InvalidArgumentError, match="not a token of index"):
            next(index.scan(token=f"{forged}.0"))
    never = PageToken(version=99, sequence=1, second=0, position=0).snapshot_text(manifest, digest)
    with pytest.raises(scannery.FailedPreconditionError, match="version 99"):
        next(index.scan(token=f"{never}.0"))


@pytest.mark.system
def test_an_index_that_was_created_again_refuses_tokens_of_the_former_one(
    tmp_path: Path, store: Path
) -> None:
    with scannery.connect(store) as client:
        running = client.index("notes").scan(page_size=5)
        next(running)
    with scannery.connect(tmp_path / "new", create=True) as client:
        client.create_index(SPEC, dimensions=2)
        with pytest.raises(scannery.InvalidArgumentError, match="not a token of index"):
            next(client.index("notes").scan(token=running.token))


@pytest.mark.parametrize(
    ("options", "field", "told"),
    [
        ({"order_by": "yeer"}, "order_by", "did you mean year"),
        ({"order_by": "-tags"}, "order_by", "string_list"),
        ({"where": {"yeer": 1}}, "where.yeer", "did you mean year"),
        ({"fields": ["nothing"]}, "fields", "no such field"),
    ],
)
def test_a_wrong_request_names_the_field_and_keeps_no_snapshot(
    library: Path, options: dict[str, Any], field: str, told: str
) -> None:
    with scannery.connect(library) as client:
        with pytest.raises(scannery.InvalidArgumentError, match=told) as caught:
            next(client.index("library").scan(**options))
        assert caught.value.field == field
        engine: Any = client._transport
        assert len(engine._engine._service._catalog.held) == 0


def test_page_sizes_are_bounded(library: Path) -> None:
    catalog = open_embedded_catalog(library)
    for size in (0, -1, 10_001):
        with pytest.raises(ValueError, match="page_size: must be 1 to 10000"):
            Scans(catalog, LocalShards(catalog)).scan(
                pb.ScanRequest(index="library", page_size=size), Deadline.after(9), QueryStats()
            )
    catalog.close()


def test_a_scan_ends_at_its_deadline(library: Path) -> None:
    catalog = open_embedded_catalog(library)
    now = [0.0]
    catalog.snapshot("library")
    with pytest.raises(DeadlineError):
        Scans(catalog, LocalShards(catalog)).scan(
            pb.ScanRequest(index="library"), Deadline(0.0, lambda: now[0]), QueryStats()
        )
    catalog.close()


def test_each_page_is_authorised(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = KeyFile(path)
    _, reader = keys.create("reader", scopes=["read"])
    _, writer = keys.create("writer", scopes=["write"])
    _, narrow = keys.create("narrow", scopes=["read"], indexes=["flat"])
    with serving(library, security=SecurityConfig(keys_file=str(path))) as server:
        with scannery.connect(server.address, api_key=reader) as client:
            running = client.index("library").scan(page_size=5)
            next(running)
        with scannery.connect(server.address, api_key=writer) as client:  # noqa: SIM117  two lines
            with pytest.raises(scannery.PermissionDeniedError, match="'read'"):
                next(client.index("library").scan(token=running.token))
        with scannery.connect(server.address, api_key=narrow) as client:
            with pytest.raises(scannery.NotFoundError):
                next(client.index("library").scan(token=running.token))
            assert len(ids(client.index("flat").scan())) == 50


def test_an_index_without_datapoints_has_an_empty_scan(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index(SPEC, dimensions=2)
        for options in ({}, {"order_by": "year"}, {"sample": 5}):
            running = index.scan(**options)
            assert list(running) == []
            assert running.total == 0
            assert list(index.scan(token=running.token, **options)) == []


@pytest.mark.system
def test_a_scan_of_an_index_that_was_built_continues_after_it_is_built_again(
    library: Path, tmp_path: Path
) -> None:
    path = copied(library, tmp_path)
    with scannery.connect(path) as client:
        index = client.index("library")
        everything = list(index.scan(vectors=True))
        running = index.scan(page_size=100)
        found = [next(running) for _ in range(100)]
        assert len(everything) == ROWS
        assert all(point.vector is not None and point.vector.shape == (DIMENSIONS,) for point in everything)
        built_again(path, tmp_path)
        time.sleep(1.1)
        assert len(list(index.scan())) == 10
        assert found + list(running) == everything
    with scannery.connect(path) as client:
        assert found + list(client.index("library").scan(token=index_token(running))) == found
        again = client.index("library").scan(token=f"{index_token(running).rpartition('.')[0]}.100")
        assert found + list(again) == everything


def index_token(scan: Any) -> str:
    assert isinstance(scan.token, str)
    return scan.token


def built_again(path: Path, folder: Path) -> None:
    from tests.served import LIBRARY, library_table, publish_version

    (folder / "again").mkdir()
    publish_version(Store.open(path), LIBRARY, library_table().slice(0, 10), folder / "again", shards=1)
