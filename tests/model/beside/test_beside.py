"""Processes beside each other in short, and the test of the test."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.data import repeated
from tests.live.log.postgres_server import PostgresServer
from tests.model.beside.planted import new_columns_dropped
from tests.model.beside.round import Round, run_beside
from tests.model.beside.rows import PRESENT, Histories, Reading, Refusal, Row, check_reading, check_refusal
from tests.model.errors import WrongError

SHORT, LONG, PLANTED = 40, repeated(2500), 1500
"""Operations of a short and a long run, and of one that shows a fault."""
OLD, NEW = Row({"stamp": 1}, {}), Row({"stamp": 2}, {})
HISTORIES: Histories = {"a": [(1, OLD), (3, None)], "b": [(2, NEW)]}
THERE = [frozenset(names) for names in ("", "a", "ab", "b")]


@pytest.mark.parametrize(
    "ops", [pytest.param(SHORT, marks=pytest.mark.system), pytest.param(LONG, marks=pytest.mark.long)]
)
def test_servers_and_an_embedded_client_beside_each_other(ops: int) -> None:
    assert run_beside(ops, 1) is None


@pytest.mark.long
def test_two_roots_beside_each_other(postgres: PostgresServer) -> None:
    assert run_beside(LONG, 2, log=postgres.new_database) is None


@pytest.mark.parametrize(
    ("seen", "rows", "whole", "possible"),
    [
        (0, {"a": (1, OLD), "b": None}, False, True),
        (2, {"a": (1, OLD), "b": (2, NEW)}, True, True),
        (0, {"b": (2, NEW)}, True, True),
        (0, {"a": (1, NEW)}, False, False),  # another content
        (1, {"a": None, "b": None}, False, False),  # older than what was seen
        (3, {"a": (1, OLD)}, False, False),
        (0, {"a": None, "b": (1, NEW)}, False, False),  # another revision
        (0, {"a": (1, OLD), "b": (2, NEW), "c": (2, NEW)}, True, False),
        (2, {"a": (1, OLD)}, True, False),  # a row is missing
    ],
)
def test_what_was_never_so_is_noticed(seen: int, rows: dict[str, Any], whole: bool, possible: bool) -> None:
    reading = Reading("reader", seen, rows, whole)
    with nullcontext() if possible else pytest.raises(WrongError):
        check_reading(reading, HISTORIES, THERE)


def test_a_reading_tells_which_writes_it_shows() -> None:
    reading = Reading("reader", 0, {"a": None, "b": (2, NEW)}, whole=False)
    assert check_reading(reading, HISTORIES, THERE) == {("a", 3), ("b", 2)}
    # Before it was written or after it was removed: nobody knows.
    assert check_reading(Reading("reader", 0, {"a": None}, whole=False), HISTORIES, THERE) == set()


@pytest.mark.parametrize(
    ("seen", "until", "condition", "possible"),
    [
        (0, 1, {"a": PRESENT}, True),
        (1, 3, {"a": PRESENT}, False),  # it was there all the time
        (1, None, {"a": PRESENT}, True),
        (1, 3, {"a": 1, "b": 2}, True),  # before b was written
        (2, 3, {"a": 1, "b": 2}, False),
        (1, 3, {"a": None}, True),
        (3, None, {"a": None}, False),
    ],
)
def test_a_refusal_without_a_reason_is_noticed(
    seen: int, until: int | None, condition: dict[str, int | None], possible: bool
) -> None:
    with nullcontext() if possible else pytest.raises(WrongError, match="held in all states"):
        check_refusal(Refusal("writer", seen, until, condition), HISTORIES, len(THERE))


@pytest.mark.long
def test_rows_written_back_without_new_columns_are_noticed(tmp_path: Path) -> None:
    assert any(_servers_miss_columns(tmp_path / str(seed), seed) for seed in range(4))


def _servers_miss_columns(folder: Path, seed: int) -> bool:
    """Return whether servers, which are right, show rows without columns that another process has dropped."""
    folder.mkdir()
    world = Round(
        folder, f"planted-{seed}", weights={"alter": 8.0, "update": 60.0, "build": 0.0, "kill": 0.0}
    )
    with new_columns_dropped(), suppress(WrongError):
        world.run(PLANTED)
    # The process that has the fault shows it to its own clients, too.
    world.readings = [reading for reading in world.readings if not reading.actor.startswith("embedded")]
    try:
        world.replayed()
    except WrongError as error:
        return "which it never was" in str(error)
    return False
