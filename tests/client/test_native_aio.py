"""Searches of coroutines without gRPC: many at a time on a connection, and that nobody notices what goes wrong."""

from __future__ import annotations

import asyncio
import pickle
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.native import aio as native_aio
from scannery.v1.search_pb2 import SearchRequest
from tests.client.native_server import GRPC, NATIVE, Speaker, found, speaking
from tests.client.test_native import another_call, far_too_large, half_an_answer, hangs_up, no_message


@pytest.fixture
def speaker() -> Iterator[Speaker]:
    with speaking() as speaker:
        yield speaker


async def version(client: scannery.aio.AsyncClient, query: float = 1.0, **options: Any) -> int:
    """Search, and return the way that the answer came."""
    return (await client.index("any").search([query], **options)).version


@asynccontextmanager
async def connected(speaker: Speaker, **options: Any) -> AsyncIterator[scannery.aio.AsyncClient]:
    """A client whose searches go natively."""
    settings: dict[str, Any] = {"timeout_s": 20, "coalesce": False, **options}
    async with scannery.aio.connect(speaker.address, **settings) as client:
        await until_native(client)
        yield client


async def until_native(client: scannery.aio.AsyncClient) -> None:
    until_s = time.monotonic() + 20
    while await version(client) != NATIVE:
        assert time.monotonic() < until_s, "no search went natively"
        await asyncio.sleep(0.005)


