"""Random requests of an index in which each number is whole: scores of equal rows are equal, however they are added up.

Shapes: D dimensions.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from scannery.v1 import index_pb2, search_pb2
from scannery.v1.types_pb2 import OPERATOR_EQ, OPERATOR_NE, Datapoint, StringList, Value, Vector
from tests.cluster.questions import (
    DIMENSIONS,
    TOPIC_DIMENSIONS,
    WORDS,
    any_filter,
    any_options,
    any_order,
    any_query,
)
from tests.rights.principals import TENANTS, marker

__all__ = ["ATTRIBUTES", "INDEX", "any_datapoint", "any_name", "any_read", "spec"]

INDEX = "everything"
ATTRIBUTES = {
    "tenant": "string",
    "show": "string",
    "tags": "string_list",
    "year": "int",
    "rating": "float",
    "live": "bool",
    "published": "timestamp",
}
_FIELDS = [*ATTRIBUTES, "document_id", "note", "none", "yaer"]


def spec(index: str, *, attributes: Any = None) -> dict[str, Any]:
    """Return the spec of an index."""
    chosen = {name: kind for name, kind in ATTRIBUTES.items() if attributes is None or name in attributes}
    return {
        "index": index,
        "source": {"id": "id", "vector": "vector", "text": "text"},
        "vectors": "optional",
        "distance": "dot",
        "lexical": {"scope": "document"},
        "named_vectors": {"topic": {"distance": "dot", "dimensions": TOPIC_DIMENSIONS}},
        "attributes": chosen,
        "dynamic": True,
        "shards": 2,
    }


def any_name(chosen: random.Random, rows: int) -> str:
    """Return the id of a datapoint that may exist."""
    return f"d{chosen.randrange(rows)}"


def any_datapoint(chosen: random.Random, name: str, tenant: str | None) -> Datapoint:
    """Return a datapoint; its tenant's marker is in many of its fields."""
    mark = marker(tenant or "none")
    point = Datapoint(
        id=name,
        document_id=f"t{int(name[1:]) // 3}",
        text=" ".join([*chosen.choices(WORDS, k=chosen.randrange(1, 10)), *chosen.choices([mark, "far"])]),
        title=f"{chosen.choice(WORDS)} {mark}",
        payload_json=f'{{"of": "{mark}"}}',
        dynamic_json=f'{{"note": "{mark}", "{mark}": 1}}' if chosen.random() < 0.3 else None,
    )
    if chosen.random() < 0.9:
        point.vector.CopyFrom(_vector(chosen, DIMENSIONS))
    if chosen.random() < 0.9 or not point.HasField("vector"):
        point.vectors["topic"].CopyFrom(_vector(chosen, TOPIC_DIMENSIONS))
    values: dict[str, Value] = {
        "show": Value(string_value=chosen.choice(["gotime", "jsparty", "b", f"show of {mark}"])),
        "tags": Value(string_list_value=StringList(values=chosen.sample(["a", "b", "c", mark], 2))),
        "year": Value(int_value=chosen.randrange(2000, 2020)),
        "rating": Value(float_value=chosen.randrange(20) / 4),
        "live": Value(bool_value=chosen.random() < 0.5),
    }
    for attribute, value in values.items():
        if chosen.random() < 0.9:
            point.attributes[attribute].CopyFrom(value)
    if chosen.random() < 0.8:
        point.attributes["published"].timestamp_value.seconds = 1_000_000_000 + chosen.randrange(10**8)
    if tenant is not None:
        point.attributes["tenant"].string_value = tenant
    return point


def _vector(chosen: random.Random, dimensions: int) -> Vector:
    numbers_D = np.array([chosen.randrange(-3, 4) for _ in range(dimensions)], "<f4")
    numbers_D[chosen.randrange(dimensions)] = 4  # never all zeros
    return Vector(packed=numbers_D.tobytes())


def any_read(chosen: random.Random, rows: int) -> tuple[str, Any]:
    """Return the method and the request of something that is read."""
    method = chosen.choices(list(_READS), weights=[weight for weight, _ in _READS.values()])[0]
    return method, _READS[method][1](chosen, rows)


def _search(chosen: random.Random, rows: int) -> search_pb2.SearchRequest:
    options = _options(chosen)
    return search_pb2.SearchRequest(index=INDEX, query=_query(chosen, options, rows), options=options)


def _search_many(chosen: random.Random, rows: int) -> search_pb2.SearchManyRequest:
    options = _options(chosen)
    queries = [_query(chosen, options, rows) for _ in range(chosen.randrange(1, 5))]
    each = [any_filter(chosen) for _ in queries] if chosen.random() < 0.5 else []
    return search_pb2.SearchManyRequest(index=INDEX, queries=queries, options=options, where_each=each)


def _explain(chosen: random.Random, rows: int) -> search_pb2.ExplainRequest:
    options = _options(chosen)
    return search_pb2.ExplainRequest(
        index=INDEX, query=_query(chosen, options, rows), options=options, id=any_name(chosen, rows)
    )


