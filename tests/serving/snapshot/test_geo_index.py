"""Places in areas against a plain search: also at poles, at the antimeridian, and at distances up to half the Earth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.client.request.filters import build_filter
from scannery.indexer import parse_spec
from scannery.indexer.datapoints.places import GEO_TYPE
from scannery.serving import InvalidRequestError
from scannery.serving.limits import MAX_GEO_RADIUS_M
from scannery.serving.request.filter import Box, Circle, GeoWithin, parse_filter, size_of
from scannery.serving.snapshot.geo_index import EARTH_RADIUS_M, GeoIndex
from scannery.v1 import types_pb2 as pb

PLACES = parse_spec({"index": "places", "source": {"vector": "vector"}, "attributes": {"at": "geo"}})
HALF_WAY_M = math.pi * EARTH_RADIUS_M
CORNERS_LAT = [-90.0, -89.999999, -45.0, 0.0, 1e-9, 45.0, 89.99, 90.0]
CORNERS_LON = [-180.0, -179.9999, -90.0, 0.0, 1e-9, 90.0, 179.9999, 180.0]

latitudes = st.one_of(st.sampled_from(CORNERS_LAT), st.floats(-90, 90))
longitudes = st.one_of(st.sampled_from(CORNERS_LON), st.floats(-180, 180))
places = st.tuples(latitudes, longitudes)
radii = st.one_of(
    st.sampled_from([0.0, 1.0, 1e5, HALF_WAY_M / 2, HALF_WAY_M, float(MAX_GEO_RADIUS_M)]),
    st.floats(0, MAX_GEO_RADIUS_M),
)


def index_of(found: list[tuple[float, float] | None]) -> GeoIndex:
    values = [None if place is None else {"lat": place[0], "lon": place[1]} for place in found]
    return GeoIndex(pa.chunked_array([pa.array(values, GEO_TYPE)]))


def distance_m(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance by the angle between two vectors, another formula than that of the index."""
    (ax, ay, az), (bx, by, bz) = vector(one), vector(other)
    cross = math.hypot(ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx)
    return EARTH_RADIUS_M * math.atan2(cross, ax * bx + ay * by + az * bz)


def vector(place: tuple[float, float]) -> tuple[float, float, float]:
    lat, lon = map(math.radians, place)
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


@pytest.mark.system
@settings(max_examples=300)
@given(st.lists(st.one_of(st.none(), places), max_size=60), places, radii)
def test_circles_have_the_places_within_the_distance(
    found: list[tuple[float, float] | None], centre: tuple[float, float], radius_m: float
) -> None:
    rows = index_of(found).within(Circle(*centre, radius_m)).numbers.tolist()
    assert len(set(rows)) == len(rows)
    for row, place in enumerate(found):
        inside = row in rows
        metres = math.inf if place is None else distance_m(centre, place)
        # Near the antipode, where all directions lead away, rounding costs more.
        tolerance_m = 0.5 if HALF_WAY_M - 1e4 < metres < math.inf else 1e-3
        if abs(metres - radius_m) > tolerance_m:
            assert inside == (metres <= radius_m), (place, metres)


@pytest.mark.system
@given(places, st.lists(places, max_size=20))
def test_a_circle_of_radius_0_has_the_same_place(
    centre: tuple[float, float], others: list[tuple[float, float]]
) -> None:
    lat, lon = centre
    same = [centre, (lat, lon)] + ([(lat, -lon)] if abs(lon) == 180 else [])
    same += [(lat, 12.5)] if abs(lat) == 90 else []
    found = index_of([*same, *others])
    assert {*range(len(same))} <= {*found.within(Circle(lat, lon, 0)).numbers.tolist()}
    assert len(found.within(Circle(lat, lon, MAX_GEO_RADIUS_M)).numbers) == len(same) + len(others)


def in_box(place: tuple[float, float], box: Box) -> bool:
    lat, lon = place
    if not box.south <= lat <= box.north:
        return False
    # From west to east, around the Earth if need be; 180 and -180 are the same.
    width = box.east - box.west + (360 if box.east < box.west else 0)
    return abs(lat) == 90 or any(0 <= other - box.west <= width for other in (lon, lon + 360, lon - 360))


on_a_grid = st.tuples(st.integers(-90, 90), st.integers(-36, 36)).map(lambda at: (float(at[0]), at[1] * 5.0))
"""Places whose differences are exact."""


@pytest.mark.system
@settings(max_examples=300)
@given(st.lists(st.one_of(st.none(), on_a_grid), max_size=60), on_a_grid, on_a_grid)
def test_boxes_have_the_places_between_their_edges(
    found: list[tuple[float, float] | None], one: tuple[float, float], other: tuple[float, float]
) -> None:
    box = Box(min(one[0], other[0]), one[1], max(one[0], other[0]), other[1])
    expected = [row for row, place in enumerate(found) if place is not None and in_box(place, box)]
    assert index_of(found).within(box).numbers.tolist() == expected


