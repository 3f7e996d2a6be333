"""Attributes in the spec: their types, and where their values come from."""

from __future__ import annotations

import datetime as dt
import difflib
import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from scannery.indexer.spec.model import FieldSpecModel

__all__ = [
    "ATTRIBUTE_NAME",
    "RESERVED_COLUMNS",
    "AttributeSpec",
    "AttributeType",
    "CheckedType",
    "check_attribute_name",
]

AttributeType = Literal["string", "string_list", "int", "float", "bool", "timestamp", "geo"]

ATTRIBUTE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,62}")

# Columns that every segment has (docs/format.md). Names of further columns begin with "_", which attribute names may
# not, so that a new column never clashes with an attribute.
RESERVED_COLUMNS = frozenset(
    {"id", "document_id", "embedding", "text", "title", "payload", "text_start", "text_end",
     "time_start_s", "time_end_s", "sparse"}
)  # fmt: skip

_MARKS = re.compile("[\u0300-\u036f]")
_SYNONYMS = {
    "str": "string", "text": "string", "keyword": "string", "enum": "string", "varchar": "string",
    "list": "string_list", "array": "string_list", "strings": "string_list", "tags": "string_list",
    "integer": "int", "long": "int", "int64": "int", "int32": "int", "bigint": "int",
    "number": "float", "double": "float", "decimal": "float", "float64": "float", "float32": "float",
    "boolean": "bool", "date": "timestamp", "datetime": "timestamp", "time": "timestamp",
    "point": "geo", "place": "geo", "location": "geo", "geo_point": "geo", "geopoint": "geo", "coordinates": "geo",
}  # fmt: skip
"""Names of types in other systems."""

_CONSTANTS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "string_list": (list,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
    "timestamp": (str, dt.date),
    "geo": (str,),
}


def _check_type(value: object) -> object:
    # pydantic's own error lists the types, without the one that was probably meant.
    kinds = get_args(AttributeType)
    if value in kinds:
        return value
    near = _SYNONYMS.get(str(value).lower()) or next(
        iter(difflib.get_close_matches(str(value), kinds, 1)), None
    )
    hint = f" (did you mean `{near}`?)" if near else ""
    raise ValueError(f"must be one of {', '.join(kinds)}, got {value!r}{hint}")


CheckedType = Annotated[AttributeType, BeforeValidator(_check_type)]
"""An attribute's type in a spec."""


class AttributeSpec(FieldSpecModel):
    """An attribute whose values need more than a type: another name in the input, a conversion, or a constant."""

    type: CheckedType
    """Type of the attribute."""

    path: Annotated[str | None, Field(alias="from", min_length=1)] = None
    """Field of a record with the value: a name, a path (`meta.author.name`), or a template (`{first} {last}`). Default:
    the name of the attribute."""

    value: str | int | float | bool | dt.date | list[str] | None = None
    """One value for all records, in place of a field."""

    split: Annotated[str, Field(min_length=1)] | None = None
    """Separator of the items in a text, such as `,`, of a `string_list`."""

    unit: Literal["s", "ms", "us", "ns"] | None = None
    """Unit of numbers since 1970, of a `timestamp`. Default: found by their size."""

    format: Annotated[str, Field(min_length=1)] | None = None
    """Format of texts, of a `timestamp`, as in Python's `strptime` (`%d/%m/%Y`). Default: ISO 8601."""

    decimal: Literal[".", ","] | None = None
    """Decimal mark in texts, of `int` and `float`. Then the other one, spaces and apostrophes may separate thousands.
    """

    @model_validator(mode="after")
    def _keys_fit(self) -> AttributeSpec:
        if self.value is not None:
            self._check_constant()
        kinds = {
            "split": ("string_list",),
            "unit": ("timestamp",),
            "format": ("timestamp",),
            "decimal": ("int", "float"),
        }
        for key, allowed in kinds.items():
            if getattr(self, key) is not None and self.type not in allowed:
                raise ValueError(f"`{key}` is for type {' or '.join(allowed)}, got type {self.type}")
        return self

    def _check_constant(self) -> None:
        options = [name for name in ("split", "unit", "format", "decimal") if getattr(self, name) is not None]
        if self.path is not None or options:
            raise ValueError(f"`value` excludes `{'from' if self.path is not None else options[0]}`")
        fits = isinstance(self.value, _CONSTANTS[self.type])
        if not fits or (isinstance(self.value, bool) and self.type != "bool"):
            raise ValueError(f"`value` must be of type {self.type}, got {self.value!r}")


def check_attribute_name(name: str, declaration: object) -> None:
    """Raise ValueError, which shows what to write, for a name that an attribute cannot have.

    Args:
        name: of the attribute.
        declaration: its type, or its mapping.

    """
    if ATTRIBUTE_NAME.fullmatch(name) and name not in RESERVED_COLUMNS:
        return
    kind = declaration.get("type") if isinstance(declaration, Mapping) else declaration
    shown = f"{{type: {kind}, from: {_quoted(name)}}}"
    if name in RESERVED_COLUMNS:
        raise ValueError(f"attribute name {name!r} is reserved; give it another name: `own_{name}: {shown}`")
    raise ValueError(
        f"attribute name must match {ATTRIBUTE_NAME.pattern}, got {name!r}; write `{_simple(name)}: {shown}`"
    )


def _simple(name: str) -> str:
    """Return an attribute name that is like a column's name: `Price (USD)` → `price`."""
    bare = re.sub(r"\([^)]*\)|\[[^\]]*\]", "", name)
    plain, whole = (unicodedata.normalize("NFKD", text.casefold()) for text in (bare, name))
    words = re.findall(r"[a-z0-9]+", _MARKS.sub("", plain)) or re.findall(r"[a-z0-9]+", _MARKS.sub("", whole))
    joined = "_".join(words)[:60]
    return joined if ATTRIBUTE_NAME.fullmatch(joined) else f"field_{joined}".rstrip("_")


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[\w.]*[A-Za-z_][\w.]*", name, re.ASCII) else f'"{name}"'
