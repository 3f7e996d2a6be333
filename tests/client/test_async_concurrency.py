"""Coroutines with a time limit: a cancellation is never lost, nor a result that comes with it."""

from __future__ import annotations

import asyncio

import pytest

from scannery.client.async_concurrency import AsyncPermits, async_within


async def test_a_cancellation_that_comes_with_the_result_counts() -> None:
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    late: list[str] = []

    async def work() -> str:
        return await answer

    task = asyncio.create_task(async_within(work(), 20, late.append))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    answer.set_result("a connection")
    await asyncio.sleep(0)  # now the work has its result, and the caller not yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert late == ["a connection"]


async def test_a_permit_that_comes_with_a_cancellation_is_given_back() -> None:
    permits = AsyncPermits(1)
    assert await permits.acquire(1)
    task = asyncio.create_task(permits.acquire(20))
    await asyncio.sleep(0.01)
    permits.release()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await permits.acquire(1)


async def test_the_time_is_kept() -> None:
    late: list[None] = []
    with pytest.raises(TimeoutError):
        await async_within(asyncio.sleep(20), 0.01, late.append)
    with pytest.raises(ZeroDivisionError):
        await async_within(_fails(), 1, late.append)
    assert await async_within(asyncio.sleep(0, 7), 1, print) == 7
    assert not late


async def _fails() -> None:
    raise ZeroDivisionError
