"""Texts of searches that wait to be encoded, all that came meanwhile together.

The event loop puts them in, and gets them back with their vectors. A thread for each request would have to be woken
twice, and would take the interpreter from the others as often; here a thread is woken for a batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from scannery.runtime.errors import DeadlineError
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.scheduling.permits import CallerGoneError
from scannery.serving.services.search import encoder_of, with_vectors
from scannery.serving.transport.http.head import Exchange

__all__ = ["Outcome", "TextQueue"]


Waiting: TypeAlias = tuple[Exchange, PreparedQuery]
Outcome: TypeAlias = tuple[Exchange, PreparedQuery | Exception]


class TextQueue:
    """Queries by text, encoded in threads. `put` is for the event loop."""

    def __init__(self, threads: CallThreads, done: Callable[[list[Outcome]], object]) -> None:
        """Start empty.

        Args:
            threads: encode.
            done: called in one of them with each request and its query by vector, or why there is none.

        """
        self._threads, self._done = threads, done
        self._lock = threading.Lock()
        self._waiting: deque[Waiting] = deque()
        self._working = 0

    def put(self, exchange: Exchange, query: PreparedQuery) -> None:
        """Add the query of a request; RuntimeError if no thread can be started and none works."""
        with self._lock:
            self._waiting.append((exchange, query))
            if self._working >= encoder_of(query).at_once:
                return
            self._working += 1
        try:
            self._threads.submit(self._work)
        except RuntimeError:
            with self._lock:
                self._working -= 1
                if not self._working:
                    self._waiting.remove((exchange, query))
                    raise

    def _work(self) -> None:
        while batch := self._taken():
            self._done(_outcomes(batch))

    def _taken(self) -> list[Waiting]:
        """Take the queries of the first one's encoder, up to its limit; none: this thread works no more."""
        taken: list[Waiting] = []
        with self._lock:
            if not self._waiting:
                self._working -= 1
                return taken
            encoder = encoder_of(self._waiting[0][1])
            for _ in range(len(self._waiting)):
                item = self._waiting.popleft()
                if len(taken) < encoder.most_queries and encoder_of(item[1]) is encoder:
                    taken.append(item)
                else:
                    self._waiting.append(item)
        return taken


def _outcomes(batch: list[Waiting]) -> list[Outcome]:
    """Encode the texts of a batch that are still wanted, of one encoder."""
    outcomes: list[Outcome] = []
    pending: list[Waiting] = []
    for exchange, query in batch:
        if not exchange.is_wanted():
            outcomes.append((exchange, CallerGoneError()))
        elif exchange.deadline.remaining_s <= 0:
            outcomes.append(
                (exchange, DeadlineError("the deadline passed while the request waited for its turn"))
            )
        else:
            pending.append((exchange, query))
    if pending:
        outcomes += _encoded(encoder_of(pending[0][1]), pending)
    return outcomes


def _encoded(encoder: QueryEncoder, batch: Sequence[Waiting]) -> list[Outcome]:
    try:
        deadline = max((exchange.deadline for exchange, _ in batch), key=lambda each: each.at_s)
        queries = with_vectors(
            [(exchange.principal.name, query) for exchange, query in batch], encoder, deadline
        )
    except Exception as error:  # noqa: BLE001  the table of statuses has every one
        if len(batch) == 1:
            return [(batch[0][0], error)]
        # One text may be at fault: each one by itself tells which.
        return [outcome for item in batch for outcome in _encoded(encoder, [item])]
    return [(exchange, query) for (exchange, _), query in zip(batch, queries, strict=True)]
