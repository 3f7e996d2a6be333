"""The call that says which hits of an answer helped."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Call, Method, identifiers
from scannery.client.request.values import Identifier, refuses_surrogates
from scannery.v1 import search_pb2

__all__ = ["feedback"]

FEEDBACK = Method(
    "/scannery.v1.SearchService/Feedback", search_pb2.FeedbackRequest, search_pb2.FeedbackResponse
)


@refuses_surrogates
def feedback(
    query_id: str,
    clicked: Sequence[Identifier],
    rejected: Sequence[Identifier],
    *,
    timeout_s: float | None = None,
) -> Call[search_pb2.FeedbackRequest, search_pb2.FeedbackResponse, int]:
    """Return the call; it returns the number of events that are new."""
    if not query_id:
        raise InvalidArgumentError(
            "query_id: must be `hits.query_id` of an answer, which is empty where the operator has not turned feedback "
            "on",
            field="query_id",
        )
    request = search_pb2.FeedbackRequest(
        query_id=query_id,
        clicked=identifiers(clicked, "clicked"),
        rejected=identifiers(rejected, "rejected"),
    )
    return Call(FEEDBACK, request, lambda answer: answer.events, timeout_s)
