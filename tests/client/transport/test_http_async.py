"""Calls over HTTP in coroutines; what both halves share is tested in test_http.py."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.transport.http import pool as pool_module
from scannery.client.transport.http.pool import MAX_CONNECTIONS
from scannery.v1.index_pb2 import UpsertResponse
from scannery.v1.search_pb2 import SearchRequest
from tests.client.transport.http_server import HTTP, Exchange, Speaker, answered, eventually, found, speaking
from tests.client.transport.test_http import half_an_answer, hangs_up, no_length, no_message, too_much


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


@asynccontextmanager
async def connected(speaker: Speaker, **options: Any) -> AsyncIterator[scannery.aio.AsyncClient]:
    async with scannery.aio.connect(speaker.url, **{"timeout_s": 20, **options}) as client:
        yield client


async def version(client: scannery.aio.AsyncClient, query: float = 1.0, **options: Any) -> int:
    return (await client.index("any").search([query], **options)).version


async def soon(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(eventually, condition)


@pytest.mark.system
async def test_coroutines_get_their_own_answers_on_a_bounded_number_of_connections(speaker: Speaker) -> None:
    def answer(exchange: Exchange) -> bytes:
        (value,) = np.frombuffer(SearchRequest.FromString(exchange.body).query.vector.packed, np.float32)
        return found(int(value))

    speaker.answer = answer
    async with connected(speaker) as client:
        numbers = range(10, 400)
        assert await asyncio.gather(*(version(client, float(n)) for n in numbers)) == list(numbers)
        assert 1 < len(speaker.connections) <= MAX_CONNECTIONS
        assert await version(client, 5.0) == 5
    await soon(lambda: not speaker.connections)


@pytest.mark.parametrize("answer", [hangs_up, half_an_answer, no_length, too_much, no_message])
@pytest.mark.parametrize("retries", [True, False])
async def test_a_broken_answer_is_asked_for_again_if_that_is_wanted(
    speaker: Speaker, answer: Any, retries: bool
) -> None:
    async with connected(speaker, retries=retries) as client:
        speaker.answer = lambda exchange: answer(exchange) if len(speaker.requests) == 1 else found(HTTP)
        if retries:
            assert await version(client) == HTTP
        else:
            with pytest.raises(scannery.UnavailableError, match=speaker.url):
                await version(client)
        assert await version(client) == HTTP


@pytest.mark.system
@pytest.mark.parametrize("piece_bytes", [0, 7])
async def test_answers_in_pieces_are_put_together(speaker: Speaker, piece_bytes: int) -> None:
    speaker.piece_bytes = piece_bytes
    async with connected(speaker) as client:
        await client.index("any").search_many(np.ones((8, 1 << 18)))
        assert len(speaker.requests[0].body) > 8 << 20


async def test_a_slow_answer_is_too_late_and_a_cancelled_call_is_forgotten(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(exchange: Exchange) -> bytes:
        release.wait(20)
        return found(77)

    async with connected(speaker) as client:
        await version(client)
        speaker.answer = slow
        cancelled = asyncio.create_task(version(client))
        await soon(lambda: len(speaker.requests) == 2)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(scannery.DeadlineExceededError):
            await version(client, timeout_s=0.1)
        speaker.answer = lambda exchange: found(HTTP)
        release.set()
        assert [await version(client) for _ in range(5)] == [HTTP] * 5


@pytest.mark.system
async def test_no_more_calls_than_connections_are_under_way(speaker: Speaker) -> None:
    release = threading.Event()
    speaker.answer = lambda exchange: found(HTTP) if release.wait(20) else None
    async with connected(speaker) as client:
        asked = [asyncio.create_task(version(client)) for _ in range(MAX_CONNECTIONS)]
        await soon(lambda: len(speaker.requests) == MAX_CONNECTIONS)
        with pytest.raises(scannery.DeadlineExceededError):
            await version(client, timeout_s=0.05)
        later = asyncio.create_task(version(client))
        release.set()
        assert await asyncio.gather(*asked, later) == [HTTP] * (MAX_CONNECTIONS + 1)


async def test_connections_that_ended_while_they_were_idle_are_not_seen(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = answered(UpsertResponse(sequence=HTTP).SerializeToString())
    async with connected(speaker, retries=False) as client:
        for fresh_s in (0.0, 60.0):
            monkeypatch.setattr(pool_module, "FRESH_S", fresh_s)
            await version(client)
            speaker.hang_up()
            await soon(lambda: not speaker.connections)
            assert await version(client) == HTTP
        speaker.hang_up()
        await soon(lambda: not speaker.connections)
        speaker.answer = lambda exchange: written
        assert (await client.index("any").upsert([{"id": "a", "vector": [1.0]}])).sequence == HTTP


async def test_connections_go_to_all_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "SPREAD_EVERY_S", 1e-6)
    drawn = iter([7, 7, 7, 9, 9, *[7, 9] * 100])
    with speaking(workers=2) as speaker:
        speaker.worker = lambda: next(drawn)
        async with connected(speaker) as client:
            await asyncio.gather(*(version(client) for _ in range(8)))
            transport: Any = client._transport
            loads = transport._wire._pool._loads
            assert loads.keys() == {"7", "9"}


async def test_a_closed_client_has_no_connections_and_refuses(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(exchange: Exchange) -> bytes:
        release.wait(20)
        return found(HTTP)

    async with connected(speaker) as client:
        speaker.answer = slow
        waiting = asyncio.create_task(version(client))
        await soon(lambda: len(speaker.requests) == 1)
        await client.close()
        with pytest.raises(scannery.CancelledError):
            await waiting
        release.set()
        await soon(lambda: not speaker.connections)
        with pytest.raises(scannery.CancelledError):
            await version(client)


def test_a_client_begins_anew_in_another_event_loop_and_when_it_is_pickled(speaker: Speaker) -> None:
    async def ask(client: scannery.aio.AsyncClient) -> int:
        return await version(client)

    client = scannery.aio.connect(speaker.url)
    copy = pickle.loads(pickle.dumps(client))
    for one in (copy, copy):
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(ask(one)) == HTTP
        loop.run_until_complete(one.close()) if one is not copy else None
        _end(loop, one)
    assert len(speaker.probes) == 2


def _end(loop: asyncio.AbstractEventLoop, client: scannery.aio.AsyncClient) -> None:
    transport: Any = client._transport
    for connection in transport._wire._pool.close():
        loop.run_until_complete(connection.ended())
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
