"""PostgreSQL with pgvector: a table of a database, by a connection string (the password in PGPASSWORD or ~/.pgpass)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import numpy as np

from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError
from scannery.pipelines.peers.collection import (
    PeerCollection,
    PeerRecord,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
)
from scannery.pipelines.peers.options import PeerOptions

__all__ = ["open_pgvector"]

DISTANCES: dict[str, Distance] = {"cosine": "cosine", "ip": "dot", "l2": "squared_l2"}
_TABLES = """
    select distinct c.oid::regclass::text from pg_attribute a join pg_class c on c.oid = a.attrelid
    join pg_type t on t.oid = a.atttypid
    where t.typname in ('vector', 'halfvec', 'sparsevec') and c.relkind in ('r', 'p', 'm', 'v') and not a.attisdropped
"""
_COLUMNS = """
    select a.attname, t.typname, a.atttypmod from pg_attribute a join pg_type t on t.oid = a.atttypid
    where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_KEY = """
    select a.attname from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
    where i.indrelid = %s::regclass and i.indisprimary
"""
_OPERATORS = """
    select o.opcname from pg_index i join pg_attribute a on a.attrelid = i.indrelid
    join lateral unnest(i.indkey, i.indclass) as k(number, class) on k.number = a.attnum
    join pg_opclass o on o.oid = k.class where i.indrelid = %s::regclass and a.attname = %s
"""


def open_pgvector(source: str, options: PeerOptions, stack: ExitStack) -> PeerCollection:
    """Return a table of a database."""
    psycopg = loaded("psycopg", system="pgvector")
    try:
        connection = psycopg.connect(source, connect_timeout=30)
    except psycopg.ProgrammingError as error:
        raise PeerError(
            f"the source must be a connection string, such as postgresql://host/database: {error}"
        ) from error
    except psycopg.OperationalError as error:
        raise InputNotFoundError(f"the database cannot be reached: {error}") from error
    stack.enter_context(closing(connection))
    connection.read_only = True
    # All is read in one transaction: rows that others write meanwhile are not seen.
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    tables = [name for (name,) in connection.execute(_TABLES)]
    table = chosen(options.collection, tables, what="tables with vectors", option="--collection")
    kinds = {name: (kind, size) for name, kind, size in connection.execute(_COLUMNS, (table,))}
    vectors = {name for name, (kind, _) in kinds.items() if kind in ("vector", "halfvec")}
    if not vectors:
        raise PeerError(f"table {table} has no dense vectors (columns of the type vector or halfvec)")
    vector = chosen(options.vector, vectors, what="vector columns", option="--vector")
    identifier = _identifier(connection, table, options.id, list(kinds))
    others = [
        name
        for name, (kind, _) in kinds.items()
        if name != vector and kind in ("vector", "halfvec", "sparsevec", "bit")
    ]
    sql, quoted = psycopg.sql, psycopg.sql.SQL(table)  # of the catalog, which quotes it
    column = sql.Identifier(vector)
    query = sql.SQL("select vector_dims({}) from {} where {} is not null limit 1").format(
        column, quoted, column
    )
    found = connection.execute(query).fetchone()
    dimensions = kinds[vector][1] if kinds[vector][1] > 0 else found[0] if found else 0
    if dimensions < 1:
        raise PeerError(f"table {table} has no vectors in the column {vector!r}")
    operators = [
        name.removesuffix("_ops").rpartition("_")[2]
        for (name,) in connection.execute(_OPERATORS, (table, vector))
    ]
    [(rows,)] = connection.execute(sql.SQL("select count(*) from {}").format(quoted)).fetchall()
    columns = [name for name in kinds if name not in (vector, identifier, *others)]
    selected = [
        sql.Identifier(identifier),
        sql.SQL("{}::real[]").format(column),
        *map(sql.Identifier, columns),
    ]
    query = sql.SQL("select {} from {} order by {}").format(
        sql.SQL(", ").join(selected), quoted, sql.Identifier(identifier)
    )
    return PeerCollection(
        name=table,
        dimensions=dimensions,
        distance=distance_of(operators[0] if operators else None, DISTANCES, options.distance),
        rows=rows,
        records=lambda size: _records(connection, query, columns, size),
        notes=[f"other vectors are left out: {', '.join(others)}"] if others else [],
    )


def _identifier(connection: Any, table: str, given: str | None, columns: list[str]) -> str:
    if given is not None:
        return chosen(given, columns, what="columns", option="--id")
    key = [name for (name,) in connection.execute(_KEY, (table,))]
    if len(key) != 1:
        raise PeerError(
            f"table {table} has no primary key of one column; choose the column of the ids by --id NAME: "
            f"{', '.join(columns)}"
        )
    return str(key[0])


def _records(connection: Any, query: Any, columns: list[str], size: int) -> Iterator[list[PeerRecord]]:
    with connection.cursor(name="scannery_import") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(size):
            yield [
                PeerRecord(
                    as_identifier(identifier),
                    None if vector is None else np.asarray(vector, np.float32),
                    {name: json_value(value) for name, value in zip(columns, values, strict=True)},
                )
                for identifier, vector, *values in rows
            ]