async def eventually(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until_s, "it never came true"
        await asyncio.sleep(0.005)


async def test_many_searches_share_a_few_connections(speaker: Speaker) -> None:
    async with scannery.aio.connect(speaker.address, coalesce=False) as client:
        assert await version(client) == GRPC
        await asyncio.sleep(0.05)
        assert speaker.looked == 0
        await until_native(client)
        for _ in range(3):
            await asyncio.gather(*(version(client) for _ in range(60)))
        over_grpc = speaker.grpc_calls
        assert await asyncio.gather(*(version(client) for _ in range(120))) == [NATIVE] * 120
        assert (speaker.grpc_calls, speaker.looked) == (over_grpc, 1)
        assert len(speaker.connections) <= native_aio.EACH
        # More than the server would read go the other way.
        ways = await asyncio.gather(*(version(client) for _ in range(150)))
        assert (ways.count(NATIVE), ways.count(GRPC)) == (128, 22)
    await eventually(lambda: not speaker.connections)


async def test_it_can_be_turned_off(speaker: Speaker) -> None:
    async with scannery.aio.connect(speaker.address, native=False) as client:
        assert [await version(client) for _ in range(20)] == [GRPC] * 20
    assert speaker.looked == 0


async def test_answers_in_any_order_reach_those_who_asked(speaker: Speaker) -> None:
    async with connected(speaker) as client:
        speaker.shuffled = 8

        def answer(sock: socket.socket, kind: int, body: bytes) -> bytes:
            (value,) = np.frombuffer(SearchRequest.FromString(body).query.vector.packed, np.float32)
            return found(int(value))

        speaker.answer = answer
        got = await asyncio.gather(*(version(client, float(number)) for number in range(10, 50)))
        assert got == list(range(10, 50))


@pytest.mark.parametrize("answer", [hangs_up, half_an_answer, another_call, no_message, far_too_large])
async def test_a_connection_that_breaks_costs_nobody_an_answer(speaker: Speaker, answer: Any) -> None:
    async with connected(speaker, retries=False) as client:
        if answer is another_call:
            # An answer to nobody is one to somebody who was cancelled.
            speaker.answer = another_call
            assert await version(client) == NATIVE
            return
        speaker.answer = answer
        assert await asyncio.gather(*(version(client) for _ in range(20))) == [GRPC] * 20
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        await until_native(client)


async def test_an_endpoint_that_never_answers_a_call_is_given_up(speaker: Speaker) -> None:
    speaker.answer = hangs_up
    async with scannery.aio.connect(speaker.address, coalesce=False) as client:
        until_s = time.monotonic() + 20
        while not speaker.native_calls:
            assert await version(client) == GRPC
            assert time.monotonic() < until_s
        assert [await version(client) for _ in range(20)] == [GRPC] * 20
        assert (speaker.native_calls, speaker.looked) == (1, 1)


async def test_a_slow_answer_is_too_late_and_a_cancelled_search_is_forgotten(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(sock: socket.socket, kind: int, body: bytes) -> bytes:
        release.wait(20)
        return found(77)

    async with connected(speaker) as client:
        speaker.answer = slow
        cancelled = asyncio.create_task(version(client))
        await asyncio.sleep(0.05)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        with pytest.raises(scannery.DeadlineExceededError):
            await version(client, timeout_s=0.2)
        # Nothing came on it in all that time.
        transport: Any = client._transport
        await eventually(lambda: transport._native._way.connections == [])
        speaker.answer = lambda sock, kind, body: found(NATIVE)
        release.set()
        await until_native(client)
        assert 77 not in [await version(client) for _ in range(10)]


async def test_a_server_that_comes_back_elsewhere_is_found_again(speaker: Speaker) -> None:
    async with connected(speaker, retries=False) as client:
        speaker.stop_listening()
        speaker.hang_up()
        await eventually(lambda: not speaker.connections)
        speaker.listen_again()
        await until_native(client)
        assert speaker.looked == 2


async def test_connections_go_to_all_workers() -> None:
    drawn = iter([7, 7, 7, 9, 9, *[7, 9] * 20])
    with speaking(workers=2) as speaker:
        speaker.worker = lambda: next(drawn)
        async with connected(speaker) as client:
            transport: Any = client._transport
            workers: list[int] = []
            until_s = time.monotonic() + 30
            while len(workers) < 4 and time.monotonic() < until_s:
                # They are made in the background, while there is so much to do.
                await asyncio.gather(*(version(client) for _ in range(20)))
                workers = [connection.welcome.worker for connection in transport._native._way.connections]
            assert sorted(workers) == [7, 7, 9, 9]
            await eventually(lambda: len(speaker.connections) == 4)


async def test_connections_are_made_anew_for_another_token(
    speaker: Speaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {"now": "first"}
    async with connected(speaker, token=lambda: tokens["now"]) as client:
        monkeypatch.setattr(native_aio, "RENEWAL_S", 0.0)
        speaker.hellos.clear()
        tokens["now"] = "second"
        await until_native(client)
        await eventually(lambda: len(speaker.connections) == 1)
        shown = {pair.value for pair in speaker.hellos[0].metadata if pair.key == "authorization"}
        assert (len(speaker.hellos), shown) == (1, {"Bearer second"})
        monkeypatch.setattr(native_aio, "RENEWAL_S", 60.0)
        tokens["now"] = "third"
        assert [await version(client) for _ in range(10)] == [GRPC] * 10
        assert len(speaker.hellos) == 1


async def test_a_closed_client_has_no_connections_and_refuses(speaker: Speaker) -> None:
    release = threading.Event()

    def slow(sock: socket.socket, kind: int, body: bytes) -> bytes:
        release.wait(20)
        return found(NATIVE)

    async with connected(speaker) as client:
        speaker.answer = slow
        waiting = asyncio.create_task(version(client))
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(scannery.CancelledError):
            await waiting
        release.set()
        await eventually(lambda: not speaker.connections)
        with pytest.raises(scannery.CancelledError):
            await version(client)


def test_a_pickled_client_begins_anew(speaker: Speaker) -> None:
    async def ask(client: scannery.aio.AsyncClient) -> None:
        async with client:
            await until_native(client)

    client = scannery.aio.connect(speaker.address, coalesce=False)
    copy = pickle.loads(pickle.dumps(client))
    asyncio.run(ask(client))
    asyncio.run(ask(copy))
    assert len({pair.value for hello in speaker.hellos for pair in hello.metadata}) == 2
