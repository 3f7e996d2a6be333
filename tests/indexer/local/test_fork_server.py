"""Forked processes are processes of their own; their server starts once, and ends after its use or with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scannery.indexer.local.child_processes import ForkedProcess, ForkServer
from tests.data import ROOT

pytestmark = pytest.mark.system

MODULE = """
import os, signal, sys, time
from pathlib import Path

def warm():
    with (Path(__file__).parent / "warmed").open("a") as file:
        file.write(f"{os.getpid()} ")

def main(folder):
    exec((folder / "program.py").read_text())
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForkServer]:
    (tmp_path / "forked_for_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("forked_for_a_test", {"MORE": "1"}, idle_s=5)
    try:
        yield server
    finally:
        server.end()


def start(server: ForkServer, folder: Path, program: str) -> ForkedProcess:
    """Start a process that runs a program in a folder, with its output in the file `output`."""
    folder.mkdir()
    (folder / "program.py").write_text(program)
    with (folder / "output").open("wb") as output:
        return server.start(folder, output.fileno())


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Return whether a thread of a process runs: the last one closes its files, and the main one may end before it."""
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
    except OSError:
        return Path(f"/proc/{pid}").exists()
    return not set(states) <= {"Z", "X"} or len(tasks) > 1


def test_each_has_its_own_input_output_and_status_and_all_have_one_server(
    server: ForkServer, tmp_path: Path
) -> None:
    programs = {
        "reads": "print(os.getppid(), os.environ['MORE'], sys.stdin.read() == '')",
        "fails": "raise ValueError('of this one')",
        "exits": "os._exit(7)",
        "dies": "os.kill(os.getpid(), signal.SIGTERM)",
    }
    processes = {name: start(server, tmp_path / name, program) for name, program in programs.items()}
    for process in processes.values():
        process.end_input()
    assert {name: process.wait() for name, process in processes.items()} == {
        "reads": 0, "fails": 1, "exits": 7, "dies": -signal.SIGTERM,
    }  # fmt: skip
    for process in processes.values():
        process.close()
    outputs = {name: (tmp_path / name / "output").read_text() for name in programs}
    assert outputs["reads"] == f"{server.pid} 1 True\n"
    assert "ValueError: of this one" in outputs["fails"]
    assert outputs["exits"] == outputs["dies"] == ""
    assert (tmp_path / "warmed").read_text() == f"{server.pid} "


def test_close_kills(server: ForkServer, tmp_path: Path) -> None:
    process = start(server, tmp_path / "one", "print(os.getpid(), flush=True); time.sleep(60)")
    until(lambda: "\n" in (tmp_path / "one" / "output").read_text())
    pid = int((tmp_path / "one" / "output").read_text())
    process.close()
    assert not runs(pid)
    assert process.wait() == -signal.SIGKILL
    process.close()


def test_a_server_that_was_killed_is_replaced(server: ForkServer, tmp_path: Path) -> None:
    server = ForkServer(
        "forked_for_a_test", {"MORE": "1"}
    )  # on a busy machine, the other would become too old
    first = start(server, tmp_path / "first", "print('runs', flush=True); sys.stdin.read()")
    until((tmp_path / "first" / "output").read_text)
    # Once the server answers for another process, it has told the process id of the first one, too.
    assert start(server, tmp_path / "between", "pass").wait() == 0
    assert server.pid is not None
    os.kill(server.pid, signal.SIGKILL)
    until(lambda: not runs(server.pid or 0))
    second = start(server, tmp_path / "second", "pass")
    assert second.wait() == 0
    first.end_input()
    assert first.wait() == -signal.SIGKILL  # nothing can tell how it ended
    first.close()
    second.close()
    server.end()
    assert len((tmp_path / "warmed").read_text().split()) == 2


def test_a_server_that_cannot_start_tells_why(tmp_path: Path) -> None:
    server = ForkServer("no_such_module", {})
    process = start(server, tmp_path / "one", "")
    assert process.wait() == 1
    process.close()
    server.end()
    assert "No module named 'no_such_module'" in (tmp_path / "one" / "output").read_text()


def test_other_import_paths_get_another_server(
    server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(server, tmp_path / "first", "sys.stdin.read()")
    old = server.pid
    monkeypatch.syspath_prepend(tmp_path / "more")
    second = start(server, tmp_path / "second", "pass")
    assert second.wait() == 0
    assert server.pid != old
    first.end_input()
    assert first.wait() == 0  # its server has stayed for it
    first.close()
    second.close()
    until(lambda: not runs(old or 0))


def test_an_idle_server_ends_and_the_next_one_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forked_for_a_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    server = ForkServer("forked_for_a_test", {}, idle_s=0.15)
    for name in ("one", "two"):
        process = start(server, tmp_path / name, "time.sleep(0.5)")
        assert process.wait() == 0
        process.close()
        until(lambda: not runs(server.pid or 0))
    server.end()


PARENT = """
import os, sys, time
from pathlib import Path
from scannery.indexer.local.child_processes import ForkServer
server, folder = ForkServer("forked_for_a_test", {}), Path(sys.argv[1])
with (folder / "output").open("wb") as output:
    process = server.start(folder, output.fileno())
fork = os.fork()
if fork:
    print(server.pid, fork, flush=True)
time.sleep(60)
"""


def test_a_killed_parent_takes_the_server_along_though_a_fork_of_it_lives(tmp_path: Path) -> None:
    (tmp_path / "forked_for_a_test.py").write_text(MODULE)
    (tmp_path / "program.py").write_text("print(os.getpid(), flush=True); sys.stdin.read()")
    path = os.pathsep.join([str(ROOT / "src"), str(tmp_path)])
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        server, fork = map(int, parent.stdout.readline().split())
        try:
            until((tmp_path / "output").read_text)
            assert runs(server)
            parent.kill()
            until(lambda: not runs(server))
            assert runs(fork)
        finally:
            parent.kill()
            os.kill(fork, signal.SIGKILL)


def test_the_server_of_tuners_has_one_thread() -> None:
    """A fork copies only the thread that forks: a lock that another thread holds would stay locked."""
    script = """
import os
from scannery.indexer.tuning import tune_process
tune_process.warm()
print({open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")} - {"python"})
"""
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    # The allocator of Arrow has one, and takes care of forks by itself.
    assert done.stdout in ("set()\n", "{'jemalloc_bg_thd'}\n")
