"""What happens to an answered search where the log of queries is on: its answer gets an id, and a share is logged.

Nothing here fails a search, or waits: what goes wrong is logged, counted, and leaves the answer as it is.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from google.protobuf.json_format import MessageToDict

from scannery.indexer import Manifest
from scannery.indexer.traffic.keys import TrafficKey, client_hash, text_asker
from scannery.indexer.traffic.rows import LoggedQuery, ShadowAnswer
from scannery.serving import limits
from scannery.serving.config import TrafficConfig
from scannery.serving.observation.query_sample import SearchMessage, queries_of
from scannery.serving.request.modes import WIRE_MODES, Mode
from scannery.serving.request.query import vector_components
from scannery.serving.security.access import Access
from scannery.serving.security.principal import current_access, current_client, current_seen
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic.answer_kernels import MAX_HITS, IdentifiedAnswer, identified, list_bounds
from scannery.serving.traffic.masking import logged_text, masked_values
from scannery.serving.traffic.query_ids import name_of_part
from scannery.serving.traffic.traffic_keys import TrafficKeys
from scannery.serving.traffic.writer import ROW_BYTES
from scannery.v1 import search_pb2 as pb

__all__ = ["LoggedSearch", "TrafficRecorder"]

_LOG = logging.getLogger(__name__)

MAX_OPTIONS_BYTES = 4096
"""Longer options are not logged: a filter may be megabytes."""
_MODES: dict[int, Mode] = {number: mode for mode, number in WIRE_MODES.items()}


class _Answered(NamedTuple):
    """A query with its answer."""

    query: pb.Query
    answer: bytes
    """A serialised SearchResponse, or HitList."""
    version: int
    mode: int
    query_id: str
    took_s: float
    facts: Mapping[str, object] = MappingProxyType({})
    """Further attributes of the query."""


class LoggedSearch(NamedTuple):
    """A logged query, so that another index can be asked it, too."""

    key: TrafficKey
    client: str
    at: datetime
    request: SearchMessage
    query: pb.Query
    query_id: str
    vector_D: np.ndarray | None
    access: Access | None
    """What the caller sees of the index; None: all of it."""


class TrafficRecorder:
    """The recorder of one process. Safe to use from several threads."""

    def __init__(
        self,
        keys: TrafficKeys,
        add: Callable[[str, Callable[[], LoggedQuery], int], bool],
        config: TrafficConfig,
        metrics: ServerMetrics,
        *,
        manifest_of: Callable[[str], Manifest],
        known_vector: Callable[[str, str], np.ndarray | None],
        shadowed: Callable[[LoggedSearch], object] = lambda search: None,
        random: Callable[[], float] = random.random,
    ) -> None:
        """Record nothing yet.

        Args:
            keys: sign ids.
            add: called with the index, a function that makes a row of the log, and the memory that this holds.
            config: the options.
            metrics: count answers.
            manifest_of: returns the manifest of an index by its name.
            known_vector: returns the vector of a text for an index if it is cached, None otherwise.
            shadowed: called with each logged query that one index alone has answered.
            random: returns a number from 0 to 1, without 1.

        """
        self._shadowed = shadowed
        self._keys, self._add, self._config, self._metrics = keys, add, config, metrics
        self._manifest_of, self._known_vector, self._random = manifest_of, known_vector, random

    def ids_of(
        self, index: str, request_of: Callable[[], SearchMessage], answer: bytes, took_s: float, *, many: bool
    ) -> bytes:
        """Return what makes ids part of an answer, to be put behind it, and log some queries; empty: no ids now.

        Args:
            index: name of the index.
            request_of: returns the search with the name of the index in place of its alias; called if it is logged.
            answer: a serialised SearchResponse, or SearchManyResponse.
            took_s: seconds from the body of the request to the answer.
            many: whether it is the latter.

        """
        key = self._keys.newest
        if key is None:
            return b""
        try:
            index_id = self._manifest_of(index).index_id or ""
            name = name_of_part(index, current_seen(index))
            if many:
                return self._many(key, index, name, index_id, request_of, answer, took_s)
            identified_answer = identified(answer, key, name, index_id, _now_ms())
            teams = self._teams_of(index, answer)
            self._count(index, identified_answer.mode, identified_answer, interleaved=bool(teams))
            if teams or self._random() < self._config.share:
                facts, request = identified_answer, request_of()
                query = queries_of(request)(0)
                answered = _Answered(query, answer, facts.version, facts.mode, facts.query_id, took_s, teams)
                self._log(key, request, answered)
        except Exception:  # noqa: BLE001  the search was answered, whatever becomes of the log
            _LOG.warning("index %s: an answer gets no id", index, exc_info=True)
            self._metrics.background_failures.inc(("traffic",))
            return b""
        return identified_answer.field

    def _many(
        self,
        key: TrafficKey,
        index: str,
        name: str,
        index_id: str,
        request_of: Callable[[], SearchMessage],
        answer: bytes,
        took_s: float,
    ) -> bytes:
        bounds = list_bounds(answer, limits.MAX_QUERIES).tolist()
        tail = pb.SearchManyResponse.FromString(answer[bounds.pop()[1] :])
        query_of, fields = None, []
        for number, (start, end) in enumerate(bounds):
            data, mode = answer[start:end], tail.modes[number % len(tail.modes)]
            each = identified(data, key, name, index_id, _now_ms(), version=tail.version)
            fields.append(each.field)
            self._count(index, mode, each)
            if self._random() < self._config.share:
                if query_of is None:
                    request = request_of()
                    query_of = queries_of(request)
                answered = _Answered(query_of(number), data, tail.version, mode, each.query_id, took_s)
                self._log(key, request, answered)
        return b"".join(fields)

    def _teams_of(self, index: str, answer: bytes) -> Mapping[str, object]:
        """Return who has drawn the hits of an interleaved answer; nothing of another one."""
        shadow = self._config.shadows.get(index) if self._config.interleave else None
        teams = "" if shadow is None else pb.SearchResponse.FromString(answer).teams
        return {"shadow": shadow, "teams": teams} if teams else {}

    def _count(self, index: str, mode: int, answer: IdentifiedAnswer, *, interleaved: bool = False) -> None:
        self._metrics.identified_answers.inc((index,))
        if answer.hits and not interleaved:  # whose first hit may have a score of the other index
            self._metrics.answer_scores.observe(answer.score, (index, _MODES[mode]))

    def _log(self, key: TrafficKey, request: SearchMessage, answered: _Answered) -> None:
        """Have a query written, whose row is made later: that takes longer than a quick search."""
        client = current_client(request.client_id if self._config.client_ids else "")
        # The cache of texts is that of the caller.
        vector_D = self._vector(request.index, answered.query) if self._config.vectors else None
        now = datetime.now(timezone.utc)
        access = current_access(request.index)
        search = LoggedSearch(key, client, now, request, answered.query, answered.query_id, vector_D, access)
        self._add_row(search, answered)
        if not answered.facts:
            self._shadowed(search)

    def log_shadow(
        self, index: str, search: LoggedSearch, answer: bytes, took_s: float, problem: str
    ) -> None:
        """Have it written how another index has answered a logged query, under the same id.

        Args:
            index: that has answered it, too.
            search: the query.
            answer: a serialised SearchResponse; empty: there is none.
            took_s: seconds from the query to the answer.
            problem: code of the error in place of an answer; empty: there is one.

        """
        facts = {"shadow": index} | ({"error": problem} if problem else {})
        response = pb.SearchResponse.FromString(answer)
        answered = _Answered(
            search.query, answer, response.version, response.mode, search.query_id, took_s, facts
        )
        self._add_row(search, answered, ShadowAnswer)

    def _add_row(
        self, search: LoggedSearch, answered: _Answered, kind: type[LoggedQuery] = LoggedQuery
    ) -> None:
        row_of = partial(
            self._row, search.key, search.client, search.at, search.request, answered, search.vector_D, kind
        )
        size_bytes = ROW_BYTES + len(answered.answer) + search.request.options.ByteSize()
        self._add(search.request.index, row_of, size_bytes + answered.query.ByteSize())

    def _row(
        self,
        key: TrafficKey,
        client: str,
        now: datetime,
        request: SearchMessage,
        answered: _Answered,
        vector_D: np.ndarray | None,
        kind: type[LoggedQuery],
    ) -> LoggedQuery:
        config, query = self._config, answered.query
        # The hits of both messages are one field.
        hits = pb.SearchResponse.FromString(answered.answer).hits[:MAX_HITS]
        attributes = dict[str, object]()
        text = logged_text(query.text or query.words) if config.text else ""
        if config.text and request.options.ByteSize() <= MAX_OPTIONS_BYTES:
            attributes |= masked_values(MessageToDict(request.options, preserving_proto_field_name=True))
        # The mode of the answer: that of the options may leave it to the server.
        attributes |= {"version": answered.version, "mode": _MODES.get(answered.mode, "")}
        attributes |= {**_page_of(request.options), **answered.facts}
        return kind(
            query_id=answered.query_id.partition(".")[0],
            timestamp=now,
            client_id=client_hash(key, client, now.date()),
            asker=text_asker(key, client, text) if text else None,
            user_query=text or None,
            query_response_hit_ids=[hit.datapoint.id for hit in hits],
            scores=[hit.score for hit in hits],
            query_attributes=json.dumps(attributes, ensure_ascii=False),
            vector=None if vector_D is None else vector_D.tolist(),
            latency_us=round(answered.took_s * 1e6),
        )

    def _vector(self, index: str, query: pb.Query) -> np.ndarray | None:
        """Return the vector of a query by vector or text, float32 (D,); None: it is not at hand."""
        kind = query.WhichOneof("kind")
        if kind == "vector":
            return vector_components(query.vector, "vector")
        return self._known_vector(index, query.text) if kind == "text" else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _page_of(options: pb.SearchOptions) -> dict[str, object]:
    return {"k": options.k if options.HasField("k") else limits.DEFAULT_K, "offset": options.offset}
