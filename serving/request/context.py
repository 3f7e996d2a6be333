"""Context of hits: the passages around them in their documents, within a budget of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.query import ChosenVectors, VectorChoice, check_within
from scannery.v1 import search_pb2 as pb

__all__ = ["Context", "check_context_passages", "parse_context"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is returned around the hits of a search."""

    passages: int
    """Limit of passages before a hit, and after it."""
    token_budget: int | None
    """Limit of tokens in the contexts of all hits of a query; None: there is none."""
    vectors: VectorChoice | None
    """The vectors whose encoder counts tokens; None: words are counted."""


def parse_context(message: pb.SearchOptions, k: int, vectors: ChosenVectors) -> Context | None:
    """Return the context that a search of `k` hits asks for; None: none. InvalidRequestError names the field."""
    if not message.HasField("context"):
        return None
    settings, token_budget = message.context, None
    if settings.HasField("token_budget"):
        token_budget = check_within("token_budget", settings.token_budget, 1, limits.MAX_TOKEN_BUDGET)
    passages = check_within("context", settings.passages, 0, limits.MAX_CONTEXT)
    context = Context(passages=passages, token_budget=token_budget, vectors=vectors.of_sentences)
    check_context_passages(context, k)
    return context


def check_context_passages(context: Context, hits: int) -> None:
    """Raise InvalidRequestError if the contexts of all hits of a call may have too many passages."""
    passages = hits * (2 * context.passages + 1)
    if passages > limits.MAX_CONTEXT_PASSAGES:
        raise InvalidRequestError.at(
            "context",
            f"{hits} hits with {context.passages} passages on each side make up to {passages} passages, more than "
            f"{limits.MAX_CONTEXT_PASSAGES} in one call",
        )
