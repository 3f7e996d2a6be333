"""Bulk upserts, and the errors of single items of a bulk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client import NotWritten
from scannery.client.request.batches import write_batches
from tests.served import DIMENSIONS, copied, serving

VECTORS = np.random.default_rng(2).normal(size=(500, DIMENSIONS)).astype(np.float32)


def points(count: int = 500) -> list[Any]:
    return [{"id": f"p{i}", "vector": VECTORS[i], "attributes": {"year": i}} for i in range(count)]


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


@pytest.mark.system
@pytest.mark.parametrize("remote", [True, False])
def test_any_number_of_datapoints_is_written(store: Path, remote: bool) -> None:
    reported: list[int] = []
    with serving(store) as server, scannery.connect(server.address if remote else store) as client:
        index = client.index("library")
        done = index.upsert_many(iter(points()), batch_size=60, progress=reported.append)
        assert (done.written, done.failed) == (500, ())
        assert reported[-1] == 500
        assert reported == sorted(reported)
        assert done.sequence == index.search(VECTORS[0], 1).sequence
        found = index.get([f"p{i}" for i in range(500)])
        assert [point and point.attributes["year"] for point in found] == list(range(500))
        assert index.upsert_many([]).written == 0


@pytest.mark.system
@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_large_datapoints_are_written_in_bodies_that_a_server_takes(store: Path, wire: str) -> None:
    large: list[Any] = [
        {**each, "text": f"{i} " * 200_000, "payload": {"x": ["é" * 400_000]}}
        for i, each in enumerate(points(60))
    ]
    with serving(store) as server:
        target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        with scannery.connect(target) as client:
            assert client.index("library").upsert_many(large).written == 60


@pytest.mark.parametrize(
    ("large", "sizes"),
    [
        ({"text": "a" * (6 << 20)}, [2, 2, 1]),
        ({"title": "é" * (1 << 20)}, [3, 2]),
        ({"vector": np.zeros(3 << 19)}, [1] * 5),
        ({"vector": [0.0] * (3 << 18)}, [2, 2, 1]),
        ({"payload": {"a": [{"b": "c" * (9 << 20)}]}}, [1] * 5),
        ({"text": "a" * (20 << 20)}, [1] * 5),
        ({"payload": {"few": "bytes"}}, [5]),
    ],
)
def test_batches_are_bounded_in_bytes(large: dict[str, Any], sizes: list[int]) -> None:
    batches = write_batches(({"id": str(i), **large} for i in range(5)), 1000, 1, "raise")
    assert [len(each.points) for each in batches] == sizes


@pytest.mark.system
async def test_the_asynchronous_client_writes_the_same(store: Path) -> None:
    wrong: list[Any] = points(50)
    wrong[20] = {"id": "p20", "vector": "no"}
    with serving(store) as server:
        async with scannery.aio.connect(server.address) as client:
            index = client.index("library")
            done = await index.upsert_many(wrong, batch_size=20, errors="return")
            assert done.written == 49
            assert [(failed.position, failed.id) for failed in done.failed] == [(20, "p20")]
            with pytest.raises(scannery.InvalidArgumentError):
                await index.upsert_many(wrong, batch_size=20)


@pytest.mark.system
def test_what_is_refused_is_told_by_datapoint_and_the_rest_is_written(store: Path) -> None:
    mixed: list[Any] = points(100)
    mixed[7] = {"id": "p7", "vector": [1.0]}
    mixed[50] = {"id": "", "vector": VECTORS[0]}
    mixed[51] = "no datapoint at all"
    mixed[99] = {"id": "p1", "vector": VECTORS[99], "if_absent": True}
    with serving(store) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        done = index.upsert_many(mixed, batch_size=40, errors="return")
        assert done.written == 96
        assert [(failed.position, failed.id) for failed in done.failed] == [
            (7, "p7"),
            (50, ""),
            (51, ""),
            (99, "p1"),
        ]
        assert isinstance(done.failed[0].error, scannery.InvalidArgumentError)
        assert isinstance(done.failed[3].error, scannery.FailedPreconditionError)
        assert isinstance(done.failed[0], NotWritten)
        # What concerns all of them is no error of each.
        with pytest.raises(scannery.NotFoundError):
            client.index("nobody").upsert_many(mixed, errors="return")


@pytest.mark.system
def test_of_the_same_id_the_last_datapoint_wins(store: Path) -> None:
    """However batches overtake each other."""
    same: list[Any] = [
        {"id": f"p{i % 7}", "vector": VECTORS[0], "attributes": {"year": i}} for i in range(200)
    ]  # p0, p1, …, p0, p1, …
    with serving(store) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        done = index.upsert_many(same, batch_size=5, in_flight=8)
        assert done.written == 200
        found = index.get([f"p{i}" for i in range(7)])
        last = {i % 7: i for i in range(200)}
        assert [point and point.attributes["year"] for point in found] == [last[i] for i in range(7)]


@pytest.mark.system
def test_points_are_read_only_as_fast_as_they_are_written(store: Path) -> None:
    with serving(store) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        taken, done = [0], [0]

        def lazily() -> Iterator[Any]:
            for point in points():
                taken[0] += 1
                # A batch that is being filled, and those under way.
                assert taken[0] - done[0] <= 10 * (3 + 2)
                yield point

        def note(count: int) -> None:
            done[0] = count

        index.upsert_many(lazily(), batch_size=10, in_flight=3, progress=note)
        assert taken == [500]


@pytest.mark.system
def test_a_bulk_goes_through_a_server_that_sheds_load(store: Path) -> None:
    """Three bulks side by side on a server that lets one request in at a time: hints are waited for, nothing fails."""
    with serving(store, threads=1, queue=0) as server:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            own: list[Any] = [{**point, "id": f"{number}-{point['id']}"} for point in points()]
            try:
                with scannery.connect(server.address, timeout_s=60) as client:
                    index = client.index("library")
                    assert index.upsert_many(own, batch_size=50).written == 500
                    assert len(list(index.search_each(VECTORS, 3, batch_size=50))) == 500
            except BaseException as error:  # noqa: BLE001  every one is a finding
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        refused = sum(server.metrics.refused.dump().values())
        assert refused > 0


@pytest.mark.system
def test_a_bulk_search_gives_errors_in_the_place_of_hits(library: Path) -> None:
    queries: list[Any] = list(VECTORS[:50])
    queries[3], queries[30] = [1.0], scannery.Like("nobody")
    with serving(library) as server, scannery.connect(server.address) as client:
        index = client.index("library")
        found = list(index.search_each(queries, 3, batch_size=20, errors="return"))
        wrong = {i: type(hits) for i, hits in enumerate(found) if isinstance(hits, scannery.ScanneryError)}
        assert wrong == {3: scannery.InvalidArgumentError, 30: scannery.NotFoundError}
        [expected] = index.search_many(VECTORS[4:5], 3)
        assert not isinstance(found[4], scannery.ScanneryError)
        assert [hit.id for hit in found[4]] == [hit.id for hit in expected]
        with pytest.raises(scannery.NotFoundError):
            list(client.index("nobody").search_each(queries, errors="return"))


@pytest.mark.system
async def test_an_asynchronous_bulk_search_does_too(library: Path) -> None:
    queries: list[Any] = [*VECTORS[:10], scannery.Like("nobody")]
    with serving(library) as server:
        async with scannery.aio.connect(server.address) as client:
            each = client.index("library").search_each(queries, 3, batch_size=4, errors="return")
            found = [isinstance(hits, scannery.ScanneryError) async for hits in each]
            assert found == [False] * 10 + [True]


def test_a_server_that_is_not_there_fails_each_datapoint(store: Path) -> None:
    with scannery.connect("127.0.0.1:1", timeout_s=5) as client:
        done = client.index("library").upsert_many(points(4), batch_size=2, errors="return")
        assert [type(failed.error) for failed in done.failed] == [scannery.UnavailableError] * 4


@pytest.mark.parametrize(
    ("options", "field"),
    [({"batch_size": 0}, "batch_size"), ({"in_flight": 65}, "in_flight"), ({"errors": "ignore"}, "errors")],
)
def test_wrong_options_are_refused(options: Any, field: str) -> None:
    index = scannery.connect("127.0.0.1:1").index("library")
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        index.upsert_many(points(1), **options)
    assert caught.value.field == field
    with pytest.raises(scannery.InvalidArgumentError):
        index.upsert_many({"id": "a"})  # type: ignore[dict-item]


@pytest.mark.system
def test_the_progress_bar_is_drawn(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(library) as server, scannery.connect(server.address) as client:
        assert len(list(client.index("library").search_each(VECTORS[:20], progress=True))) == 20
    assert "searching" in capsys.readouterr().out
