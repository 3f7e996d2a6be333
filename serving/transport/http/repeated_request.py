"""Requests that repeat an earlier one of their connection byte by byte, except for the vector that they ask with.

Requests that repeat an earlier search of their connection, except for the text that they ask with.

The text is between bytes that say how long it is: in the HTTP head, and in the messages around it. These are compared
with its length. Only bodies as every library of Protocol Buffers writes them are remembered, and texts up to 125 bytes.

Texts of searches that wait to be encoded, all that came meanwhile together.

The event loop puts them in, and gets them back with their vectors. A thread for each request would have to be woken
twice, and would take the interpreter from the others as often; here a thread is woken for a batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from scannery.runtime.errors import DeadlineError
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.engine.search import PreparedQuery
from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.scheduling.coalescer import CallThreads
from scannery.serving.scheduling.permits import CallerGoneError
from scannery.serving.services.search import encoder_of, with_vectors
from scannery.serving.transport.http.head import Exchange, Head
from scannery.v1.search_pb2 import Query, SearchRequest

__all__ = ["TextQueue", "repeated_request", "repeated_text"]


_END = b"\r\n\r\n"
MAX_BYTES = 1 << 16
"""Longest request that a connection remembers."""
MAX_KEPT_BYTES = 1 << 13
"""Most bytes of it besides the vector, which are kept: a server has many connections."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedRequest:
    """A request that was answered, to compare others with."""

    head: Head
    template: SearchTemplate
    before: bytes
    """All bytes before the vector: the HTTP head and the first part of the body."""
    after: bytes
    """All bytes after the vector."""
    size: int
    """Size of the whole request."""
    body: int
    """Offset of its body."""

    def fits(self, data: bytes) -> bool:
        """Return whether some bytes are the same request, with any vector."""
        return len(data) == self.size and data.startswith(self.before) and data.endswith(self.after)

    def body_of(self, data: bytes) -> int:
        """Return the offset of the body of a request that fits."""
        return self.body

    def asked_of(self, data: bytes) -> np.ndarray:
        """Return the vector of a request that fits, float32 (1, D), read-only."""
        return self.template.vector_of(data, self.body)


def repeated_request(
    head: Head, template: SearchTemplate, data: bytes, body: bytes
) -> RepeatedRequest | None:
    """Return what requests like this one are compared with; None if they have to be parsed.

    Args:
        head: of the request.
        template: of its body.
        data: bytes that were read at once, and begin with a request; empty: it was read in parts.
        body: the last one that was parsed from them.

    """
    start = len(data) - len(body)
    # One whole request and nothing else: the only end of a head is the one in front of the body.
    whole = len(data) <= MAX_BYTES and data.endswith(body) and data.find(_END, 0, start) == start - len(_END)
    if not whole or head.expects_continue:
        return None
    first, last = start + template.start, start + template.stop
    if len(data) - (last - first) > MAX_KEPT_BYTES:
        return None
    return RepeatedRequest(head, template, data[:first], data[last:], len(data), start)


_LENGTH = b"content-length: "
"""Most bytes of a request besides the text, which are kept: a server has many connections."""

_QUERY = SearchRequest.QUERY_FIELD_NUMBER << 3 | 2
_TEXT = Query.TEXT_FIELD_NUMBER << 3 | 2
"""First bytes of the two fields around a text; a length of less than 128 follows each in one byte."""
_AROUND = 4
MOST_FIELD = 129
"""Bytes of the longest field with a query whose length is one byte."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedText:
    """A search by text that was answered, to compare others with."""

    head: Head
    template: SearchTemplate
    before: bytes
    """The HTTP head up to the length of the body, with which the head ends."""
    fields: bytes
    """The fields of the body in front of the query."""
    after: bytes
    """Those behind it."""

    def fits(self, data: bytes) -> bool:
        """Return whether some bytes are the same request, with any text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return False
        start = self.body_of(data)
        length = data[len(self.before) : start - len(_END)]
        if not length.isdigit() or len(length) > 4 or int(length) != len(data) - start:
            return False
        first = start + len(self.fields)
        size = len(data) - len(self.after) - first
        return (
            _AROUND < size <= MOST_FIELD
            and data.startswith(self.fields, start)
            and data[first : first + _AROUND] == bytes((_QUERY, size - 2, _TEXT, size - _AROUND))
        )

    def body_of(self, data: bytes) -> int:
        """Return the offset of the body of a request."""
        return data.find(_END, len(self.before)) + len(_END)

    def asked_of(self, data: bytes) -> str:
        """Return the text of a request that fits; UnicodeDecodeError if it is none."""
        start = self.body_of(data) + len(self.fields) + _AROUND
        return data[start : len(data) - len(self.after)].decode()


