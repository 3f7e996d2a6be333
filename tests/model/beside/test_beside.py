"""Processes beside each other in short, and the test of the test."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from tests.live.log.postgres_server import PostgresServer
from tests.model.beside.round import run_beside
from tests.model.beside.rows import Reading, Row, check_reading
from tests.model.errors import WrongError

SHORT, LONG = 60, 1000
OLD, NEW = Row({"stamp": 1}, {}), Row({"stamp": 2}, {})
HISTORIES: dict[str, list[tuple[int, Row | None]]] = {"a": [(1, OLD), (3, None)], "b": [(2, NEW)]}
PRESENT = [frozenset(names) for names in ("", "a", "ab", "b")]


@pytest.mark.parametrize("ops", [SHORT, pytest.param(LONG, marks=pytest.mark.long)])
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
        check_reading(reading, HISTORIES, PRESENT)
