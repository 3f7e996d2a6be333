"""Chains of the audit log: what is written, how it goes on after a crash, and that every change of it is proven."""

from __future__ import annotations

import json
import random
import resource
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from scannery.runtime.errors import AuditError, ConfigError
from scannery.serving.audit.chain import Chain
from scannery.serving.audit.records import (
    NO_HASH,
    CallRecord,
    Event,
    call_facts,
    hash_of,
    lines_of,
    parsed_line,
)
from scannery.serving.audit.verification import Anchor, ChainReport, audit_records, verified

START_NS = 1_796_000_000_123_456_789
KILLED = "audit.0.{:08d}.jsonl, line 1: the server before was killed, or its last records were removed"


def call(number: int, index: str = "library", *, principal: str = "web/k1") -> CallRecord:
    """Return a record of a search."""
    facts = call_facts("http", principal, "10.0.0.7", "/scannery.v1.SearchService/Search", "", index, "OK")
    return START_NS + number * 1_000_000, facts, (10,), 0.0008, 0


class Clock:
    """A wall clock that tests set."""

    now_ns = START_NS

    def __call__(self) -> int:
        return self.now_ns


def opened(folder: Path, clock: Clock | None = None, *, file_bytes: int = 1 << 20) -> Chain:
    return Chain(
        str(folder), server="s1", file_bytes=file_bytes, facts={"format": 1}, clock_ns=clock or Clock()
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def write(folder: Path, calls: int, *, first: int = 0, file_bytes: int = 1 << 20, ends: bool = True) -> None:
    """Write calls as one process that ends, or is killed."""
    chain = opened(folder, file_bytes=file_bytes)
    for number in range(first, first + calls):
        chain.append([call(number)], sync=False)
    if ends:
        chain.append([Event(START_NS, "closed", {})], sync=True)
    chain.close()


def report_of(folder: Path, *anchors: Anchor, archived: bool = False) -> ChainReport:
    [report] = verified(folder, anchors, archived=archived)
    return report


def test_a_record_is_a_line_of_json_with_the_hash_of_all_before_it() -> None:
    [line], [digest] = lines_of(0, "5f", 7, NO_HASH, [call(0)])
    content = (
        b'{"chain":0,"n":7,"time":"2026-11-30T00:53:20.123Z","server":"5f","wire":"http","principal":"web/k1",'
        b'"address":"10.0.0.7","method":"scannery.v1.SearchService/Search","index":"library","outcome":"OK",'
        b'"rows":10,"ms":0.80'
    )
    assert digest == sha256(NO_HASH.encode() + content).hexdigest()
    assert line == content + b',"hash":"' + digest.encode() + b'"}\n'
    parsed = parsed_line(line[:-1])
    assert parsed is not None
    assert (parsed.n, parsed.hash, parsed.content) == (7, digest, content)
    assert hash_of(NO_HASH, parsed.content) == parsed.hash


@pytest.mark.parametrize(
    "name",
    [
        'a\n{"chain":0,"n":8}', '","hash":"0"}\n', '","event":"opened","n":1,"x":"', "\ud800\u2028\x1b[2J\x00",
        "x" * 10**6,
    ],
)  # fmt: skip
def test_no_name_forges_a_record(name: str) -> None:
    lines, _ = lines_of(0, "5f", 1, NO_HASH, [call(0, name, principal=name), call(1)])
    assert len(b"".join(lines).splitlines()) == 2
    line = parsed_line(lines[0][:-1])
    assert line is not None
    assert not line.event
    assert len(lines[0]) < 10_000
    assert lines[0].isascii()
    record = json.loads(lines[0])
    assert record["index"] == (name if len(name) <= 200 else f"{name[:200]}…") == record["principal"]
    assert (record["n"], record["outcome"]) == (1, "OK")


def test_a_chain_goes_on_over_files_days_and_processes(tmp_path: Path) -> None:
    clock = Clock()
    chain = opened(tmp_path, clock, file_bytes=2000)
    for number in range(20):
        chain.append([call(number)], sync=False)
    by_size = len(files_of(tmp_path))
    assert by_size > 2
    clock.now_ns += 86_400 * 10**9
    chain.append([call(20)], sync=True)
    assert len(files_of(tmp_path)) == by_size + 1
    chain.append([Event(START_NS, "closed", {})], sync=True)
    chain.close()
    write(tmp_path, 3, first=21)
    report = report_of(tmp_path)
    assert (report.problems, report.notes, report.state, report.first) == ([], [], "closed", 1)
    assert report.files == by_size + 2
    rows = [record for record in audit_records(tmp_path) if "event" not in record]
    assert len(rows) == 24
    assert [record["n"] for record in audit_records(tmp_path)] == list(range(1, report.last + 1))


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    write(tmp_path / "new" / "log", 1)
    assert stat.S_IMODE((tmp_path / "new" / "log").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new" / "log").iterdir()} == {0o600}
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="may be written by others"):
        opened(shared)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use"):
        opened(tmp_path / "file")


def test_each_process_has_a_chain(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    assert (first.number, second.number) == (0, 1)
    first.close()
    third = opened(tmp_path)
    assert third.number == 0
    second.append([call(1)], sync=False)
    assert [report.state for report in verified(tmp_path)] == ["written", "written"]
    second.close()
    third.close()
    assert [report.problems for report in verified(tmp_path)] == [[], []]


def edited(folder: Path, edit: Callable[[list[bytes]], object], file: int = 0) -> None:
    path = files_of(folder)[file]
    lines = path.read_bytes().splitlines(keepends=True)
    edit(lines)
    path.write_bytes(b"".join(lines))


def forged(lines: list[bytes]) -> None:
    """Put a record behind the third that follows from it."""
    line = parsed_line(lines[2][:-1])
    assert line is not None
    lines[3:3] = lines_of(0, "s1", line.n + 1, line.hash, [call(99)])[0]


EDITS: dict[str, Callable[[list[bytes]], object]] = {
    "a changed byte": lambda lines: lines.__setitem__(3, lines[3].replace(b'"rows":10', b'"rows":11')),
    "a removed record": lambda lines: lines.pop(3),
    "a removed first record of a file": lambda lines: lines.pop(0),
    "several removed records": lambda lines: lines.__delitem__(slice(2, 5)),
    "a record twice": lambda lines: lines.insert(4, lines[3]),
    "another order": lambda lines: lines.insert(2, lines.pop(4)),
    "an inserted record": forged,
    "an inserted text": lambda lines: lines.insert(3, b"nothing\n"),
    "a removed end": lambda lines: lines.__delitem__(slice(-2, None)),
    "a torn end": lambda lines: lines.append(lines.pop()[:-30]),
    "an empty file": lambda lines: lines.clear(),
}


@pytest.mark.parametrize("name", EDITS)
def test_each_change_is_proven(tmp_path: Path, name: str) -> None:
    write(tmp_path, 6)
    write(tmp_path, 6, first=6)
    assert report_of(tmp_path).problems == []
    edited(tmp_path, EDITS[name])
    assert report_of(tmp_path).problems, name


def test_a_missing_file_is_proven_and_first_ones_may_be_archived(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path, 2, first=number)
    first, second, third, _ = files_of(tmp_path)
    first.unlink()
    assert report_of(tmp_path).problems[0] == "file 1 is missing before audit.0.00000002.jsonl"
    report = report_of(tmp_path, archived=True)
    assert (report.problems, report.first) == ([], 5)
    third.rename(tmp_path / "elsewhere")
    assert report_of(tmp_path, archived=True).problems == [
        "file 3 is missing before audit.0.00000004.jsonl",
        "audit.0.00000004.jsonl, line 1: records 9 to 12 are missing before it",
    ]
    second.unlink()
    assert report_of(tmp_path, archived=True).problems == []


def test_a_chain_that_is_missing_or_another_one_is_proven(tmp_path: Path) -> None:
    chains = [opened(tmp_path) for _ in range(3)]
    for chain in chains:
        chain.close()
    assert [report.problems for report in verified(tmp_path)] == [[], [], []]
    _, second, third = files_of(tmp_path)
    data = second.read_bytes()
    second.unlink()
    assert [report.problems for report in verified(tmp_path, archived=True)] == [
        [], ["all of its files are missing"], []
    ]  # fmt: skip
    third.rename(second)
    assert [report.problems for report in verified(tmp_path)] == [
        [], ["audit.1.00000001.jsonl, line 1: it is a record of chain 2"]
    ]  # fmt: skip
    second.write_bytes(data)
    assert [report.problems for report in verified(tmp_path)] == [[], []], "no file tells of the last chain"


def test_an_end_that_was_removed_is_noted_when_the_chain_goes_on(tmp_path: Path) -> None:
    write(tmp_path, 3)
    edited(tmp_path, EDITS["a removed end"])
    write(tmp_path, 3)
    write(tmp_path, 3)
    report = report_of(tmp_path)
    assert (report.problems, report.notes, report.state) == ([], [KILLED.format(2)], "closed")


@pytest.mark.parametrize("facts", [{"torn": 5}, {"torn": [[1]]}, {"calls": "x"}, {"calls": None}])
def test_facts_that_no_server_writes_are_a_problem(tmp_path: Path, facts: dict[str, Any]) -> None:
    chain = opened(tmp_path)
    chain.append([Event(START_NS, "lost", facts)], sync=False)
    chain.close()
    assert report_of(tmp_path).problems == ["audit.0.00000001.jsonl, line 2: no server writes such a record"]


def test_an_anchor_proves_that_no_end_was_removed(tmp_path: Path) -> None:
    write(tmp_path, 6)
    report = report_of(tmp_path)
    anchor = Anchor(0, report.last, report.hash)
    write(tmp_path, 2, first=6)
    assert report_of(tmp_path, anchor).problems == []
    [_, later] = files_of(tmp_path)
    later.unlink()
    edited(tmp_path, EDITS["a removed end"])
    assert report_of(tmp_path).problems == [], "nothing in the files tells"
    assert (
        "record 8, which was there at the time of the anchor, is missing"
        in report_of(tmp_path, anchor).problems
    )
    write(tmp_path, 9)
    assert "record 8 is another one" in report_of(tmp_path, anchor).problems[0]
    [gone] = [report for report in verified(tmp_path, [Anchor(4, 1, NO_HASH)]) if report.chain == 4]
    assert gone.problems


def test_what_a_crash_leaves_is_told_and_stops_nothing(tmp_path: Path) -> None:
    write(tmp_path / "whole", 3, ends=False)
    [path] = files_of(tmp_path / "whole")
    data = path.read_bytes()
    begin = data.rindex(b"\n", 0, len(data) - 1) + 1
    for cut in (0, 1, begin - 5, begin, begin + 1, len(data) - 1, len(data)):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / path.name).write_bytes(data[:cut])
        before = report_of(folder)
        assert (before.problems, before.state) == ([], "open")
        write(folder, 2)
        report = report_of(folder)
        whole = data[:cut].rfind(b"\n") + 1
        torn = (
            [f"file 1: a crash or a failed write left {cut - whole} bytes of a record"] if whole < cut else []
        )
        killed = [KILLED.format(2)] if whole else []
        assert (report.problems, report.notes, report.state) == ([], [*killed, *torn], "closed")
        if torn:
            (folder / path.name).write_bytes(data[: cut - 1] if cut - 1 > whole else data[: cut + 1])
            assert report_of(folder).problems or cut == len(data) - 1


@contextmanager
def full_disk(free_bytes: int, path: Path) -> Iterator[None]:
    """Let files of this process grow no further than a file and some bytes, so that a write fails in its middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = path.stat().st_size if path.exists() else 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + free_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("seed", range(4))
def test_no_record_is_lost_or_there_twice_when_writes_fail(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    chain, number, waiting = opened(tmp_path, file_bytes=3000), 0, list[Any]()
    for _ in range(40):
        size = rng.randrange(1, 6)
        waiting += map(call, range(number, number + size))
        number += size
        if rng.random() < 0.5:
            with full_disk(rng.randrange(1500), files_of(tmp_path)[-1]), suppress(OSError):
                chain.append(waiting, sync=rng.random() < 0.5)
                waiting = []
        else:
            chain.append(waiting, sync=False)
            waiting = []
    chain.append(waiting, sync=True)
    chain.close()
    report = report_of(tmp_path)
    assert report.problems == []
    times = [record["time"] for record in audit_records(tmp_path) if "event" not in record]
    expected = [json.loads(lines_of(0, "", 1, NO_HASH, [call(each)])[0][0])["time"] for each in range(number)]
    assert times == expected


def test_a_folder_that_is_gone_and_files_that_change_are_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    chain = opened(folder)
    chain.append([call(1)], sync=False)
    folder.rename(tmp_path / "away")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            chain.append([call(2)], sync=False)
    assert not folder.exists(), "nobody would notice that the records before are gone"
    (tmp_path / "away").rename(folder)
    chain.append([call(2)], sync=False)
    with files_of(folder)[-1].open("ab") as file:
        file.write(b"x")
    for _ in range(2):
        with pytest.raises(AuditError):
            chain.append([call(3)], sync=False)
    chain.close()
    chain = opened(folder)
    files_of(folder)[-1].unlink()
    with pytest.raises(FileNotFoundError):
        chain.append([call(4)], sync=False)
    with pytest.raises(AuditError):
        chain.append([call(4)], sync=False)
    chain.close()
