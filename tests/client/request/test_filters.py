"""The grammar of `where`."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from scannery import InvalidArgumentError
from scannery.client.request.filters import build_filter
from scannery.v1 import types_pb2 as pb


def test_a_bare_value_is_equality() -> None:
    expected = pb.Filter(
        condition=pb.Condition(field="show", operator=pb.OPERATOR_EQ, values=[pb.Value(string_value="x")])
    )
    assert build_filter({"show": "x"}) == build_filter({"show": {"$eq": "x"}}) == expected


def test_several_keys_and_several_operators_must_all_match() -> None:
    one = build_filter({"show": "x", "year": {"$gte": 2020, "$lt": 2024}})
    other = build_filter(
        {"$and": [{"show": "x"}, {"$and": [{"year": {"$gte": 2020}}, {"year": {"$lt": 2024}}]}]}
    )
    assert one == other


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("ü", pb.Value(string_value="ü")),
        (True, pb.Value(bool_value=True)),
        (3, pb.Value(int_value=3)),
        (np.int16(3), pb.Value(int_value=3)),
        (2.5, pb.Value(float_value=2.5)),
        (np.float32(2.5), pb.Value(float_value=2.5)),
        (-(2**63), pb.Value(int_value=-(2**63))),
    ],
)
def test_values_keep_their_type(value: Any, expected: pb.Value) -> None:
    assert build_filter({"a": value}).condition.values[0] == expected


def test_datetimes_keep_their_microseconds_before_and_after_1970() -> None:
    for moment in (
        dt.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.timezone.utc),
        dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.timezone(dt.timedelta(hours=-5))),
        dt.datetime.max.replace(tzinfo=dt.timezone.utc),
        dt.datetime.min.replace(tzinfo=dt.timezone.utc),
    ):
        [value] = build_filter({"a": moment}).condition.values
        assert value.timestamp_value.ToDatetime(tzinfo=dt.timezone.utc) == moment


def test_none_stands_for_not_set() -> None:
    for where in ({"year": None}, {"year": {"$eq": None}}):
        assert build_filter(where) == pb.Filter(
            condition=pb.Condition(field="year", operator=pb.OPERATOR_EQ, values=[pb.Value()])
        )
    assert build_filter({"year": {"$in": [1, None]}}).condition.values[1] == pb.Value()


def test_sets_and_tuples_are_lists() -> None:
    assert build_filter({"a": {"$in": ("x",)}}) == build_filter({"a": {"$in": {"x"}}})


def test_null_is_a_value_that_is_not_set() -> None:
    assert build_filter({"a": None}) == build_filter({"a": {"$eq": None}})
    assert build_filter({"a": None}).condition.values[0] == pb.Value()
    assert build_filter({"a": {"$ne": None}}).condition.values[0] == pb.Value()
    assert build_filter({"a": {"$in": [None, 1]}}).condition.values[0] == pb.Value()


def test_areas_are_two_values() -> None:
    given = {"latitude": np.float32(52.5), "lng": 13, "radius_m": 100}
    circle = build_filter({"at": {"$geo_radius": given}}).condition
    assert circle.operator == pb.OPERATOR_GEO_RADIUS
    centre = pb.Value(geo_value=pb.GeoPoint(latitude=52.5, longitude=13))
    assert [*circle.values] == [centre, pb.Value(float_value=100)]
    box = build_filter({"at": {"$geo_box": {"south": 1, "west": 2, "north": 3, "east": 4}}}).condition
    assert box.operator == pb.OPERATOR_GEO_BOX
    assert [(v.geo_value.latitude, v.geo_value.longitude) for v in box.values] == [(1, 2), (3, 4)]


HOLDS_ITSELF: dict[str, Any] = {}
HOLDS_ITSELF["$not"] = HOLDS_ITSELF
FIELD_HOLDS_ITSELF: dict[str, Any] = {}
FIELD_HOLDS_ITSELF["$not"] = FIELD_HOLDS_ITSELF


@pytest.mark.parametrize(
    ("where", "field", "message"),
    [
        ([], "where", "must be a dictionary"),
        ("show=x", "where", "must be a dictionary"),
        ({1: 2}, "where", "keys must be names"),
        ({"": 2}, "where", "keys must be names"),
        ({"year": {}}, "where.year", "needs a value or one of"),
        ({"year": [1, 2]}, "where.year", "use $in"),
        ({"year": {"$gte": [1]}}, "where.year.$gte", "use $in"),
        ({"year": {"$gt": None}}, "where.year.$gt", "null has no order"),
        ({"year": {"$gtee": 1}}, "where.year.$gtee", "did you mean $gte?"),
        ({"year": {"gte": 1}}, "where.year.gte", "did you mean $gte?"),
        ({"year": {"$xyz": 1}}, "where.year.$xyz", "must be one of $eq"),
        ({"title": {"$regex": "^a"}}, "where.title.$regex", "mode='lexical'"),
        ({"tags": {"$contains": ["a"]}}, "where.tags.$contains", "use $in"),
        ({"tags": {"$contains": None}}, "where.tags.$contains", "$exists"),
        ({"tags": {"$all": "abc"}}, "where.tags.$all", "must be a list"),
        ({"tags": {"$all": []}}, "where.tags.$all", "must not be empty"),
        ({"tags": {"$all": ["a", None]}}, "where.tags.$all[1]", "$exists"),
        ({"tags": {"$containsAll": ["a"]}}, "where.tags.$containsAll", "use $all"),
        ({"show": {"$startswith": "a"}}, "where.show.$startswith", "use $prefix"),
        ({"show": {"$ilike": "a"}}, "where.show.$ilike", "use $ieq"),
        ({"at": {"$geo_radius": 3}}, "where.at.$geo_radius", "must be a dictionary of lat, lon, radius_m"),
        ({"at": {"$geo_radius": {"lat": 1, "lon": 2}}}, "where.at.$geo_radius", "needs radius_m"),
        ({"at": {"$geo_radius": {"lat": 1, "x": 2}}}, "where.at.$geo_radius.x", "is not one of lat, lon"),
        ({"at": {"$geo_radius": {"lat": 1, "latitude": 2}}}, "where.at.$geo_radius.latitude", "each once"),
        ({"at": {"$geo_radius": {"lat": "1"}}}, "where.at.$geo_radius.lat", "must be a number"),
        ({"at": {"$geo_box": {"south": True}}}, "where.at.$geo_box.south", "must be a number"),
        ({"at": {"$geo_box": {"south": 1, "west": 2}}}, "where.at.$geo_box", "needs north, east"),
        ({"at": {"$near": {}}}, "where.at.$near", "use $geo_radius"),
        ({"at": {"$geowithin": {}}}, "where.at.$geowithin", "use $geo_box"),
        ({"year": {"between": [1, 2]}}, "where.year.between", "use $gte and $lte"),
        ({"$nor": []}, "where.$nor", "use $not with $or"),
        ({"$xor": []}, "where.$xor", "did you mean $or?"),
        ({"$and": {}}, "where.$and", "must be a list"),
        ({"$and": []}, "where.$and", "must not be empty"),
        ({"$or": ["x"]}, "where.$or[0]", "must be a dictionary"),
        ({"$or": [{"a": 1}, {"b": {"$in": []}}]}, "where.$or[1].b.$in", "must not be empty"),
        ({"$not": 3}, "where.$not", "must be a dictionary"),
        ({"a": {"$in": "xyz"}}, "where.a.$in", "must be a list"),
        ({"a": {"$in": [1, b"x"]}}, "where.a.$in[1]", "must be a string, number"),
        ({"a": {"$in": [1, [2]]}}, "where.a.$in[1]", "must be a string, number"),
        ({"a": {"$exists": 1}}, "where.a.$exists", "true or false"),
        ({"a": float("nan")}, "where.a", "must be finite"),
        ({"a": float("inf")}, "where.a", "must be finite"),
        ({"a": 2**63}, "where.a", "64 bits"),
        ({"a": b"x"}, "where.a", "must be a string, number"),
        ({"a": "\ud800"}, "where.a", "not valid Unicode"),
        ({"a": dt.time(1)}, "where.a", "must be a string, number"),
        (HOLDS_ITSELF, "where.$not", "nested more than"),
        ({"a": FIELD_HOLDS_ITSELF}, "where.a", "nested more than"),
    ],
)
def test_what_is_not_in_the_grammar_is_named(where: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        build_filter(where)
    assert caught.value.field is not None
    assert caught.value.field.startswith(field)
    assert message in caught.value.message
