"""What is taken as a place, and what is not."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import InvalidRecordError, attribute_value
from scannery.indexer.datapoints.column_rules import NO_LIMITS, attribute_rule
from scannery.indexer.datapoints.places import GEO_TYPE, places_column

BERLIN = {"lat": 52.5, "lon": 13.4}


@pytest.mark.parametrize(
    "given",
    [
        {"lat": 52.5, "lon": 13.4},
        {"lng": "13.4", "latitude": np.float64(52.5)},
        {"longitude": Decimal("13.4"), "lat": Decimal("52.5")},
        "52.5,13.4",
        " 52.5 , 13.4 ",
        '{"lat": 52.5, "lng": 13.4}',
        {"type": "Point", "coordinates": [13.4, 52.5]},
        '{"type": "Point", "coordinates": [13.4, 52.5]}',
    ],
)
def test_places_are_written_in_several_ways(given: Any) -> None:
    assert attribute_value(given, "geo", field="place") == BERLIN


@pytest.mark.parametrize("given", [None, {"lat": None, "lon": None}])
def test_no_place_is_none(given: Any) -> None:
    assert attribute_value(given, "geo", field="place") is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([52.5, 13.4], "a list may be latitude or longitude first"),
        ({"lat": 90.1, "lon": 0}, "lat must be -90 to 90 degrees"),
        ({"lat": 0, "lon": -180.1}, "lon must be -180 to 180 degrees"),
        ({"lat": float("nan"), "lon": 0}, "lat must be"),
        ({"lat": True, "lon": 0}, "lat is no number"),
        ({"lat": 1}, "it has no lon"),
        ({"lat": 1, "lon": None}, "it has no lon"),
        ({}, "it has no lat"),
        ({"lat": 1, "lon": 2, "name": "x"}, "it has the key 'name'"),
        ({"lat": 1, "latitude": 1, "lon": 2}, "it has the key 'latitude'"),
        ({"type": "LineString", "coordinates": [[1, 2]]}, "only a Point is taken"),
        ({"type": "Point", "coordinates": [1, 2, 3]}, "a Point has longitude and latitude"),
        ("52.5", "a text is 'latitude,longitude'"),
        ("52,5,13,4", "a text is 'latitude,longitude'"),
        ("x,y", "could not convert"),
        ("1," * 200, "characters"),
        ("{" * 50, "Expecting property name"),
        (3, "it is no mapping"),
    ],
)
def test_what_is_no_place_is_named(given: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        attribute_value(given, "geo", field="place")
    assert caught.value.field == "place"
    assert caught.value.message.startswith("place: must be a place such as {'lat': 52.5, 'lon': 13.4}")
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("values", "is_whole"),
    [
        ([BERLIN, None, {"lat": -90, "lon": 180}], True),
        ([{"lng": 1, "latitude": 2}], True),
        ([{"lat": 1, "lon": None}], False),
        ([{"lat": 91.0, "lon": 1.0}], False),
        ([{"lat": float("nan"), "lon": 1.0}], False),
        ([{"lat": "1", "lon": "x"}], False),
        ([{"lat": 1.0, "lon": 1.0, "more": 1}], False),
        (["1,2"], False),
    ],
)
def test_whole_columns_become_what_single_values_do(values: list[Any], is_whole: bool) -> None:
    rule = attribute_rule("geo", NO_LIMITS, Counter())
    column = rule.whole(pa.array(values))
    assert (column is not None) == is_whole
    if column is not None:
        assert column.type == GEO_TYPE
        assert column.to_pylist() == [rule.convert(value, "place") for value in values]


def test_a_slice_of_a_column_is_one() -> None:
    column = places_column(pa.array([None, BERLIN, None, BERLIN])[1:])
    assert column is not None
    assert column.to_pylist() == [BERLIN, None, BERLIN]
