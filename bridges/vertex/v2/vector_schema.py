"""The vector schema of a collection, and the vectors of our index that hold its fields.

The first dense field without an embedding model, by name, is the unnamed vector of the index; all others are named
vectors. A field with a model is always a named one, with the model as its encoder and `from: title`: data objects have
no title, so the engine never encodes by itself, and the text is made from the field's template here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from scannery.bridges.vertex.v2.values import TextTemplate
from scannery.indexer.spec.vector_spec import VECTOR_NAME
from scannery.runtime.errors import InvalidRequestError, UnsupportedError
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["DenseField", "VectorSchema", "check_field_names", "index_spec", "named_vector", "parsed_schema"]

MAX_DIMENSIONS = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseField:
    """A dense field."""

    name: str
    space: str
    """Name of the vector in our index; empty: the unnamed one."""
    dimensions: int
    """0: those of the model."""
    model: str = ""
    """Model that the operator has mapped `model_id` to; empty: data objects bring their vectors."""
    model_id: str = ""
    template: TextTemplate | None = None
    task_type: int = 0
    """An EmbeddingTaskType."""


@dataclass(frozen=True, slots=True)
class VectorSchema:
    """The fields of a collection. Immutable."""

    dense: Mapping[str, DenseField]
    sparse: str = ""
    """Name of the sparse field; empty: there is none."""

    def dense_field(self, name: str, path: str) -> DenseField:
        """Return a dense field; InvalidRequestError if there is none of this name."""
        if name not in self.dense:
            names = ", ".join(sorted(self.dense)) or "none"
            raise InvalidRequestError.at(path, f"must be a dense field ({names}), got {name!r:.80}")
        return self.dense[name]

    @property
    def spaces(self) -> dict[str, str]:
        """The vector of our index for each dense field."""
        return {name: field.space for name, field in self.dense.items()}


def check_field_names(names: Iterable[str]) -> None:
    """Raise InvalidRequestError unless new fields can have these names: those that vectors of our indexes can have.

    Which field is the unnamed vector depends on the others, so one rule is for all.
    """
    for name in sorted(names):
        if not VECTOR_NAME.fullmatch(name):
            raise InvalidRequestError.at(
                "collection.vector_schema",
                "names of fields must be 1 to 63 letters, digits, underscores and hyphens that begin with a letter, "
                f"got {name!r:.100}",
            )


def parsed_schema(
    fields: Mapping[str, pb.VectorField],
    models: Mapping[str, str],
    *,
    spaces: Mapping[str, str] | None = None,
    path: str = "collection.vector_schema",
) -> VectorSchema:
    """Return the fields of a schema.

    Args:
        fields: of the request or of the stored collection.
        models: the models of the operator by `model_id`.
        spaces: the vectors of our index that fields have already; None: the collection is new.
        path: of the schema, in errors.

    Raises:
        InvalidRequestError: names the field that is wrong.
        UnsupportedError: there are two sparse fields.

    """
    dense: dict[str, DenseField] = {}
    sparse = ""
    unnamed = _unnamed(fields) if spaces is None else ""
    for name, field in sorted(fields.items()):
        field_path = f"{path}.{name:.80}"
        kind = field.WhichOneof("vector_type_config")
        if kind is None:
            raise InvalidRequestError.at(field_path, "must have dense_vector or sparse_vector")
        if kind == "dense_vector":
            space = (spaces or {}).get(name, "" if name == unnamed else name)
            dense[name] = _dense(name, space, field.dense_vector, models, field_path)
        elif sparse:
            raise UnsupportedError(
                f"{field_path}: a second sparse field ({sparse!r} is one) is not supported", field=field_path
            )
        else:
            sparse = name
    return VectorSchema(dense, sparse)


def index_spec(name: str, schema: VectorSchema, distances: Mapping[str, str]) -> dict[str, Any]:
    """Return the spec of the index of a collection.

    Args:
        name: of the index.
        schema: of the collection.
        distances: by dense field.

    """
    source: dict[str, Any] = {"id": "id", "text": "text"}
    spec: dict[str, Any] = {
        "index": name,
        "source": source,
        "vectors": "optional",
        "lexical": True,
        "dynamic": True,
    }
    for field in schema.dense.values():
        distance = distances[field.name]
        if field.space:
            spec.setdefault("named_vectors", {})[field.space] = named_vector(field, distance)
        else:
            source["vector"], spec["distance"] = "vector", distance
    if schema.sparse:
        source["sparse_vector"] = "sparse_vector"
    return spec


def named_vector(field: DenseField, distance: str) -> dict[str, Any]:
    """Return the keys of a named vector for a field."""
    if not field.model:
        return {"dimensions": field.dimensions, "distance": distance}
    encoder: dict[str, Any] = {"model": field.model}
    return {"encoder": encoder, "from": "title", "distance": distance}


def _unnamed(fields: Mapping[str, pb.VectorField]) -> str:
    """Return the field that is the unnamed vector of a new index; empty: there is none."""
    return min(
        (
            name
            for name, field in fields.items()
            if field.HasField("dense_vector") and not field.dense_vector.HasField("vertex_embedding_config")
        ),
        default="",
    )


def _dense(
    name: str, space: str, field: pb.DenseVectorField, models: Mapping[str, str], path: str
) -> DenseField:
    embedded = field.HasField("vertex_embedding_config")
    least = 0 if embedded else 1
    if not least <= field.dimensions <= MAX_DIMENSIONS:
        raise InvalidRequestError.at(
            f"{path}.dense_vector.dimensions", f"must be {least} to {MAX_DIMENSIONS}, got {field.dimensions}"
        )
    if not embedded:
        return DenseField(name=name, space=space, dimensions=field.dimensions)
    config, config_path = field.vertex_embedding_config, f"{path}.dense_vector.vertex_embedding_config"
    if config.model_id not in models:
        names = ", ".join(sorted(models)) or "none"
        raise InvalidRequestError.at(
            f"{config_path}.model_id",
            f"must be a model of this server ({names}), got {config.model_id!r:.100}; its operator adds one with "
            "--vertex-model",
        )
    return DenseField(
        name=name,
        space=space,
        dimensions=field.dimensions,
        model=models[config.model_id],
        model_id=config.model_id,
        template=TextTemplate(config.text_template, f"{config_path}.text_template"),
        task_type=config.task_type,
    )
