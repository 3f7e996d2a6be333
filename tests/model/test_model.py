"""The model test in short, and the test of the test: faults that are put in are found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.data import longer, repeated
from tests.live.log.postgres_server import PostgresServer
from tests.model.injected import INJECTED, injected
from tests.model.runner import Failure, config_of, random_ops, replay, run
from tests.model.shrink import shrunk

pytestmark = pytest.mark.system

RECORDED_AT = Path(__file__).parent / "recorded"
"""Operations that failed once, shrunk."""


SOON = ["followers-lag", "order-without-ids", "seal-drops-a-row"]
"""Faults that show after few operations."""


@pytest.mark.parametrize("seed", [1, 3])
def test_random_operations_are_what_the_model_says(seed: int) -> None:
    _succeed(run(100, seed))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(11, 11 + repeated(4)))
def test_many_random_operations_are_what_the_model_says(seed: int) -> None:
    _succeed(run(repeated(2000), seed))


@pytest.mark.long
def test_random_operations_on_servers_that_are_killed() -> None:
    _succeed(run(max(100, repeated(300)), 1, processes=True))


@pytest.mark.parametrize(("distance", "ops"), [
    ("dot", 40),
    pytest.param("dot", repeated(1000), marks=longer(1000, 40)),
    *(pytest.param(distance, repeated(1000), marks=pytest.mark.long) for distance in ("squared_l2", "cosine")),
])  # fmt: skip
def test_random_operations_on_segments_of_scann(distance: str, ops: int) -> None:
    config = config_of(5) | {"distance": distance, "shards": 1, "scann": True, "named": True}
    _succeed(replay(config, random_ops(distance, ops, {"merged": 2, "compacted": 2})))


@pytest.mark.parametrize("ops", [60, pytest.param(repeated(1500), marks=longer(1500, 60))])
def test_random_operations_with_a_log_in_postgres(
    ops: int, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scannery.live.log.postgres import database, home

    # Each operation must see what others did a moment ago.
    monkeypatch.setattr(database, "POLL_S", 0.0)
    monkeypatch.setattr(database, "IDLE_POLL_S", 0.0)
    monkeypatch.setattr(home, "ABSENT_S", 0.0)
    config = config_of(8) | {"log": postgres.new_database(), "scann": False}
    _succeed(replay(config, random_ops("postgres", ops, {})))


def _succeed(failure: Failure | None) -> None:
    assert failure is None, f"{failure.config}: {failure.message}\n{json.dumps(failure.ops)}"


@pytest.mark.parametrize(
    "name", [name if name in SOON else pytest.param(name, marks=pytest.mark.long) for name in INJECTED]
)
def test_a_fault_is_noticed(name: str) -> None:
    fault = INJECTED[name]
    ops = random_ops("injected", 400, fault.weights)
    with injected(fault):
        failure = replay(config_of(4), ops)
    assert failure is not None, f"{name} was not noticed"


def test_a_failure_shrinks_to_what_it_takes(tmp_path: Path) -> None:
    def again(config: dict[str, object], ops: list[dict[str, object]]) -> Failure | None:
        wrong = {3, 77} <= {op["seed"] for op in ops}
        return Failure(config, ops, "WrongError", "both are there") if wrong else None

    first = again(config_of(1), [{"do": "search", "seed": number} for number in range(100)])
    assert first is not None
    smaller = shrunk(first, again=again)
    assert [op["seed"] for op in smaller.ops] == [3, 77]
    smaller.save(tmp_path / "ops.json")
    assert json.loads((tmp_path / "ops.json").read_text())["ops"] == smaller.ops


def test_a_list_of_operations_gives_the_same_again() -> None:
    ops = random_ops("again", 60, {})
    with injected(INJECTED["another-bm25"]):
        first, second = (replay(config_of(1), ops) for _ in range(2))
    assert first is not None
    assert second is not None
    assert (first.ops, first.message.splitlines()[0]) == (second.ops, second.message.splitlines()[0])


RECORDED = {path.stem: json.loads(path.read_text()) for path in sorted(RECORDED_AT.glob("*.json"))}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if recorded["config"].get("processes") else name
        for name, recorded in RECORDED.items()
    ],
)
def test_a_recorded_failure(name: str) -> None:
    recorded = RECORDED[name]
    failure = replay(recorded["config"], recorded["ops"])
    assert failure is None, failure.message