def repeated_text(head: Head, asked: SearchRequest, data: bytes, body: bytes) -> RepeatedText | None:
    """Return what requests like this one are compared with; None if they have to be parsed.

    Args:
        head: of the request.
        asked: a search by text, as it was sent.
        data: bytes that were read at once, and begin with a request; empty: it was read in parts.
        body: the last one that was parsed from them.

    """
    start = len(data) - len(body)
    length = b"%d" % len(body)
    before = data[: start - len(_END) - len(length)]
    whole = data.endswith(body) and data[:start] == before + length + _END and before.endswith(_LENGTH)
    if not whole or data.find(_END, 0, start) != start - len(_END) or head.expects_continue:
        return None
    fields = SearchRequest(index=asked.index).SerializeToString()
    after = SearchRequest(options=asked.options).SerializeToString() if asked.HasField("options") else b""
    text = asked.query.text.encode()
    around = bytes((_QUERY, len(text) + 2, _TEXT, len(text))) if len(text) + _AROUND <= MOST_FIELD else b""
    if not around or body != fields + around + text + after or len(before) + len(body) > MAX_KEPT_BYTES:
        return None
    options = asked.options
    template = SearchTemplate(asked.index, options.SerializeToString(), options.min_sequence)
    return RepeatedText(head, template, before, fields, after)


Asked: TypeAlias = tuple[Exchange, PreparedQuery]
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
        self._waiting: deque[Asked] = deque()
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

    def _taken(self) -> list[Asked]:
        """Take the queries of the first one's encoder, up to its limit; none: this thread works no more."""
        taken: list[Asked] = []
        with self._lock:
            if not self._waiting:
                self._working -= 1
                return taken
            encoder = encoder_of(self._waiting[0][1])
            for _ in range(len(self._waiting)):
                asked = self._waiting.popleft()
                if len(taken) < encoder.most_queries and encoder_of(asked[1]) is encoder:
                    taken.append(asked)
                else:
                    self._waiting.append(asked)
        return taken


def _outcomes(batch: list[Asked]) -> list[Outcome]:
    """Encode the texts of a batch that are still wanted, of one encoder."""
    found: list[Outcome] = []
    wanted: list[Asked] = []
    for exchange, query in batch:
        if not exchange.is_wanted():
            found.append((exchange, CallerGoneError()))
        elif exchange.deadline.remaining_s <= 0:
            found.append(
                (exchange, DeadlineError("the deadline passed while the request waited for its turn"))
            )
        else:
            wanted.append((exchange, query))
    if wanted:
        found += _encoded(encoder_of(wanted[0][1]), wanted)
    return found


def _encoded(encoder: QueryEncoder, batch: Sequence[Asked]) -> list[Outcome]:
    try:
        deadline = max((exchange.deadline for exchange, _ in batch), key=lambda each: each.at_s)
        queries = with_vectors(
            [(exchange.principal.name, query) for exchange, query in batch], encoder, deadline
        )
    except Exception as error:  # noqa: BLE001  the table of statuses has every one
        if len(batch) == 1:
            return [(batch[0][0], error)]
        # One text may be at fault: each one by itself tells which.
        return [outcome for asked in batch for outcome in _encoded(encoder, [asked])]
    return [(exchange, query) for (exchange, _), query in zip(batch, queries, strict=True)]
