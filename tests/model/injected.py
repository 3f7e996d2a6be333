"""Faults that are put into the product on purpose, to see that the model notices each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from scannery.indexer.lexical import bm25
from scannery.live import live_index as index
from scannery.live import memtable
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance import merge as merging
from scannery.live.maintenance import seal as sealing
from scannery.live.writing import filtered_write
from scannery.serving.engine import top_k as ranking

__all__ = ["INJECTED", "Fault", "injected"]


@dataclass(frozen=True)
class Fault:
    """A place in the product, and what makes a wrong version of what is there."""

    owner: Any
    name: str
    wrong: Callable[[Any], Any]
    weights: dict[str, float]
    """Operations that should be frequent for it to show soon."""


@contextmanager
def injected(fault: Fault) -> Iterator[None]:
    """Put a fault in, and take it out again."""
    right = fault.owner.__dict__[fault.name]
    setattr(fault.owner, fault.name, fault.wrong(right))
    try:
        yield
    finally:
        setattr(fault.owner, fault.name, right)


def _log_loses_its_end(read: Any) -> Any:
    """Who follows the log does not get its last record."""

    def wrong(self: SqliteLog, after: int, **options: Any) -> Any:
        entries = read(self, after, **options)
        return entries if len(entries) > 1 else []

    return wrong


def _no_tombstones(died: Any) -> Any:
    """A merge forgets what died while it ran."""
    return lambda *args: []


def _row_dropped(rows: Any) -> Any:
    """A version loses a row of what is sealed."""

    def wrong(*args: Any) -> Any:
        table = rows(*args)
        return table.slice(0, table.num_rows - 1) if table.num_rows > 3 else table

    return wrong


def _dead_rows_stay(dead: Any) -> Any:
    """A seal does not mark the rows that it replaces."""
    return lambda *_: {}


def _documents_stay(net: Any) -> Any:
    """Documents that are deleted keep their passages in segments."""

    def wrong(mutations: Any) -> Any:
        found = net(mutations)
        return memtable.NetEffect(found.rows, found.ids, found.hashes, [], found.plain)

    return wrong


def _any_order(by_score: Any) -> Any:
    """Equal scores come in the order of their rows."""
    return lambda found, segments: found.at(np.argsort(-found.scores, kind="stable"))


def _wrong_idf(idf: Any) -> Any:
    """Words are weighed by another formula."""
    return lambda self, term: 1.0


def _no_condition(resolve: Any) -> Any:
    """Conditions are not looked at."""
    return lambda upsert, state: resolve(replace(upsert, conditional=()), state)


def _newest_rows_late(state_after: Any) -> Any:
    """Who follows the log does not see the newest rows."""

    def wrong(state: Any, entries: Any) -> Any:
        after = state_after(state, entries)
        return replace(after, runs=after.runs[:-1])

    return wrong


def _stale_offset(within: Any) -> Any:
    """Pages overlap by one hit."""
    return lambda self, offset, count: within(self, max(0, offset - 1), count)


INJECTED: dict[str, Fault] = {
    "log-loses-its-end": Fault(SqliteLog, "read", _log_loses_its_end, {"reopen": 5}),
    "merge-forgets-tombstones": Fault(
        merging, "_died_since", _no_tombstones, {"sealed": 30, "merged": 45, "delete": 30}
    ),
    "seal-drops-a-row": Fault(sealing, "conformed", _row_dropped, {"sealed": 4}),
    "seal-forgets-tombstones": Fault(sealing, "dead_rows", _dead_rows_stay, {"sealed": 4}),
    "documents-keep-rows": Fault(memtable, "net_effect", _documents_stay, {"delete": 20}),
    "order-without-ids": Fault(ranking, "by_score_and_id", _any_order, {"search": 60}),
    "another-bm25": Fault(bm25.CorpusStatistics, "idf", _wrong_idf, {}),
    "conditions-ignored": Fault(filtered_write, "resolve_upsert", _no_condition, {}),
    "followers-lag": Fault(index, "state_after", _newest_rows_late, {}),
    "pages-overlap": Fault(ranking.Ranking, "within", _stale_offset, {"pages": 10}),
}
"""Faults by name."""
