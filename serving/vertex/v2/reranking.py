"""Reranking of combined results by the server's cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.query import check_text
from scannery.serving.vertex.shared.calls import Call
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v2.collections import Collection
from scannery.serving.vertex.v2.data_objects.messages import StoredObject
from scannery.serving.vertex.v2.templates import TextTemplate
from scannery.vertex.v2 import search_pb2 as pb

__all__ = ["Ranked", "checked_ranker", "reranked"]

MAX_RANKED = 1000
BATCH_TEXTS = 16
"""Scored between two checks of the deadline."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """What is reranked, and by which texts. Immutable."""

    query: str
    title: TextTemplate | None
    content: TextTemplate | None
    most: int
    """Data objects to rerank."""


def checked_ranker(ranker: pb.VertexRanker, path: str) -> Ranked:
    """Return what a request asks for; InvalidRequestError names the field below `path` that is wrong."""
    place = f"{path}.vertex_ranker"
    spec = ranker.text_record_spec
    check_text(spec.query, f"{place}.text_record_spec.query")
    if not (spec.title_template or spec.content_template):
        raise InvalidRequestError.at(
            f"{place}.text_record_spec", "must have a title_template or a content_template"
        )
    if not 0 <= ranker.top_n <= MAX_RANKED:
        raise InvalidRequestError.at(f"{place}.top_n", f"must be 0 to {MAX_RANKED}, got {ranker.top_n}")
    front = f"{place}.text_record_spec"
    return Ranked(
        spec.query,
        TextTemplate(spec.title_template, f"{front}.title_template") if spec.title_template else None,
        TextTemplate(spec.content_template, f"{front}.content_template") if spec.content_template else None,
        ranker.top_n or MAX_RANKED,
    )


def reranked(
    facade: Facade, collection: Collection, ranked: Ranked, stored: Sequence[StoredObject], call: Call
) -> dict[str, float]:
    """Return the scores of the first data objects by id, best first; others are left out.

    Raises:
        RerankerUnavailableError: the server has no reranker.
        DeadlineError: the deadline passed.

    """
    manifest = facade.catalog.manifest(collection.index)
    reranker = facade.catalog.encoders.rerankers.reranker_of(manifest)
    chosen = stored[: ranked.most]
    texts = [_text(each, ranked) for each in chosen]
    scores: list[float] = []
    for start in range(0, len(texts), BATCH_TEXTS):
        call.deadline.check()
        scores += reranker.scores(ranked.query, texts[start : start + BATCH_TEXTS]).tolist()
    order = sorted(range(len(chosen)), key=lambda number: (-scores[number], number))
    return {chosen[number].id: scores[number] for number in order}


def _text(stored: StoredObject, ranked: Ranked) -> str:
    parts = (
        template.render(stored.data) for template in (ranked.title, ranked.content) if template is not None
    )
    return "\n".join(part for part in parts if part)
