"""Processes for tests that start by a fork of one that has imported Scannery, instead of by a new interpreter.

The imports of a server take a second of processor time, which is most of what its tests cost. A prepared process runs
the same code with the same arguments, environment, pipes and signals; what it has not is an `exec` and imports of its
own. That these work, too, is tested where a command is started by a shell (tests/test_docs_commands.py), in
tests/serving/process/test_preload.py, tests/test_end_to_end.py and others.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from scannery.indexer.local.child_processes import NUMBER
from scannery.indexer.local.fork_server_process import _Server
from tests.data import ROOT

__all__ = ["PreparedProcess", "main"]

_COMMAND = ["-m", "scannery.cli.main"]
_IDLE_S = 3600.0
_APPEND = os.O_WRONLY | os.O_APPEND


class PreparedProcess(subprocess.Popen[str]):
    """A process that runs `python -m scannery.cli.main …` or `python -c …`; used as `Popen` is, with `text=True`.

    Of the options, `env`, `cwd`, `start_new_session` and the streams count.
    """

    def _execute_child(self, args: list[str], *given: Any, **_: Any) -> None:
        """Have it forked. The arguments are those of `Popen._execute_child`, the same in all versions of Python."""
        cwd, env, ends = given[4], given[5], given[9:15]
        stdin, _, _, stdout, _, stderr = ends
        with tempfile.TemporaryDirectory() as folder:
            inherited = [_path_of(end, own) for own, end in enumerate((stdin, stdout, stderr))]
            job = {
                "arguments": args[1:],
                "env": dict(env or os.environ),
                "ends": inherited,
                "cwd": str(cwd or Path.cwd()),
                "session": given[20],
            }
            (Path(folder) / "job.json").write_text(json.dumps(job))
            self._status, status = os.pipe()
            ready, to_ready = os.pipe()
            socket.send_fds(_server(), [json.dumps(folder).encode()], [to_ready, 2, status])
            os.close(status)
            os.close(to_ready)
            self.pid = self._number()
            os.read(ready, 1)  # it has read the job and opened the pipes
            os.close(ready)
        self._child_created = True
        self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    def _number(self) -> int:
        data = os.read(self._status, NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if data else -9

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._ended(0)

    def _wait(self, timeout: float | None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            self.returncode = self._number()
            os.close(self._status)
        return self.returncode


def _path_of(end: int, own: int) -> str:
    """Return where another process opens an end of a pipe, or the standard stream of this process in its stead."""
    return f"/proc/{os.getpid()}/fd/{end if end >= 0 else own}"


@lru_cache(maxsize=1)
def _server() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid())],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            stdin=theirs.fileno(),
        )

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


def main(folder: Path) -> NoReturn:
    """Be the forked process."""
    job = json.loads((folder / "job.json").read_text())
    opened = [
        os.open(end, flags) for end, flags in zip(job["ends"], (os.O_RDONLY, _APPEND, _APPEND), strict=True)
    ]
    if job["session"]:
        os.setsid()
    os.write(0, b".")  # standard input is the pipe that `PreparedProcess` reads
    for own, descriptor in enumerate(opened):
        os.dup2(descriptor, own)
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    tempfile.tempdir = None
    code = _exit_status(job["arguments"])
    threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter ends
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _exit_status(arguments: list[str]) -> int:
    try:
        _run(arguments)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except BaseException:  # noqa: BLE001  as the interpreter does
        traceback.print_exc()
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    if arguments[:2] == _COMMAND:
        from scannery.cli.main import run

        sys.argv = ["scannery", *arguments[2:]]
        run()
    assert arguments[0] == "-c", arguments
    sys.argv = ["-c", *arguments[2:]]
    exec(arguments[1], {"__name__": "__main__"})


_IMPORTED = (
    "cli.main", "cli.commands.scan", "cli.commands.serve", "client", "pipelines.building", "serving.embedded",
    "serving.process.supervisor", "serving.transport.http.server",
)  # fmt: skip


def _prepare() -> None:
    """Import what a server and a command import, and start no threads."""
    from scannery.indexer.local.needless_imports import leave_needless_imports_out

    leave_needless_imports_out()
    from scannery.serving.request import part_count

    for name in _IMPORTED:
        importlib.import_module(f"scannery.{name}")
    part_count.warm_up()  # what numba does before the first kernel
    gc.freeze()


if __name__ == "__main__":
    _prepare()
    _Server(sys.modules[__name__], socket.socket(fileno=os.dup(0)), int(sys.argv[1]), _IDLE_S).run()
