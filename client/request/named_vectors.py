"""Named vectors, from Python values to messages: in specs, in datapoints, and which of them a search compares."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.v1.search_pb2 import VectorChoice
from scannery.v1.types_pb2 import Vector

__all__ = [
    "NamedVectors",
    "VectorChoices",
    "build_choices",
    "build_named_spec",
    "build_vectors",
    "checked_return",
    "packed_vector",
    "with_vectors",
]

NamedVectors: TypeAlias = Mapping[str, str | int | Mapping[str, Any]]
"""Name → the name of a model that encodes texts, the number of dimensions, or a mapping as in SPEC.yaml."""

VectorChoices: TypeAlias = str | Sequence[str] | Mapping[str, float]
"""One name, several, or several with their weights; "" is the unnamed vector."""

_COLUMN = "vectors."


def build_named_spec(vectors: object, field: str) -> dict[str, Any]:
    """Return `named_vectors` as the spec has them.

    Raises:
        InvalidArgumentError: a value is neither a model, a number of dimensions nor a mapping.

    """
    if not isinstance(vectors, Mapping):
        raise _invalid(
            field, f"must be a mapping of names to models, dimensions or mappings, got {vectors!r:.80}"
        )
    return {str(name): _named_spec(value, f"{field}.{name}") for name, value in vectors.items()}


def _named_spec(value: object, field: str) -> dict[str, Any]:
    if isinstance(value, str):
        if value.strip().isdigit():
            raise _invalid(
                field, f"must be a number for dimensions, a model or a mapping, got the text {value!r:.80}"
            )
        return {"encoder": {"model": value}}
    if isinstance(value, Mapping):
        encoder = value.get("encoder")
        return {**value, **({"encoder": {"model": encoder}} if isinstance(encoder, str) else {})}
    try:
        dimensions = operator.index(value)  # type: ignore[arg-type]  # the point is to find out
    except TypeError as error:
        raise _invalid(
            field, f"must be a model, a number of dimensions or a mapping, got {value!r:.80}"
        ) from error
    if isinstance(value, bool) or dimensions < 1:
        raise _invalid(field, f"must be a number of dimensions from 1, got {value!r:.80}")
    return {"dimensions": dimensions}


def build_choices(choices: object, field: str = "vectors") -> list[VectorChoice]:
    """Return the messages for the vectors that a search compares; the server checks names and weights.

    Raises:
        InvalidArgumentError: it is none of the kinds of `VectorChoices`.

    """
    if isinstance(choices, str):
        return [VectorChoice(name=choices)]
    if isinstance(choices, Mapping):
        return [
            VectorChoice(name=_name(name, field), weight=_weight(weight, f"{field}[{i}].weight"))
            for i, (name, weight) in enumerate(choices.items())
        ]
    if not isinstance(choices, Iterable) or isinstance(choices, (bytes, bytearray)):
        raise _invalid(
            field, f"must be a name, a list of names or a mapping of names to weights, got {choices!r:.80}"
        )
    return [VectorChoice(name=_name(name, f"{field}[{i}]")) for i, name in enumerate(choices)]


def _name(name: object, field: str) -> str:
    if not isinstance(name, str):
        raise _invalid(field, f"must be the name of a vector, got {name!r:.80}")
    return name


def _weight(weight: object, field: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, (int, float, np.integer, np.floating)):
        raise _invalid(field, f"must be a number, got {weight!r:.80}")
    return float(weight)


def checked_return(vectors: object) -> bool:
    """Return whether a read returns vectors; InvalidArgumentError for names, since it returns all of them."""
    if not isinstance(vectors, (bool, int, np.bool_, type(None))):
        raise _invalid("vectors", f"must be True or False: all vectors are returned, got {vectors!r:.80}")
    return bool(vectors)


def build_vectors(vectors: object, field: str) -> dict[str, Vector]:
    """Return the messages for the named vectors of a datapoint; a name whose vector is None is left out.

    Raises:
        InvalidArgumentError: names the vector that is none.

    """
    if not isinstance(vectors, Mapping):
        raise _invalid(field, f"must be a mapping of names to vectors, got {vectors!r:.80}")
    return {
        _name(name, field): Vector(packed=packed_vector(vector, f"{field}.{name}"))
        for name, vector in vectors.items()
        if vector is not None
    }


def packed_vector(value: object, field: str) -> bytes:
    """Return a vector as little-endian float32; bytes are one already.

    Raises:
        InvalidArgumentError: it is not one vector.

    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        packed = bytes(value)
        if not packed or len(packed) % 4:
            raise _invalid(field, f"must be float32, 4 bytes for each component, got {len(packed)} bytes")
        return packed
    try:
        with np.errstate(over="ignore"):  # the server refuses infinity
            vector_D = np.asarray(value, dtype="<f4", order="C")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise _invalid(field, f"must be a vector, got {type(value).__name__}: {error}") from error
    if vector_D.ndim != 1 or vector_D.size == 0:
        raise _invalid(field, f"must be one vector, got an array of shape {vector_D.shape}")
    return vector_D.tobytes()


def with_vectors(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of a table with its columns `vectors.NAME` as one value `vectors`."""
    columns = [name for name in row if name.startswith(_COLUMN)]
    if not columns:
        return row
    columns_kept = {name: value for name, value in row.items() if name not in columns}
    named = {name.removeprefix(_COLUMN): row[name] for name in columns}
    return {**columns_kept, "vectors": {**(columns_kept.get("vectors") or {}), **named}}


def _invalid(path: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{path}: {what}", field=path)
