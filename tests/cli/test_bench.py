"""The load tool, against a real server."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from scannery.cli.commands.bench import Latencies
from scannery.cli.main import main
from tests.served import serving


def test_latencies_are_kept_to_one_percent_and_can_be_added() -> None:
    one, other = Latencies(), Latencies()
    for number in range(1, 1001):
        (one if number % 2 else other).add(number / 1000)
    one.counts += other.counts
    for share in (0.01, 0.5, 0.99, 1.0):
        assert one.quantile(share) == pytest.approx(share, rel=0.02)
    assert math.isnan(Latencies().quantile(0.5))


@pytest.mark.system
def test_a_rate_is_kept_and_reported(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # What lies in the current folder is not what the processes that send import.
    for name in ("json", "multiprocessing", "runpy", "pickle"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    with serving(library) as server:
        arguments = ["--index", "library", "--rate", "40", "--seconds", "1", "--processes", "1", "--json"]
        assert main(["bench", "serve", server.address, *arguments]) == 0
        [step] = json.loads(capsys.readouterr().out)
        assert main(["bench", "serve", server.address, "--index", "nobody"]) == 3
    assert step["rate"] == 40
    assert step["failed"] == {}
    assert not (tmp_path / "ran").exists()
    assert 0 < step["p50_ms"] <= step["p99_ms"]


@pytest.mark.system
def test_the_rate_is_doubled_until_the_server_falls_behind(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(library) as server:
        arguments = ["--index", "library", "--seconds", "0.5", "--processes", "1", "--json"]
        assert main(["bench", "serve", server.address, *arguments]) == 0
    steps = json.loads(capsys.readouterr().out)
    assert [step["rate"] for step in steps] == [50 * 2**number for number in range(len(steps))]
    kept_up = [step["answered_per_s"] >= 0.95 * step["rate"] for step in steps]
    assert kept_up == [*[True] * (len(steps) - 1), False]
