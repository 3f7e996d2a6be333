"""The handler that says why a datapoint is at its rank for a query, or is no hit of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.explaining.ladder import Ladder
from scannery.serving.engine.explaining.ranks import Ranks
from scannery.serving.engine.row_source import LocalRows
from scannery.serving.engine.search import PreparedQuery, explanation, rank
from scannery.serving.engine.segment_search import QueryBatch
from scannery.serving.request.filter import FIXED_FIELDS, TEXT_FIELD, parse_filter
from scannery.serving.request.options import parse_fields
from scannery.serving.request.query import parse_identifier
from scannery.serving.request.scan import parse_filters
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.shards import Shards, View
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import OPERATOR_EQ, Condition, Datapoint, Filter, FilterList, Value

__all__ = ["Explaining"]

Prepare: TypeAlias = Callable[[View, pb.SearchRequest, QueryStats], tuple[pb.SearchRequest, PreparedQuery]]
"""Function that returns a search without its phrases in quotes, which its filter has, and the same, parsed."""


class Explaining:
    """Explain. Safe to use from several threads."""

    def __init__(self, shards: Shards, prepare: Prepare) -> None:
        """Serve the indexes of `shards`."""
        self._shards, self._prepare = shards, prepare
        self.methods = {
            f"/{SEARCH_SERVICE}/Explain": UnaryMethod(pb.ExplainRequest, self.explain, "read", narrowed=True),
        }

    def explain(self, request: pb.ExplainRequest, deadline: Deadline) -> pb.ExplainResponse:
        """Say why a datapoint is at its rank, or is no hit; raises what a search does."""
        identifier = parse_identifier(request.id, "id")
        search = pb.SearchRequest(
            index=request.index, query=request.query, options=request.options, client_id=request.client_id
        )
        search.options.explain = True

        def explained(view: View) -> pb.ExplainResponse:
            return _explained(view, *self._prepare(view, search, QueryStats()), identifier, deadline)

        options = request.options
        return self._shards.read(
            request.index, options.min_sequence, deadline, explained, allow_partial=options.allow_partial
        )


def _explained(
    view: View, search: pb.SearchRequest, query: PreparedQuery, identifier: str, deadline: Deadline
) -> pb.ExplainResponse:
    snapshot, prepared, stats = view.snapshot, query.prepared, query.stats
    alone = pb.SearchManyRequest(
        index=search.index, queries=[search.query], options=search.options, where_each=[_of_id(identifier)]
    )
    filters = parse_filters(alone, snapshot.manifest, prepared.where, 1)
    assert filters is not None and filters[0] is not None
    # One source for all searches: a datapoint has the same numbers in all of them.
    rows = view.rows(alone, filters) or LocalRows(snapshot)
    stats.explain()
    [hits] = rank(prepared, QueryBatch(snapshot, [query.query], ["query"], deadline, stats), rows)
    answer = pb.ExplainResponse(
        search=explanation(
            stats, "query", snapshot, prepared.options, query.query, by_leaves=query.rows is not None
        ),
        version=snapshot.manifest.version,
        sequence=snapshot.sequence,
    )
    point = _datapoint(view, search, identifier, search.options.return_fields, search.options.return_vector)
    if point is None:
        answer.kept_out_by, answer.remedy = pb.KEPT_OUT_BY_ABSENT, "an upsert of the datapoint"
        return answer
    answer.hit.datapoint.CopyFrom(point)
    _put_conditions(answer, view, search, identifier)
    answer.allowed = bool(view.count(_count_of(search, _both(search, identifier)), filters[0]))
    if not answer.allowed:
        answer.kept_out_by, answer.remedy = pb.KEPT_OUT_BY_FILTER, _other_filter(answer.conditions)
        return answer
    ranks = Ranks(
        snapshot=snapshot,
        query=query.query,
        rows=rows,
        where=prepared.where,
        alone=filters[0],
        deadline=deadline,
    )
    Ladder(ranks, prepared.options, answer).explain(hits)
    return answer


def _of_id(identifier: str) -> Filter:
    values = [Value(string_value=identifier)]
    return Filter(condition=Condition(field="id", operator=OPERATOR_EQ, values=values))


def _both(search: pb.SearchRequest, identifier: str) -> Filter:
    filters = [search.options.where] if search.options.HasField("where") else []
    return Filter(all_of=FilterList(filters=[*filters, _of_id(identifier)]))


def _count_of(search: pb.SearchRequest, where: Filter) -> pb.CountRequest:
    return pb.CountRequest(index=search.index, where=where)


def _datapoint(
    view: View, search: pb.SearchRequest, identifier: str, fields: Sequence[str], vector: bool
) -> Datapoint | None:
    request = pb.GetRequest(index=search.index, ids=[identifier], return_fields=fields, return_vector=vector)
    parsed = parse_fields(request.return_fields, view.snapshot.manifest.spec, vector=vector)
    return view.datapoints(request, [identifier], parsed).get(0)


def _put_conditions(
    answer: pb.ExplainResponse, view: View, search: pb.SearchRequest, identifier: str
) -> None:
    """Add each condition of the filter, and the value that the datapoint has for it."""
    if not search.options.HasField("where"):
        return
    spec = view.snapshot.manifest.spec
    conditions = [*_conditions(search.options.where)]
    names = {each.field for each, _ in conditions}.difference(FIXED_FIELDS, (TEXT_FIELD,))
    tops = dict.fromkeys(
        name if name in spec.attributes else name.partition(".")[0] for name in sorted(names)
    )
    fields = ["id", *tops][: limits.MAX_RETURN_FIELDS]
    point = _datapoint(view, search, identifier, fields, vector=False)
    for condition, negated in conditions:
        both = Filter(all_of=FilterList(filters=[Filter(condition=condition), _of_id(identifier)]))
        matches = view.count(_count_of(search, both), parse_filter(both, spec)) > 0
        value = None if point is None else _value_of(point, condition.field)
        answer.conditions.add(condition=condition, negated=negated, matches=matches, value=value)


def _conditions(where: Filter, *, negated: bool = False) -> Iterator[tuple[Condition, bool]]:
    """Yield the conditions of a filter in their order, and whether each is negated."""
    kind = where.WhichOneof("kind")
    if kind == "condition":
        yield where.condition, negated
    elif kind == "negation":
        yield from _conditions(where.negation, negated=not negated)
    elif kind is not None:
        for each in getattr(where, kind).filters:
            yield from _conditions(each, negated=negated)


def _value_of(point: Datapoint, field: str) -> Value | None:
    """Return the value that a condition on a field looks at; None: there is none, or it is in the text."""
    if field in FIXED_FIELDS:
        return Value(string_value=getattr(point, field))
    if field in point.attributes:
        return point.attributes[field]
    values = json.loads(point.dynamic_json) if point.dynamic_json else {}
    if field in values:
        return Value(json_value=json.dumps(values[field]))
    for name in field.split("."):
        if not isinstance(values, dict) or name not in values:
            return None
        values = values[name]
    return Value(json_value=json.dumps(values))


def _other_filter(conditions: Sequence[pb.ConditionMatch]) -> str:
    """Return what a filter would have to be that allows the datapoint."""
    failing = [each for each in conditions if each.matches == each.negated]
    names = ", ".join(dict.fromkeys(each.condition.field for each in failing))
    return f"a filter that allows its {names}"
