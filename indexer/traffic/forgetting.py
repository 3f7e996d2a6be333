"""Remove from the log what is of a client, of a text, or about a document.

Each file that has such rows is replaced by one without them, in one step, or removed. Rows that a server has not
written yet are not found: whoever forgets a client that is still active does it again a minute later. A run that is
ended is repeated as it is: events go before their query, without which nobody could tell whose they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from datetime import date
from typing import Generic, TypeVar

from scannery.indexer.errors import NotFoundError
from scannery.indexer.store.object_store import Store
from scannery.indexer.traffic.day_files import days_of, file_of_rows, read_file, read_rows
from scannery.indexer.traffic.keys import TrafficKey, client_hashes, read_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery, ShadowAnswer, day_of
from scannery.indexer.traffic.texts import same_text

__all__ = ["ForgetReport", "forget_client", "forget_documents", "forget_text"]

QueryT = TypeVar("QueryT", bound=LoggedQuery)
RowT = TypeVar("RowT", LoggedQuery, ShadowAnswer, LoggedEvent)


@dataclass(frozen=True, kw_only=True)
class ForgetReport:
    """What was removed."""

    queries: int
    """Queries that were removed, or lost the document among their hits."""
    events: int
    files: int
    """Files that were replaced or removed."""


def forget_client(store: Store, index: str, client: str, *, dry_run: bool = False) -> ForgetReport:
    """Remove the queries of a client, what was done with their answers, and the feedback that it gave.

    Args:
        store: the store.
        index: name of the index.
        client: as the server names who asks: a key (`NAME/ID`), `sub/SUBJECT` of a token, or an address; followed by a
            zero byte and its `client_id`, if it asked for one.
        dry_run: only count.

    Raises:
        CorruptError: a file or a key is damaged; it is named.
        StoreError: the store cannot be read or written.

    """
    hashes = _Hashes(read_keys(store), client)
    return _forget(
        store,
        index,
        lambda day, row: row.client_id in hashes.of(day),
        is_event_gone=lambda day, row: row.client_id in hashes.of(day),
        dry_run=dry_run,
    )


def forget_text(store: Store, index: str, text: str) -> ForgetReport:
    """Remove the queries of a text, in whatever case, and what was done with their answers; raises as `forget_client`.

    Texts are in the log as they were masked; `text` is masked in the same way by the caller.
    """
    form = same_text(text)
    return _forget(
        store, index, lambda day, row: row.user_query is not None and same_text(row.user_query) == form
    )


def forget_documents(
    store: Store, index: str, ids: Collection[str], *, dry_run: bool = False
) -> ForgetReport:
    """Remove what was done with documents or their passages, and their ids among hits; raises as `forget_client`.

    Args:
        store: the store.
        index: name of the index.
        ids: of documents, or of datapoints.
        dry_run: only count.

    """
    gone = frozenset(ids)
    if not gone:
        return ForgetReport(queries=0, events=0, files=0)

    def is_of_them(hit_id: str) -> bool:
        before, separator, number = hit_id.rpartition("#")
        return hit_id in gone or (separator == "#" and before in gone and number.isdecimal())

    def without(row: QueryT) -> QueryT:
        pairs = zip(row.query_response_hit_ids, row.scores, strict=True)
        kept = [(hit_id, score) for hit_id, score in pairs if not is_of_them(hit_id)]
        if len(kept) == len(row.scores):
            return row
        return replace(
            row,
            query_response_hit_ids=[hit_id for hit_id, _ in kept],
            scores=[score for _, score in kept],
        )

    queries = _Rewriting(store, index, LoggedQuery, dry_run=dry_run)
    shadows = _Rewriting(store, index, ShadowAnswer, dry_run=dry_run)
    queries.changed(lambda day, row: without(row))
    shadows.changed(lambda day, row: without(row))
    events = _Rewriting(store, index, LoggedEvent, dry_run=dry_run)
    events.without(lambda day, row: is_of_them(row.object_id))
    return _report(queries, shadows, events)


def _forget(
    store: Store,
    index: str,
    is_query_gone: Callable[[date, LoggedQuery], bool],
    is_event_gone: Callable[[date, LoggedEvent], bool] = lambda day, row: False,
    *,
    dry_run: bool = False,
) -> ForgetReport:
    """Remove queries, the events on them, and other events."""
    queries = _Rewriting(store, index, LoggedQuery, dry_run=dry_run)
    events = _Rewriting(store, index, LoggedEvent, dry_run=dry_run)
    shadows = _Rewriting(store, index, ShadowAnswer, dry_run=dry_run)

    def forget_events(query_ids: Set[str]) -> None:
        events.without(lambda day, row: row.query_id in query_ids or is_event_gone(day, row))

    rows = read_rows(store, index, LoggedQuery)
    forget_events({row.query_id for row in rows if is_query_gone(day_of(row), row)})
    if (removed := queries.without(is_query_gone)) and not dry_run:
        forget_events(removed)  # those that were written meanwhile
    shadows.without(is_query_gone)
    return _report(queries, shadows, events)


class _Hashes:
    """The ids that a client may have, by day."""

    def __init__(self, keys: Mapping[int, TrafficKey], client: str) -> None:
        self._keys, self._client = keys, client
        self._of_day: dict[date, set[str]] = {}

    def of(self, day: date) -> set[str]:
        if day not in self._of_day:
            self._of_day[day] = client_hashes(self._keys, self._client, day)
        return self._of_day[day]


class _Rewriting(Generic[RowT]):
    """The replacement of the files of one kind."""

    def __init__(self, store: Store, index: str, kind: type[RowT], *, dry_run: bool) -> None:
        self._store, self._index, self._dry_run = store, index, dry_run
        self._kind: type[RowT] = kind
        self.rows = self.files = 0
        """Rows and files that were changed or removed."""

    def without(self, is_gone: Callable[[date, RowT], bool]) -> set[str]:
        """Remove rows, and return the ids of their queries."""
        gone: set[str] = set()

        def kept(day: date, row: RowT) -> RowT | None:
            if not is_gone(day, row):
                return row
            gone.add(row.query_id)
            return None

        self.changed(kept)
        return gone

    def changed(self, change: Callable[[date, RowT], RowT | None]) -> None:
        """Replace rows by `change` of them; None: a row is removed. Again, until there is nothing to be replaced."""
        while self._change_files(change):  # files may be merged meanwhile
            pass

    def _change_files(self, change: Callable[[date, RowT], RowT | None]) -> bool:
        """Replace rows of the files that there are, and return whether there may be others with such rows now."""
        before_files, has_moved = self.files, False
        for day, keys in days_of(self._store, self._index, self._kind).items():
            for key in keys:
                try:
                    before: list[RowT] = read_file(self._store, key, self._kind)
                except NotFoundError:  # its day was removed meanwhile, or its rows are in a new file
                    has_moved = True
                    continue
                results = [change(day, row) for row in before]
                touched = sum(result is not row for result, row in zip(results, before, strict=True))
                if not touched:
                    continue
                after = [row for row in results if row is not None]
                if self._dry_run:
                    pass
                elif after:
                    self._store.write(key, file_of_rows(after))
                else:
                    self._store.delete(key)
                self.rows += touched
                self.files += 1
        return not self._dry_run and (has_moved or self.files > before_files)


def _report(
    queries: _Rewriting[LoggedQuery], shadows: _Rewriting[ShadowAnswer], events: _Rewriting[LoggedEvent]
) -> ForgetReport:
    files = queries.files + shadows.files + events.files
    return ForgetReport(queries=queries.rows, events=events.rows, files=files)
