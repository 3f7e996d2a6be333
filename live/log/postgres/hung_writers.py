"""End writers that keep the turn of a log and do nothing with it.

The server ends a session that is idle in its transaction. It does not end one that waits for the rest of a commit, or
for its client to take an answer: a process that was stopped meanwhile, or whose machine is lost, would hold up all
other writers for as long as that lasts. So a writer that waits for its turn ends such a session.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import psycopg

from scannery.indexer import StoreError
from scannery.live.log.postgres.database import Database

__all__ = ["end_hung_writers"]

# Sessions that have locked a row of the logs, and whose client has neither sent a message nor taken one for so long.
_END = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity AS session
WHERE datname = current_database() AND wait_event_type = 'Client' AND xact_start IS NOT NULL
AND state_change < clock_timestamp() - make_interval(secs => %s)
AND EXISTS (
    SELECT FROM pg_locks WHERE pid = session.pid AND database = session.datid
    AND relation = 'scannery.logs'::regclass AND mode = 'RowShareLock' AND granted
)
"""


def end_hung_writers(database: Database, after_s: float) -> int:
    """End the sessions whose turn has waited for their client for `after_s` seconds, and return their number.

    Nothing is ended if the database does not answer, or does not let its user end them: those of other users.
    """

    def end(connection: psycopg.Connection[tuple[Any, ...]]) -> int:
        return sum(bool(ended) for (ended,) in connection.execute(_END, (after_s,)))

    with suppress(StoreError):
        return database.ask(end)
    return 0
