"""Both kinds of log, for tests of what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw

from scannery.live.log.location import DatabaseUrl
from scannery.live.log.mutation_log import MutationLog
from scannery.live.log.sqlite_log import SqliteLog
from tests.live.log.postgres_server import PostgresServer

__all__ = ["Logs", "PostgresLogs", "SqliteLogs"]

LOG_ID = "5" * 32


class Logs(ABC):
    """One log, which several handles open."""

    @abstractmethod
    def open(self) -> MutationLog:
        """Return another handle on the log, made at the first call."""

    @abstractmethod
    def execute(self, statement: str) -> int:
        """Execute a statement on the tables of the log (bytes as x'00'), and return the number of rows it changed."""

    def damage(self, statement: str) -> None:
        """Change records behind the log's back."""
        assert self.execute(statement) == 1


class SqliteLogs(Logs):
    """A log in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "index" / "log"

    def open(self) -> SqliteLog:
        self.folder.parent.mkdir(exist_ok=True)
        return SqliteLog(self.folder, create=True)

    def execute(self, statement: str) -> int:
        with closing(apsw.Connection(str(self.folder / "log.sqlite"))) as connection:
            connection.execute(statement)
            return connection.changes()


class PostgresLogs(Logs):
    """A log in a database of its own."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.url = server, server.new_database()
        self._made = False

    def open(self) -> MutationLog:
        from scannery.live.log.postgres.database import Database, create_schema
        from scannery.live.log.postgres.postgres_log import PostgresLog

        database = Database.of(DatabaseUrl(self.url))
        if not self._made:
            with database.connection() as connection:
                create_schema(connection)
                connection.execute(
                    "INSERT INTO scannery.logs (log_id, index_name, store) VALUES (%s, 'index', 'store')",
                    (LOG_ID,),
                )
            self._made = True
        return PostgresLog(database, LOG_ID)

    def execute(self, statement: str) -> int:
        import psycopg

        with psycopg.connect(self.url, autocommit=True, options="-c search_path=scannery") as connection:
            text: Any = statement.replace("x'", "'\\x")
            return connection.execute(text).rowcount
