"""The tables of the logs, in the schema `scannery` of a database.

A row of `logs` is the log of one index; its lock is the turn to append. Indexes have random ids, so stores that share a
database do not mix. Free space in the pages of `logs` lets updates stay in their page (heap-only tuples).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import errors

from scannery.indexer import FormatError
from scannery.live.log.mutation_log import LogRefusedError

if TYPE_CHECKING:
    import psycopg

__all__ = ["OLDEST_SERVER", "SCHEMA_FORMAT", "check_server", "create_schema", "has_schema"]

SCHEMA_FORMAT = 1
"""Version of the tables that this code writes; later ones are refused."""
OLDEST_SERVER = 15

_CREATION_LOCK = 0x5363616E  # "Scan"

# A server notices by itself after hours that a machine is gone, whose sessions keep their locks as long. With these it
# takes half a minute. Servers without TCP keepalives ignore them.
_NOTICE_LOST_CLIENTS = """
SET tcp_keepalives_idle = 15; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
SET tcp_user_timeout = 30000
"""

_SCHEMA = """
CREATE SCHEMA IF NOT EXISTS scannery;
CREATE TABLE scannery.format (version int NOT NULL);
INSERT INTO scannery.format VALUES (1);
CREATE TABLE scannery.logs (
    number int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    log_id text UNIQUE NOT NULL,
    index_id text UNIQUE,
    index_name text NOT NULL,
    store text NOT NULL,
    position bigint NOT NULL DEFAULT 0,
    chain bytea NOT NULL DEFAULT '',
    truncated bigint NOT NULL DEFAULT 0,
    truncated_chain bytea NOT NULL DEFAULT ''
) WITH (fillfactor = 20);
CREATE TABLE scannery.records (
    log int NOT NULL, sequence bigint NOT NULL, chain bytea NOT NULL, data bytea NOT NULL, PRIMARY KEY (log, sequence)
);
ALTER TABLE scannery.records ALTER data SET STORAGE EXTERNAL;
CREATE TABLE scannery.answers (
    log int NOT NULL, request bytea NOT NULL, sequence bigint NOT NULL, count int NOT NULL, digest bytea NOT NULL,
    answered_at timestamptz NOT NULL DEFAULT clock_timestamp(), PRIMARY KEY (log, request)
);
CREATE INDEX answers_by_age ON scannery.answers (answered_at);
"""


def check_server(connection: psycopg.Connection, where: str) -> None:
    """Check the server's version and the format of the tables, if there are any, and set what sessions need.

    Raises:
        LogRefusedError: the server is too old.
        FormatError: a later release made the tables.

    """
    major = connection.info.server_version // 10_000
    if major < OLDEST_SERVER:
        raise LogRefusedError(f"{where} is PostgreSQL {major}; mutation logs need {OLDEST_SERVER} or later")
    connection.execute(_NOTICE_LOST_CLIENTS)
    row = connection.execute("SELECT current_setting('synchronous_commit')").fetchone()
    if row == ("off",):
        connection.execute("SET synchronous_commit = on")  # acknowledged writes survive a crash
    if has_schema(connection):
        version = connection.execute("SELECT version FROM scannery.format").fetchone()
        if version is None or version[0] > SCHEMA_FORMAT:
            raise FormatError(
                f"{where} has logs of format {version and version[0]}, this Scannery reads up to {SCHEMA_FORMAT}; "
                "upgrade it"
            )


def has_schema(connection: psycopg.Connection) -> bool:
    """Return whether the tables exist."""
    # Not by to_regclass, which in one transaction may answer again as before another process made them.
    query = "SELECT FROM pg_catalog.pg_tables WHERE schemaname = 'scannery' AND tablename = 'format'"
    return connection.execute(query).fetchone() is not None


def create_schema(connection: psycopg.Connection) -> None:
    """Create the tables unless they exist; once, if several processes try.

    Raises:
        LogRefusedError: the user may not.

    """
    if has_schema(connection):
        return
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_CREATION_LOCK,))
            if not has_schema(connection):
                connection.execute(_SCHEMA)
    except errors.InsufficientPrivilege as error:
        raise LogRefusedError(
            "the user of the database may not create the tables of the logs; its owner can allow it: "
            "GRANT CREATE ON DATABASE … TO …"
        ) from error
