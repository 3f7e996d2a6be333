"""Data frames, Arrow tables and records by the spec's names are written like datapoints."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import scannery
from scannery import Like
from scannery.client.request.records import table_rows
from tests.served import DIMENSIONS, copied, serving

VECTORS = np.random.default_rng(3).normal(size=(1500, DIMENSIONS)).astype(np.float32)
WHEN = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone.utc)


@pytest.fixture(params=["gRPC", "HTTP", "embedded"])
def index(request: pytest.FixtureRequest, library: Path, tmp_path: Path) -> Iterator[scannery.Index]:
    store = copied(library, tmp_path)
    if request.param == "embedded":
        with scannery.connect(store) as client:
            yield client.index("library")
        return
    with serving(store) as server:
        target = server.address if request.param == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        with scannery.connect(target, http=request.param == "HTTP") as client:
            yield client.index("library")


@pytest.fixture
def local(library: Path, tmp_path: Path) -> Iterator[scannery.Index]:
    with scannery.connect(copied(library, tmp_path)) as client:
        yield client.index("library")


def frame(rows: int = 3) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "id": np.arange(rows),
            "vector": list(VECTORS[:rows]),
            "year": [None if row == 1 else row for row in range(rows)],
            "show": ["a" if row % 2 else None for row in range(rows)],
            "published": pd.to_datetime([None if row == 2 else WHEN for row in range(rows)], utc=True),
            "tags": [["x", "y"]] * rows,
            "unnamed": 1,
        }
    )


def test_integer_ids_are_taken(index: scannery.Index) -> None:
    points: list[Any] = [{"id": 7, "vector": VECTORS[0], "document_id": np.int64(70)}]
    index.upsert(points)
    [found] = index.get([np.int32(7)])  # type: ignore[list-item]
    assert found is not None
    assert (found.id, found.document_id) == ("7", "70")
    assert index.search(Like(7), 1)[0].id != "7"
    index.update([{"id": 7, "attributes": {"year": 3}}])
    assert index.delete([7]).deleted == 1
    for wrong in (True, 1.0, None, b"7"):
        with pytest.raises(scannery.InvalidArgumentError):
            index.upsert([{"id": wrong, "vector": VECTORS[0]}])  # type: ignore[typeddict-item]


@pytest.mark.system
def test_a_frame_of_pandas_is_written(index: scannery.Index) -> None:
    done = index.upsert(frame())
    assert (done.written, done.ignored, done.failed) == (3, ("unnamed",), ())
    first, second, third = index.get(["0", "1", "2"], vectors=True)
    assert first and second and third
    assert first.attributes == {"year": 0, "published": WHEN, "tags": ["x", "y"]}
    assert second.attributes == {"show": "a", "published": WHEN, "tags": ["x", "y"]}
    assert "published" not in third.attributes
    np.testing.assert_array_equal(third.vector, VECTORS[2])


@pytest.mark.system
def test_a_frame_of_any_size_is_written_in_batches(local: scannery.Index) -> None:
    done = local.upsert(frame(1500))
    assert done.written == 1500
    assert local.stats().rows == 600 + 1500


def test_a_frame_that_arrow_cannot_represent_is_written_too(local: scannery.Index) -> None:
    mixed = frame().drop(columns="unnamed")
    mixed["payload"] = [{"a": [1, 2.5]}, ["x"], pd.NA]
    mixed["rating"] = [1.5, float("nan"), decimal.Decimal("2.25")]
    mixed["published"] = [pd.Timestamp(WHEN), pd.NaT, WHEN]
    local.upsert(mixed)
    first, second, third = local.get([0, 1, 2])
    assert first and second and third
    assert (first.payload, second.payload, third.payload) == ({"a": [1, 2.5]}, ["x"], None)
    assert (first.attributes["rating"], third.attributes["rating"]) == (1.5, 2.25)
    assert second.attributes.keys() == {"show", "tags"}


@pytest.mark.parametrize("kind", ["table", "batch", "reader", "chunks"])
def test_arrow_is_written(local: scannery.Index, kind: str) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.uint16()),
            "vector": pa.array(list(VECTORS[:3]), pa.list_(pa.float32(), DIMENSIONS)),
            "rating": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("2")], pa.decimal128(5, 2)),
            "published": pa.array([WHEN, None, WHEN], pa.timestamp("ns", "UTC")),
            "show": pa.array(["a", None, "a"]).dictionary_encode(),
            "tags": pa.array([["x"], [], None], pa.large_list(pa.string())),
            "payload": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        }
    )
    given: Any = {
        "table": table,
        "batch": table.to_batches()[0],
        "reader": table.to_reader(),
        "chunks": pa.concat_tables([table.slice(0, 1), table.slice(1)]),
    }[kind]
    assert local.upsert(given).written == 3
    first, second, third = local.get([1, 2, 3], vectors=True)
    assert first and second and third
    assert first.attributes == {"rating": 1.5, "published": WHEN, "show": "a", "tags": ["x"]}
    assert (first.payload, third.payload) == ({"k": 1}, {})
    assert second.attributes.get("tags", []) == []
    np.testing.assert_array_equal(second.vector, VECTORS[1])


def test_what_other_libraries_offer_as_arrow_is_written(local: scannery.Index) -> None:
    relation: Any = duckdb.sql(
        "select 'd' || i as id, [i + 1 for _ in range(16)]::float[16] as vector, (i + 0.5)::decimal(5, 2) as rating, "
        "timestamp '2024-05-01 12:00' as published, null::varchar as show from range(3) t(i)"
    )
    assert local.upsert(relation).written == 3
    [found] = local.get(["d1"])
    assert found is not None
    assert found.attributes == {"rating": 1.5, "published": WHEN}
    # As polars encodes categories.
    views = pa.DictionaryArray.from_arrays(
        pa.array([0, None], pa.uint32()), pa.array(["a"], pa.string_view())
    )
    local.upsert(pa.table({"id": ["x", "y"], "vector": list(VECTORS[:2]), "show": views}))
    first, second = local.get(["x", "y"])
    assert first and second
    assert (first.attributes, second.attributes) == ({"show": "a"}, {})


def test_vectors_with_nulls_among_them_name_the_row(local: scannery.Index) -> None:
    table = pa.table({"id": ["a", "b"], "vector": pa.array([VECTORS[0], None], pa.list_(pa.float32()))})
    with pytest.raises(scannery.InvalidArgumentError, match=r"upserts\[1\]\.datapoint\.vector"):
        local.upsert(table)


@pytest.mark.system
async def test_the_asynchronous_client_takes_frames(library: Path, tmp_path: Path) -> None:
    with serving(copied(library, tmp_path)) as server:
        async with scannery.aio.connect(server.address) as client:
            index = client.index("library")
            assert (await index.upsert(frame())).written == 3
            assert (await index.upsert_many(frame(), batch_size=2)).ignored == ("unnamed",)


@pytest.mark.system
def test_the_row_that_is_wrong_is_named(local: scannery.Index) -> None:
    wrong = frame(1000)
    wrong.at[777, "vector"] = VECTORS[0][:3]
    with pytest.raises(scannery.InvalidArgumentError, match=r"upserts\[777\]") as caught:
        local.upsert(wrong)
    assert caught.value.field == "upserts[777].datapoint.vector"
    done = local.upsert_many(wrong, errors="return")
    assert (done.written, [failed.position for failed in done.failed]) == (999, [777])
    assert "upserts[777]" in done.failed[0].error.message
    with pytest.raises(scannery.InvalidArgumentError, match="request_id"):
        local.upsert(wrong, request_id="x")


@pytest.mark.system
def test_records_by_the_specs_names_are_taken(library: Path, tmp_path: Path) -> None:
    """In one list with datapoints and exported rows, record by record."""
    records: list[Any] = [
        {"id": "a", "v": [1, 2, 3, 4]},
        {"id": "b", "vector": [1, 2, 3, 5]},
        {"id": "c", "document_id": "d", "embedding": [1, 2, 3, 6], "text": "words", "payload": '{"x": 1}'},
        {"id": 1, "v": "[1, 2, 3, 7]"},
    ]
    with serving(copied(library, tmp_path)) as server, scannery.connect(server.address) as client:
        index = client.index("flat")
        assert index.upsert(records).written == 4
        assert index.upsert_many(records, batch_size=2).written == 4
        found = index.get(["a", "b", "c", "1"], vectors=True)
        assert [point and point.vector is not None and point.vector[3] for point in found] == [4, 5, 6, 7]
        assert found[2] and (found[2].document_id, found[2].text, found[2].payload) == (
            "d",
            "words",
            {"x": 1},
        )
        with pytest.raises(
            scannery.InvalidArgumentError, match=r"upserts\[0\]: unknown key 'vv'.*did you mean 'v'"
        ):
            index.upsert([{"id": "a", "vv": [1, 2, 3, 4]}])  # type: ignore[typeddict-unknown-key]
        more: list[Any] = [{"id": "a", "v": [0, 0, 0, 1], "other": 1}]
        done = index.upsert_many(more * 2, extra="ignore")
        assert (done.written, done.ignored) == (2, ("other",))
        done = index.upsert_many(more, errors="return")
        assert [(failed.position, failed.id) for failed in done.failed] == [(0, "a")]


def test_json_of_an_export_is_a_record(local: scannery.Index) -> None:
    row = {"id": "x", "document_id": "x", "embedding": VECTORS[0].tolist(), "year": 5, "text_start": 0,
           "text_end": 3, "text": "abc", "published": WHEN.isoformat()}  # fmt: skip
    given: Any = json.loads(json.dumps(row))
    local.upsert([given])
    [found] = local.get(["x"])
    assert found is not None
    assert found.attributes == {"year": 5, "published": WHEN}


def test_what_pandas_has_beside_arrows_types_keeps_its_values() -> None:
    some = uuid.UUID(int=5)
    months = pd.DataFrame({"id": [7.0, 8.0], "month": pd.period_range("2024-01", periods=2, freq="M")})
    assert list(table_rows(months)) == [
        {"id": 7, "month": dt.datetime(2024, 1, 1)},
        {"id": 8, "month": dt.datetime(2024, 2, 1)},
    ]
    assert list(table_rows(pd.DataFrame({"id": [some, None]}))) == [{"id": str(some)}, {}]
    payloads = pd.DataFrame({"id": ["a", "b"], "payload": [{"x": 1}, {"y": [2]}]})
    assert [row["payload"] for row in table_rows(payloads)] == [{"x": 1}, {"y": [2]}]


@pytest.mark.parametrize("values", [[1, 2], [1, "x"]], ids=["Arrow", "rows"])
@pytest.mark.parametrize("ids", [pd.RangeIndex(2, name="id"), pd.Index([0, 1], name="id")])
def test_a_named_index_is_a_column(ids: pd.Index, values: list[Any]) -> None:
    rows = list(table_rows(pd.DataFrame({"n": values}, index=ids)))
    assert rows == [{"id": 0, "n": values[0]}, {"id": 1, "n": values[1]}]


def test_two_columns_of_one_name_are_refused() -> None:
    twice = pd.DataFrame([["a", 1, 2]], columns=["id", "n", "n"])
    with pytest.raises(scannery.InvalidArgumentError, match="two columns are called 'n'"):
        list(table_rows(twice))


@pytest.mark.parametrize("rows", [[[0.1, 2**53 + 2.0], [1e300]], [[0.1, None], [], None, [3.5]]])
@pytest.mark.parametrize("kind", [pa.list_(pa.float64()), pa.large_list(pa.float64())])
def test_lists_of_floats_are_kept_exactly(tmp_path: Path, rows: list[Any], kind: pa.DataType) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("floats", dynamic=True, vectors="optional")
        names = [f"id{i}" for i in range(len(rows))]
        index.upsert(pa.table({"id": names, "floats": pa.array(rows, kind)}))
        assert [point.attributes.get("floats") for point in index.get(names) if point] == rows
        assert index.count({"floats": 0.1}) == 1
