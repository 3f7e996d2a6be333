"""Calls as users of other systems write them: they work, or the error says what to write."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import scannery
from tests.served import serving

VECTOR = [1.0, 0.0]


@pytest.fixture(params=[False, True], ids=["embedded", "served"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[scannery.Client]:
    if request.param:
        with serving(tmp_path) as server, scannery.connect(server.address) as remote:
            yield remote
    else:
        with scannery.connect(tmp_path) as local:
            yield local


@pytest.mark.system
def test_the_first_lines(client: scannery.Client) -> None:
    notes = client.create_index("notes", dynamic=True, lexical=True)
    assert client.indexes()[0].dynamic
    assert notes.stats().dynamic
    notes.upsert(
        [{"id": n, "text": f"bees {n}", "attributes": {"show": "ab"[n % 2], "n": n}} for n in range(5)]
    )
    assert {hit.id for hit in notes.search("bees", where={"show": "a"})} == {"0", "2", "4"}
    assert [(facet.value, facet.count) for facet in notes.facets("show")] == [("a", 3), ("b", 2)]
    assert notes.delete(where={"show": "a"}).deleted == 3
    assert notes.count() == 2


@pytest.mark.system
def test_values_of_numpy_and_pandas(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=True)
    name = uuid.uuid4()
    moment = "2024-05-01T12:00:00"
    days = np.array(["2024-05-01", "2024-05-02"], "datetime64[ns]")
    attributes = {
        "a": np.datetime64(moment),
        "b": pd.Timestamp(moment),
        "c": dt.datetime(2024, 5, 1, 12),
        "days": days,
        "deep": {"day": days[0], "days": days},
    }
    index.upsert([{"id": name, "vector": VECTOR, "attributes": attributes}])
    [point] = index.get([name])
    assert point is not None
    text = f"{moment}+00:00"
    day = "2024-05-01T00:00:00"
    assert [point.attributes[key] for key in "abc"] == [text] * 3
    assert point.attributes["days"] == [f"{day}+00:00", "2024-05-02T00:00:00+00:00"]
    assert point.attributes["deep"] == {"day": f"{day}+00:00", "days": point.attributes["days"]}
    assert index.count({"a": np.datetime64(moment), "days": days[0]}) == 1
    assert index.count({"id": name}) == index.count({"document_id": {"$in": [name]}}) == 1
    assert index.delete([name]).deleted == 1
    index.upsert([{"id": 7, "vector": VECTOR, "attributes": {"key": name, "keys": [name]}}])
    assert index.count({"id": 7, "key": name, "keys": name, "document_id": {"$in": [7, "8"]}}) == 1
    assert index.count({"id": {"$ne": 7}}) == 0


@pytest.mark.system
@pytest.mark.parametrize("value", [float("nan"), np.nan, pd.NaT, pd.NA, np.datetime64("NaT")])
def test_what_frames_have_for_no_value_is_null(client: scannery.Client, value: Any) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=True)
    index.upsert([{"id": 1, "vector": VECTOR, "attributes": {"seen": value, "deep": {"seen": [value, 1]}}}])
    [point] = index.get(["1"])
    assert point is not None
    assert point.attributes == {"seen": None, "deep": {"seen": [None, 1]}}
    with pytest.raises(scannery.InvalidArgumentError, match=r"where\.seen: .*None stands for no value"):
        index.count({"seen": value})


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("more", "name"),
    [
        ({"metadata": {"show": "a"}, "vector": VECTOR}, "attributes"),
        ({"values": VECTOR}, "vector"),
        ({"document": "Bees."}, "text"),
        ({"page_content": "Bees.", "metadata": {}}, "text|attributes"),
    ],
)
def test_records_of_other_systems_are_refused(
    client: scannery.Client, more: dict[str, Any], name: str, dynamic: bool
) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=dynamic, lexical=True)
    record: Any = {"id": "a", **more}
    with pytest.raises(scannery.InvalidArgumentError, match=f"a datapoint calls this '({name})'"):
        index.upsert([record])
    assert index.count() == 0


@pytest.mark.system
@pytest.mark.parametrize("table_of", [pd.DataFrame, pa.Table.from_pylist], ids=["pandas", "Arrow"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    ("more", "name"),
    [({"metadata": {"show": "a"}, "vector": VECTOR}, "attributes"), ({"values": VECTOR}, "vector")],
)
def test_tables_of_other_systems_are_refused(
    client: scannery.Client, more: dict[str, Any], name: str, dynamic: bool, table_of: Callable[[Any], Any]
) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=dynamic, vectors="optional")
    table = table_of([{"id": "a", **more}, {"id": "b", **more}])
    message = f"a datapoint calls this '{name}'.*extra='ignore' takes the table as it is"
    with pytest.raises(scannery.InvalidArgumentError, match=message):
        index.upsert(table)
    assert index.count() == 0
    done = index.upsert_many(table, extra="ignore")
    assert (done.written, done.ignored) == (2, () if dynamic else tuple(more.keys() - {"vector"}))


@pytest.mark.system
def test_a_column_that_holds_something_else_is_ignored(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=2)
    table = pa.Table.from_pylist([{"id": "a", "vector": VECTOR, "metadata": "words", "page": 7}])
    assert index.upsert(table).ignored == ("metadata", "page")
    # With a further column, the one with mappings would be ignored, too.
    with pytest.raises(
        scannery.InvalidArgumentError, match="'metadata': a datapoint calls this 'attributes'"
    ):
        index.upsert(table.set_column(2, "metadata", pa.array([{"show": "a"}])))


@pytest.mark.system
def test_attributes_may_have_those_names(client: scannery.Client) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=True)
    given = {"metadata": {"deep": 1}, "document": "a.pdf", "values": [1, 2]}
    index.upsert([{"id": "a", "vector": VECTOR, "attributes": given}])
    record: Any = {"id": "b", "vector": VECTOR, "metadata": "words", "page": 7}
    index.upsert([record])
    assert [point.attributes for point in index.scan(order_by="id")] == [
        given,
        {"metadata": "words", "page": 7},
    ]


@pytest.mark.system
@pytest.mark.parametrize(("call", "message"), [
    (lambda c, i: i.delete({"show": "a"}), "ids: must be a list of ids.*where="),
    (lambda c, i: i.get({"show": "a"}), "ids: must be a list of ids.*where="),
    (lambda c, i: i.upsert([{"vector": VECTOR}]), r"upserts\[0\].datapoint.id: is required"),
    (lambda c, i: i.upsert([{"id": n} for n in range(1001)]), "got 1001; upsert_many writes any number"),
    (lambda c, i: list(i.scan(order_by="-")), "order_by: must be the name of an attribute"),
    (lambda c, i: c.create_index("x"), "dimensions: is required for an index without an encoder"),
    (lambda c, i: c.create_index({"index": "x", "dimensions": 2}), "spec.dimensions: is no key.*argument"),
    (lambda c, i: c.create_index("x", dimensions=2, attributes={"show": str}),
     "spec.attributes.show: must be the name of a type, such as 'string'"),
])  # fmt: skip
def test_mistakes(
    client: scannery.Client, call: Callable[[scannery.Client, scannery.Index], object], message: str
) -> None:
    index = client.create_index("notes", dimensions=2, dynamic=True)
    index.upsert([{"id": "show", "vector": VECTOR, "attributes": {"n": 1}}])
    with pytest.raises(scannery.InvalidArgumentError, match=message):
        call(client, index)
    assert index.count() == 1


@pytest.mark.parametrize(("option", "name"), [("top_k", "k"), ("n_results", "k"), ("filter", "where")])
def test_options_of_other_systems(client: scannery.Client, option: str, name: str) -> None:
    index: Any = client.create_index("notes", dimensions=2)
    with pytest.raises(TypeError, match=f"no option '{option}'; it is '{name}' here"):
        index.search(VECTOR, **{option: 1})
