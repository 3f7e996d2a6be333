"""Why a datapoint is at its rank for a query, or is no hit of it, and the same as a text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from scannery.client.response.decoding import parse_explanation, parse_hit, parse_value
from scannery.client.response.results import AttributeValue, Explanation, Hit
from scannery.v1 import search_pb2
from scannery.v1.types_pb2 import Condition, Operator

__all__ = [
    "ConditionMatch",
    "DenseRank",
    "KeptOutBy",
    "LexicalRank",
    "RankExplanation",
    "ScoreRank",
    "WordScore",
    "parse_explain",
]

KeptOutBy: TypeAlias = Literal[
    "nothing",
    "absent",
    "filter",
    "no_vector",
    "no_word",
    "query",
    "min_score",
    "min_relevance",
    "crowded",
    "not_a_candidate",
    "diversity",
    "k",
    "offset",
]
"""The first step of a search that a datapoint does not pass; `nothing`: it is a hit."""

MAX_VALUE_CHARACTERS = 200
"""Most characters of a condition, or of a value, in the text of an explanation."""

_REASONS: dict[KeptOutBy, str] = {
    "nothing": "it is a hit",
    "absent": "no datapoint has this id",
    "filter": "the filter does not allow it",
    "no_vector": "it has none of the vectors that are searched",
    "no_word": "it has no word of the query",
    "query": "the query names it, and is no hit of itself",
    "min_score": "its score is below min_score",
    "min_relevance": "its relevance is below min_relevance",
    "crowded": "better hits fill its group",
    "not_a_candidate": "the approximate search did not propose it",
    "diversity": "it is like a hit before it",
    "k": "better hits come before it",
    "offset": "it is on an earlier page",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionMatch:
    """A condition of the filter, and the datapoint."""

    condition: dict[str, Any]
    """Condition as `where` has it: `{"year": {"$gte": 2020}}`."""
    negated: bool
    """Whether it stands under an odd number of negations: a datapoint that matches is not allowed by it."""
    matches: bool
    """Whether the datapoint matches the condition by itself."""
    value: AttributeValue
    """Value of the datapoint; None: it has none, or the condition is on the words of its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRank:
    """A score, and the rank by it."""

    score: float
    rank: int | None
    """Rank from 1 among all datapoints that the filter allows; None: it is not among the best 100,000."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseRank:
    """The place of the datapoint by one vector."""

    exact: ScoreRank | None
    """Place by an exact comparison; None: the datapoint or the query does not have the vector."""
    candidate_rank: int | None
    """Rank among the candidates that the search took by this vector; None: it was none of them."""
    candidates: int
    """Number of these candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WordScore:
    """A word of the query, and what it adds to the score by words."""

    term: str
    """Term as the index has it, or a pattern: `volc*`, `artifci~2`, `a|b`."""
    expands: str | None
    """Word of the query that it stands for (a typing error, a beginning, a synonym); None: it is its own."""
    idf: float
    """Inverse document frequency: higher is rarer."""
    datapoints: int
    """Datapoints that have it."""
    frequency: int
    """Times that the datapoint has it; 0 with a contribution: other passages of its document have it."""
    contribution: float
    """Part of the BM25 score, which is the sum over all words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalRank:
    """The place of the datapoint by words."""

    by_words: ScoreRank | None
    """Place by BM25, or by sparse vector; None: it has no word of the query."""
    words: tuple[WordScore, ...]
    """Words of the query, those that add most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExplanation:
    """Why a datapoint is at its rank for a query, or is no hit. `str` of it is a text for people."""

    id: str
    kept_out_by: KeptOutBy
    """The step that keeps it out of the hits; what later steps would tell is None or empty."""
    remedy: str
    """Change that would make it a hit: `k = 37`; empty if it is one."""
    rank: int | None
    """Rank from 1 among all hits, were `k` large enough; None: an earlier step keeps it out."""
    hit: Hit | None
    """The datapoint with the scores that a search returns; None: there is none with the id."""
    conditions: tuple[ConditionMatch, ...]
    """Conditions of `where`, and of phrases in quotes, in their order."""
    allowed: bool
    """Whether the filter allows it."""
    dense: dict[str, DenseRank]
    """Places by name of the vector; "" is the unnamed one."""
    lexical: LexicalRank | None
    """Place by words, in modes lexical and hybrid."""
    fused: ScoreRank | None
    """Place by the fused score, before a learned ranker or `ranking`."""
    crowded_by: tuple[str, ...]
    """Ids of the better hits that fill its group."""
    max_per_group: int | None
    """Limit of its group, which they reach."""
    group_by: str | None
    """Attribute of that limit."""
    search: Explanation = field(compare=False, repr=False)
    """Explanation of the search itself; its times are no part of the comparison of two objects."""
    version: int
    """Version of the index."""
    sequence: int
    """Mutations up to this sequence were visible."""

    @property
    def is_hit(self) -> bool:
        """Whether it is among the hits."""
        return self.kept_out_by == "nothing"

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def parse_explain(identifier: str, response: search_pb2.ExplainResponse) -> RankExplanation:
    """Return what a response says about the datapoint of an id."""
    crowding = response.crowding if response.HasField("crowding") else None
    return RankExplanation(
        id=identifier,
        kept_out_by=_KEPT_OUT_BY[response.kept_out_by],
        remedy=response.remedy,
        rank=response.rank if response.HasField("rank") else None,
        hit=parse_hit(response.hit) if response.HasField("hit") else None,
        conditions=tuple(
            ConditionMatch(
                condition=_condition(each.condition),
                negated=each.negated,
                matches=each.matches,
                value=_value(each),
            )
            for each in response.conditions
        ),
        allowed=response.allowed,
        dense={
            each.vectors: DenseRank(
                exact=_score_rank(each.exact) if each.HasField("exact") else None,
                candidate_rank=each.candidate_rank if each.HasField("candidate_rank") else None,
                candidates=each.candidates,
            )
            for each in response.dense
        },
        lexical=_lexical(response.lexical) if response.HasField("lexical") else None,
        fused=_score_rank(response.fused) if response.HasField("fused") else None,
        crowded_by=tuple(response.crowded_by),
        max_per_group=None if crowding is None else crowding.max_per_group,
        group_by=None if crowding is None else crowding.group_by,
        search=parse_explanation(response.search),
        version=response.version,
        sequence=response.sequence,
    )