def test_a_box_may_cross_the_antimeridian() -> None:
    found = index_of([(0, 179), (0, -179), (0, 180), (0, -180), (0, 0), (5, 179)])
    assert found.within(Box(-1, 178, 1, -178)).numbers.tolist() == [0, 1, 2, 3]
    assert found.within(Box(-1, -180, 1, -178)).numbers.tolist() == [1, 2, 3]


def test_distinct_places_are_given_with_their_rows() -> None:
    index = index_of([(5, 1), None, (-3, 2), (5, 1), (5, -1)])
    [runs] = index.runs()
    assert index.exists().mask().tolist() == [True, False, True, True, True]
    assert runs.kind == "geo"
    assert runs.values.to_pylist() == [{"lat": -3, "lon": 2}, {"lat": 5, "lon": -1}, {"lat": 5, "lon": 1}]
    assert runs.starts.tolist() == [0, 1, 2, 4]
    assert runs.rows_P.tolist() == [2, 4, 0, 3]
    assert not index_of([None]).runs()


@pytest.mark.system
def test_many_places_are_found_as_by_a_search_of_all() -> None:
    rng = np.random.default_rng(3)
    lat_N, lon_N = rng.uniform(-90, 90, 20_000), rng.uniform(-180, 180, 20_000)
    found = [*zip(lat_N.tolist(), lon_N.tolist(), strict=True)]
    index = index_of(list(found))
    for lat, lon, radius_m in ((52.5, 13.4, 3e5), (-89.5, 10, 2e5), (10, -179.9, 5e5), (0, 0, 1.5e7)):
        expected = [row for row, place in enumerate(found) if distance_m((lat, lon), place) <= radius_m]
        assert index.within(Circle(lat, lon, radius_m)).numbers.tolist() == expected
    assert index.size_bytes == 20_000 * (8 + 8 + 3 * 4 + 4)


@pytest.mark.parametrize(("condition", "field", "message"), [
    ({"$geo_radius": {"lat": 91, "lon": 0, "radius_m": 1}}, "$geo_radius.lat", "-90 to 90 degrees, got 91"),
    ({"$geo_radius": {"lat": 1, "lon": -181, "radius_m": 1}}, "$geo_radius.lon", "-180 to 180 degrees"),
    ({"$geo_radius": {"lat": float("nan"), "lon": 0, "radius_m": 1}}, "$geo_radius.lat", "got nan"),
    ({"$geo_radius": {"lat": 1, "lon": 1, "radius_m": -1}}, "$geo_radius.radius_m", "0 to 20100000 metres"),
    ({"$geo_radius": {"lat": 1, "lon": 1, "radius_m": float("inf")}}, "$geo_radius.radius_m", "got inf"),
    ({"$geo_box": {"south": 2, "west": 0, "north": 1, "east": 1}}, "$geo_box.south", "at most north (1), got 2"),
    ({"$geo_box": {"south": 0, "west": 0, "north": 1, "east": 181}}, "$geo_box.east", "-180 to 180"),
    ({"$prefix": "5"}, "$prefix", "is for strings, and 'at' is of type geo"),
    ({"$contains": "5"}, "$contains", "is for lists"),
    ({"$gt": 5}, "$gt", "$geo_radius and $geo_box"),
    ("52,13", "", "$geo_radius and $geo_box"),
])  # fmt: skip
def test_areas_that_are_none_are_named(condition: Any, field: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_filter(build_filter({"at": condition}), PLACES)
    assert caught.value.field == f"where.at.{field}".rstrip(".")
    assert message in caught.value.message


@pytest.mark.parametrize("values", [[], [pb.Value(geo_value=pb.GeoPoint())], [pb.Value(int_value=1)] * 2])
@pytest.mark.parametrize("operator", [pb.OPERATOR_GEO_BOX, pb.OPERATOR_GEO_RADIUS])
def test_areas_that_no_dictionary_makes_are_refused_too(
    operator: pb.Operator.ValueType, values: list[pb.Value]
) -> None:
    message = pb.Filter(condition=pb.Condition(field="at", operator=operator, values=values))
    with pytest.raises(InvalidRequestError, match=r"where\.at\.\$geo_"):
        parse_filter(message, PLACES)


def test_whole_metres_are_taken_and_areas_are_counted() -> None:
    point = pb.Value(geo_value=pb.GeoPoint(latitude=1, longitude=2))
    message = pb.Condition(field="at", operator=pb.OPERATOR_GEO_RADIUS, values=[point, pb.Value(int_value=7)])
    node = parse_filter(pb.Filter(condition=message), PLACES)
    assert node == GeoWithin("at", Circle(1, 2, 7))
    assert node is not None
    assert size_of(node) > 100
