"""The base of the spec's models."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

__all__ = ["INDEX_NAME", "FieldSpecModel", "Since", "SpecModel", "as_earlier", "later_keys", "mapping_like"]

INDEX_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
"""Names of indexes, and of models in a store: they become folder names."""


@dataclass(frozen=True, slots=True)
class Since:
    """Annotation of a key that was added later: it is not written where it has its default."""

    level: int
    """Level of stores in which the key may be used (indexer/versions/levels.py)."""
    feature: str = ""
    """What sets the key, if users do not; messages name it in place of the key."""


@functools.cache
def later_keys(model: type[BaseModel]) -> Mapping[str, Since]:
    """Return the keys of a model that were added later."""
    marks = ((name, mark) for name, field in model.model_fields.items() for mark in field.metadata)
    return {name: mark for name, mark in marks if isinstance(mark, Since)}


def as_earlier(model: BaseModel, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the serialized fields of a model without later keys that have their defaults.

    Releases that do not know a key may refuse it; and names of finished work are hashes of what is written.
    """
    later, declared = later_keys(type(model)), type(model).model_fields
    return {
        name: value
        for name, value in fields.items()
        if name not in later or getattr(model, name) != declared[name].default
    }


class SpecModel(BaseModel):
    """A mapping of the spec: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return as_earlier(self, handler(self))

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of the model; the docstring under a key is its description, as in docs/spec.md.

        Pydantic's `use_attribute_docstrings` would parse the source in every process that imports this.
        """
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _docstrings(cls).items():
            properties[cls.model_fields[name].alias or name]["description"] = text
        return schema


class FieldSpecModel(SpecModel):
    """A mapping of the spec whose key `from` names a field, `path` in Python; only keys with a value are written."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = {key: value for key, value in as_earlier(self, handler(self)).items() if value is not None}
        return {"from" if key == "path" else key: value for key, value in fields.items()}


def _docstrings(model: type[SpecModel]) -> dict[str, str]:
    """Return the docstrings under the attributes of a model, by attribute."""
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        attribute.target.id: inspect.cleandoc(text.value.value)
        for attribute, text in itertools.pairwise(definition.body)
        if isinstance(attribute, ast.AnnAssign)
        and isinstance(attribute.target, ast.Name)
        and attribute.target.id in model.model_fields
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def mapping_like(example: Callable[[Any], str], *, optional: bool = True) -> BeforeValidator:
    """Return the check that a value is a mapping, whose error shows the mapping that was probably meant.

    Args:
        example: returns that mapping for the value given.
        optional: None is left to the type of the key; else it is refused, too.

    """

    def check(value: object) -> object:
        if (value is None and optional) or isinstance(value, (Mapping, BaseModel)):
            return value
        raise ValueError(f"must be a mapping such as `{example(value)}`, got {value!r}")

    return BeforeValidator(check)
