"""`scannery judge`: the dialogue key by key, driven through a pipe and in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from scannery.cli.judging_terminal import JudgingSession, Step, Task, keyboard
from scannery.client import Hit
from scannery.evaluation.judgements import JudgementFile, read_judgements
from tests.cli.test_commands import run
from tests.served import make_text_store, serving

QUERIES = "molten rock\nbaking at home\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_store(tmp_path_factory.mktemp("judge"), lexical=True)


@contextmanager
def typed(keys: bytes) -> Iterator[None]:
    """Replace standard input by a pipe with these keys."""
    reader, writer = os.pipe()
    os.write(writer, keys)
    os.close(writer)
    before = os.dup(0)
    os.dup2(reader, 0)
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(reader)


def tasks(query: str, names: str) -> list[Task]:
    return [
        Task(
            query_number=1, query_id=query, query=query, name=name, hit=Hit(id=name, document_id=name, score=1),
        )
        for name in names
    ]  # fmt: skip


def undone(step: Step | str) -> tuple[str, str] | None:
    return step.task.key if isinstance(step, Step) else None


def session(file: JudgementFile, keys: str) -> JudgingSession:
    return JudgingSession(file=file, queries=2, keys=iter(keys))


def test_keys_judge_skip_and_quit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with JudgementFile(tmp_path / "qrels.tsv") as file:
        mine = session(file, "3sx0q1")
        assert mine.judge(tasks("a", "tuvw")) == "quit"
        assert file.judgements == {"a": {"t": 3, "v": 0}}
        assert (mine.judged, mine.skipped) == (2, 1)
    assert "'x' is no key" in capsys.readouterr().err


def test_undo_goes_back_over_skips_and_queries(tmp_path: Path) -> None:
    with JudgementFile(tmp_path / "qrels.tsv") as file:
        mine = session(file, "1su2n")
        assert mine.judge(tasks("a", "tuvw")) == "next"
        assert file.judgements == {"a": {"t": 1, "u": 2}}
        assert (mine.judged, mine.skipped) == (2, 2)
        mine.keys = iter("u")
        assert undone(mine.judge(tasks("b", "tu"))) == ("a", "v")
        mine.keys = iter("3u3n")
        assert mine.judge(tasks("a", "vw"), start="v") == "next"
        assert file.judgements == {"a": {"t": 1, "u": 2, "v": 3}}
        assert (mine.judged, mine.skipped) == (3, 1)
        mine.keys = iter("u")
        assert undone(mine.judge(tasks("b", "tu"))) == ("a", "w")
        mine.keys = iter("u")
        assert undone(mine.judge(tasks("a", "w"), start="w")) == ("a", "v")
        assert (file.judgements, mine.skipped) == ({"a": {"t": 1, "u": 2}}, 0)
        mine.keys = iter("u")
        assert undone(mine.judge(tasks("a", "vw"), start="v")) == ("a", "u")
        mine.keys = iter("u")
        assert undone(mine.judge(tasks("a", "uvw"), start="u")) == ("a", "t")
        mine.keys = iter("uq")
        assert mine.judge(tasks("a", "tuvw")) == "quit"
        assert file.judgements == {"a": {}}


def test_the_input_ends_the_session(tmp_path: Path) -> None:
    with JudgementFile(tmp_path / "qrels.tsv") as file:
        assert session(file, "1").judge(tasks("a", "tu")) == "quit"
        assert session(file, "").judge([]) == "next"


def test_nothing_in_a_text_controls_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hit = Hit(id="x", document_id="x", score=1, title="a\x1b[2Jb", text="c\x07d\u202ee\x9bf")
    task = Task(query_number=1, query_id="q", query="\x1b]0;owned\x07", name="x", hit=hit)
    with JudgementFile(tmp_path / "qrels.tsv") as file:
        session(file, "m").judge([task])
    shown = capsys.readouterr().err
    assert "a [2Jb" in shown
    assert not set(shown) & {"\x1b", "\x07", "\u202e", "\x9b"}


def test_arrow_keys_and_line_feeds_are_no_answers() -> None:
    with typed(b"1\n\x1b[A 2\x1b[1;5Cs\x04q"), keyboard() as keys:
        assert list(keys) == ["1", "2", "s"]


@pytest.mark.system
def test_judging_through_a_pipe_resumes_where_it_stopped(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, output = tmp_path / "queries.txt", tmp_path / "qrels.tsv"
    queries.write_text(QUERIES)
    arguments = (
        "judge", str(store), "texts", "--queries", str(queries), "--output", str(output), "--depth", "2",
    )  # fmt: skip
    with typed(b"1q"):
        status, summary, dialogue = run(capsys, *arguments)
    assert (status, "1 judgements added, 0 hits skipped" in summary) == (0, True)
    assert dialogue.count("Query 1 of 2: molten rock") == 2
    with typed(b"2" * 20):
        status, summary, dialogue = run(capsys, *arguments, "--json")
    answer = json.loads(summary)
    assert (status, answer["queries_with_judgements"], answer["skipped"]) == (0, 2, 0)
    assert answer["judgements"] == answer["judged"] + 1
    levels = [level for found in read_judgements(output).values() for level in found.values()]
    assert sorted(levels) == [1] + [2] * answer["judged"]
    with typed(b"3"):
        status, summary, dialogue = run(capsys, *arguments)
    assert (status, "0 judgements added" in summary, "Query" in dialogue) == (0, True, False)
    # Judgements are what `evaluate` reads.
    status, evaluated, _ = run(
        capsys, "evaluate", "-i", "texts", "-s", str(store), "--queries", str(queries), "--qrels", str(output)
    )
    assert (status, "2 queries" in evaluated) == (0, True)


@pytest.mark.system
def test_a_server_is_judged_and_queries_are_derived(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queries, output = tmp_path / "queries.jsonl", tmp_path / "qrels.jsonl"
    with serving(store, device="cpu") as server, typed(b"0nq"):
        status, summary, dialogue = run(
            capsys, "judge", "-i", "texts", "-t", server.address, "--queries", str(queries), "--output", str(output),
            "--derive", "3", "--where", '{"letters": {"$gt": 60}}',
        )  # fmt: skip
    assert (status, "1 judgements added" in summary) == (0, True)
    assert "wrote 3 queries to" in dialogue
    assert len(queries.read_text().splitlines()) == 3
    [line] = output.read_text().splitlines()
    assert json.loads(line)["score"] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a", "b", "c"), "give at most STORE and INDEX"),
        (("a",), "give --index NAME, or the arguments STORE INDEX"),
        ((), "give --index NAME"),
        (("-i", "texts"), "give either --target HOST:PORT or --store URI"),
    ],
)
def test_wrong_places_are_clear_errors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    files = ("--queries", str(tmp_path / "q.txt"), "--output", str(tmp_path / "o.tsv"))
    status, _, errors = run(capsys, "judge", *arguments, *files)
    assert (status, message in errors) == (2, True), errors


class Terminal:
    """A process in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._own, other = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scannery.cli.main", *arguments],
            stdin=other, stdout=other, stderr=other, start_new_session=True,
            # Tests that run in the background of a shell ignore interrupts, and so would their children.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )  # fmt: skip
        os.close(other)
        self.shown = ""

    def press(self, keys: bytes) -> None:
        os.write(self._own, keys)

    def wait_for(self, text: str, *, count: int = 1, timeout_s: float = 60) -> None:
        deadline = time.monotonic() + timeout_s
        while self.shown.count(text) < count:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._own], [], [], 0.2)[0]:
                try:
                    self.shown += os.read(self._own, 1 << 16).decode(errors="replace")
                except OSError:  # the other side is closed
                    break
        assert self.shown.count(text) >= count, self.shown

    def interrupt(self) -> int:
        """Press Ctrl-C until the process ends, and return its exit status.

        Once is not enough: Python misses a signal that comes between its last check and the call that reads a key,
        until the next key or signal.
        """
        for _ in range(60):
            self.process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(2)
        raise AssertionError(self.shown)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        os.close(self._own)


