"""Named vectors given in Python: in specs, datapoints, updates, tables and searches."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import scannery
from scannery.client.request import calls
from scannery.client.request.lifecycle_calls import build_changes, build_spec
from scannery.client.request.named_vectors import build_choices
from scannery.client.request.queries import build_options, build_scan
from scannery.client.request.records import table_rows
from scannery.client.request.writes import build_updates, build_upserts
from scannery.client.response.decoding import parse_hits
from scannery.v1 import search_pb2
from scannery.v1.types_pb2 import Datapoint, Vector


def packed(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def spec_of(spec: Any, **parts: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(build_spec(spec, **parts))
    return made


def test_a_string_is_a_model_and_a_number_the_dimensions() -> None:
    given: dict[str, Any] = {
        "title": "model-a",
        "image": np.int64(512),
        "body": {"encoder": "model-b", "from": "text", "distance": "dot"},
    }
    made = spec_of("talks", named_vectors=given)
    assert made["named_vectors"] == {
        "title": {"encoder": {"model": "model-a"}},
        "image": {"dimensions": 512},
        "body": {"encoder": {"model": "model-b"}, "from": "text", "distance": "dot"},
    }
    assert made["vectors"] == "optional"
    assert "vector" not in made["source"]
    assert given["body"]["encoder"] == "model-b"  # what was given is not changed


def test_named_vectors_complete_a_spec_and_stand_beside_others() -> None:
    alone = spec_of({"index": "talks", "named_vectors": {"image": 3}})
    assert alone["source"] == {"id": "id", "text": "text"}
    beside = spec_of("talks", dimensions=2, named_vectors={"image": 3})
    assert beside["source"]["vector"] == "vector"
    changes = json.loads(build_changes(named_vectors={"image": 3}, dynamic=None))
    assert changes == {"named_vectors": {"image": {"dimensions": 3}}}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (["title"], "spec.named_vectors"),
        ({"title": None}, "spec.named_vectors.title"),
        ({"title": True}, "spec.named_vectors.title"),
        ({"title": 0}, "spec.named_vectors.title"),
        ({"title": 1.5}, "spec.named_vectors.title"),
        ({"title": "512"}, "spec.named_vectors.title"),
    ],
)
def test_a_wrong_spec_is_refused_by_its_field(given: Any, field: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as error:
        spec_of("talks", named_vectors=given)
    assert error.value.field == field


def test_vectors_of_a_datapoint_are_arrays_lists_or_bytes() -> None:
    vectors = {"title": [1, 2], "image": np.array([3, 4], np.float16), "raw": packed(5, 6), "none": None}
    [upsert] = build_upserts([{"id": "a", "vector": packed(7, 8), "vectors": vectors}])
    assert upsert.datapoint.vector.packed == packed(7, 8)
    assert {name: each.packed for name, each in upsert.datapoint.vectors.items()} == {
        "title": packed(1, 2),
        "image": packed(3, 4),
        "raw": packed(5, 6),
    }


@pytest.mark.parametrize(
    ("vectors", "field", "message"),
    [
        ({"title": "a text"}, "vectors.title", "must be a vector"),
        ({"title": [[1.0]]}, "vectors.title", r"shape \(1, 1\)"),
        ({"title": []}, "vectors.title", "one vector"),
        ({"title": b"12345"}, "vectors.title", "got 5 bytes"),
        ({"title": [1.0, "x"]}, "vectors.title", "must be a vector"),
        ([1.0], "vectors", "must be a mapping"),
        ({3: [1.0]}, "vectors", "must be the name"),
    ],
)
def test_a_wrong_vector_is_refused_by_its_name(vectors: Any, field: str, message: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match=message) as error:
        build_upserts([{"id": "a", "vector": [1.0]}, {"id": "b", "vectors": vectors}])
    assert error.value.field == f"upserts[1].datapoint.{field}"


def test_an_update_names_the_vectors_that_it_changes() -> None:
    [some, none, all_of_them] = build_updates(
        [
            {"id": "a", "title": "t", "vectors": {"title": [1.0], "image": None}},
            {"id": "b", "vectors": {"image": None}},
            {"id": "c", "vectors": None},
        ]
    )
    assert list(some.update_mask.paths) == ["title", "vectors.title", "vectors.image"]
    assert [*some.datapoint.vectors] == ["title"]
    assert list(none.update_mask.paths) == ["vectors.image"]
    assert list(all_of_them.update_mask.paths) == ["vectors"]


def test_a_table_has_named_vectors_in_columns_or_in_a_struct() -> None:
    lists = pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2))
    wide = pa.table({"id": ["a", "b"], "vectors.title": lists, "vectors.image": [[3.0], [4.0]]})
    struct = pa.array(
        [{"title": [1.0, 2.0], "image": [3.0]}, {"title": None, "image": [4.0]}],
        pa.struct([("title", pa.list_(pa.float32())), ("image", pa.list_(pa.float64()))]),
    )
    deep = pa.table({"id": ["a", "b"], "vectors": struct})
    frame = pd.DataFrame(
        {"id": ["a", "b"], "vectors": [{"title": [1.0, 2.0], "image": np.array([3.0])}, {"image": [4.0]}]}
    )
    columns = pd.DataFrame(
        {"id": ["a", "b"], "vectors.title": [[1.0, 2.0], None], "vectors.image": [[3.0], [4.0]]}
    )
    for table in (wide, deep, frame, columns):
        first, second = build_upserts(table_rows(table))
        assert {name: each.packed for name, each in first.datapoint.vectors.items()} == {
            "title": packed(1, 2),
            "image": packed(3),
        }
        assert {name: each.packed for name, each in second.datapoint.vectors.items()} == {"image": packed(4)}
    [row] = table_rows(deep.slice(1))
    assert isinstance(row["vectors"]["image"], np.ndarray)
    assert "vectors" not in next(table_rows(pa.table({"id": ["a"], "vectors": pa.nulls(1, struct.type)})))


def test_a_search_names_one_vector_several_or_their_weights() -> None:
    assert [choice.name for choice in build_choices("title")] == ["title"]
    assert [choice.name for choice in build_choices("")] == [""]
    assert [choice.name for choice in build_choices(("title", ""))] == ["title", ""]
    assert not build_choices(["title"])[0].HasField("weight")
    weighted = build_choices({"title": 2, "": np.float32(0.5)})
    assert [(choice.name, choice.weight) for choice in weighted] == [("title", 2), ("", 0.5)]


def test_true_still_returns_the_vectors() -> None:
    assert build_options(3, vectors=True).return_vector
    assert not build_options(3, vectors=True).vectors
    assert build_options(3, vectors=np.True_).return_vector  # type: ignore[arg-type]
    chosen = build_options(3, vectors="title")
    assert ([each.name for each in chosen.vectors], chosen.return_vector) == (["title"], False)
    assert build_options(3, vectors=["title"], return_vectors=True).return_vector


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (2.5, "vectors"),
        (3, "vectors"),
        (b"title", "vectors"),
        (["title", 3], "vectors[1]"),
        ({"title": "2"}, "vectors[0].weight"),
        ({"title": 1, "body": True}, "vectors[1].weight"),
    ],
)
def test_a_wrong_choice_is_refused(given: Any, field: str) -> None:
    with pytest.raises(scannery.InvalidArgumentError) as error:
        build_options(3, vectors=given)
    assert error.value.field == field


@pytest.mark.parametrize("option", ["using", "anns_field"])
def test_a_newcomer_is_told_the_name(option: str) -> None:
    with pytest.raises(TypeError, match="it is 'vectors' here"):
        given: Any = {option: "title"}
        build_options(3, **given)


def test_reads_return_all_vectors_or_none() -> None:
    assert calls.get("i", ["a"], vectors=True).request.return_vector
    reads: list[Any] = [lambda: calls.get("i", ["a"], vectors=names), lambda: build_scan("i", vectors=names)]
    names: Any = ["title"]
    for read in reads:
        with pytest.raises(scannery.InvalidArgumentError, match="must be True or False") as error:
            read()
        assert error.value.field == "vectors"


def hits() -> scannery.Hits:
    first = search_pb2.Hit(
        datapoint=Datapoint(
            id="a", vectors={"title": Vector(packed=packed(1, 2)), "body": Vector(packed=packed(3))}
        ),
        score=0.75,
        vector_scores={"title": 0.5, "": 1.0},
    )
    second = search_pb2.Hit(
        datapoint=Datapoint(id="b", vectors={"title": Vector(packed=packed(5, 6))}),
        score=0.25,
        vector_scores={"title": 0.25},
    )
    return parse_hits(search_pb2.SearchResponse(hits=[first, second]))


def test_hits_have_their_named_vectors_and_scores() -> None:
    first, second = hits()
    assert first.vector_scores == {"title": 0.5, "": 1.0}
    assert {name: vector.tolist() for name, vector in first.vectors.items()} == {"title": [1, 2], "body": [3]}
    assert list(second.vectors) == ["title"]


def test_a_table_of_hits_has_a_column_for_each_name_and_can_be_written_again() -> None:
    table = hits().to_arrow()
    assert table.column("vectors.title").to_pylist() == [[1, 2], [5, 6]]
    assert pa.types.is_fixed_size_list(table.schema.field("vectors.title").type)
    assert table.column("vectors.body").to_pylist() == [[3], None]
    assert table.column("vector_scores.title").to_pylist() == [0.5, 0.25]
    assert table.column("vector_scores").to_pylist() == [1.0, None]
    assert "vector" not in table.column_names
    rows = table_rows(table.select(["id", "vectors.title", "vectors.body"]))
    again = [upsert.datapoint for upsert in build_upserts(rows)]
    assert {name: each.packed for name, each in again[0].vectors.items()} == {
        "title": packed(1, 2),
        "body": packed(3),
    }
    assert [*again[1].vectors] == ["title"]


def test_a_notebook_shows_the_scores_of_several_vectors() -> None:
    assert "vector 1.0000 · title 0.5000" in hits()._repr_html_()
