"""Which cores short texts are computed on, and what that does to the rest of the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.embed.devices import cores
from scannery.embed.devices import cores as neighbours
from scannery.embed.devices.cores import (
    Neighbours,
    computing,
    in_this_thread,
    live_with,
    on_cores,
    on_free_cores,
    on_idle_cores,
)
from tests.served import MINILM

T = TypeVar("T")


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.fixture
def company() -> Iterator[Neighbours]:
    company = Neighbours(4)
    live_with(company, 0)
    yield company
    neighbours._State.neighbours = None
    neighbours._State.one_core_until_s = 0.0


def in_a_thread(work: Callable[[], T]) -> T:
    results: list[T] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join(60)
    return results[0]


@pytest.mark.system
def test_no_thread_that_asks_gets_a_pool_of_threads_of_its_own(encoder: Encoder) -> None:
    first_D = in_a_thread(lambda: encoder.encode_queries(["how do volcanoes form"]))
    before = len(list(Path("/proc/self/task").iterdir()))
    stay, asked = threading.Event(), threading.Barrier(9)
    found: list[np.ndarray] = []

    def ask() -> None:
        found.append(encoder.encode_queries(["how do volcanoes form"]))
        asked.wait(60)
        stay.wait(60)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    asked.wait(60)
    now = len(list(Path("/proc/self/task").iterdir()))
    stay.set()
    for thread in threads:
        thread.join(60)
    # With a pool for each, there would be twice as many; others may come and go.
    assert now - before < 1.5 * len(threads)
    for vector_D in found:
        np.testing.assert_allclose(vector_D, first_D, atol=1e-2)


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch uses two, however many cores there are."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("works", [True, False])
def test_one_core_while_others_compute(company: Neighbours, *, works: bool) -> None:
    import torch

    company.work(2, works=works)
    assert on_idle_cores(torch.get_num_threads) == (1 if works else 2)
    # Neither is what other threads use from now on.
    assert in_a_thread(torch.get_num_threads) == torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_one_core_in_this_thread_changes_no_setting() -> None:
    import torch

    here = in_this_thread(lambda: (threading.get_ident(), torch.get_num_threads()))
    assert here == (threading.get_ident(), 1)
    assert in_a_thread(torch.get_num_threads) == torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError):
        in_this_thread(lambda: 1 / 0)
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_one_core_in_another_thread_without_a_setting_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    for without in (None, lambda threads: None):  # no OpenMP, and one that torch does not use
        monkeypatch.setattr(cores, "_omp_set_num_threads", lambda without=without: without)
        assert in_this_thread(torch.get_num_threads) == 1
        assert torch.get_num_threads() == 2


def test_who_uses_one_core_waits_for_nobody() -> None:
    inside, go = threading.Barrier(3), threading.Event()

    def work() -> None:
        inside.wait(60)
        go.wait(60)

    threads = [
        threading.Thread(target=on_cores, args=(1, lambda: on_idle_cores(work, 2)), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    inside.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)


class Parts:
    """Work of some parts, each of which waits until it is let go on; notes the thread and torch's cores of each."""

    def __init__(self, count: int) -> None:
        self.left = list(range(count))
        self.found: list[tuple[int, int]] = []
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def work(self) -> None:
        import torch

        while self.left:
            self.left.pop()
            self.found.append((threading.get_ident(), torch.get_num_threads()))
            self.began.release()
            assert self.go.acquire(timeout=60)


@pytest.mark.usefixtures("two_threads")
def test_a_free_core_helps_and_one_that_another_call_has_does_not() -> None:
    first, second = Parts(3), Parts(2)
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(on_free_cores, first.work, 2)
        for _ in range(2):
            assert first.began.acquire(timeout=60)
        other = pool.submit(on_free_cores, second.work, 2)
        assert second.began.acquire(timeout=60)
        assert not second.began.acquire(
            timeout=0.05
        )  # both cores are taken: its own thread computes all parts
        for _ in range(2):
            second.go.release()
        other.result(60)
        for _ in range(3):
            first.go.release()
        one.result(60)
    assert [len({ident for ident, _ in parts.found}) for parts in (first, second)] == [2, 1]
    assert {cores for parts in (first, second) for _, cores in parts.found} == {1}


@pytest.mark.usefixtures("two_threads")
def test_a_helper_that_has_not_begun_is_not_waited_for() -> None:
    long, short, later = Parts(2), Parts(1), Parts(2)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(on_free_cores, long.work, 2)
        for _ in range(2):
            assert long.began.acquire(timeout=60)
        cores._Helpers.computing -= 2  # as if both cores were free; the only helper is still at work
        short.go.release()
        pool.submit(on_free_cores, short.work, 2).result(60)
        cores._Helpers.computing += 2
        for _ in range(2):
            long.go.release()
        first.result(60)
    later.go.release()
    later.go.release()
    on_free_cores(later.work, 2)
    assert cores._Helpers.computing == 0


@pytest.mark.usefixtures("two_threads")
def test_no_helper_while_a_neighbour_computes(company: Neighbours) -> None:
    company.work(2, works=True)
    parts = Parts(3)
    for _ in range(3):
        parts.go.release()
    on_free_cores(parts.work, 2)
    assert {ident for ident, _ in parts.found} == {threading.get_ident()}


@pytest.mark.usefixtures("two_threads")
def test_the_error_of_a_helper_is_raised_after_all_have_ended() -> None:
    own = threading.get_ident()
    helped = threading.Event()

    def work() -> None:
        if threading.get_ident() != own:
            helped.set()
            raise ValueError("of the helper")
        assert helped.wait(60)

    with pytest.raises(ValueError, match="of the helper"):
        on_free_cores(work, 2)
    assert cores._Helpers.computing == 0


def test_a_process_computes_until_the_last_of_its_threads_does_not(company: Neighbours) -> None:
    with computing():
        with computing():
            pass
        assert company.others_work(1)
    assert not company.others_work(1)


def test_wary_for_a_while_after_others_computed(company: Neighbours, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("scannery.embed.devices.cores.time.monotonic", lambda: now_s[0])

    def undisturbed() -> bool:
        with computing() as alone:
            return alone

    assert undisturbed()
    company.work(3, works=True)
    assert not undisturbed()
    company.work(3, works=False)
    assert not undisturbed()
    now_s[0] += 1.1 * neighbours.ONE_CORE_S
    assert undisturbed()


def test_a_process_tells_others_that_it_computes(company: Neighbours) -> None:
    to_child, to_parent = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        live_with(company, 1)
        with computing():
            os.write(to_parent[1], b"!")
            os.read(to_child[0], 1)
        os.write(to_parent[1], b"!")
        os._exit(0)
    os.read(to_parent[0], 1)
    assert company.others_work(0)
    os.write(to_child[1], b"!")
    os.read(to_parent[0], 1)
    os.waitpid(pid, 0)
    assert not company.others_work(0)
    for descriptor in (*to_child, *to_parent):
        os.close(descriptor)


def test_who_died_at_work_holds_nobody_up_once_there_is_another(company: Neighbours) -> None:
    company.work(1, works=True)
    assert company.others_work(0)
    live_with(company, 1)
    assert not company.others_work(0)


@pytest.mark.system
def test_a_forked_process_computes(encoder: Encoder) -> None:
    expected_D = encoder.encode_queries(["a"])
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, encoder.encode_queries(["a"]).tobytes())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        found_D = np.frombuffer(pipe.read(), np.float32)
    os.waitpid(pid, 0)
    np.testing.assert_allclose(found_D, expected_D.ravel(), atol=1e-2)
