"""Durations in records: seconds where builds make them seconds, and refused elsewhere; never times since 1970."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import scannery

HALF = 1.5
DURATIONS = [
    dt.timedelta(seconds=HALF),
    np.timedelta64(1_500_000_000, "ns"),
    np.array([1500], "timedelta64[ms]")[0],
    pd.Timedelta(seconds=HALF),
]
TYPES = ("string", "string_list", "int", "bool", "timestamp", "geo", "float")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[scannery.Index]:
    store: Path = tmp_path_factory.mktemp("store")
    with scannery.connect(str(store), create=True) as client:
        attributes: Any = {f"a_{type}": type for type in TYPES}
        yield client.create_index("durations", dimensions=2, attributes=attributes, dynamic=True)


def _point(**fields: Any) -> Any:
    return {"id": "a", "vector": [1.0, 2.0], **fields}


@pytest.mark.system
@pytest.mark.parametrize("value", DURATIONS, ids=lambda value: type(value).__name__)
def test_durations_become_seconds(index: scannery.Index, value: Any) -> None:
    nested = {"kept": value, "each": [value]}
    attributes = {"a_float": value, "free": value, "nested": nested, "list": [value, "x"]}
    index.upsert([_point(attributes=attributes, payload=nested, text="t", time_start_s=value)])
    [point] = index.get(["a"])
    assert point is not None
    seconds = {"kept": HALF, "each": [HALF]}
    assert point.attributes == {"a_float": HALF, "free": HALF, "nested": seconds, "list": [HALF, "x"]}
    assert (point.payload, point.time_start_s) == (seconds, HALF)
    index.update([{"id": "a", "attributes": {"a_float": value * 2}}])
    assert index.get(["a"])[0].attributes["a_float"] == 2 * HALF  # type: ignore[union-attr]


@pytest.mark.system
@pytest.mark.parametrize("value", [dt.timedelta(seconds=1), np.timedelta64(1, "s"), np.timedelta64(1, "ns")])
def test_durations_are_nothing_else(index: scannery.Index, value: Any) -> None:
    for type in TYPES[:-1]:
        with pytest.raises(scannery.InvalidArgumentError, match=f"a_{type}"):
            index.upsert([_point(attributes={f"a_{type}": value})])
        with pytest.raises(scannery.InvalidArgumentError, match=f"a_{type}"):
            index.update([{"id": "a", "attributes": {f"a_{type}": value}}])
    for text in ("text", "title"):
        point: Any = {**_point(), text: value}
        with pytest.raises(scannery.InvalidArgumentError, match=f"datapoint.{text}: must be a string"):
            index.upsert([point])
    for name in ("a_timestamp", "a_int"):
        with pytest.raises(scannery.InvalidArgumentError, match=rf"where\.{name}\.\$gt: must be no duration"):
            index.search([1.0, 2.0], where={name: {"$gt": value}})
    unnamed: Any = {**_point(), "id": value}
    with pytest.raises(scannery.InvalidArgumentError, match=r"datapoint\.id"):
        index.upsert([unnamed])


@pytest.mark.parametrize("value", [{"x": 1}, [{"x": 1}]])
def test_float_attributes_take_no_other_json(index: scannery.Index, value: Any) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="a_float: must be a number"):
        index.upsert([_point(attributes={"a_float": value})])


@pytest.mark.system
def test_frames_of_durations(index: scannery.Index) -> None:
    frame = {"id": ["b"], "vector": [[1.0, 2.0]], "a_float": [pd.Timedelta(seconds=HALF)]}
    index.upsert(pd.DataFrame(frame))
    [point] = index.get(["b"])
    assert point is not None
    assert point.attributes == {"a_float": HALF}
    with pytest.raises(scannery.InvalidArgumentError, match="a_timestamp"):
        index.upsert(pd.DataFrame({**frame, "a_timestamp": frame["a_float"]}))
