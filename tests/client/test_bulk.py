"""Bulk search, tables, and clients that travel: pickled, forked, and over the restart of a server."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.client.errors import ResourceExhaustedError, ScanneryError, UnavailableError
from scannery.client.transport.retries import Attempts
from scannery.serving import Server, ServerConfig
from scannery.v1 import index_pb2, search_pb2
from tests.served import DIMENSIONS, PAUSE_S, library_table, serving
from tests.tools.ports import free_port

QUERIES = np.random.default_rng(1).normal(size=(57, DIMENSIONS)).astype(np.float32)


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


def ids(found: list[scannery.Hits]) -> list[list[str]]:
    return [[hit.id for hit in hits] for hits in found]


@pytest.mark.system
def test_bulk_search_answers_in_order_and_takes_queries_as_they_come(server: Server) -> None:
    with scannery.connect(server.address) as client:
        index = client.index("library")
        expected = ids(index.search_many(QUERIES, 3))
        reported: list[int] = []
        assert ids(list(index.search_each(QUERIES, 3, batch_size=10, progress=reported.append))) == expected
        assert reported == [10, 20, 30, 40, 50, 57]
        taken = 0

        def endless() -> Iterator[np.ndarray]:
            nonlocal taken
            while True:
                taken += 1
                yield QUERIES[taken % len(QUERIES)]

        answers = index.search_each(endless(), 3, batch_size=5, in_flight=2)
        for _ in range(7):
            next(answers)
        assert taken <= 5 * (2 + 2)
        answers.close()  # type: ignore[attr-defined]  # a generator


async def test_bulk_search_is_the_same_for_both_clients(server: Server) -> None:
    async with scannery.aio.connect(server.address) as client:
        found = [hits async for hits in client.index("library").search_each(iter(QUERIES), 3, batch_size=10)]
    with scannery.connect(server.address) as sync:
        assert ids(found) == ids(sync.index("library").search_many(QUERIES, 3))


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("batch_size", 1001), ("in_flight", 0)])
def test_wrong_sizes_are_refused_before_anything_is_asked(option: str, value: int) -> None:
    index = scannery.connect("localhost:1").index("library")
    with pytest.raises(scannery.InvalidArgumentError) as caught:
        index.search_each(QUERIES, **{option: value})  # type: ignore[call-overload]
    assert caught.value.field == option


def test_an_error_ends_a_bulk_search(server: Server) -> None:
    with scannery.connect(server.address) as client, pytest.raises(scannery.NotFoundError):
        list(client.index("nobody").search_each(QUERIES))


def test_hits_are_tables(server: Server) -> None:
    rows = {row["id"]: row for row in library_table().to_pylist()}
    with scannery.connect(server.address) as client:
        hits = client.index("library").search(QUERIES[0], 20, vectors=True)
        nothing = client.index("library").search(QUERIES[0], where={"show": "nobody"})
    table = hits.to_arrow()
    assert table.column("id").to_pylist() == [hit.id for hit in hits]
    assert table.column("score").to_pylist() == [hit.score for hit in hits]
    for name in ("title", "year", "rating", "live", "show", "tags"):
        assert table.column(name).to_pylist() == [rows[hit.id][name] for hit in hits]
    assert np.array_equal(
        np.stack(table.column("vector").to_pylist()), np.stack([np.asarray(hit.vector) for hit in hits])
    )
    assert nothing.to_arrow().num_rows == 0
    assert {"id", "score", "text"} <= set(nothing.to_arrow().column_names)


def test_hits_are_data_frames(server: Server) -> None:
    pytest.importorskip("pandas")
    with scannery.connect(server.address) as client:
        hits = client.index("library").search(QUERIES[0], 20)
    frame = hits.to_pandas()
    assert frame["id"].tolist() == [hit.id for hit in hits]
    assert frame["score"].tolist() == [hit.score for hit in hits]
    assert frame.loc[0, "document_id"] == hits[0].document_id


def test_tensors_are_queries(server: Server) -> None:
    import torch

    with scannery.connect(server.address) as client:
        index = client.index("library")
        expected = ids(index.search_many(QUERIES[:3], 3))
        tensor = torch.from_numpy(QUERIES[:3].copy())
        assert ids(index.search_many(tensor, 3)) == expected
        assert [hit.id for hit in index.search(tensor[0], 3)] == expected[0]
        assert [hit.id for hit in index.search(tensor[0].double().requires_grad_().detach(), 3)] == expected[
            0
        ]


@pytest.mark.parametrize("remote", [True, False])
def test_a_client_may_be_pickled(server: Server, library: Path, remote: bool) -> None:
    client = scannery.connect(server.address if remote else library)
    expected = [hit.id for hit in client.index("library").search(QUERIES[0], 3)]
    index = pickle.loads(pickle.dumps(client.index("library")))
    assert [hit.id for hit in index.search(QUERIES[0], 3)] == expected
    client.close()
    assert [hit.id for hit in index.search(QUERIES[0], 3)] == expected


@pytest.mark.system
def test_a_client_works_in_a_forked_child(tmp_path: Path, library: Path) -> None:
    """In a process of its own: a fork of this one, with all the threads that other tests left, proves nothing."""
    code = f"""
