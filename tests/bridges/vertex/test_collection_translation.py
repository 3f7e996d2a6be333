"""What API v2 translates without a server: data, filters, schemas, templates, names, fusion."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from scannery.bridges.vertex.v2.data_schema import DataSchema
from scannery.bridges.vertex.v2.filters import parsed_filter
from scannery.bridges.vertex.v2.resource_names import parsed_collection, parsed_object
from scannery.bridges.vertex.v2.searching import checked_weights, fused
from scannery.bridges.vertex.v2.values import TextTemplate, data_of, fill, json_of, searched_text, struct_of
from scannery.bridges.vertex.v2.vector_schema import index_spec, parsed_schema
from scannery.runtime.errors import InvalidRequestError, UnsupportedError
from scannery.vertex.v2 import collections_pb2 as pb

HERE = "projects/p/locations/l"


def struct(values: dict[str, Any]) -> Struct:
    made = Struct()
    fill(made, values)
    return made


def test_data_comes_back_as_it_was():
    data = {
        "id": "x",
        "data:id": "y",
        "data.id": "z",
        "id.part": "p",
        "document_id": None,
        "n": 2,
        "f": 2.5,
        "b": True,
        "l": [1, "a", []],
        "o": {"k": [None]},
    }
    assert struct_of(struct(data), "data") == data
    kept = json.loads(json_of(data))
    renamed = {
        "data:id": "x",
        "data:data:id": "y",
        "data.id": "z",
        "data:id.part": "p",
        "data:document_id": None,
    }
    assert renamed.items() <= kept.items()
    assert "id" not in kept
    assert data_of(kept) == data
    number = struct_of(struct({"n": -0.0}), "data")["n"]
    assert (type(number), math.copysign(1, number)) == (float, -1)
    with pytest.raises(InvalidRequestError, match="data.a.b: must be a finite number"):
        struct_of(struct({"a": {"b": math.nan}}), "data")
    assert searched_text({"a": "x", "b": ["y", "z"], "c": [1], "d": 3}) == "x\ny\nz"
    assert searched_text({"a": "x", "b": "y"}, ["b", "none"]) == "y"


def test_filters_join_what_stands_side_by_side():
    where = parsed_filter(struct({"year": {"$gte": 1, "$lt": 2.5}, "id": "a"}), "filter")
    assert where is not None
    found = [(each.condition.field, each.condition.operator) for each in where.all_of.filters]
    assert found == [("data:id", 1), ("year", 4), ("year", 5)]
    assert parsed_filter(struct({}), "filter") is None
    nothing = parsed_filter(struct({"a": {"$in": []}}), "filter")
    assert nothing is not None
    assert nothing.HasField("negation")


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"$not": {}}, r"filter.\$not: must be a field"),
        ({"a": {"$exists": True}}, r"filter.a.\$exists: is no operator"),
        ({"a": {"$all": "x"}}, r"filter.a.\$all: must be a list"),
        ({"$and": [{"a": 1}, 2]}, r"filter.\$and\[1\]: must be an object"),
        ({"a": [1]}, "filter.a: must be a string"),
    ],
)
def test_filters_that_are_wrong(given: dict[str, Any], match: str):
    with pytest.raises(InvalidRequestError, match=match):
        parsed_filter(struct(given), "filter")


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "s": {"type": ["string", "null"], "maxLength": 3},
        "l": {"type": "array", "items": {"enum": ["a", 1]}},
    },
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"n": 1, "s": None, "l": ["a", 1]}, ""),
        ({}, "data.n: is required"),
        ({"n": True}, "data.n: must be integer"),
        ({"n": 1.5}, "data.n: must be integer"),
        ({"n": 0}, "data.n: must be at least 1"),
        ({"n": 1, "s": "long"}, "data.s: must have at most 3"),
        ({"n": 1, "l": [True]}, r"data.l\[0\]: must be one of"),
        ({"n": 1, "x": 1}, "data.x: is not in the data schema"),
    ],
)
def test_data_schemas(data: dict[str, Any], match: str):
    schema = DataSchema(SCHEMA)
    if not match:
        schema.check(data, "data")
        return
    with pytest.raises(InvalidRequestError, match=match):
        schema.check(data, "data")


def test_keywords_that_are_not_checked_are_refused():
    wrong: list[dict[str, Any]] = [
        {"anyOf": []},
        {"properties": {"a": {"pattern": "x"}}},
        {"type": "list"},
        {"required": "a"},
    ]
    for schema in wrong:
        with pytest.raises(InvalidRequestError, match=r"collection.data_schema\."):
            DataSchema(schema)


def test_templates():
    template = TextTemplate("{title}: {tags} ({year})", "t")
    assert template.render({"title": "A", "tags": ["x", "y"], "year": 5}) == "A: x, y (5)"
    assert template.render({"title": "A"}) == "A:  ()"
    assert template.render({"other": 1}) is None
    for wrong in ("no field", "{}", "{a", "a} {b}"):
        with pytest.raises(InvalidRequestError, match="in braces"):
            TextTemplate(wrong, "t")


def test_names():
    name, identifier = parsed_object(f"{HERE}/collections/films/dataObjects/A b", "name")
    assert (str(name), identifier) == (f"{HERE}/collections/films", "A b")
    for wrong in (
        f"{HERE}/collections/Films",
        "collections/films",
        f"{HERE}/collections/a/b",
        f"{HERE}/collections/",
    ):
        with pytest.raises(InvalidRequestError, match="must be projects/"):
            parsed_collection(wrong, "name")


def test_reciprocal_ranks_are_summed_by_weight():
    scores = fused([["a", "b"], ["b"]], [1.0, 0.5])
    assert list(scores.items()) == [("b", 1 / 62 + 0.5 / 61), ("a", 1 / 61)]
    for weights in ([1.0], [1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(InvalidRequestError, match="weights"):
            checked_weights(weights, 2, "weights")


def test_the_first_field_without_a_model_is_the_unnamed_vector():
    config = pb.VertexEmbeddingConfig(model_id="m", text_template="{t}")
    fields = {
        "a": pb.VectorField(dense_vector=pb.DenseVectorField(vertex_embedding_config=config)),
        "b": pb.VectorField(dense_vector=pb.DenseVectorField(dimensions=3)),
        "c": pb.VectorField(dense_vector=pb.DenseVectorField(dimensions=4)),
        "s": pb.VectorField(sparse_vector=pb.SparseVectorField()),
    }
    schema = parsed_schema(fields, {"m": "model"})
    assert (schema.spaces, schema.sparse) == ({"a": "a", "b": "", "c": "c"}, "s")
    spec = index_spec("films", schema, dict.fromkeys(schema.dense, "cosine"))
    assert spec["named_vectors"]["a"] == {
        "encoder": {"model": "model"},
        "from": "title",
        "distance": "cosine",
    }
    assert spec["named_vectors"]["c"] == {"dimensions": 4, "distance": "cosine"}
    with pytest.raises(UnsupportedError, match="second sparse"):
        parsed_schema({**fields, "z": fields["s"]}, {"m": "model"})
    with pytest.raises(InvalidRequestError, match="model_id"):
        parsed_schema(fields, {})
