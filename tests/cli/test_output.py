"""Hits and datapoints on the terminal."""

from __future__ import annotations

import pytest

from scannery.cli.output import print_points
from scannery.client import Datapoint

TEXT = "How to brew:\n\n| grind | s |\n| --- | --- |\n| fine | 25 |\n\nThen\nwait.\x1b[31m"


def test_a_table_keeps_its_rows_and_other_text_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    point = Datapoint(id="a", document_id="a", text=TEXT)
    print_points([point])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[-5:] == [
        "How to brew:",
        "| grind | s |",
        "| --- | --- |",
        "| fine | 25 |",
        "Then wait. [31m",
    ]
