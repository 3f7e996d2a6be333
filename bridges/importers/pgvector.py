"""PostgreSQL with pgvector: a table of a database, by a connection string (the password in PGPASSWORD or ~/.pgpass)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from importlib import import_module
from typing import Any

import numpy as np

from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerOptions,
    PeerRecord,
    PeerVectors,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
    names_in_index,
    rename_notes,
    vector_columns,
)
from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError

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
    connection_options = import_module("scannery.live.log.postgres.database").connection_options
    if connection_options(source) is None:
        raise PeerError(
            "the source cannot be read: it is a connection string, such as postgresql://USER@HOST:PORT/DATABASE, with "
            "special characters as %XX (it is not shown: it may have a password)"
        )
    try:
        connection = psycopg.connect(source, connect_timeout=30)
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
    chosen_columns = vector_columns(options.vector, [name for name in kinds if name in vectors])
    identifier = _identifier(connection, table, options.id, list(kinds))
    unselected = [
        name
        for name, (kind, _) in kinds.items()
        if name not in chosen_columns and kind in ("vector", "halfvec", "sparsevec", "bit")
    ]
    sql, quoted = psycopg.sql, psycopg.sql.SQL(table)  # of the catalog, which quotes it
    vectors_of = {
        name: _vectors(connection, sql, table, name, kinds[name][1], options) for name in chosen_columns
    }
    unnamed = chosen_columns[0] if len(chosen_columns) == 1 else None
    own_names = names_in_index([name for name in chosen_columns if name != unnamed])
    [(rows,)] = connection.execute(sql.SQL("select count(*) from {}").format(quoted)).fetchall()
    columns = [name for name in kinds if name not in (identifier, *chosen_columns, *unselected)]
    selected = [
        sql.Identifier(identifier),
        *(sql.SQL("{}::real[]").format(sql.Identifier(name)) for name in chosen_columns),
        *map(sql.Identifier, columns),
    ]
    query = sql.SQL("select {} from {} order by {}").format(
        sql.SQL(", ").join(selected), quoted, sql.Identifier(identifier)
    )
    unnamed_vectors = PeerVectors(0, "cosine") if unnamed is None else vectors_of[unnamed]
    notes = [f"other vectors are left out: {', '.join(unselected)}"] if unselected else []
    names = [own_names.get(name) for name in chosen_columns]
    return PeerCollection(
        name=table,
        dimensions=unnamed_vectors.dimensions,
        distance=unnamed_vectors.distance,
        rows=rows,
        records=lambda size: _records(connection, query, names, columns, size),
        named={own_name: vectors_of[name] for name, own_name in own_names.items()},
        notes=[*notes, *rename_notes(own_names)],
    )


def _vectors(
    connection: Any, sql: Any, table: str, name: str, declared: int, options: PeerOptions
) -> PeerVectors:
    """Return what the vectors of a column are; PeerError if no row has one, or their distance is not known."""
    column, quoted = sql.Identifier(name), sql.SQL(table)
    query = sql.SQL("select vector_dims({}) from {} where {} is not null limit 1").format(
        column, quoted, column
    )
    row = connection.execute(query).fetchone()
    dimensions = declared if declared > 0 else row[0] if row else 0
    if dimensions < 1:
        raise PeerError(f"table {table} has no vectors in the column {name!r}")
    operators = [
        operator.removesuffix("_ops").rpartition("_")[2]
        for (operator,) in connection.execute(_OPERATORS, (table, name))
    ]
    try:
        distance = distance_of(operators[0] if operators else None, DISTANCES, options.distance)
    except PeerError as error:
        raise PeerError(f"column {name!r}: {error}; --vector NAME chooses one column") from error
    return PeerVectors(dimensions, distance)


def _identifier(connection: Any, table: str, column: str | None, columns: list[str]) -> str:
    if column is not None:
        return chosen(column, columns, what="columns", option="--id")
    key = [name for (name,) in connection.execute(_KEY, (table,))]
    if len(key) != 1:
        raise PeerError(
            f"table {table} has no primary key of one column; choose the column of the ids by --id NAME: "
            f"{', '.join(columns)}"
        )
    return str(key[0])


def _records(
    connection: Any, query: Any, names: list[str | None], columns: list[str], size: int
) -> Iterator[list[PeerRecord]]:
    """Yield the rows of a query for the id, the vectors with these names in an index, and other columns."""
    with connection.cursor(name="scannery_import") as cursor:
        cursor.execute(query)
        while rows := cursor.fetchmany(size):
            yield [_record(identifier, names, columns, values) for identifier, *values in rows]


def _record(identifier: object, names: list[str | None], columns: list[str], values: list[Any]) -> PeerRecord:
    vectors_of = {
        name: np.asarray(vector, np.float32)
        for name, vector in zip(names, values, strict=False)
        if vector is not None
    }
    cells = zip(columns, values[len(names) :], strict=True)
    return PeerRecord(
        as_identifier(identifier),
        vectors_of.get(None),
        json_value(dict(cells)),
        vectors={name: vector for name, vector in vectors_of.items() if name is not None},
    )
