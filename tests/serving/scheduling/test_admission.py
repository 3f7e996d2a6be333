"""Who is let in, and how the limit follows what the machine can do."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving import OverloadedError
from scannery.serving.scheduling.admission import WINDOW, Admission, Ticket
from scannery.serving.scheduling.permits import CallerGoneError, Permit, waiting
from scannery.serving.transport.lifecycle import least_in_flight
from tests.served import DIMENSIONS, serving


def full(admission: Admission, client: str) -> list[Ticket]:
    tickets = []
    try:
        while True:
            tickets.append(admission.enter(client))
    except OverloadedError as error:
        assert error.retry_after_s is not None
        assert error.retry_after_s > 0
    return tickets


def answer(admission: Admission, took_s: float, in_flight: int = 1, times: int = WINDOW) -> None:
    for _ in range(times):
        with admission.enter("a") as ticket:
            ticket.in_flight = in_flight
            admission.answered(ticket, "search", took_s)


def test_one_client_alone_may_have_all_of_it() -> None:
    admission = Admission(least=16, maximum=100)
    tickets = full(admission, "a")
    assert len(tickets) == admission.in_flight == 16
    tickets[0].leave()
    tickets[0].leave()
    assert admission.in_flight == 15
    assert len(full(admission, "a")) == 1


def test_one_client_cannot_shut_out_others() -> None:
    admission = Admission(least=16, maximum=100)
    mine = full(admission, "a")
    theirs = full(admission, "b")
    assert len(theirs) == 4  # the reserve
    for ticket in mine[:8]:
        ticket.leave()
    # What comes free goes to whoever has less than an equal share.
    assert full(admission, "a") == []
    theirs += full(admission, "b")
    assert len(theirs) == 8


def test_a_batch_takes_as_much_of_its_clients_share_as_its_queries_would() -> None:
    admission = Admission(least=16, maximum=100)
    mine = [admission.enter("a") for _ in range(2)]
    theirs = [admission.enter("b") for _ in range(7)]
    mine[0].weigh(20)
    mine[0].weigh(20)
    # Half is taken, and the batch alone is more than half of all there is.
    with pytest.raises(OverloadedError):
        admission.enter("a")
    theirs.append(admission.enter("b"))
    mine[0].leave()
    mine.append(admission.enter("a"))
    for ticket in (*mine, *theirs):
        ticket.leave()
    assert admission.in_flight == 0
    assert len(full(admission, "a")) == 16


def test_requests_that_are_never_answered_leave_the_reserve_to_others() -> None:
    """Those that were let in because they seemed to be answered soon may wait for their bodies."""
    admission = Admission(least=4, maximum=20)
    answer(admission, 1e-5, times=100)
    admission.limit = 4.0
    mine = full(admission, "a")
    assert len(mine) == 20
    theirs = full(admission, "b")
    assert len(theirs) == 1  # the reserve of a limit of 4
    assert admission.in_flight == 21


def test_who_would_be_answered_soon_is_let_in_above_the_limit() -> None:
    admission = Admission(least=4, maximum=20)
    answer(admission, 0.001, times=100)
    # A millisecond for each in flight: 15 are as many as are answered within the patience of 15 ms.
    assert 14 <= len(full(admission, "a")) <= 16
    slow = Admission(least=4, maximum=20)
    answer(slow, 0.05, times=100)
    assert len(full(slow, "a")) == 4
    quick = Admission(least=4, maximum=20)
    answer(quick, 1e-5, times=100)
    assert len(full(quick, "a")) == 20


def test_who_is_refused_is_told_when_those_who_are_here_will_be_answered() -> None:
    admission = Admission(least=16, maximum=100)
    answer(admission, took_s=0.4, in_flight=10, times=200)
    tickets = full(admission, "a")
    with pytest.raises(OverloadedError) as refused:
        admission.enter("a")
    # One is answered every 40 ms, which has little to do with how long each of them takes.
    assert refused.value.retry_after_s == pytest.approx(len(tickets) * 0.04, rel=0.1)


@pytest.mark.parametrize(("workers", "least"), [(1, 16), (2, 8), (1000, 4)])
def test_all_workers_together_always_take_a_few(
    workers: int, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    assert least_in_flight(workers) == least


def test_a_forgotten_ticket_comes_back() -> None:
    admission = Admission(least=16, maximum=100)
    admission.enter("a")
    assert admission.in_flight == 0


def test_the_limit_grows_while_it_is_reached_and_nothing_gets_slower() -> None:
    admission = Admission(least=16, maximum=40)
    for _ in range(30):
        tickets = full(admission, "a")
        for ticket in tickets:
            admission.answered(ticket, "search", 0.001)
        for ticket in tickets:
            ticket.leave()
    assert admission.limit == 40
    # An idle server has no reason to change it.
    answer(admission, 0.001)
    assert admission.limit == 40


def test_the_limit_shrinks_while_requests_take_much_longer_than_on_an_idle_server() -> None:
    admission = Admission(least=16, maximum=400)
    answer(admission, 0.001)
    admission.limit = 400.0
    answer(admission, 0.01, in_flight=50, times=50 * WINDOW)
    assert admission.limit == 16
    # Twice the work is not overload: each kind of request has its own measure.
    admission.limit = 100.0
    for _ in range(2 * WINDOW):
        with admission.enter("a") as ticket:
            admission.answered(ticket, "search_many", 0.5)
    assert admission.limit == 100


def test_the_limit_shrinks_at_once_where_answers_are_very_late() -> None:
    admission = Admission(least=4, maximum=400)
    answer(admission, 0.001)
    admission.limit = 64.0
    # What was let in is answered for as long as it takes; each further look lets in as much of what is too much.
    answer(admission, 0.01, in_flight=50, times=3 * WINDOW)
    assert admission.limit == 8


def test_a_slow_request_of_one_moment_changes_little() -> None:
    admission = Admission(least=16, maximum=400)
    answer(admission, 0.001, times=WINDOW - 1)
    answer(admission, 60.0, times=1)
    assert admission.limit == 16


# Bursts


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def bursting() -> tuple[Admission, Clock]:
    clock = Clock()
    return Admission(least=16, maximum=100, burst=84, clock=clock), clock


def test_a_burst_may_exceed_the_limit() -> None:
    admission, _ = bursting()
    tickets = full(admission, "a")
    assert len(tickets) == 100
    assert len(full(admission, "b")) == 4  # the reserve
    tickets.clear()
    # Some were refused: the next burst has to wait.
    assert len(full(admission, "a")) == 16


def test_bursts_that_are_answered_may_come_again() -> None:
    admission, _ = bursting()
    for _ in range(10):
        tickets = [admission.enter("a") for _ in range(100)]
        for ticket in tickets:
            admission.answered(ticket, "search", 1.0)
            ticket.leave()
    assert admission.refused == 0


def test_an_overload_is_refused_after_the_first_burst() -> None:
    """Callers that ask again as soon as they are answered, and so many that some always wait."""
    admission, clock = bursting()
    answer(admission, 0.01)
    tickets = full(admission, "a")
    for _ in range(1000):
        clock.now_s += 0.01
        admission.answered(tickets[0], "search", 1.0)
        tickets.pop(0).leave()
        tickets += full(admission, "a")[:1]
    assert len(tickets) == admission.limit == 16
    # Nobody is refused for a while, and it is below the limit.
    del tickets[8:]
    clock.now_s += 1.5
    assert len(full(admission, "a")) == 92


def test_accounts_share_and_the_clients_of_an_account_share_what_it_has() -> None:
    admission = Admission(least=16, maximum=100)
    mine = [admission.enter("a", f"client {number}") for number in range(16)]
    with pytest.raises(OverloadedError):
        admission.enter("a", "client 0")
    # Names that one account makes up are no further callers.
    for ticket in mine[8:]:
        ticket.leave()
    theirs = full(admission, "b")
    assert len(theirs) == 8
    with pytest.raises(OverloadedError):
        admission.enter("a", "client 99")
    for ticket in (*mine, *theirs):
        ticket.leave()
    assert (admission._accounts, admission._clients, admission._clients_of) == ({}, {}, {})


@pytest.mark.system
def test_overload_is_refused_at_once_and_the_rest_is_answered(library: Path) -> None:
    """Twenty callers at once, on a server that works on one request at a time and lets few wait."""
    query = np.ones(DIMENSIONS, np.float32)
    with serving(library, threads=1, queue=3) as server:
        answered, refused = [], []
        go = threading.Event()

        def ask() -> None:
            with scannery.connect(server.address, channels=1, retries=False) as client:
                index = client.index("library")
                go.wait()
                for _ in range(3):
                    started_s = time.monotonic()
                    try:
                        index.search_many([query] * 20, 20, exact=True)
                        answered.append(time.monotonic() - started_s)
                    except scannery.ResourceExhaustedError as error:
                        assert error.retry_after_s
                        refused.append(time.monotonic() - started_s)

        threads = [threading.Thread(target=ask) for _ in range(20)]
        for thread in threads:
            thread.start()
        go.set()
        for thread in threads:
            thread.join()
        assert len(answered) + len(refused) == 60
        assert answered
        assert refused
        # And afterwards it is as before.
        with scannery.connect(server.address) as client:
            assert len(client.index("library").search(query)) == 10


# Turns


def test_a_turn_is_waited_for_no_longer_than_the_deadline() -> None:
    turns = threading.BoundedSemaphore(1)
    with Permit(turns, Deadline.after(10), lambda: True):
        with pytest.raises(DeadlineError), Permit(turns, Deadline.after(0.01), lambda: True):
            pass
        with waiting(), Permit(turns, Deadline.after(10), lambda: True):
            pass  # whoever waits for something else lets others work
    with pytest.raises(CallerGoneError), Permit(turns, Deadline.after(10), lambda: False):
        pass
    with Permit(turns, Deadline.after(1), lambda: True):
        pass
