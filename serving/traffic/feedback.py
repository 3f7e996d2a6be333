"""Takes feedback on answers: checks the id, and has its events written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from itertools import chain, repeat

from scannery.indexer import Manifest
from scannery.indexer.traffic.keys import client_hash
from scannery.indexer.traffic.rows import CLICK, REJECT, Action, LoggedEvent
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.errors import InvalidRequestError, OverloadedError
from scannery.serving.contract import FEEDBACK
from scannery.serving.request.query import check_count, parse_identifier
from scannery.serving.security.principal import check_method, current_client, current_seen
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.traffic.answer_kernels import MAX_HITS
from scannery.serving.traffic.query_ids import AnsweredQuery, verified_id
from scannery.serving.traffic.traffic_keys import TrafficKeys
from scannery.v1 import search_pb2 as pb

__all__ = ["FeedbackTaker"]

REMEMBERED_BYTES = 8 << 20
"""Memory for the latest events, which are not written twice: some 7,000. Others that come twice are counted once where
they are read."""
EVENT_BYTES = 1000


class FeedbackTaker:
    """The events of one process. Safe to use from several threads."""

    def __init__(
        self,
        keys: TrafficKeys,
        add: Callable[[str, LoggedEvent, int], bool],
        metrics: ServerMetrics,
        manifest_of: Callable[[str], Manifest],
    ) -> None:
        """Take none yet.

        Args:
            keys: have signed the ids.
            add: called with the index, the row, and about its memory; returns whether there is room for it.
            metrics: count events.
            manifest_of: returns the manifest of an index by its name, or raises: the caller may not see it.

        """
        self._keys, self._add, self._metrics, self._manifest_of = keys, add, metrics, manifest_of
        self._taken: BoundedCache[tuple[str, ...], bool] = BoundedCache(REMEMBERED_BYTES)

    def __call__(self, request: pb.FeedbackRequest) -> pb.FeedbackResponse:
        """Have the events of a request written; those of one that fails may be sent again, and count once.

        Raises:
            InvalidRequestError: the id is forged, too old or another caller's, or a hit was not in the answer.
            PermissionDeniedError: the caller may not give feedback on answers of the index.
            UnknownIndexError: the index of the answer is gone, or the caller may not see it.
            OverloadedError: earlier rows wait for the store.

        """
        answered = verified_id(
            request.query_id,
            key_of=self._keys.key_of,
            index_id_of=lambda index: self._manifest_of(index).index_id or "",
            seen_of=current_seen,
        )
        # The request does not name the index, so that the method was checked for none.
        check_method(FEEDBACK, answered.index, narrowed=True)
        events = [each for each in _events(request, answered) if self._taken.find(each.key) is None]
        for event in events:
            if not self._add(answered.index, event, EVENT_BYTES):
                raise OverloadedError("feedback cannot be stored now, since the store does not take it")
            self._count(answered.index, event)
        return pb.FeedbackResponse(events=len(events))

    def _count(self, index: str, event: LoggedEvent) -> None:
        self._keep(event.key)
        self._metrics.feedback.inc((index, event.action_name))
        answer = (event.query_id,)
        if event.action_name == CLICK and self._taken.find(answer) is None:
            self._keep(answer)
            self._metrics.clicked_answers.inc((index,))

    def _keep(self, key: tuple[str, ...]) -> None:
        self._taken.keep(key, True, sum(map(len, key)))


def _events(request: pb.FeedbackRequest, answered: AnsweredQuery) -> list[LoggedEvent]:
    """Return the events of a request, each once; raises InvalidRequestError."""
    for field, ids in (("clicked", request.clicked), ("rejected", request.rejected)):
        if ids:
            check_count(field, len(ids), MAX_HITS)
    if not request.clicked and not request.rejected:
        raise InvalidRequestError.at("clicked", "or `rejected` must have the id of a hit")
    if both := set(request.clicked) & set(request.rejected):
        raise InvalidRequestError.at("rejected", f"{min(both)!r:.100} is in `clicked`, too")
    now = datetime.now(timezone.utc)
    client_id = client_hash(answered.key, current_client(""), now.date())
    actions: chain[tuple[Action, str]] = chain(
        zip(repeat(CLICK), request.clicked), zip(repeat(REJECT), request.rejected)
    )
    events = {}
    for number, (action, text) in enumerate(actions):
        is_click = action == CLICK
        path = f"clicked[{number}]" if is_click else f"rejected[{number - len(request.clicked)}]"
        hit_id = parse_identifier(text, path)
        ordinal = answered.ordinal_of(hit_id)
        if ordinal is None:
            raise InvalidRequestError.at(
                path, f"{hit_id!r:.100} is not among the first {MAX_HITS} hits of the answer"
            )
        event = LoggedEvent(
            query_id=answered.log_id,
            timestamp=now,
            client_id=client_id,
            action_name=action,
            object_id=hit_id,
            ordinal=ordinal,
            version=answered.version,
        )
        events[event.key] = event
    return list(events.values())
