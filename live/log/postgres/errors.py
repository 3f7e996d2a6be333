"""Errors of PostgreSQL as errors of `scannery`. No message shows a password."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import errors

from scannery.indexer import CorruptError, StoreError
from scannery.live.log.mutation_log import LogRefusedError, LogUnavailableError
from scannery.runtime.errors import ReadOnlyError

__all__ = ["RETRY_S", "translated_errors"]

RETRY_S = 1.0
"""Callers are told to wait this long before they write again."""
_REFUSALS = (
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "does not exist",
)


@contextmanager
def translated_errors(where: str) -> Iterator[None]:
    """Raise errors of PostgreSQL as errors of `scannery`; `where` is the database without credentials."""
    try:
        yield
    except psycopg.Error as error:
        raise _translated(where, error) from error


def _is_refused(error: psycopg.OperationalError) -> bool:
    """Return whether the server refuses these credentials, so that trying again does not help."""
    known = (errors.InvalidPassword, errors.InvalidAuthorizationSpecification, errors.InvalidCatalogName)
    # Errors of the handshake have no code.
    return isinstance(error, known) or any(text in str(error) for text in _REFUSALS)


def _translated(where: str, error: psycopg.Error) -> Exception:
    text = " ".join(str(error).split())
    match error:
        case psycopg.OperationalError() if _is_refused(error):
            return LogRefusedError(f"the mutation log in {where} refuses the connection: {text}")
        case errors.ReadOnlySqlTransaction():
            return ReadOnlyError(
                f"the index takes no writes: {where} is read-only (a standby?); name the primary, or all servers with "
                "target_session_attrs=read-write"
            )
        case errors.InsufficientPrivilege():
            return LogRefusedError(f"the mutation log in {where} refuses an operation: {text}")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return CorruptError(f"the mutation log in {where} is damaged: {text}")
        case psycopg.OperationalError() | psycopg.InterfaceError():
            held = isinstance(error, errors.LockNotAvailable)
            why = "it is held by another writer" if held else text
            return LogUnavailableError(
                f"the mutation log in {where} cannot be used now: {why}", retry_after_s=RETRY_S
            )
        case _:
            return StoreError(f"the mutation log in {where} cannot be used: {text}")
