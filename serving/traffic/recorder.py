"""What happens to an answered search where the log of queries is on: its answer gets an id, and a share is logged.

Nothing here fails a search, or waits: what goes wrong is logged, counted, and leaves the answer as it is.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TypeAlias

import numpy as np
from google.protobuf.json_format import MessageToDict

from scannery.indexer import Manifest
from scannery.indexer.traffic.keys import TrafficKey, client_hash, text_asker
from scannery.indexer.traffic.rows import LoggedQuery
from scannery.serving import limits
from scannery.serving.config import TrafficConfig
from scannery.serving.observation.query_sample import SearchMessage, queries_of
from scannery.serving.request.modes import WIRE_MODES
from scannery.serving.request.query import vector_components
from scannery.serving.security.principal import CURRENT
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic.masking import logged_text, masked_values
from scannery.serving.traffic.query_ids import MAX_HITS, issued_id
from scannery.serving.traffic.traffic_keys import TrafficKeys
from scannery.v1 import search_pb2 as pb

__all__ = ["SearchAnswer", "TrafficRecorder", "client_of", "with_ids"]

_LOG = logging.getLogger(__name__)

SearchAnswer: TypeAlias = pb.SearchResponse | pb.SearchManyResponse

MAX_OPTIONS_BYTES = 4096
"""Longer options are not logged: a filter may be megabytes."""
ROW_BYTES = 1000
"""Memory of a row without what has a length."""
_MODES = {number: mode for mode, number in WIRE_MODES.items()}


class TrafficRecorder:
    """The recorder of one process. Safe to use from several threads."""

    def __init__(
        self,
        keys: TrafficKeys,
        add: Callable[[str, LoggedQuery, int], bool],
        config: TrafficConfig,
        metrics: ServerMetrics,
        *,
        manifest_of: Callable[[str], Manifest],
        known_vector: Callable[[str, str], np.ndarray | None],
        random: Callable[[], float] = random.random,
    ) -> None:
        """Record nothing yet.

        Args:
            keys: sign ids.
            add: called with the index, a row of the log, and about its memory.
            config: the options.
            metrics: count answers.
            manifest_of: returns the manifest of an index by its name.
            known_vector: returns the vector of a text for an index if it is cached, None otherwise.
            random: returns a number from 0 to 1, without 1.

        """
        self._keys, self._add, self._config, self._metrics = keys, add, config, metrics
        self._manifest_of, self._known_vector, self._random = manifest_of, known_vector, random

    def query_ids(self, request: SearchMessage, answer: SearchAnswer, took_s: float) -> list[str]:
        """Return an id for the answer to each query, and log some of them; empty: there are no ids now.

        Args:
            request: with the name of the index in place of its alias.
            answer: to it.
            took_s: seconds from the body of the request to the answer.

        """
        try:
            return self._recorded(request, answer, took_s)
        except Exception:  # noqa: BLE001  the search was answered, whatever becomes of the log
            _LOG.warning("index %s: an answer gets no id", request.index, exc_info=True)
            self._metrics.background_failures.inc(("traffic",))
            return []

    def _recorded(self, request: SearchMessage, answer: SearchAnswer, took_s: float) -> list[str]:
        key, index = self._keys.newest, request.index
        if key is None:
            return []
        index_id = self._manifest_of(index).index_id or ""
        results: Sequence[pb.SearchResponse | pb.HitList]
        results = [answer] if isinstance(answer, pb.SearchResponse) else answer.results
        modes = _modes_of(answer)
        query = queries_of(request)
        ids = []
        for number, result in enumerate(results):
            hit_ids = [hit.datapoint.id for hit in result.hits[:MAX_HITS]]
            query_id = issued_id(key, index, index_id, answer.version, hit_ids)
            ids.append(query_id)
            mode = _MODES[modes[number % len(modes)]]
            if hit_ids:
                self._metrics.answer_scores.observe(result.hits[0].score, (index, mode))
            if self._random() < self._config.share:
                scores = [hit.score for hit in result.hits[:MAX_HITS]]
                attributes = {"version": answer.version, "mode": mode} | _page_of(request.options)
                row = self._row(key, query_id, request, query(number), hit_ids, scores, attributes, took_s)
                self._add(index, row, _size_of(row))
        self._metrics.identified_answers.inc((index,), len(ids))
        return ids

    def _row(
        self,
        key: TrafficKey,
        query_id: str,
        request: SearchMessage,
        query: pb.Query,
        hit_ids: list[str],
        scores: list[float],
        attributes: dict[str, object],
        took_s: float,
    ) -> LoggedQuery:
        config, now = self._config, datetime.now(timezone.utc)
        client = client_of(request.client_id if config.client_ids else "")
        text = logged_text(query.text or query.words) if config.text else ""
        if config.text and request.options.ByteSize() <= MAX_OPTIONS_BYTES:
            attributes |= masked_values(MessageToDict(request.options, preserving_proto_field_name=True))
        return LoggedQuery(
            query_id=query_id.partition(".")[0],
            timestamp=now,
            client_id=client_hash(key, client, now.date()),
            asker=text_asker(key, client, text) if text else None,
            user_query=text or None,
            query_response_hit_ids=hit_ids,
            scores=scores,
            query_attributes=json.dumps(attributes, ensure_ascii=False),
            vector=self._vector(request.index, query) if config.vectors else None,
            latency_us=round(took_s * 1e6),
        )

    def _vector(self, index: str, query: pb.Query) -> list[float] | None:
        """Return the vector of a query by vector or text; None: it is not at hand."""
        kind = query.WhichOneof("kind")
        vector_D = vector_components(query.vector, "vector") if kind == "vector" else None
        if kind == "text":
            vector_D = self._known_vector(index, query.text)
        return None if vector_D is None else [float(component) for component in vector_D]


def client_of(client_id: str) -> str:
    """Return who asks: the caller of the current request, and whom it asks for."""
    principal = CURRENT.get()
    account = principal.account if principal is not None else ""
    return f"{account}\0{client_id}" if client_id else account


def with_ids(answer: SearchAnswer, ids: Sequence[str]) -> bytes:
    """Return what makes the ids part of a serialised answer, to be put behind it."""
    if not ids:
        return b""
    if isinstance(answer, pb.SearchResponse):
        return pb.SearchResponse(query_id=ids[0]).SerializeToString()
    return pb.SearchManyResponse(query_ids=ids).SerializeToString()


def _modes_of(answer: SearchAnswer) -> Sequence[pb.Mode.ValueType]:
    """Return the mode of each query, or a single one of all."""
    return [answer.mode] if isinstance(answer, pb.SearchResponse) else answer.modes


def _page_of(options: pb.SearchOptions) -> dict[str, object]:
    return {"k": options.k if options.HasField("k") else limits.DEFAULT_K, "offset": options.offset}


def _size_of(row: LoggedQuery) -> int:
    """Return about how much memory a row takes."""
    texts = sum(map(len, row.query_response_hit_ids)) + len(row.user_query or "") + len(row.query_attributes)
    numbers = len(row.scores) + len(row.vector or ())
    return ROW_BYTES + texts + 64 * len(row.query_response_hit_ids) + 32 * numbers