@pytest.mark.system
def test_a_terminal_takes_single_keys_and_kill_loses_nothing(library: Path, tmp_path: Path) -> None:
    queries, output = tmp_path / "queries.jsonl", tmp_path / "qrels.tsv"
    queries.write_text(json.dumps({"_id": "q", "vector": [1.0] * 16}))  # no model is loaded
    arguments = ("judge", str(library), "library", "--queries", str(queries), "--output", str(output))
    terminal = Terminal(*arguments)
    try:
        terminal.wait_for("> ")
        terminal.press(b"3")  # without Enter
        terminal.wait_for("> ", count=2)
        assert [list(levels.values()) for levels in read_judgements(output).values()] == [[3]]
        terminal.press(b"u1")
        terminal.wait_for("> ", count=4)
        terminal.process.send_signal(signal.SIGKILL)
        terminal.process.wait(10)
    finally:
        terminal.close()
    [levels] = read_judgements(output).values()
    assert list(levels.values()) == [1]
    terminal = Terminal(*arguments)
    try:
        terminal.wait_for("> ")
        terminal.press(b"2")
        terminal.wait_for("> ", count=2)
        assert terminal.interrupt() == 130
    finally:
        terminal.close()
    [levels] = read_judgements(output).values()
    assert list(levels.values()) == [1, 2]
