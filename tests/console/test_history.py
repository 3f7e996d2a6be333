"""The history of a server: points, rings, who may see it, and that nobody is polled for who does not look."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message

from scannery.client.errors import PermissionDeniedError, ScanneryError, UnavailableError
from scannery.client.request.calls import Method
from scannery.client.response.server_info import Metric, MetricSample
from scannery.console.history.points import METRICS, point, requests
from scannery.console.history.ring import MAX_SERIES, Ring
from scannery.console.history.watches import Watch
from scannery.serving import Server
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import index_pb2
from tests.console.consoles import browser_on, console_on

SEARCH = "/scannery.v1.SearchService/Search"
BOUNDS = (0.001, 0.01, 0.1)


def metric(name: str, *samples: tuple[dict[str, str], float, tuple[int, ...]]) -> dict[str, Metric]:
    return {
        name: Metric(
            name=name, help="", kind="", bounds=BOUNDS,
            samples=tuple(
                MetricSample(labels=labels, value=value, buckets=buckets) for labels, value, buckets in samples
            ),
        )
    }  # fmt: skip


def searched(
    *buckets: int, code: str = "OK", method: str = "Search", plan: str = "exact"
) -> dict[str, Metric]:
    labels = {"method": method, "index": "a", "plan": plan, "code": code}
    return metric("scannery_request_seconds", (labels, sum(buckets) / 10, buckets))


def test_a_point_has_what_happened_between_two_samples() -> None:
    before = {**searched(4, 0, 0, 0), **metric("scannery_refused_total", ({}, 5, ()))}
    now = {
        **searched(4, 10, 0, 0),
        **metric("scannery_refused_total", ({}, 9, ())),
        **metric("scannery_recall_now", ({"index": "a"}, 0.97, ())),
        **metric(
            "scannery_leaf_calls_total",
            ({"group": "3", "code": "OK"}, 8, ()), ({"group": "3", "code": "UNAVAILABLE"}, 2, ()),
        ),
    }  # fmt: skip
    values = point(before, now, 2.0)
    assert values["", "requests"] == values["index:a", "requests"] == values["index:a", "plan:exact"] == 5
    assert (values["", "failed"], values["", "refused"]) == (0, 2)
    assert values["", "p50_ms"] == pytest.approx(5.5)
    assert values["index:a", "recall"] == 0.97
    assert (values["group:3", "calls"], values["group:3", "failed"]) == (5, 1)
    [row] = requests(before, now, 2.0)
    assert (row["method"], row["plan"], row["code"], row["per_s"]) == ("Search", "exact", "OK", 5)


def test_a_point_without_searches_has_no_times_and_the_polls_are_no_requests() -> None:
    values = point(
        searched(4, method="GetMetrics", code="OK"), searched(9, method="GetMetrics", code="OK"), 1.0
    )
    assert values["", "requests"] == 0
    assert ("", "p50_ms") not in values
    assert ("", "requests") not in point(None, searched(4, 0, 0, 0), 1.0)


def test_times_are_those_of_searches_with_an_answer_also_at_a_root_which_has_no_plans() -> None:
    values = point(searched(0, 0, 0, 0, plan=""), searched(0, 4, 0, 0, plan=""), 1.0)
    assert values["index:a", "p99_ms"] == pytest.approx(9.91)
    assert not [name for _, name in values if name.startswith("plan:")]
    for change in ({"code": "NOT_FOUND"}, {"method": "Get"}):
        assert ("", "p50_ms") not in point(
            searched(0, 0, 0, 0, **change), searched(0, 4, 0, 0, **change), 1.0
        )


def test_counters_that_begin_again_count_from_zero() -> None:
    values = point(searched(100, 0, 0, 0), searched(3, 0, 0, 0), 1.0)
    assert values["", "requests"] == 3


def test_points_are_made_of_metrics_that_servers_have() -> None:
    assert set(METRICS) <= {family.name for family in ServerMetrics().registry.families}


def test_a_ring_keeps_the_last_points_and_says_where_one_is_missing() -> None:
    ring = Ring(3)
    for second in range(5):
        ring.add(second, {("", "a"): second, **({("index:x", "b"): 1 / 3} if second != 3 else {})})
    times, series = ring.after(2.5, lambda owner: True)
    assert times == [3, 4]
    assert series == {"": {"a": [3, 4]}, "index:x": {"b": [None, 0.33333]}}
    assert ring.after(0, lambda owner: owner == "")[1] == {"": {"a": [2, 3, 4]}}


def test_a_ring_is_bounded_and_forgets_what_is_gone() -> None:
    ring = Ring(2)
    for second in range(2):
        ring.add(second, {(f"index:{number}", "a"): 1.0 for number in range(MAX_SERIES + 5)})
    assert len(ring.after(0, lambda owner: True)[1]) == MAX_SERIES
    for second in range(2, 6):
        ring.add(second, {("index:new", "a"): math.pi})
    assert ring.after(0, lambda owner: True)[1] == {"index:new": {"a": [3.1416, 3.1416]}}


class Target:
    """A transport that answers with metrics, or fails."""

    remote = True

    def __init__(self) -> None:
        self.calls = 0
        self.error: ScanneryError | None = None

    async def call(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any:
        self.calls += 1
        if self.error is not None:
            raise self.error
        answer = index_pb2.GetMetricsResponse()
        answer.metrics.add(name="scannery_in_flight", kind="gauge").samples.add(value=self.calls)
        return answer

    async def close(self) -> None:
        """Nothing is open."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def test_polls_end_when_nobody_looks_and_go_on_when_somebody_does() -> None:
    target = Target()
    watch = Watch(target, every_s=0.02, looked_s=0.2)
    await watch.look()
    assert target.calls == 1, "who looks has the first answer"
    await until(lambda: not watch.is_polling)
    after_pause = target.calls
    assert after_pause > 1
    await watch.look()
    assert target.calls == after_pause + 1
    times, series = watch.spans["minutes"].after(0, lambda owner: True)
    assert len(times) == target.calls
    assert series[""]["in_flight"] == list(range(1, target.calls + 1))
    await watch.close()