def _options(chosen: random.Random) -> search_pb2.SearchOptions:
    options = any_options(chosen)
    options.k = min(options.k, 50)
    if chosen.random() < 0.3:
        options.diversity = chosen.choice([0.2, 0.5, 1])
    if options.HasField("crowding") and chosen.random() < 0.5:
        options.further_crowding.add(max_per_group=2, group_by=chosen.choice(["tenant", "tags", "yaer"]))
    if chosen.random() < 0.3:
        options.context.passages = chosen.choice([0, 1, 5])
    if chosen.random() < 0.2:
        options.highlight.SetInParent()
    options.explain = chosen.random() < 0.2
    if chosen.random() < 0.1:
        options.ranking = "score + rating * (tenant == 't1')"
    if chosen.random() < 0.2:
        condition = options.where.condition
        condition.field, condition.operator = (
            chosen.choice(_FIELDS),
            chosen.choice([OPERATOR_EQ, OPERATOR_NE]),
        )
        condition.values.add(string_value=chosen.choice([*TENANTS, *map(marker, TENANTS)]))
    return options


def _query(chosen: random.Random, options: search_pb2.SearchOptions, rows: int) -> search_pb2.Query:
    query = any_query(chosen, options)
    for each in (query, *query.group.queries):
        if each.WhichOneof("kind") == "id":
            each.id = any_name(chosen, rows)
        elif each.WhichOneof("kind") == "vector":
            numbers_D = np.frombuffer(each.vector.packed, "<f4")
            each.vector.packed = (np.rint(numbers_D * 3)).astype("<f4").tobytes()
    if query.words and chosen.random() < 0.1:  # what may be of another tenant, or a part of it
        query.words += " " + marker(chosen.choice(TENANTS))[: chosen.randrange(3, 7)]
    return query


def _get(chosen: random.Random, rows: int) -> search_pb2.GetRequest:
    fields = chosen.sample([*_FIELDS, "title", "text"], 2) if chosen.random() < 0.3 else []
    ids = [any_name(chosen, rows) for _ in range(chosen.randrange(1, 9))]
    return search_pb2.GetRequest(
        index=INDEX, ids=ids, return_fields=fields, return_vector=chosen.random() < 0.5
    )


def _count(chosen: random.Random, rows: int) -> search_pb2.CountRequest:
    return search_pb2.CountRequest(index=INDEX, where=any_filter(chosen) if chosen.random() < 0.7 else None)


def _facets(chosen: random.Random, rows: int) -> search_pb2.FacetsRequest:
    return search_pb2.FacetsRequest(
        index=INDEX, attribute=chosen.choice(_FIELDS), limit=chosen.choice([1, 3, 100]),
        where=any_filter(chosen) if chosen.random() < 0.5 else None,
    )  # fmt: skip


def _stats(chosen: random.Random, rows: int) -> search_pb2.AttributeStatsRequest:
    return search_pb2.AttributeStatsRequest(
        index=INDEX, attribute=chosen.choice(_FIELDS), quantiles=[0, 0.5, 1],
        where=any_filter(chosen) if chosen.random() < 0.5 else None,
    )  # fmt: skip


def _scan(chosen: random.Random, rows: int) -> search_pb2.ScanRequest:
    request = search_pb2.ScanRequest(
        index=INDEX, page_size=1000,
        where=any_filter(chosen) if chosen.random() < 0.5 else None,
        return_vector=chosen.random() < 0.2,
    )  # fmt: skip
    if chosen.random() < 0.5:
        request.order_by.CopyFrom(any_order(chosen))
        request.page_size = chosen.choice([1, 7, 50])
    elif chosen.random() < 0.3:
        request.sample, request.seed = chosen.choice([1, 5, 100]), chosen.randrange(3)
    return request


def _project(chosen: random.Random, rows: int) -> search_pb2.ProjectRequest:
    request = search_pb2.ProjectRequest(
        index=INDEX,
        where=any_filter(chosen) if chosen.random() < 0.5 else None,
        attributes=chosen.sample(_FIELDS, 2) if chosen.random() < 0.5 else ["tenant"],
        vector=chosen.choice(["", "topic"]),
    )
    if chosen.random() < 0.3:
        request.limit = chosen.choice([1, 20])
    return request


def _get_index(chosen: random.Random, rows: int) -> index_pb2.GetIndexRequest:
    return index_pb2.GetIndexRequest(index=INDEX)


_READS: dict[str, tuple[float, Any]] = {
    "Search": (40, _search),
    "SearchMany": (8, _search_many),
    "Explain": (6, _explain),
    "Get": (8, _get),
    "Count": (8, _count),
    "Facets": (6, _facets),
    "AttributeStats": (4, _stats),
    "Scan": (5, _scan),
    "Project": (1, _project),
    "GetIndex": (2, _get_index),
}
"""Requests by method, with how often they come."""
