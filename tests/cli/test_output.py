"""Hits and datapoints on the terminal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scannery.cli.output import json_text, print_hits, print_points
from scannery.client import Datapoint, Hit, Hits

TEXT = "How to brew:\n\n| grind | s |\n| --- | --- |\n| fine | 25 |\n\nThen\nwait.\x1b[31m"


def test_a_table_keeps_its_rows_and_other_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    point = Datapoint(id="a", document_id="a", text=TEXT)
    print_points([point])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-5:] == [
        "How to brew:", "| grind | s |", "| --- | --- |", "| fine | 25 |", "Then wait. [31m",
    ]  # fmt: skip


EVIL = "\x1b]0;t\x07\x9b31m\x7f\u202e"


def test_names_values_and_ids_do_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    attributes: dict[str, Any] = {EVIL: EVIL, "list": [EVIL], "nested": {EVIL: EVIL}}
    print_points([Datapoint(id=f"a{EVIL}", document_id="a", attributes=attributes)])
    print_hits(Hits([Hit(id=f"a{EVIL}", document_id="a", attributes=attributes, score=1.0)]))
    assert not set(capsys.readouterr().out) & set("\x1b\x07\x9b\x7f\u202e")


def test_json_does_not_control_the_terminal_and_stays_the_same() -> None:
    value = {EVIL: [EVIL, "é שלום \u200f 日本"]}
    assert not set(json_text(value)) & {"\x1b", "\x07", "\x9b", "\x7f", "\u202e"}
    assert json.loads(json_text(value)) == value
    assert "é שלום" in json_text(value)
