from __future__ import annotations

import datetime as dt
import math
import pickle

import numpy as np
import pytest

from scannery.indexer import (
    InvalidRecordError,
    attribute_value,
    identifier,
    parse_spec,
    vector_value,
    vectors_of,
)
from tests.data import datapoints

UTC = dt.timezone.utc


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("string", "gotime", "gotime"),
        ("string", 12, "12"),
        ("string", True, "true"),
        ("string_list", ["a", "b"], ["a", "b"]),
        ("string_list", "Mat Ryer", ["Mat Ryer"]),
        ("string_list", '["Mat Ryer", "Carl"]', ["Mat Ryer", "Carl"]),
        ("string_list", [], []),
        ("int", "42", 42),
        ("int", 42.0, 42),
        ("int", 2**63 - 1, 2**63 - 1),
        ("float", "1.5", 1.5),
        ("float", 2, 2.0),
        ("bool", "False", False),
        ("bool", True, True),
        ("timestamp", "2024-05-01", dt.datetime(2024, 5, 1, tzinfo=UTC)),
        ("timestamp", "2024-05-01T12:00:00Z", dt.datetime(2024, 5, 1, 12, tzinfo=UTC)),
        ("timestamp", "2024-05-01T12:00:00+02:00", dt.datetime(2024, 5, 1, 10, tzinfo=UTC)),
        ("timestamp", 86400, dt.datetime(1970, 1, 2, tzinfo=UTC)),
        ("timestamp", dt.date(2024, 5, 1), dt.datetime(2024, 5, 1, tzinfo=UTC)),
        ("int", None, None),
    ],
)
def test_attribute_values_are_typed(kind, value, expected):
    got = attribute_value(value, kind, field="x")
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", ["a"]),
        ("string_list", [["a"]]),
        ("string_list", 3),
        ("string_list", "[broken"),
        ("int", "4.5"),
        ("int", 4.5),
        ("int", True),
        ("int", 2**63),
        ("int", math.inf),
        ("float", "abc"),
        ("float", True),
        ("bool", "maybe"),
        ("bool", 2),
        ("timestamp", "02/03/2024"),
        ("timestamp", "yesterday"),
        ("timestamp", True),
        ("timestamp", 1e30),
    ],
)
def test_attribute_values_that_do_not_fit_name_the_field(kind, value):
    with pytest.raises(InvalidRecordError, match=r"^season: must be .*, got ") as caught:
        attribute_value(value, kind, field="season")
    assert caught.value.field == "season"
    assert caught.value.reason == "attribute"


def test_vectors():
    np.testing.assert_array_equal(vector_value([1, 2.5], 2, field="v"), np.array([1, 2.5], np.float32))
    for value, says in [
        ([1.0], "must have 2 dimensions, got 1"),
        ([1.0, math.nan], "must be finite"),
        ([1.0, 1e30], "must be finite"),
        ([1.0, "x"], "must be a list of numbers"),
        ([[1.0, 2.0]], "flat list"),
        (None, "flat list"),
        ([], "must have 2 dimensions, got 0"),
    ]:
        with pytest.raises(InvalidRecordError, match=says):
            vector_value(value, 2, field="v")
    with pytest.raises(InvalidRecordError, match="cosine needs a direction"):
        vector_value([0, 0], 2, field="v", distance="cosine")


@pytest.mark.parametrize("value", ["", "a\nb", None, 1.5, True, "x" * 513, "\ud800", ["a"]])
def test_ids_that_are_none(value):
    with pytest.raises(InvalidRecordError, match="^id: must"):
        identifier(value, field="id")


def test_integer_ids_become_text():
    assert identifier(7, field="id") == "7"


def test_record_errors_survive_a_process_boundary():
    error = pickle.loads(pickle.dumps(InvalidRecordError("bad", reason="id", field="f")))
    assert (error.message, error.reason, error.field) == ("bad", "id", "f")


def test_vectors_of_a_slice():
    vectors = np.arange(12, dtype=np.float32).reshape(4, 3)
    table = datapoints(parse_spec({"index": "t", "source": {"vector": "v"}}), vectors)
    np.testing.assert_array_equal(vectors_of(table.slice(1, 2)), vectors[1:3])
    assert vectors_of(table.slice(0, 0)).shape == (0, 3)
