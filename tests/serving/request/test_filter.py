"""What the server says about filters that do not fit the index."""

from __future__ import annotations

from typing import Any

import pytest

from scannery.client.request.filters import build_filter
from scannery.serving import InvalidRequestError
from scannery.serving.request.filter import parse_filter
from scannery.v1 import types_pb2 as pb
from tests.served import LIBRARY


def nested(depth: int) -> dict[str, Any]:
    where: dict[str, Any] = {"year": 1}
    for _ in range(depth):
        where = {"$not": where}
    return where


@pytest.mark.parametrize(("where", "field", "message"), [
    ({"yaer": 1}, "where.yaer", "did you mean year?"),
    ({"nonsense": 1}, "where.nonsense", "there are: id, document_id, show, tags"),
    ({"year": "2020"}, "where.year", "must be a 64-bit integer, got '2020'"),
    ({"year": {"$gte": "x"}}, "where.year.$gte", "must be a 64-bit integer"),
    ({"year": 2020.5}, "where.year", "must be a 64-bit integer, got 2020.5"),
    ({"year": True}, "where.year", "must be a 64-bit integer, got True"),
    ({"year": {"$in": [1, "x"]}}, "where.year.$in[1]", "must be a 64-bit integer"),
    ({"rating": "high"}, "where.rating", "must be a finite number"),
    ({"live": 1}, "where.live", "must be true or false"),
    ({"live": {"$gt": True}}, "where.live.$gt", "booleans have no order"),
    ({"show": 3}, "where.show", "must be a string, got 3"),
    ({"tags": 3}, "where.tags", "must be a string, compared with each element"),
    ({"id": True}, "where.id", "must be a string"),
    ({"show": {"$contains": "a"}}, "where.show.$contains", "use $eq for the whole value, $substring for"),
    ({"year": {"$contains": 1}}, "where.year.$contains", "is for lists, and 'year' is of type int; use $eq"),
    ({"id": {"$all": ["a"]}}, "where.id.$all", "is for lists"),
    ({"tags": {"$contains": 3}}, "where.tags.$contains", "must be a string"),
    ({"tags": {"$all": ["a", 3]}}, "where.tags.$all[1]", "must be a string"),
    ({"year": {"$prefix": "20"}}, "where.year.$prefix", "is for strings, and 'year' is of type int"),
    ({"tags": {"$iprefix": 3}}, "where.tags.$iprefix", "must be a string, got int_value: 3"),
    ({"year": {"$substring": "20"}}, "where.year.$substring", "is for strings"),
    ({"tags": {"$isubstring": 3}}, "where.tags.$isubstring", "must be a string"),
    ({"show": {"$phrase": "a b"}}, "where.show.$phrase", "is for the field `text`"),
    ({"live": {"$ieq": "TRUE"}}, "where.live.$ieq", "is for strings"),
    ({"show": {"$geo_radius": {"lat": 1, "lon": 2, "radius_m": 3}}}, "where.show.$geo_radius", "is for places"),
    ({"published": "yesterday"}, "where.published", "must be a timestamp"),
    ({"published": True}, "where.published", "must be a timestamp"),
    ({"published": 1e21}, "where.published", "must be a timestamp"),
    ({"$or": [{"year": 1}, {"year": "x"}]}, "where.$or[1].year", "64-bit"),
    ({"$not": {"year": "x"}}, "where.$not.year", "64-bit"),
    ({"year": {"$not": {"$lt": "x"}}}, "where.$not.year.$lt", "64-bit"),
    (nested(16), "where", "has more than 16 levels of nesting"),
    ({"$or": [{"year": n} for n in range(257)]}, "where", "more than 256 conditions"),
    ({"year": {"$in": list(range(4097))}}, "where", "more than 4096 values"),
])  # fmt: skip
def test_what_does_not_fit_is_named(where: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_filter(build_filter(where), LIBRARY)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")
    assert message in caught.value.message


def test_limits_themselves_are_allowed() -> None:
    assert parse_filter(build_filter(nested(15)), LIBRARY)
    assert parse_filter(build_filter({"$or": [{"year": n} for n in range(256)]}), LIBRARY)
    assert parse_filter(build_filter({"year": {"$in": list(range(4096))}}), LIBRARY)


def condition(**fields: Any) -> pb.Filter:
    return pb.Filter(condition=pb.Condition(field="year", **fields))


@pytest.mark.parametrize(("message", "field"), [
    (condition(operator=pb.OPERATOR_EQ), "where.year"),
    (condition(operator=pb.OPERATOR_GT, values=[pb.Value()]), "where.year.$gt"),
    (condition(operator=pb.OPERATOR_EQ, values=[pb.Value()] * 2), "where.year"),
    (condition(operator=pb.OPERATOR_GT, values=[pb.Value(int_value=1)] * 2), "where.year.$gt"),
    (condition(operator=pb.OPERATOR_IN), "where.year.$in"),
    (condition(operator=pb.OPERATOR_EXISTS), "where.year.$exists"),
    (condition(operator=pb.OPERATOR_EXISTS, values=[pb.Value(int_value=1)]), "where.year.$exists"),
    (condition(values=[pb.Value(int_value=1)]), "where.year.$unspecified"),
    (condition(operator=99, values=[pb.Value(int_value=1)]), "where.year.$99"),
    (pb.Filter(all_of=pb.FilterList()), "where.$and"),
    (pb.Filter(any_of=pb.FilterList()), "where.$or"),
    (condition(operator=pb.OPERATOR_EQ, values=[pb.Value(string_list_value=pb.StringList(values=["a"]))]),
     "where.year"),
])  # fmt: skip
def test_messages_that_no_dictionary_makes_are_refused_too(message: pb.Filter, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_filter(message, LIBRARY)
    assert caught.value.field == field


def test_timestamps_beyond_the_calendar_are_refused() -> None:
    message = pb.Filter(
        condition=pb.Condition(field="published", operator=pb.OPERATOR_GT, values=[pb.Value()])
    )
    message.condition.values[0].timestamp_value.seconds = 10**15
    with pytest.raises(InvalidRequestError, match="years 1 to 9999"):
        parse_filter(message, LIBRARY)