import os, sys, numpy as np, scannery
index = scannery.connect(sys.argv[1]).index("library")
query = np.ones({DIMENSIONS})
before = [hit.id for hit in index.search(query, 3)]
if os.fork() == 0:
    same = [hit.id for hit in index.search(query, 3, timeout_s=60)] == before
    os._exit(0 if same else 1)
status = os.waitstatus_to_exitcode(os.wait()[1])
assert [hit.id for hit in index.search(query, 3)] == before
sys.exit(status)
"""
    with serving(library) as server:
        for target in (server.address, str(library)):
            done = subprocess.run(
                [sys.executable, "-c", code, target], timeout=120, check=False, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_the_restart_of_a_server_is_not_seen(library: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    config = ServerConfig(store=str(library), listen=address, drain_s=5)
    done, failures, answered = threading.Event(), [], [0]
    client = scannery.connect(address, timeout_s=30)
    index = client.index("library")

    def ask() -> None:
        while not done.wait(PAUSE_S):
            try:
                index.search(QUERIES[0], 3)
                answered[0] += 1
            except ScanneryError as error:
                failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    with Server(config):
        index.search(QUERIES[0], 3)
        for thread in threads:
            thread.start()
        time.sleep(0.2)
    time.sleep(0.3)
    with Server(config):
        before = answered[0]
        until = time.monotonic() + 60
        while answered[0] < before + 50 and time.monotonic() < until:
            time.sleep(0.02)
        done.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert answered[0] >= before + 50


@pytest.mark.system
async def test_the_restart_of_a_server_is_not_seen_by_the_async_client(library: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    config = ServerConfig(store=str(library), listen=address, drain_s=1)
    async with scannery.aio.connect(address, timeout_s=30) as client:
        index = client.index("library")
        with Server(config):
            await index.search(QUERIES[0], 3)
        waiting = asyncio.create_task(index.search(QUERIES[0], 3))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        with Server(config):
            assert len(await waiting) == 3


def attempts(path: str, request: object, timeout_s: float = 10) -> tuple[Attempts, list[float]]:
    now = [0.0]
    return Attempts(path, request, timeout_s, clock=lambda: now[0], random=lambda: 0.5), now  # type: ignore[arg-type]


def test_what_may_be_tried_again() -> None:
    read, write = "/scannery.v1.SearchService/Search", "/scannery.v1.IndexService/Upsert"
    gone, busy = UnavailableError("gone"), ResourceExhaustedError("busy", retry_after_s=0.4)
    search, upsert = search_pb2.SearchRequest(), index_pb2.UpsertRequest()
    named = index_pb2.UpsertRequest(request_id="a")
    assert attempts(read, search)[0].wait_s(gone, reached=True) is not None
    assert attempts(write, named)[0].wait_s(gone, reached=True) is not None
    # It may have been written: only the caller knows whether twice is harmless.
    assert attempts(write, upsert)[0].wait_s(gone, reached=True) is None
    # Refused before anything was done.
    assert attempts(write, upsert)[0].wait_s(busy, reached=True) == pytest.approx(0.6)
    for error in (
        ResourceExhaustedError("too large"), scannery.InvalidArgumentError("x"), scannery.DeadlineExceededError("x"),
        scannery.UnauthenticatedError("x"), scannery.InternalError("x"),
    ):  # fmt: skip
        assert attempts(read, search)[0].wait_s(error, reached=True) is None


def test_waits_grow_and_end_with_the_deadline() -> None:
    tries, now = attempts("/a/Search", search_pb2.SearchRequest(), timeout_s=5)
    waits = []
    while (wait_s := tries.wait_s(UnavailableError("gone"), reached=True)) is not None:
        waits.append(wait_s)
        now[0] += wait_s
    assert waits[:4] == [0.025, 0.05, 0.1, 0.2]
    assert max(waits) == 0.5
    assert 4 < sum(waits) < 5
    tries, _ = attempts("/a/Search", search_pb2.SearchRequest())
    never = [tries.wait_s(UnavailableError("gone"), reached=False) for _ in range(3)]
    assert [wait is None for wait in never] == [False, False, True]


@pytest.mark.system
def test_calls_go_over_several_connections(library: Path) -> None:
    with serving(library) as server, scannery.connect(server.address, channels=3, http=False) as client:
        for _ in range(6):
            client.index("library").search(QUERIES[0], 1)
        port = int(server.address.rsplit(":", 1)[1])
        tables = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
        lines = [line for path in tables if path.exists() for line in path.read_text().splitlines()[1:]]
        mine = [fields for line in lines if (fields := line.split())[2].endswith(f":{port:04X}")]
        assert len([fields for fields in mine if fields[3] == "01"]) == 3
