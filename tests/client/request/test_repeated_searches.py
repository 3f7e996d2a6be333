"""Searches whose options were built before: the same requests, and the same errors."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from scannery.client import InvalidArgumentError
from scannery.client.request import calls
from scannery.client.request.calls import search
from scannery.client.request.queries import build_options, build_query
from scannery.v1.search_pb2 import SearchRequest

VECTORS: list[Any] = [
    np.arange(5, dtype=np.float32),
    np.arange(300, dtype=np.float64),
    np.arange(64, dtype=np.int16),
    np.arange(10, dtype=np.float32)[::2],
    np.full(40, np.nan, np.float32),
    np.zeros(1, ">f4"),
    np.array([True, False]),
    [1.0, 2.0],
    "how do volcanoes form",
    "",
    "ÿ 日本語 \x00" * 99,
]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"fields": []},
    {"fields": ["text"], "where": {"show": "ÿ", "year": {"$gte": 2020}}},
    {"where": {"published": {"$lt": dt.datetime(2020, 1, 1, tzinfo=dt.timezone.utc)}}},
    {"leaves": np.int64(7), "rescore": 40},
    {"vectors": {"title": 2.0}},
    {"where": {"show": {"$in": [str(number) for number in range(2000)]}}},
]


@pytest.mark.system
@pytest.mark.parametrize("options", OPTIONS, ids=",".join)
def test_requests_are_those_that_are_built_anew(options: dict[str, Any]) -> None:
    for vector in VECTORS * 2:
        plain = SearchRequest(index="ÿé", query=build_query(vector), options=build_options(9, **options))
        assert search("ÿé", vector, 9, **options).request.SerializeToString() == plain.SerializeToString()


def test_a_text_that_is_not_unicode_is_refused_with_options_known_and_new() -> None:
    cases: list[dict[str, Any]] = [{}, {}, {"fields": ["title"]}]
    for options in cases:
        with pytest.raises(InvalidArgumentError, match="query: is not valid Unicode"):
            search("i", "lone \ud800", 3, **options)


def test_options_of_other_types_and_values_are_others() -> None:
    vector = np.ones(4, np.float32)
    filters: list[Any] = [1, 1.0, True, "1", 2, -0.0, 0.0, [1], {"$gt": 1}]
    for value in [*filters, *filters]:
        options: Any = {"where": {"a": value}}
        if isinstance(value, list):
            options = {"where": {"a": {"$in": value}}}
        assert search("i", vector, 3, **options).request.options == build_options(3, **options)


def test_values_of_numpy_with_equal_bytes_are_others() -> None:
    vector = np.ones(4, np.float32)
    filters: list[Any] = [
        {"$gte": np.datetime64(1000, "s")},
        {"$gte": np.datetime64(1000, "ms")},
        np.float32(1),
        np.array(1, np.float32).view(np.int32)[()],
        np.bool_(True),
        np.int8(1),
        {"$in": np.array([1, 2])},
        {"$in": np.array([1, 2]).view(np.int32)},
    ]
    for value in filters:
        found = search("i", vector, 3, where={"a": value}).request.options
        assert found == build_options(3, where={"a": value})


def test_a_list_that_changes_is_another_one() -> None:
    fields = ["text"]
    vector = np.ones(4, np.float32)
    assert list(search("i", vector, 3, fields=fields).request.options.return_fields) == ["text"]
    fields.append("title")
    assert list(search("i", vector, 3, fields=fields).request.options.return_fields) == ["text", "title"]


def test_errors_stay() -> None:
    vector = np.ones(4, np.float32)
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match="mode"):
            search("i", vector, 3, mode="quick")
        with pytest.raises(TypeError, match="top_k"):
            search("i", vector, 3, top_k=3)
        with pytest.raises(InvalidArgumentError, match="one vector"):
            search("i", np.ones((2, 2)), 3)
        with pytest.raises(InvalidArgumentError):
            search("i", np.zeros(0), 3)
        with pytest.raises(InvalidArgumentError):
            search("i", np.array(["a"]), 3)


def test_it_keeps_no_more_than_its_bound() -> None:
    vector = np.ones(4, np.float32)
    for number in range(3 * calls.MAX_KEPT):
        search("i", vector, 3, where={"n": number})
    assert len(calls._kept) <= calls.MAX_KEPT
    before = len(calls._kept)
    search("i", vector, 3, where={"n": {"$in": list(range(5000))}})
    assert len(calls._kept) == before
