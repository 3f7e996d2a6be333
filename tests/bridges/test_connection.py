"""What all adapters share: connections to a target, also from several event loops."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator

import pytest

from scannery.bridges.connection import Connection
from tests.bridges.targets import TARGETS, fresh_name, target_of


@pytest.fixture(scope="module", params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with target_of(request.param, tmp_path_factory.mktemp("targets") / "store") as target:
        yield target


@pytest.fixture
def connection(target: str) -> Iterator[Connection]:
    made = Connection(target, fresh_name(), lambda client: {"dimensions": 2}, {})
    yield made
    made.close()


async def count(connection: Connection) -> int:
    indexes = await asyncio.gather(connection.aindex(), connection.aindex())
    return sum([await index.count() for index in indexes])


def test_each_event_loop_closes_what_it_opened(connection: Connection):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        for _ in range(3):
            assert asyncio.run(count(connection)) == 0
            assert not connection._by_loop
        gc.collect()
    assert [str(each.message) for each in caught if each.category is ResourceWarning] == []


def test_a_closed_connection_connects_again(connection: Connection):
    async def often() -> None:
        for _ in range(2):
            assert await count(connection) == 0
            await connection.aclose()
        assert await count(connection) == 0

    asyncio.run(often())
    connection.close()
    assert connection.index().count() == 0


async def test_loops_at_the_same_time_have_their_own_clients(connection: Connection):
    assert await count(connection) == 0
    assert await asyncio.to_thread(asyncio.run, count(connection)) == 0
    assert await count(connection) == 0
    await connection.aclose()
