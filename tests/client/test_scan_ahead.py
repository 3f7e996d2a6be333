"""Pages of a server are read at most one ahead of the datapoints that are taken."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client.concurrency import Prefetch
from scannery.client.response.results import ScanPage
from tests.served import ROWS, serving

WAIT_S = 10.0


@pytest.fixture(scope="module")
def address(library: Path) -> Iterator[str]:
    with serving(library) as server:
        yield server.address


@pytest.fixture
def index(address: str) -> Iterator[scannery.Index]:
    with scannery.connect(address) as client:
        yield client.index("library")


class Reads:
    """Notes the tokens of the pages that a scan reads; fails, or waits, where it is told to."""

    def __init__(self, running: scannery.Scan) -> None:
        self.tokens: list[str | None] = []
        self.error: Exception | None = None
        self.may_read = threading.Event()
        self.may_read.set()
        self._read: Callable[[str | None], ScanPage] = running._read
        running._read = self

    def __call__(self, token: str | None) -> ScanPage:
        self.tokens.append(token)
        assert self.may_read.wait(WAIT_S)
        if self.error is not None:
            raise self.error
        return self._read(token)


def settled() -> None:
    """Wait until no page is being read."""
    for thread in threading.enumerate():
        if thread.name == "scannery-prefetch":
            thread.join(WAIT_S)
            assert not thread.is_alive()


def test_one_page_is_read_ahead_once_an_eighth_of_the_first_one_is_taken(index: scannery.Index) -> None:
    running = index.scan(page_size=80)
    reads = Reads(running)
    taken = 0
    for _ in running:
        taken += 1
        settled()
        first = taken <= 80
        pages = (1 if taken <= 10 else 2) if first else min((taken - 1) // 80 + 2, 8)
        if first or taken % 80 > 1:  # in later pages with the second datapoint
            assert len(reads.tokens) == pages, taken
    assert taken == ROWS
    assert len(set(reads.tokens)) == 8


@pytest.mark.system
def test_tokens_are_those_of_datapoints_that_were_taken(index: scannery.Index) -> None:
    everything = [point.id for point in index.scan()]
    running = index.scan(page_size=100)
    for count in (1, 60, 100, 101, 250):
        while running.token is None or int(running.token.rpartition(".")[2]) < count:
            next(running)
        settled()
        assert [point.id for point in index.scan(token=running.token)] == everything[count:]
    assert [len(batch) for batch in running.batches()] == [50, 100, 100, 100]


@pytest.mark.system
def test_an_error_is_raised_after_the_datapoints_before_it(index: scannery.Index) -> None:
    everything = [point.id for point in index.scan()]
    running = index.scan(page_size=100)
    reads, found = Reads(running), [next(running).id]
    reads.error = scannery.UnavailableError("no page")
    found += [next(running).id for _ in range(99)]
    settled()
    assert len(reads.tokens) == 2
    for _ in range(2):
        with pytest.raises(scannery.UnavailableError, match="no page"):
            next(running)
        assert running.token is not None and running.token.endswith(".100")
    reads.error = None
    assert found + [point.id for point in running] == everything


def test_a_scan_that_is_dropped_leaves_no_thread_and_reads_no_more(index: scannery.Index) -> None:
    running = index.scan(page_size=100)
    reads = Reads(running)
    next(running)
    reads.may_read.clear()
    for _ in range(20):
        next(running)
    (thread,) = [each for each in threading.enumerate() if each.name == "scannery-prefetch"]
    del running
    reads.may_read.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert len(reads.tokens) == 2


@pytest.mark.system
def test_an_interrupted_wait_repeats_the_page(index: scannery.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [point.id for point in index.scan()]
    running = index.scan(page_size=100)
    found = [next(running).id for _ in range(100)]
    with monkeypatch.context() as patched:

        def interrupted(self: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(Prefetch, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(running)
    assert found + [point.id for point in running] == everything


def test_no_page_of_a_store_in_this_process_is_read_ahead(library: Path) -> None:
    with scannery.connect(library) as client:
        running = client.index("library").scan(page_size=100)
        reads = Reads(running)
        for _ in range(100):
            next(running)
        assert (len(reads.tokens), running._ahead) == (1, None)


@pytest.mark.system
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_for_itself() -> None:
    may_end = threading.Event()
    prefetch = Prefetch(lambda: may_end.wait(WAIT_S) and "parent")
    child = os.fork()
    if child == 0:
        may_end.set()  # of the child only
        os._exit(0 if prefetch.result() == "parent" else 1)
    assert os.waitpid(child, 0)[1] == 0
    may_end.set()
    assert prefetch.result() == "parent"


def test_without_a_thread_the_call_is_made_when_its_result_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    calls: list[str] = []
    prefetch = Prefetch(calls.append, "page")
    assert calls == []
    assert prefetch.result() is None
    assert calls == ["page"]


@pytest.mark.system
async def test_an_asynchronous_scan_reads_ahead_and_cancels_what_is_dropped(address: str) -> None:
    problems: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: problems.append(context))
    async with scannery.aio.connect(address) as client:
        index = client.index("library")
        everything = [point.id async for point in index.scan(page_size=100)]
        running = index.scan(page_size=100)
        real = running._read

        async def failing(token: str | None) -> ScanPage:
            raise scannery.UnavailableError("no page")

        found = [(await anext(running)).id for _ in range(13)]
        running._read = failing
        found += [(await anext(running)).id for _ in range(187)]  # the second page was read ahead
        with pytest.raises(scannery.UnavailableError):
            await anext(running)
        running._read = real
        assert found + [point.id async for point in running] == everything

        dropped = index.scan(page_size=100)
        await anext(dropped)
        ended = asyncio.Event()

        async def slow(token: str | None) -> ScanPage:
            try:
                await asyncio.sleep(WAIT_S)
            finally:
                ended.set()
            raise AssertionError("not cancelled")

        dropped._read = slow
        for _ in range(20):
            await anext(dropped)
        assert dropped._ahead is not None and not ended.is_set()
        assert dropped.token is not None and dropped.token.endswith(".21")
        del dropped
        await asyncio.wait_for(ended.wait(), WAIT_S / 2)
    gc.collect()
    assert problems == []