_KEPT_OUT_BY: dict[int, KeptOutBy] = {
    search_pb2.KeptOutBy.Value(f"KEPT_OUT_BY_{step.upper()}"): step for step in get_args(KeptOutBy)
}


def _condition(message: Condition) -> dict[str, Any]:
    operator = f"${Operator.Name(message.operator).removeprefix('OPERATOR_').lower()}"
    values = [parse_value(each) for each in message.values]
    return {message.field: {operator: values[0] if len(values) == 1 else values}}


def _value(message: search_pb2.ConditionMatch) -> AttributeValue:
    if message.value.WhichOneof("kind") == "json_value":
        value: AttributeValue = json.loads(message.value.json_value)
        return value
    return parse_value(message.value)


def _score_rank(message: search_pb2.ScoreRank) -> ScoreRank:
    return ScoreRank(score=message.score, rank=message.rank if message.HasField("rank") else None)


def _lexical(message: search_pb2.LexicalRank) -> LexicalRank:
    return LexicalRank(
        by_words=_score_rank(message.by_words) if message.HasField("by_words") else None,
        words=tuple(
            WordScore(
                term=each.term,
                expands=each.expands or None,
                idf=each.idf,
                datapoints=each.datapoints,
                frequency=each.frequency,
                contribution=each.contribution,
            )
            for each in message.words
        ),
    )


def _lines(report: RankExplanation) -> Iterator[str]:
    rank = "" if report.rank is None else f", rank {report.rank:,}"
    yield f"{report.id}: {'a hit' if report.is_hit else 'no hit'}{rank}"
    for each in report.conditions:
        sign = "✓" if each.matches != each.negated else "✗"
        negation = "not " if each.negated else ""
        yield f"  {sign} {negation}{_json(each.condition)}: it has {_json(each.value)}"
    for name, dense in report.dense.items():
        of_name = f" by {name}" if name else ""
        if dense.exact is None:
            yield f"  – dense{of_name}: no vector"
            continue
        taken = (
            f"candidate {dense.candidate_rank:,} of {dense.candidates:,}"
            if dense.candidate_rank is not None
            else f"not among the {dense.candidates:,} candidates"
        )
        yield f"  dense{of_name}: {_placed(dense.exact)}, {taken}"
    if report.lexical is not None:
        yield f"  lexical: {_placed(report.lexical.by_words)}"
        for word in report.lexical.words:
            expands = f" for {word.expands}" if word.expands else ""
            if not word.datapoints:
                yield f"    {word.contribution:8.4f}  {word.term}: no datapoint has it"
                continue
            yield (
                f"    {word.contribution:8.4f}  {word.term}{expands}: {word.frequency} times here, idf "
                f"{word.idf:.3f}, in {word.datapoints:,} datapoints"
            )
    if report.fused is not None:
        fusion, alpha = report.search.fusion, report.search.alpha
        weight = "" if alpha is None else f" with alpha {alpha:g}"
        yield f"  fused: {_placed(report.fused)}, by {fusion}{weight}"
    yield from _hit_lines(report)
    if report.crowded_by:
        yield f"  group by {report.group_by}, at most {report.max_per_group} hits: {', '.join(report.crowded_by)}"
    if not report.is_hit:
        yield f"  ✗ {_REASONS[report.kept_out_by]}"
        yield f"  remedy: {report.remedy}"


def _json(value: object) -> str:
    """Return the beginning of a value as JSON."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE_CHARACTERS else f"{text[:MAX_VALUE_CHARACTERS]}…"


def _hit_lines(report: RankExplanation) -> Iterator[str]:
    hit, ranker = report.hit, report.search.ranker
    if hit is None:
        return
    if ranker is not None:
        yield f"  ranker {ranker.model}: {hit.score:.4f}"
        for name, weight in ranker.weights.items():
            if name in hit.features:
                yield f"    {weight * hit.features[name]:+8.4f}  {weight:+.3f} × {name} {hit.features[name]:.4f}"
    if hit.base_score is not None and report.search.ranking is not None:
        yield f"  {report.search.ranking.expression}: {hit.score:.4f}, of score {hit.base_score:.4f}"
    if hit.rerank_score is not None:
        yield f"  reranked: {hit.rerank_score:.4f}"
    if hit.relevance is not None:
        yield f"  relevance: {hit.relevance:.3f}"


def _placed(score_rank: ScoreRank | None) -> str:
    if score_rank is None:
        return "no word of the query"
    rank = "beyond rank 100,000" if score_rank.rank is None else f"rank {score_rank.rank:,}"
    return f"{score_rank.score:.4f}, {rank}"