async def test_a_server_that_is_away_leaves_a_gap_and_a_key_that_is_taken_back_ends_the_watch() -> None:
    target = Target()
    watch = Watch(target, every_s=0.02, looked_s=5.0)
    await watch.look()
    target.error, calls = UnavailableError("away"), target.calls
    await until(lambda: target.calls > calls + 1)
    with pytest.raises(UnavailableError):
        await watch.look()
    target.error, calls = None, target.calls
    await until(lambda: target.calls > calls + 1)
    await watch.look()
    target.error = PermissionDeniedError("no more")
    await until(lambda: not watch.is_polling)
    with pytest.raises(PermissionDeniedError):
        await watch.look()
    await watch.close()


@pytest.mark.system
def test_who_has_the_scope_sees_the_history_and_nobody_else(
    server: Server, keys: tuple[Path, dict[str, str]]
) -> None:
    with console_on(server.address) as address, browser_on(address) as admin, browser_on(address) as reader:
        assert admin.post("/history", json={}).status_code == 401
        for browser, name in ((admin, "admin"), (reader, "reader")):
            assert browser.post("/session", json={"secret": keys[1][name]}).status_code == 200
        assert admin.post("/history", json={"span": "minutes"}).status_code == 200
        refused = reader.post("/history", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        assert "series" not in refused.json()
        question = {"index": "podcasts", "query": {"text": "whales"}, "options": {"k": 3}}
        for _ in range(3):
            assert reader.post(SEARCH, json=question).status_code == 200
        until_s = time.monotonic() + 60
        while True:
            answer = admin.post("/history", json={"index": "podcasts"}).json()
            searches = [each for each in answer["requests"] if each["method"] == "Search"]
            if searches and any(answer["series"]["index:podcasts"].get("requests", [])):
                break
            assert time.monotonic() < until_s
            time.sleep(0.2)
        assert set(answer["series"]) == {"", "index:podcasts"}
        counts = answer["series"]["index:podcasts"]
        assert counts["rows"][-1] + counts["memory_rows"][-1] == 300
        assert searches[0]["p50_ms"] > 0
        last = answer["times"][-1]
        assert all(each > last for each in admin.post("/history", json={"after": last}).json()["times"])
        for body, field in (({"span": "year"}, "span"), ({"after": "nan"}, "after")):
            wrong = admin.post("/history", json=body)
            assert (wrong.status_code, wrong.json()["details"][0]["debug"]["field"]) == (400, field)
        assert admin.post("/history", content=b"[]").status_code == 400


@pytest.mark.system
def test_a_store_has_no_history(podcasts: Path) -> None:
    with (
        console_on(podcasts, needs_session=True, takes_keys=False) as address,
        browser_on(address) as browser,
    ):
        browser.post("/session", json={"code": address.partition("#code=")[2]})
        answer = browser.post("/history", json={})
        assert (answer.status_code, answer.json()["code"]) == (501, "unimplemented")
