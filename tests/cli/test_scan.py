"""`scannery scan`: JSON lines that `upsert` reads, and tokens where it ends early."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from tests.served import LIBRARY, ROWS, copied
from tests.tools.prepared_process import PreparedProcess


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[Any], str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, [json.loads(line) for line in captured.out.splitlines()], captured.err


def token_in(text: str) -> str:
    found = re.search(r"continue with --token (\S+)", text)
    assert found is not None, text
    return found[1]


@pytest.mark.system
def test_all_datapoints_are_printed_and_can_be_written_to_another_index(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = copied(library, tmp_path)
    status, points, err = run(capsys, "scan", "library", "--store", str(store), "--vectors")
    assert (status, len(points), err) == (0, ROWS, "")
    with scannery.connect(store) as client:
        client.create_index({**LIBRARY.model_dump(mode="json"), "index": "copy"}, dimensions=16)
        file = tmp_path / "points.jsonl"
        file.write_text("".join(f"{json.dumps(point)}\n" for point in points))
        assert main(["upsert", str(file), "--index", "copy", "--store", str(store), "--batch", "200"]) == 0
        before, after = (
            [(p.id, p.document_id, p.title, p.text, p.attributes, p.payload, p.time_end_s) for p in found]
            for found in (client.index(name).scan(order_by="id") for name in ("library", "copy"))
        )
        assert before == after


@pytest.mark.system
def test_a_scan_with_a_limit_continues_by_its_token(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("scan", "library", "-s", str(library), "--where", '{"year": {"$gte": 2010}}', "--order-by", "-year",
             "--fields", "year, title")  # fmt: skip
    _, everything, _ = run(capsys, *asked)
    assert all(set(point) <= {"id", "document_id", "title", "attributes"} for point in everything)
    years = [point["attributes"]["year"] for point in everything]
    assert years == sorted(years, reverse=True)
    status, first, err = run(capsys, *asked, "--limit", "7")
    assert (status, first) == (0, everything[:7])
    status, second, err = run(capsys, *asked, "--limit", "5", "--token", token_in(err))
    assert second == everything[7:12]
    status, rest, err = run(capsys, *asked, "--token", token_in(err))
    assert (status, rest, err) == (0, everything[12:], "")
    status, rest, err = run(capsys, *asked, "--limit", str(len(everything)))
    assert (status, rest, err) == (0, everything, "")  # nothing is left


def test_a_sample_is_printed(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("scan", "--index", "library", "-s", str(library), "--sample", "9")
    _, one, _ = run(capsys, *asked, "--seed", "4")
    _, other, _ = run(capsys, *asked, "--seed", "4")
    assert len({point["id"] for point in one}) == 9
    assert one == other


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--token", "x"], "page_token: is not a token of a scan"),
        (["--order-by", "yeer"], "did you mean year"),
        (["--where", "{"], "--where is not valid JSON"),
        (["--limit", "0"], "--limit"),
    ],
)
def test_wrong_options_end_with_code_2(
    library: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    status, out, err = run(capsys, "scan", "library", "-s", str(library), *options)
    assert (status, out) == (2, [])
    assert told in err


@contextmanager
def started(library: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "scannery.cli.main", "scan", "library", "-s", str(library), *options]
    with PreparedProcess(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.system
def test_a_reader_that_closes_the_pipe_and_one_that_interrupts_end_it_cleanly(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Both at once: most of the time goes into imports. The pipe takes less than the datapoints have.
    with started(library, "--vectors") as stopped, started(library, "--vectors") as interrupted:
        assert stopped.stdout and stopped.stderr and interrupted.stdout and interrupted.stderr
        assert json.loads(stopped.stdout.readline())["id"]
        stopped.stdout.close()
        first = interrupted.stdout.readline()
        interrupted.send_signal(signal.SIGINT)
        out, err = first + interrupted.stdout.read(), interrupted.stderr.read()
        assert (interrupted.wait(60), "interrupted" in err) == (130, True)
        assert (stopped.stderr.read(), stopped.wait(60)) == ("", 0)
    printed = [json.loads(line) for line in out.splitlines()]
    _, rest, _ = run(capsys, "scan", "library", "-s", str(library), "--vectors", "--token", token_in(err))
    _, everything, _ = run(capsys, "scan", "library", "-s", str(library), "--vectors")
    assert printed + rest == everything
    assert len(rest) > 0
