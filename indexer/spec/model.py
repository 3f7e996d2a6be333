"""The base of the spec's models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    model_serializer,
)

__all__ = ["FieldSpecModel", "SpecModel", "mapping_like"]


class SpecModel(BaseModel):
    """A mapping of the spec: unknown keys and values of another type are refused."""

    # The docstring under a key is its description in the JSON Schema and in docs/spec.md.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)


class FieldSpecModel(SpecModel):
    """A mapping of the spec whose key `from` names a field, `path` in Python; only keys with a value are written."""

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = {key: value for key, value in handler(self).items() if value is not None}
        return {"from" if key == "path" else key: value for key, value in written.items()}


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
