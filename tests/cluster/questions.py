"""An index with every kind of data, and random requests of it: what one server and a cluster must answer alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer import Store, parse_spec
from scannery.v1.search_pb2 import (
    Crowding,
    Fusion,
    FusionMethod,
    Mode,
    OrderBy,
    Query,
    QueryGroup,
    SearchManyRequest,
    SearchOptions,
    SearchRequest,
    VectorChoice,
)
from scannery.v1.types_pb2 import Condition, Filter, FilterList, Value, Vector
from tests.data import clustered
from tests.served import library_columns
from tests.serving.named_index import named_table, publish_named

INDEX = "everything"
SHARDS = 8
ROWS = 1200
DIMENSIONS, TOPIC_DIMENSIONS = 24, 8
SPEC = parse_spec(
    {
        "index": INDEX,
        "source": {"id": "id", "vector": "vector", "text": "text"},
        "vectors": "optional",
        "shards": SHARDS,
        "lexical": {"scope": "document"},
        "named_vectors": {"topic": {"distance": "dot", "dimensions": 8}},
        "attributes": {
            "show": "string",
            "tags": "string_list",
            "year": "int",
            "rating": "float",
            "live": "bool",
            "published": "timestamp",
        },
    }
)
WORDS = [
    "vector", "search", "podcast", "wasm", "goroutine", "channel", "index", "query", "naïve", "café", "passage",
    "deep", "river",
]  # fmt: skip
RANKINGS = [
    "score + 0.05 * rating",
    "score * (1 + 0.2 * (show == 'b')) + 0.3 * decay(published, '2000d', 1.6e9)",
    "score if live else -rating",
]
VECTORS_ND = clustered(ROWS, DIMENSIONS, seed=7)
VECTORS_ND[11::97] = VECTORS_ND[11]  # equal scores, which must come out by id
TOPICS_ND = clustered(ROWS, TOPIC_DIMENSIONS, seed=8)


def make_store(folder: Path) -> Path:
    """Return a store with the index; a tenth of the rows have no topic, and another tenth no unnamed vector."""
    columns = library_columns(ROWS, seed=3)
    del columns["place"]
    chosen = random.Random(4)
    columns["document_id"] = [f"t{row // 3}" for row in range(ROWS)]
    columns["text"] = [" ".join(chosen.choices(WORDS, k=chosen.randrange(1, 12))) for _ in range(ROWS)]
    vectors = {
        "": [None if row % 10 == 3 else VECTORS_ND[row] for row in range(ROWS)],
        "topic": [None if row % 10 == 7 else TOPICS_ND[row] for row in range(ROWS)],
    }
    table = named_table(SPEC, DIMENSIONS, [f"d{row}" for row in range(ROWS)], vectors, columns)
    path = folder / "store"
    publish_named(
        Store.open(path, create=True), SPEC, table, folder, dimensions=DIMENSIONS,
        named={"topic": TOPIC_DIMENSIONS}, shards=SHARDS,
    )  # fmt: skip
    return path


def any_relevant_search(number: int) -> SearchRequest:
    """Return a random search for hits of some relevance, most of them of the kinds that have one."""
    request, chosen = any_search(number), random.Random(number)
    _need_relevance(request.options, chosen)
    return request


def any_relevant_batch(number: int) -> SearchManyRequest:
    """Return a random batch, as `any_relevant_search`."""
    request, chosen = any_batch(number), random.Random(number)
    _need_relevance(request.options, chosen)
    return request


def _need_relevance(options: SearchOptions, chosen: random.Random) -> None:
    options.min_relevance = chosen.choice([0, 0.1, 0.3, 0.6, 0.99])
    if chosen.random() < 0.8:
        options.ClearField("vectors")
        options.ClearField("fusion")


def any_search(number: int) -> SearchRequest:
    """Return a random search, the same for the same number."""
    chosen = random.Random(number)
    options = any_options(chosen)
    request = SearchRequest(index=INDEX, query=any_query(chosen, options), options=options)
    _spread(request.options, random.Random(number))
    return request


def any_batch(number: int) -> SearchManyRequest:
    """Return a random batch, the same for the same number; half of them have filters of their own."""
    chosen = random.Random(number)
    options = any_options(chosen)
    queries = [any_query(chosen, options) for _ in range(chosen.randrange(1, 9))]
    each = [any_filter(chosen) for _ in queries] if chosen.random() < 0.5 else []
    request = SearchManyRequest(index=INDEX, queries=queries, options=options, where_each=each)
    _spread(request.options, random.Random(number))
    return request


def _spread(options: SearchOptions, chosen: random.Random) -> None:
    """Have some searches choose diverse hits, limit them by a second column, and return what is around them."""
    if options.k + options.offset <= 60 and chosen.random() < 0.4:
        options.diversity = chosen.choice([0.2, 0.5, 0.9, 1])
    if options.HasField("crowding") and chosen.random() < 0.5:
        second = chosen.choice(
            sorted({"show", "year", "document_id"} - {options.crowding.group_by or "document_id"})
        )
        options.further_crowding.add(max_per_group=chosen.choice([1, 3]), group_by=second)

    if options.k <= 60 and chosen.random() < 0.4:
        options.context.passages = chosen.choice([0, 1, 5])
        if chosen.random() < 0.5:
            options.context.token_budget = chosen.choice([1, 30, 200])


def any_options(chosen: random.Random) -> SearchOptions:
    """Return options of an exact search, in any mode."""
    options = SearchOptions(
        k=chosen.choice([1, 3, 10, 50, 1000]),
        exact=True,
        mode=chosen.choice(
            [Mode.MODE_DENSE, Mode.MODE_LEXICAL, Mode.MODE_HYBRID, Mode.MODE_HYBRID, Mode.MODE_UNSPECIFIED]
        ),
    )
    if options.mode != Mode.MODE_LEXICAL:
        names = chosen.choice([[], [""], ["topic"], ["", "topic"]])
        options.vectors.extend(VectorChoice(name=name, weight=chosen.choice([1, 2.5])) for name in names)
    if chosen.random() < 0.6:
        options.where.CopyFrom(any_filter(chosen))
    if chosen.random() < 0.4:
        group_by = chosen.choice(["", "show", "year", "live", "rating", "published"])
        options.crowding.CopyFrom(Crowding(max_per_group=chosen.choice([1, 2, 7]), group_by=group_by))
    if chosen.random() < 0.3:
        options.offset = chosen.choice([1, 9, 60, 700])
    if chosen.random() < 0.2:
        options.min_score = chosen.uniform(-0.5, 1.5)
    if chosen.random() < 0.4 and options.mode == Mode.MODE_HYBRID:
        options.fusion.CopyFrom(Fusion(method=chosen.choice(_METHODS), alpha=chosen.choice([0, 0.3, 0.8, 1])))
    if chosen.random() < 0.3:
        options.return_fields.extend(
            chosen.sample(["title", "text", "payload", "show", "tags", "published"], 2)
        )
    options.return_vector = chosen.random() < 0.2
    if chosen.random() < 0.3:
        options.typos = chosen.random() < 0.5
    options.prefix = chosen.random() < 0.3
    if chosen.random() < 0.3:
        options.ranking = chosen.choice(RANKINGS)
    return options


def any_query(chosen: random.Random, options: SearchOptions) -> Query:
    """Return a query that has what the mode of the options needs."""
    words = " ".join(chosen.choices(WORDS, k=chosen.randrange(1, 5)))
    if chosen.random() < 0.3:  # a typing error in some word, or the beginning of one
        at = chosen.randrange(1, len(words))
        words = words[:at] + (words[at + 1 :] if chosen.random() < 0.7 else "")
    if chosen.random() < 0.2:
        words = f'"{words}"~{chosen.randrange(3)} {chosen.choice(WORDS)}'
    if options.mode == Mode.MODE_LEXICAL:
        return Query(words=words) if chosen.random() < 0.8 else Query(id=any_id(chosen))
    query = any_dense(chosen, options)
    # A query by id has words of its own in hybrid search.
    if options.mode == Mode.MODE_HYBRID and (query.WhichOneof("kind") != "id" or chosen.random() < 0.5):
        query.words = words
    return query


def any_dense(chosen: random.Random, options: SearchOptions) -> Query:
    """Return a query by vector, by id, or by several of these."""
    kind = chosen.random()
    if kind < 0.3:
        return Query(id=any_id(chosen))
    names = [choice.name for choice in options.vectors] or [""]
    if kind < 0.5 and len(names) == 1:
        members = [_by_vector(chosen, names[0]) for _ in range(chosen.randrange(1, 4))]
        weights = [chosen.choice([1.0, 0.5, 2.0]) for _ in members]
        return Query(group=QueryGroup(queries=members, weights=weights))
    # A vector fits one of the names by its dimensions; both are searched by an id alone.
    return Query(id=any_id(chosen)) if len(names) > 1 else _by_vector(chosen, names[0])


def any_id(chosen: random.Random) -> str:
    """Return the id of a datapoint that has all vectors."""
    row = chosen.randrange(ROWS)
    return f"d{row - 1 if row % 10 in (3, 7) else row}"


def any_filter(chosen: random.Random, depth: int = 0) -> Filter:
    """Return a filter that allows some rows, or few, or none."""
    if depth < 2 and chosen.random() < 0.3:
        parts = [any_filter(chosen, depth + 1) for _ in range(chosen.randrange(1, 4))]
        kind = chosen.choice(["all_of", "any_of"])
        return Filter(**{kind: FilterList(filters=parts)})  # type: ignore[arg-type]  # its names are checked by mypy
    if depth < 2 and chosen.random() < 0.1:
        return Filter(negation=any_filter(chosen, depth + 1))
    return Filter(condition=_condition(*chosen.choice(_CONDITIONS)))


def any_order(chosen: random.Random) -> OrderBy:
    """Return an order of datapoints."""
    return OrderBy(
        field=chosen.choice(["id", "document_id", "year", "show"]), descending=chosen.random() < 0.5
    )


_METHODS = (FusionMethod.FUSION_METHOD_RECIPROCAL_RANK, FusionMethod.FUSION_METHOD_WEIGHTED_SCORE)
_CONDITIONS: list[tuple[str, str, list[Any]]] = [
    ("show", "EQ", ["gotime"]),
    ("show", "NE", ["gotime"]),
    ("year", "GTE", [2012]),
    ("year", "EQ", [2003]),
    ("tags", "IN", ["a", "b"]),
    ("live", "EQ", [True]),
    ("rating", "GT", [4.7]),
    ("document_id", "IN", ["doc1", "doc2", "doc3", "none"]),
    ("id", "LTE", ["d3"]),
    ("show", "EQ", ["none has it"]),
    ("text", "PHRASE", ["deep river"]),
    ("text", "PHRASE", ["naive search", 2]),
]


def _condition(field: str, operator: str, values: list[Any]) -> Condition:
    kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "float_value"}
    given = [Value(**{kinds[type(value)]: value}) for value in values]
    return Condition(field=field, operator=f"OPERATOR_{operator}", values=given)  # type: ignore[arg-type]  # names are taken


def _by_vector(chosen: random.Random, name: str) -> Query:
    rows_ND = TOPICS_ND if name else VECTORS_ND
    noise = np.random.default_rng(chosen.randrange(1 << 30)).standard_normal(rows_ND.shape[1])
    vector_D = (rows_ND[chosen.randrange(ROWS)] + 0.5 * noise).astype("<f4")
    return Query(vector=Vector(packed=vector_D.tobytes()))
