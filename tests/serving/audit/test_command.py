"""`scannery audit`: what it proves by its exit code, and the records that it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.serving.audit.records import Event, hash_of
from tests.serving.audit.test_chain import START_NS, call, edited, files_of, opened


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of two processes."""
    folder = tmp_path / "log"
    first, second = opened(folder), opened(folder)
    for number in range(3):
        first.append([call(2 * number)], sync=False)
        second.append([call(2 * number + 1, "fl\x1bat", principal="batch/k2")], sync=False)
    first.append([Event(START_NS, "lost", {"calls": 3})], sync=False)
    first.close()
    second.close()
    return folder


def test_verify_says_what_there_is_and_what_was_changed(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "verify", str(log)]) == 0
    text = capsys.readouterr().out
    assert "chain 0: records 1 to 5 in 1 file" in text
    assert "chain 1: records 1 to 4 in 1 file" in text
    assert "3 calls have no record" in text
    assert main(["audit", "verify", str(log), "--json"]) == 0
    report = tmp_path / "report.json"
    report.write_text(capsys.readouterr().out)
    assert main(["audit", "verify", str(log), "--anchor", str(report)]) == 0
    edited(log, lambda lines: lines.pop(), file=1)
    assert main(["audit", "verify", str(log)]) == 0
    assert main(["audit", "verify", str(log), "--anchor", str(report)]) == 1
    edited(log, lambda lines: lines.pop(2))
    capsys.readouterr()
    assert main(["audit", "verify", str(log)]) == 1
    assert (
        "NOT WHOLE: audit.0.00000001.jsonl, line 3: record 3 is missing before it" in capsys.readouterr().out
    )
    files_of(log)[0].unlink()
    assert main(["audit", "verify", str(log)]) == 1
    assert "NOT WHOLE: all of its files are missing" in capsys.readouterr().out
    assert main(["audit", "verify", str(log), "--anchor", str(log / "audit.0.lock")]) == 2
    assert main(["audit", "verify", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["audit", "verify", str(tmp_path / "empty")]) == 1


def test_show_prints_records_by_time_and_as_they_are_asked_for(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*arguments: str) -> list[str]:
        assert main(["audit", "show", str(log), *arguments]) == 0
        return capsys.readouterr().out.splitlines()

    assert len(shown()) == 2 + 6 + 1
    assert shown("--principal", "web", "--until", "2026-11-30T00:53:20.124Z") == [
        "2026-11-30T00:53:20.123Z  web/k1  10.0.0.7  scannery.v1.SearchService/Search  library  OK  10 rows  0.8 ms"
    ]
    assert not any("\x1b" in line for line in shown())
    records = [json.loads(line) for line in shown("--method", "Search", "--json")]
    assert [record["chain"] for record in records] == [0, 1] * 3
    assert len(shown("--index", "library", "--outcome", "OK", "--since", "2026-11-30")) == 3
    assert shown("--index", "library", "--since", "2026-12-01") == []
    assert main(["audit", "show", str(log), "--since", "soon"]) == 2
    with files_of(log)[0].open("ab") as file:  # what a server does not write stops nothing
        for facts in (b'"a":', b'"b":1'):
            content = b'{"chain":0,"n":6,"time":"2026-11-30T00:53:20.123Z",' + facts
            file.write(content + b',"hash":"' + hash_of("", content).encode() + b'"}\n')
    assert len(shown()) == 2 + 6 + 1 + 1
