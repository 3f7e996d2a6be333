"""`scannery count | facets | attribute-stats`, and `delete` and `update` with `--where`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from scannery.cli.main import main
from tests.served import ROWS, copied, library_table, serving

pytestmark = pytest.mark.system

YEARS = library_table().column("year").to_pylist()
RECENT = '{"year": {"$gte": 2020}}'
RECENT_ROWS = sum(year is not None and year >= 2020 for year in YEARS)


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_datapoints_and_values_are_counted(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--index", "library", "--store", str(library))
    assert run(capsys, "count", *at) == (0, f"{ROWS}\n", "")
    status, out, _ = run(capsys, "count", *at, "--where", RECENT, "--json")
    assert (status, json.loads(out)) == (0, {"count": RECENT_ROWS})
    status, out, _ = run(capsys, "facets", "live", *at)
    *values, last = out.splitlines()
    assert (status, sorted(line.split()[1] for line in values)) == (0, ["False", "True"])
    missing = library_table().column("live").null_count
    assert last == f"2 values; {missing} datapoints without one."
    status, out, _ = run(capsys, "facets", "year", *at, "--limit", "2", "--where", RECENT)
    assert "5 values (2 printed)" in out
    status, out, _ = run(capsys, "facets", "published", *at, "--limit", "1", "--json")
    assert json.loads(out)["facets"][0]["value"].startswith("202")
    status, out, _ = run(
        capsys, "attribute-stats", "year", *at, "--quantile", "0.5", "--quantile", "1", "--json"
    )
    [one] = json.loads(out)["types"]
    assert (one["type"], one["min"], one["max"], one["quantiles"]["1"]) == ("int", 2000, 2024, 2024)
    status, out, _ = run(capsys, "attribute-stats", "show", *at, "--where", '{"show": "nothing"}')
    assert (status, out) == (0, "0 datapoints with a value, 0 without one.\n")
    status, out, _ = run(capsys, "attribute-stats", "show", *at)
    assert "gotime" in out
    assert "Ünï" in out
    status, _, err = run(capsys, "facets", "yaer", *at)
    assert (status, "did you mean year" in err) == (2, True)


def test_what_a_filter_allows_is_changed_and_deleted(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(store) as server:
        at = ("--index", "library", "--target", server.address)
        status, out, _ = run(capsys, "update", *at, "--where", RECENT, "--set", "show=1999", "--dry-run")
        assert (status, out) == (0, f"{RECENT_ROWS} datapoints would be changed.\n")
        change = ("--set", "show=1999", "--set", "rating=4.5", "--unset", "tags", "--set", 'tags=["new"]')
        status, out, _ = run(capsys, "update", *at, "--where", RECENT, *change[:4], "--yes", "--json")
        assert (status, json.loads(out)) == (0, {"changed": RECENT_ROWS, "sequence": 1})
        status, out, _ = run(capsys, "count", *at, "--where", '{"show": "1999", "rating": 4.5}')
        assert out == f"{RECENT_ROWS}\n"
        status, out, _ = run(capsys, "update", *at, "--where", RECENT, "--set", 'tags=["new"]', "-y")
        assert (status, out) == (0, f"{RECENT_ROWS} datapoints changed; sequence 2.\n")
        status, out, _ = run(capsys, "update", *at, "--where", RECENT, "--unset", "tags", "-y")
        assert run(capsys, "count", *at, "--where", '{"tags": "new"}')[1] == "0\n"
        status, out, _ = run(capsys, "delete", *at, "--where", RECENT, "--dry-run", "--json")
        assert (status, json.loads(out)) == (0, {"deleted": RECENT_ROWS, "dry_run": True})
        status, out, _ = run(capsys, "delete", *at, "--where", RECENT, "--yes")
        assert (status, out) == (0, f"{RECENT_ROWS} datapoints deleted; sequence 4.\n")
        assert run(capsys, "count", *at)[1] == f"{ROWS - RECENT_ROWS}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("delete", "--where", RECENT), "without a terminal, confirm with --yes"),
        (("delete", "--where", "{}", "--yes"), "where: must have a condition"),
        (("delete", "--where", "{", "--yes"), "--where is not valid JSON"),
        (("delete", "d1", "--where", RECENT), "cannot be given together"),
        (("delete", "d1", "--yes"), "are for --where"),
        (("update", "--where", RECENT, "--set", "show", "--yes"), "must be NAME=VALUE"),
        (("update", "--where", RECENT, "--set", "year=soon", "--yes"), "'soon' is not JSON of the type int"),
        (("update", "--where", RECENT, "--set", "year=2.5", "--yes"), "attributes.year"),
        (("update", "--where", RECENT, "--yes"), "must name at least one attribute"),
    ],
)
def test_what_is_wrong_is_said(
    library: Path, capsys: pytest.CaptureFixture[str], arguments: Any, message: str
) -> None:
    status, out, err = run(capsys, *arguments, "--index", "library", "--store", str(library))
    assert (status, out) == (2, "")
    assert message in err


class Terminal(io.StringIO):
    """Standard input from a terminal."""

    def isatty(self) -> bool:
        return True


def test_the_question_before_a_deletion_can_be_answered(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--index", "library", "--store", str(store))
    for answer, status, left in (("n", 130, ROWS), ("y", 0, ROWS - RECENT_ROWS)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        found, _, err = run(capsys, "delete", *at, "--where", RECENT)
        assert (found, f"{RECENT_ROWS} datapoints will be deleted. Continue?" in err) == (status, True)
        assert run(capsys, "count", *at)[1] == f"{left}\n"
