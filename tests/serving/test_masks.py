"""Filters against a plain Python oracle, over random filters and the rows of `library`."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.client.filters import build_filter
from scannery.indexer import AllowedRows
from scannery.serving.filters import Node, parse_filter
from scannery.serving.masks import MaskCache, evaluate, few_rows
from scannery.serving.postings import Postings
from tests.served import LIBRARY, ROWS, library_table

TABLE = library_table()
RECORDS = TABLE.drop_columns(["embedding"]).to_pylist()
EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(0, ROWS).map(lambda row: f"d{row}"),
    "document_id": st.integers(0, ROWS // 5).map(lambda number: f"doc{number}"),
    "show": st.sampled_from(["gotime", "jsparty", "Ünï", "h", ""]),
    "tags": st.sampled_from(["a", "b", "c", "d", "e"]),
    "year": st.integers(1999, 2026),
    "rating": st.one_of(st.integers(0, 6), st.integers(0, 60).map(lambda tenths: tenths / 10)),
    "live": st.booleans(),
    "published": st.integers(-100, 10100).map(lambda hours: EPOCH + dt.timedelta(hours=hours)),
}


@st.composite
def conditions(draw: st.DrawFn) -> dict[str, Any]:
    name = draw(st.sampled_from(sorted(VALUES)))
    value = VALUES[name]
    orders = [] if name == "live" else ["$gt", "$gte", "$lt", "$lte"]
    operator = draw(st.sampled_from(["bare", "$eq", "$ne", "$in", "$nin", "$exists", *orders]))
    if operator == "bare":
        return {name: draw(value)}
    if operator == "$exists":
        return {name: {"$exists": draw(st.booleans())}}
    if operator in ("$in", "$nin"):
        return {name: {operator: draw(st.lists(value, min_size=1, max_size=4))}}
    test = {operator: draw(value)}
    return {name: draw(st.sampled_from([test, {"$not": test}]))}


def filters() -> st.SearchStrategy[dict[str, Any]]:
    return st.recursive(
        st.one_of(conditions(), st.tuples(conditions(), conditions()).map(lambda pair: pair[0] | pair[1])),
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$and": parts}),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"$or": parts}),
            inner.map(lambda part: {"$not": part}),
        ),
        max_leaves=6,
    )


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda a, b: a == b,
    "$gt": lambda a, b: a > b,
    "$gte": lambda a, b: a >= b,
    "$lt": lambda a, b: a < b,
    "$lte": lambda a, b: a <= b,
    "$in": lambda a, b: a in b,
}


def matches(record: dict[str, Any], where: dict[str, Any]) -> bool:
    return all(entry_matches(record, key, value) for key, value in where.items())


def entry_matches(record: dict[str, Any], key: str, value: Any) -> bool:
    if key == "$and":
        return all(matches(record, part) for part in value)
    if key == "$or":
        return any(matches(record, part) for part in value)
    if key == "$not":
        return not matches(record, value)
    tests = value if isinstance(value, dict) else {"$eq": value}
    return all(field_matches(record[key], operator, operand) for operator, operand in tests.items())


def field_matches(held: Any, operator: str, operand: Any) -> bool:
    if operator == "$not":
        return not all(field_matches(held, inner, value) for inner, value in operand.items())
    if operator == "$exists":
        return (held is not None) == operand
    if operator in ("$ne", "$nin"):
        return not field_matches(held, {"$ne": "$eq", "$nin": "$in"}[operator], operand)
    elements = [] if held is None else held if isinstance(held, list) else [held]
    return any(COMPARE[operator](element, operand) for element in elements)


def mask_of(where: dict[str, Any]) -> np.ndarray:
    node = parse_filter(build_filter(where), LIBRARY.attributes)
    return np.ones(ROWS, bool) if node is None else evaluate(node, _postings, ROWS)


@settings(max_examples=300)
@given(filters())
def test_masks_equal_the_oracle(where: dict[str, Any]) -> None:
    expected = [matches(record, where) for record in RECORDS]
    assert mask_of(where).tolist() == expected
    node = parse_filter(build_filter(where), LIBRARY.attributes)
    few = None if node is None else few_rows(node, _postings, ROWS)
    assert few is None or few.tolist() == np.flatnonzero(expected).tolist()


@pytest.mark.parametrize(
    "where",
    [
        {"published": {"$gte": "2020-06-01T00:00:00Z"}},
        {"published": {"$gte": "2020-06-01"}},
        {"published": {"$gte": dt.date(2020, 6, 1)}},
        {"published": {"$gte": dt.datetime(2020, 6, 1)}},
        {"published": {"$gte": dt.datetime(2020, 6, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))}},
        {"published": {"$gte": int(dt.datetime(2020, 6, 1, tzinfo=dt.timezone.utc).timestamp())}},
    ],
    ids=lambda where: type(where["published"]["$gte"]).__name__,
)
def test_timestamps_may_be_written_in_many_ways(where: dict[str, Any]) -> None:
    cut = dt.datetime(2020, 6, 1, tzinfo=dt.timezone.utc)
    expected = [r["published"] is not None and r["published"] >= cut for r in RECORDS]
    assert mask_of(where).tolist() == expected


def test_whole_floats_are_integers() -> None:
    assert mask_of({"year": 2010.0}).tolist() == mask_of({"year": 2010}).tolist()
    assert mask_of({"year": 2010}).any()


def test_numpy_values_are_values() -> None:
    assert mask_of({"year": np.int64(2010)}).tolist() == mask_of({"year": 2010}).tolist()
    assert mask_of({"live": np.bool_(True)}).tolist() == mask_of({"live": True}).tolist()


def test_an_empty_filter_allows_everything() -> None:
    assert parse_filter(build_filter({}), LIBRARY.attributes) is None
    assert mask_of({"$or": [{}, {"year": 1}]}).all()
    assert not mask_of({"$not": {}}).any()


class _Segment:
    """As much of a segment as a mask needs, counting how often it is asked for a column."""

    rows = ROWS

    def __init__(self, name: str) -> None:
        self.entry = type("Entry", (), {"sha256": name})
        self.asked = 0

    def column(self, name: str) -> Any:
        self.asked += 1
        return TABLE.column(name)

    def allow(self, allowed: np.ndarray) -> AllowedRows:
        return AllowedRows(allowed, None, self.rows)


def _postings(name: str) -> Postings:
    return Postings(TABLE.column(name))


def nodes_of(*wheres: dict[str, Any]) -> list[Node]:
    nodes = [parse_filter(build_filter(where), LIBRARY.attributes) for where in wheres]
    return [node for node in nodes if node is not None]


def test_few_rows_are_kept_by_number() -> None:
    cache, segment = MaskCache(), _Segment("one")
    segment.rows = 1024 * ROWS  # of so many, all that are in the table are few
    [node, other] = nodes_of({"year": 2010}, {"show": {"$in": ["gotime", "Ünï"]}})
    for each in (node, other):
        allowed = cache.allowed(segment, each)  # type: ignore[arg-type]
        assert allowed.rows.tolist() == np.flatnonzero(evaluate(each, _postings, ROWS)).tolist()
        assert np.flatnonzero(allowed.mask_N).tolist() == allowed.rows.tolist()
        assert allowed.size_bytes == 8 * allowed.count > 0
    mask_N = np.arange(segment.rows) % 2 == 0
    alive = segment.allow(mask_N)
    left = cache.allowed(segment, node, alive)  # type: ignore[arg-type]
    assert left.rows.tolist() == [row for row in cache.allowed(segment, node).rows if mask_N[row]]  # type: ignore[arg-type]
    assert 0 < left.count < allowed.count


def test_equal_filters_are_evaluated_once_per_segment() -> None:
    cache, one, other = MaskCache(), _Segment("one"), _Segment("other")
    for _ in range(3):
        [node] = nodes_of({"year": {"$gte": 2010}})
        assert cache.mask(one, node).sum() == cache.mask(other, node).sum() > 0  # type: ignore[arg-type]
    assert (cache.hits, cache.misses) == (4, 2)


def test_a_field_is_indexed_once_per_segment() -> None:
    cache, segment = MaskCache(), _Segment("one")
    for node in nodes_of({"year": 2010}, {"year": 2011}, {"year": {"$lt": 2004}}):
        assert cache.mask(segment, node).any()  # type: ignore[arg-type]
    assert segment.asked == 1
    forgetful = MaskCache(max_index_bytes=0)
    for node in nodes_of({"year": 2010}, {"year": 2011}):
        forgetful.mask(segment, node)  # type: ignore[arg-type]
    assert segment.asked == 3


def test_the_cache_of_masks_is_bounded() -> None:
    cache, segment = MaskCache(max_bytes=4 * ROWS), _Segment("one")
    nodes = nodes_of(*({"year": year} for year in range(2000, 2010)))
    for node in nodes:
        cache.mask(segment, node)  # type: ignore[arg-type]
    cache.mask(segment, nodes[-1])  # type: ignore[arg-type]
    assert (cache.hits, cache.misses) == (1, 10)
    cache.mask(segment, nodes[0])  # type: ignore[arg-type]
    assert (cache.hits, cache.misses) == (1, 11)


def test_masks_of_a_cache_cannot_be_changed() -> None:
    [node] = nodes_of({"live": True})
    mask = MaskCache().mask(_Segment("one"), node)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="read-only"):
        mask[0] = True
