"""Calls to leaves of this process that fail, wait and change as a test says."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from scannery.runtime.errors import (
    ClosedError,
    ConfigError,
    DeadlineError,
    InvalidRequestError,
    OverloadedError,
    PreconditionError,
    ServingError,
    StateGoneError,
    UnavailableError,
)
from scannery.runtime.retry import Deadline
from scannery.serving.config import LeavesConfig
from scannery.serving.leaves.groups import LeafGroups
from scannery.serving.scheduling.permits import CallerGoneError, Permit
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1.leaf_pb2 import (
    LeafFound,
    LeafSearchRequest,
    LeafSearchResponse,
    LeafStatistics,
    LeafStatisticsRequest,
    LeafVectors,
)
from scannery.v1.types_pb2 import ErrorDetail
from tests.serving.leaves.conftest import Connect, StartLeaf
from tests.serving.leaves.leaf_server import SEARCH, STATISTICS, ScriptedLeaf, state
from tests.serving.process.test_supervisor import wait_until

NO_DETAIL = ErrorDetail()


def ask(
    leaf_groups: LeafGroups, *, timeout_s: float | None = 20, wanted: int = 7, **options: Any
) -> dict[int, int]:
    at = state()
    answers = leaf_groups.call(
        SEARCH, LeafSearchRequest(at=at, wanted=wanted), LeafSearchResponse, Deadline.after(timeout_s), at=at,
        **options,
    )  # fmt: skip
    return {group: answer.allowed for group, answer in answers.items()}


def failing(
    leaf: ScriptedLeaf, code: grpc.StatusCode, text: str = "no", detail: ErrorDetail = NO_DETAIL
) -> None:
    leaf.fails = code, text, detail


def test_each_group_answers(leaf: StartLeaf, connect: Connect) -> None:
    groups = connect([leaf(group, 3) for group in (2, 0, 1)])
    assert (groups.groups, groups.ready, groups.problems) == (3, True, ())
    assert ask(groups) == {0: 7, 1: 107, 2: 207}
    assert ask(groups, groups=[2, 1]) == {1: 107, 2: 207}
    assert ask(groups, timeout_s=None) == {0: 7, 1: 107, 2: 207}
    at = groups.newest("books")
    assert at == state()
    assert (groups.newest("films"), groups.indexes()) == (None, ["books"])


def test_each_group_gets_a_request_of_its_own(leaf: StartLeaf, connect: Connect) -> None:
    groups = connect([leaf(group, 3) for group in range(3)])
    requests = {0: LeafStatisticsRequest(terms=["a"]), 2: LeafStatisticsRequest(terms=["a", "b"])}
    found = groups.call_each(STATISTICS, requests, LeafStatistics, Deadline.after(20), at=state())
    assert {group: (one.rows, list(one.frequencies)) for group, one in found.items()} == {
        0: (1, [1]),
        2: (3, [2]),
    }
    assert groups.call_each(STATISTICS, {}, LeafStatistics, Deadline.after(20), at=state()) == {}


def test_statuses_tell_what_is_known(leaf: StartLeaf, connect: Connect) -> None:
    first = leaf(0, 1)
    groups = connect(f"{first.address},127.0.0.1:1")
    ask(groups)
    wait_until(lambda: bool(groups.statuses()[1].problem))
    one, absent = groups.statuses()
    assert (one.address, one.group, one.groups, one.ready, one.problem) == (first.address, 0, 1, True, "")
    assert (one.in_flight, one.in_flight_limit, one.indexes[0][0], one.indexes[0][1].rows) == (
        1,
        64,
        "books",
        10,
    )
    assert 0 < one.latency_s < 5
    assert (absent.address, absent.group, absent.ready) == ("127.0.0.1:1", None, False)
    assert "UNAVAILABLE" in absent.problem


@pytest.mark.system
@pytest.mark.parametrize("code", ["UNAVAILABLE", "OUT_OF_RANGE", "INTERNAL", "CANCELLED"])
def test_another_leaf_answers_for_one_that_fails(leaf: StartLeaf, connect: Connect, code: str) -> None:
    bad, good = leaf(), leaf()
    metrics = ServerMetrics()
    groups = connect([bad, good], metrics=metrics)
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    failing(bad, grpc.StatusCode[code])
    for _ in range(20):
        assert ask(groups) == {0: 7}
    assert (bad.searches >= 1, good.searches) == (True, 20)
    calls = metrics.leaf_calls.dump()
    assert (calls["0\x1fOK"], calls[f"0\x1f{code}"]) == (20, bad.searches)
    assert metrics.leaf_failovers.dump() == {"0": bad.searches}


def test_a_group_without_an_answer_is_named_or_left_out(leaf: StartLeaf, connect: Connect) -> None:
    first, second, also_second = leaf(0, 2), leaf(1, 2), leaf(1, 2)
    groups = connect([first, second, also_second])
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    failing(second, grpc.StatusCode.UNAVAILABLE)
    failing(also_second, grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(UnavailableError, match="group 1") as raised:
        ask(groups)
    assert raised.value.retry_after_s
    # Each once, although both may be not ready.
    assert (second.searches, also_second.searches) == (1, 1)
    assert ask(groups, allow_partial=True) == {0: 7}
    failing(first, grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(UnavailableError):
        ask(groups, allow_partial=True)


def test_no_leaf_has_the_state(leaf: StartLeaf, connect: Connect) -> None:
    leaves = [leaf(), leaf()]
    groups = connect(leaves)
    for one in leaves:
        failing(one, grpc.StatusCode.OUT_OF_RANGE, "version 1 is not open")
    with pytest.raises(StateGoneError, match="version 1 is not open"):
        ask(groups)


def test_a_group_without_the_state_is_left_out_only_if_that_is_allowed(
    leaf: StartLeaf, connect: Connect
) -> None:
    first, second = leaf(0, 2), leaf(1, 2)
    groups = connect([first, second])
    failing(second, grpc.StatusCode.OUT_OF_RANGE, "sequence 7 is not read")
    with pytest.raises(StateGoneError, match="group 1 of the leaves: sequence 7 is not read"):
        ask(groups, allow_partial=True)
    assert ask(groups, allow_partial=True, allow_gone=True) == {0: 7}
    failing(first, grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(UnavailableError):
        ask(groups, allow_partial=True, allow_gone=True)


def test_the_leaf_that_has_the_state_is_asked(leaf: StartLeaf, connect: Connect) -> None:
    old, new = leaf(), leaf()
    new.states = [state(2)]
    groups = connect([old, new])
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    for _ in range(10):
        ask(groups)
    assert (old.searches, new.searches) == (10, 0)


def test_errors_of_the_request_are_those_of_the_leaf(leaf: StartLeaf, connect: Connect) -> None:
    one, other = leaf(0, 2), leaf(1, 2)
    groups = connect([one, other])
    for code, kind in (
        (grpc.StatusCode.INVALID_ARGUMENT, InvalidRequestError),
        (grpc.StatusCode.FAILED_PRECONDITION, PreconditionError),
    ):
        failing(other, code, "short", ErrorDetail(message="no such field", field="where"))
        for allow_partial in (False, True):
            with pytest.raises(kind, match="no such field") as raised:
                ask(groups, allow_partial=allow_partial)
            assert raised.value.field == "where"
    failing(other, grpc.StatusCode.INTERNAL, "a defect")
    with pytest.raises(ServingError, match="group 1.*a defect") as defect:
        ask(groups)
    assert type(defect.value) is ServingError


@pytest.mark.parametrize("code", [grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT])
def test_messages_of_leaves_are_of_one_line(leaf: StartLeaf, connect: Connect, code: grpc.StatusCode) -> None:
    one = leaf()
    text = "no\n2026-01-01 INFO scannery: all is well\x1b[2J\u2028"
    failing(one, code, text, ErrorDetail(message=text))
    with pytest.raises(ServingError, match="no 2026-01-01 INFO scannery: all is well ") as caught:
        ask(connect([one]))
    assert not set(str(caught.value)) & set("\n\x1b\u2028")


def test_one_other_leaf_is_asked_if_one_is_full(leaf: StartLeaf, connect: Connect) -> None:
    leaves = [leaf() for _ in range(4)]
    groups = connect(leaves)
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    for one in leaves:
        failing(
            one, grpc.StatusCode.RESOURCE_EXHAUSTED, "full", ErrorDetail(message="full", retry_after_ms=700)
        )
    with pytest.raises(OverloadedError, match="group 0") as raised:
        ask(groups)
    assert raised.value.retry_after_s == 0.7
    assert sum(one.searches for one in leaves) == 2
    for one in leaves[1:]:
        one.fails = None
    for _ in range(20):
        assert ask(groups) == {0: 7}


@pytest.mark.system
def test_a_full_leaf_stays_ready(leaf: StartLeaf, connect: Connect) -> None:
    """It has what it had: otherwise an overload would look like the loss of a group."""
    one = leaf()
    groups = connect([one])
    one.full = True
    wait_until(lambda: one.refused > 2)
    assert groups.ready
    assert groups.newest("books") == state()
    assert not groups.problems


@pytest.mark.system
def test_a_status_that_is_too_large_is_none(leaf: StartLeaf, connect: Connect) -> None:
    one = leaf()
    groups = connect([one])
    # Above what gRPC takes, and below it.
    for states in ([state(index="x" * (5 << 20))], [state(index=str(number)) for number in range(60_000)]):
        one.states = states
        wait_until(lambda: not groups.ready)
        one.states = [state()]
        wait_until(lambda: groups.ready)


@pytest.mark.system
def test_an_answer_with_more_parts_than_asked_for_is_an_error(leaf: StartLeaf, connect: Connect) -> None:
    one = leaf()
    groups, at = connect([one]), state()
    many = LeafFound(ids=[str(number) for number in range(100_000)])
    for results in ([many], [LeafFound()] * 100_000):
        one.answer = LeafSearchResponse(results=results, allowed=5)
        with pytest.raises(ServingError, match="more parts"):
            ask(groups)
    one.answer = LeafSearchResponse(results=[many], allowed=5)
    request = LeafSearchRequest(at=at, queries=100, wanted=1000, vectors=[LeafVectors()])
    answers = groups.call(SEARCH, request, LeafSearchResponse, Deadline.after(20), at=at)
    assert answers[0].allowed == 5


@pytest.mark.system
def test_a_slow_leaf_is_helped_by_another(leaf: StartLeaf, connect: Connect) -> None:
    one, other = leaf(), leaf()
    metrics = ServerMetrics()
    groups = connect([one, other], metrics=metrics)
    wait_until(lambda: all(leaf.ready for leaf in groups.statuses()))
    for _ in range(64):
        ask(groups)
    one.on_search = other.on_search = slow_once(2.0)
    begin_s = time.monotonic()
    assert ask(groups) == {0: 7}
    assert time.monotonic() - begin_s < 1.0
    assert metrics.leaf_hedges.dump()["0"] >= 1
    assert one.cancelled.acquire(timeout=5) or other.cancelled.acquire(timeout=5)


def slow_once(seconds: float) -> Callable[[Any, grpc.ServicerContext], None]:
    """Return what lets the first call wait until it is cancelled."""
    first = threading.Lock()

    def wait(request: Any, context: grpc.ServicerContext) -> None:
        end_s = time.monotonic() + seconds * first.acquire(blocking=False)
        while time.monotonic() < end_s and context.is_active():
            time.sleep(0.005)

    return wait


@pytest.mark.system
def test_second_calls_stay_within_the_budget(leaf: StartLeaf, connect: Connect) -> None:
    leaves = [leaf(), leaf()]
    metrics = ServerMetrics()
    groups = connect(leaves, metrics=metrics)
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    for _ in range(64):
        ask(groups)
    for one in leaves:
        one.delay_s = 0.12
    with ThreadPoolExecutor(8) as pool:
        assert all(answer == {0: 7} for answer in pool.map(lambda _: ask(groups), range(80)))
    hedges = metrics.leaf_hedges.dump()["0"]
    assert 1 <= hedges <= 10 + 0.05 * 144


def test_leaves_get_the_deadline_less_a_margin(leaf: StartLeaf, connect: Connect) -> None:
    one = leaf()
    groups = connect([one])
    # Longer ones are rounded up on the way, to 10 ms and more.
    ask(groups, timeout_s=0.95)
    assert 0.5 < one.left_s < 0.946
    one.delay_s = 1.0
    with pytest.raises(DeadlineError, match="group 0"):
        ask(groups, timeout_s=0.2)
    with pytest.raises(DeadlineError):
        ask(groups, timeout_s=0)


@pytest.mark.system
def test_a_group_that_misses_the_deadline_is_left_out(leaf: StartLeaf, connect: Connect) -> None:
    quick, slow = leaf(0, 2), leaf(1, 2)
    groups = connect([quick, slow])
    slow.delay_s = 2.0
    assert ask(groups, timeout_s=0.5, allow_partial=True) == {0: 7}


def test_calls_are_cancelled_when_the_caller_hangs_up(leaf: StartLeaf, connect: Connect) -> None:
    one = leaf()
    groups = connect([one])
    one.delay_s = 1.0
    hang_up: list[Callable[[], None]] = []
    began = threading.Event()
    one.on_search = lambda request, context: began.set()

    def registered(callback: Callable[[], None]) -> bool:
        hang_up.append(callback)
        return True

    permits = threading.Semaphore(1)

    def work() -> None:
        with Permit(permits, Deadline.after(30), lambda: True, registered):
            ask(groups)

    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(work)
        assert began.wait(10)
        # The request waits without its permit.
        assert permits.acquire(timeout=5)
        permits.release()
        hang_up[0]()
        with pytest.raises(CallerGoneError):
            outcome.result(10)
    assert one.cancelled.acquire(timeout=5)


@pytest.mark.system
def test_a_leaf_that_leaves_its_status_unanswered_is_not_asked(leaf: StartLeaf, connect: Connect) -> None:
    mute, good = leaf(), leaf()
    groups = connect([mute, good])
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    mute.mute.set()
    begin_s = time.monotonic()
    wait_until(lambda: not all(one.ready for one in groups.statuses()))
    assert 1.0 < time.monotonic() - begin_s < 4.0
    before = mute.searches
    for _ in range(10):
        ask(groups)
    assert mute.searches == before
    mute.mute.clear()
    wait_until(lambda: all(one.ready for one in groups.statuses()))


@pytest.mark.system
def test_running_calls_move_away_from_a_leaf_that_hangs(leaf: StartLeaf, connect: Connect) -> None:
    """Without any budget for second calls."""
    mute, good = leaf(), leaf()
    groups = connect([mute, good])
    wait_until(lambda: all(one.ready for one in groups.statuses()))
    ask(groups)
    budget = groups._cluster.budgets[0]
    budget._share = budget._saved = 0
    mute.mute.set()
    stuck = threading.Event()

    def hang(request: LeafSearchRequest, context: grpc.ServicerContext) -> None:
        stuck.set()
        mute.mute.wait(1)
        time.sleep(8)

    mute.on_search = hang
    good.delay_s = 0.05  # so that `mute` is chosen
    with ThreadPoolExecutor(8) as pool:
        begin_s = time.monotonic()
        assert all(answer == {0: 7} for answer in pool.map(lambda _: ask(groups), range(16)))
        assert stuck.is_set()
        assert time.monotonic() - begin_s < 6


def test_leaves_that_disagree_are_told(
    leaf: StartLeaf, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    odd = leaf(1, 3)
    with caplog.at_level(logging.WARNING):
        groups = connect([leaf(0, 2), leaf(1, 2), odd])
        wait_until(lambda: bool(groups.problems))
    assert groups.problems == (f"leaf {odd.address} has group 1/3; there are 2 groups",)
    assert caplog.text.count("has group 1/3") == 1
    assert ask(groups) == {0: 7, 1: 107}


def test_nothing_answers(connect: Connect) -> None:
    groups = LeafGroups(LeavesConfig(target="127.0.0.1:1"))
    with pytest.raises(ClosedError):
        ask(groups, groups=[0])
    begin_s = time.monotonic()
    groups.start(0.3)
    assert 0.2 < time.monotonic() - begin_s < 5
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        _ = groups.groups
    with pytest.raises(UnavailableError):
        ask(groups)
    with pytest.raises(UnavailableError, match="group 4"):
        ask(groups, groups=[4])
    assert (groups.newest("books"), groups.ready) == (None, False)
    groups.close()
    groups.close()
    with pytest.raises(ClosedError):
        ask(groups, groups=[0])


def test_closing_ends_calls(leaf: StartLeaf, connect: Connect) -> None:
    one = leaf()
    groups = connect([one])
    one.delay_s = 1.5
    began = threading.Event()
    one.on_search = lambda request, context: began.set()
    with ThreadPoolExecutor(1) as pool:
        outcome = pool.submit(ask, groups)
        assert began.wait(10)
        groups.close()
        with pytest.raises(ClosedError):
            outcome.result(1.0)


@pytest.mark.system
def test_addresses_in_a_file_are_read_again(
    leaf: StartLeaf, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scannery.serving.leaves.watch.RESOLVE_EVERY_S", 0.1)
    first, second = leaf(), leaf()
    file = tmp_path / "leaves"
    file.write_text(f"# row a\n{first.address}  # old\n\n")
    groups = connect(f"file://{file}")
    ask(groups)
    file.write_text(second.address)
    wait_until(lambda: [one.address for one in groups.statuses() if one.ready] == [second.address])
    assert ask(groups) == {0: 7}
    assert (first.searches, second.searches) == (1, 1)
    file.write_text("a line")
    wait_until(lambda: any("line 1" in problem for problem in groups.problems))
    assert ask(groups) == {0: 7}
    file.unlink()
    wait_until(lambda: any("No such file" in problem for problem in groups.problems))
    assert ask(groups) == {0: 7}


def test_names_are_looked_up(leaf: StartLeaf, connect: Connect) -> None:
    groups = connect(f"dns:///localhost:{leaf().port}")
    assert ask(groups) == {0: 7}


@pytest.mark.parametrize(
    "target",
    [
        *("", "host", "a:1,b", "http://a:1", "a:0", "a:1,a:1"),
        *("dns:///name", "dns:///a:1:2", "dns:///a:1,b:1", "dns://a:1", "file:///no/such", "file://x"),
    ],
)
def test_wrong_targets_are_refused(target: str) -> None:
    with pytest.raises(ConfigError) as raised:
        LeavesConfig(target=target)
    assert raised.value.field == "leaves"


def test_a_key_that_was_replaced_is_read_again(leaf: StartLeaf, connect: Connect, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("old\n")
    one = leaf(keys={"old"})
    groups = connect([one], key_file=str(key))
    assert ask(groups) == {0: 7}
    assert one.metadata["authorization"] == "Bearer old"
    one.keys = {"new"}
    key.write_text("new\n")
    assert ask(groups) == {0: 7}
    assert one.metadata["authorization"] == "Bearer new"
    one.keys = {"another"}
    with pytest.raises(UnavailableError, match="UNAUTHENTICATED"):
        ask(groups)
