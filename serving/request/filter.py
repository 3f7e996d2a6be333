"""Parse filters: from the message to a typed tree.

Semantics, for a row and a condition on the attribute `a`:

- A row without `a` matches `$ne`, `$nin`, `{"$exists": false}` and `{"$empty": true}`, and no other condition.
- A string_list matches if any of its elements does; `$ne` and `$nin` match if none does. `$all` matches if each of its
  values equals an element.
- Null as a value stands for "not set": `{"a": None}` is `{"a": {"$exists": false}}`.
- A dynamic attribute takes values of any type. It matches values of the same kind only: string, number or boolean.
  Strings that are times in ISO 8601 are compared as instants, and a timestamp with those only (text_values.py).
- `$not` matches exactly the rows that its filter does not match, rows without the attribute included. So the tree
  writes `$ne` as `$not` of `$eq`, and `$nin` as `$not` of `$in`.
- Order is numeric, by time, or for strings by Unicode code point.

Names of fields in filters: those of the index, and those of dynamic attributes.

A dynamic attribute may be called like a column of a segment (`title`), so it has a prefix in all that is made of a
request: names of declared attributes never begin with "_".

Conditions on places: `$geo_radius` and `$geo_box`.

Conditions on lists and on strings: `$contains`, `$all`, `$prefix`, `$substring` and these without regard to case.

A condition on words: `$phrase`, on the titles and texts of an index with words.
"""

from __future__ import annotations

import datetime as dt
import difflib
import enum
import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from scannery.indexer import (
    AttributeType,
    IndexSpec,
    InvalidRecordError,
    LexicalSpec,
    Phrase,
    analyser_of,
    attribute_value,
)
from scannery.indexer.datapoints.dynamic import DYNAMIC_COLUMN, MAX_DEPTH, MAX_NAME_BYTES
from scannery.runtime.errors import InvalidRequestError, LexicalUnavailableError
from scannery.serving.limits import (
    MAX_FILTER_CONDITIONS,
    MAX_FILTER_DEPTH,
    MAX_FILTER_PARTS,
    MAX_FILTER_VALUES,
    MAX_GEO_RADIUS_M,
    MAX_PHRASE_SLOP,
    MAX_PHRASE_WORDS,
    MAX_QUERY_TEXT_BYTES,
)
from scannery.v1 import types_pb2 as pb

__all__ = [
    "FIXED_FIELDS",
    "TEXT_FIELD",
    "AllOf",
    "AnyOf",
    "Area",
    "Box",
    "Circle",
    "Compare",
    "Condition",
    "Empty",
    "Exists",
    "GeoWithin",
    "HasAll",
    "HasPhrase",
    "IsIn",
    "MatchOperator",
    "Node",
    "Not",
    "Scalar",
    "StringMatch",
    "Truth",
    "dynamic_name",
    "field_name",
    "form_of",
    "has_condition",
    "is_too_long",
    "parse_filter",
    "size_of",
    "unknown_name",
]


FieldKind: TypeAlias = AttributeType | Literal["dynamic"]
"""Type of a field in a filter; a dynamic one has values of any type."""
FIXED_FIELDS: Mapping[str, AttributeType] = {"id": "string", "document_id": "string"}
"""Fields that can be filtered by in every index."""
_PREFIX = f"{DYNAMIC_COLUMN}."


_NO_NAME = "$"
"""Name that no attribute can have."""


def field_name(name: str, spec: IndexSpec) -> str | None:
    """Return the name by which `FilterCache.field` knows a field; None if the index has no such field.

    Args:
        name: as the request gives it. Of an attribute that is not declared and that the caller may not read, no row
            has a value: also a path into an object that it may read must be named itself, since it may be a name, too.
        spec: of the index, as the caller sees it.

    """
    if name in FIXED_FIELDS or name in spec.attributes:
        return name
    if not spec.dynamic or is_too_long(name):
        return None
    opened = spec.readable_dynamic
    return f"{_PREFIX}{name if opened is None or name in opened else _NO_NAME}"


def is_too_long(name: str) -> bool:
    """Return whether no value can have this name or path; such names would fill the caches that have names as keys."""
    return len(name) > MAX_NAME_BYTES or len(name.encode()) > MAX_NAME_BYTES or name.count(".") >= MAX_DEPTH


def dynamic_name(field: str) -> str | None:
    """Return the name of the dynamic attribute that `field_name` returned a name for; None if it is no such name."""
    return field.removeprefix(_PREFIX) if field.startswith(_PREFIX) else None


@dataclass(frozen=True, slots=True)
class Circle:
    """The places within a distance of another one, which counts."""

    latitude: float
    """Degrees north, -90 to 90."""
    longitude: float
    """Degrees east, -180 to 180."""
    radius_m: float


@dataclass(frozen=True, slots=True)
class Box:
    """The places between two parallels and two meridians, which count; in degrees, as those of `Circle`."""

    south: float
    west: float
    north: float
    east: float
    """Less than `west` in a box that crosses the antimeridian."""


Area: TypeAlias = Circle | Box


@dataclass(frozen=True, slots=True)
class GeoWithin:
    """The field is a place in an area."""

    field: str
    area: Area


GEO = (pb.OPERATOR_GEO_RADIUS, pb.OPERATOR_GEO_BOX)


def parse_geo(message: pb.Condition, name: str, kind: FieldKind, path: str) -> GeoWithin:
    """Return a condition of an operator of GEO.

    Args:
        message: the condition.
        name: of the field in the tree.
        kind: type of the attribute.
        path: where the condition is in the request, for errors.

    Raises:
        InvalidRequestError: the attribute is no place, or the area is none.

    """
    if kind != "geo":
        hint = "; only a declared attribute of type geo has places" if kind == "dynamic" else ""
        what = f"is for places, and {message.field!r:.80} is of type {kind}{hint}"
        raise InvalidRequestError.at(path, what)
    if len(message.values) != 2:
        raise InvalidRequestError.at(path, f"needs two values, got {len(message.values)}")
    first, second = message.values
    is_circle = message.operator == pb.OPERATOR_GEO_RADIUS
    return GeoWithin(name, _circle(first, second, path) if is_circle else _box(first, second, path))


def _circle(centre: pb.Value, radius: pb.Value, path: str) -> Circle:
    latitude, longitude = _degrees_of(centre, path, ("lat", "lon"))
    kind = radius.WhichOneof("kind")
    metres = float(getattr(radius, kind)) if kind in ("int_value", "float_value") else math.nan
    if not 0 <= metres <= MAX_GEO_RADIUS_M:  # of NaN, too
        raise InvalidRequestError.at(
            f"{path}.radius_m", f"must be 0 to {MAX_GEO_RADIUS_M} metres, got {metres:g}"
        )
    return Circle(latitude, longitude, metres)


def _box(south_west: pb.Value, north_east: pb.Value, path: str) -> Box:
    south, west = _degrees_of(south_west, path, ("south", "west"))
    north, east = _degrees_of(north_east, path, ("north", "east"))
    if south > north:
        raise InvalidRequestError.at(f"{path}.south", f"must be at most north ({north:g}), got {south:g}")
    return Box(south, west, north, east)


def _degrees_of(message: pb.Value, path: str, names: tuple[str, str]) -> tuple[float, float]:
    if message.WhichOneof("kind") != "geo_value":
        raise InvalidRequestError.at(path, f"needs a place with {' and '.join(names)}")
    point = (message.geo_value.latitude, message.geo_value.longitude)
    for name, degrees, limit in zip(names, point, (90, 180), strict=True):
        if not -limit <= degrees <= limit:  # NaN is not, either
            raise InvalidRequestError.at(
                f"{path}.{name}", f"must be {-limit} to {limit} degrees, got {degrees:g}"
            )
    return point


MatchOperator: TypeAlias = Literal["prefix", "substring", "ieq", "iprefix", "isubstring"]
"""Begins with a string, or has it; equals one, begins with one, or has it, after Unicode case folding of both.

Those that fold begin with `i`. The names are those of the messages.
"""


@dataclass(frozen=True, slots=True)
class HasAll:
    """The field is a list that has all of the values."""

    field: str
    values: tuple[Any, ...]
    """Distinct."""


@dataclass(frozen=True, slots=True)
class StringMatch:
    """The field, or an element of a list, matches a string."""

    field: str
    operator: MatchOperator
    value: str


HAS_ALL = (pb.OPERATOR_CONTAINS, pb.OPERATOR_ALL)
MATCHES: dict[int, MatchOperator] = {
    pb.Operator.Value(f"OPERATOR_{name.upper()}"): name for name in get_args(MatchOperator)
}


def parse_has_all(
    message: pb.Condition, name: str, kind: FieldKind, path: str, *, typed: Callable[[pb.Value, str], Any]
) -> HasAll:
    """Return a condition of an operator of HAS_ALL.

    Args:
        message: the condition.
        name: of the field in the tree.
        kind: type of the attribute.
        path: where the condition is in the request, for errors.
        typed: returns a value in the type of the list's elements.

    Raises:
        InvalidRequestError: the attribute is no list, or a value does not fit.

    """
    if kind not in ("string_list", "dynamic"):
        hint = "use $eq for the whole value, $substring for a part of it" if kind == "string" else "use $eq"
        raise InvalidRequestError.at(
            path, f"is for lists, and {message.field!r:.80} is of type {kind}; {hint}"
        )
    if not message.values:
        raise InvalidRequestError.at(path, "must not be empty")
    if message.operator == pb.OPERATOR_CONTAINS:
        if len(message.values) != 1:
            what = f"needs exactly one value, got {len(message.values)}; use $all for several"
            raise InvalidRequestError.at(path, what)
        return HasAll(name, (typed(message.values[0], path),))
    values = {typed(value, f"{path}[{i}]"): None for i, value in enumerate(message.values)}
    return HasAll(name, tuple(values))


def parse_match(message: pb.Condition, name: str, kind: FieldKind, path: str) -> StringMatch:
    """Return a condition of an operator of MATCHES; raises as `parse_has_all`."""
    if kind not in ("string", "string_list", "dynamic"):
        raise InvalidRequestError.at(path, f"is for strings, and {message.field!r:.80} is of type {kind}")
    if len(message.values) != 1:
        raise InvalidRequestError.at(path, f"needs exactly one value, got {len(message.values)}")
    value = message.values[0]
    if value.WhichOneof("kind") != "string_value":
        spelled = str(value).strip() or "null"
        raise InvalidRequestError.at(path, f"must be a string, got {spelled:.80}")
    operator = MATCHES[message.operator]
    text = value.string_value
    # Folded here, so that filters that differ by case are one entry of the cache.
    return StringMatch(name, operator, text.casefold() if operator.startswith("i") else text)


TEXT_FIELD = "text"
"""Field of conditions on words: titles and texts. No attribute is declared by this name, which a column has."""


@dataclass(frozen=True, slots=True)
class HasPhrase:
    """The title or the text has a phrase."""

    field: str
    """TEXT_FIELD."""
    phrase: Phrase


def parse_phrase(message: pb.Condition, lexical: LexicalSpec | None, path: str) -> HasPhrase:
    """Return a condition of OPERATOR_PHRASE.

    Args:
        message: the condition.
        lexical: how the words of the index are analysed; None: it has none.
        path: where the condition is in the request, for errors.

    Raises:
        InvalidRequestError: the field is another one, or a value does not fit.
        LexicalUnavailableError: the index has no words.

    """
    if message.field != TEXT_FIELD:
        what = f"is for the field `{TEXT_FIELD}`, the words of titles and texts, got {message.field!r:.80}"
        raise InvalidRequestError.at(path, what)
    if lexical is None:
        raise LexicalUnavailableError(
            f"{path}: the index has no words; build it with `lexical: true`", field=path
        )
    if not 1 <= len(message.values) <= 2:
        raise InvalidRequestError.at(
            path, f"needs a string, and at most a slop, got {len(message.values)} values"
        )
    text, *slops = message.values
    if text.WhichOneof("kind") != "string_value":
        raise InvalidRequestError.at(path, f"must be a string, got {_shown(text)}")
    size = len(text.string_value.encode())
    if size > MAX_QUERY_TEXT_BYTES:
        raise InvalidRequestError.at(path, f"must have at most {MAX_QUERY_TEXT_BYTES} bytes, got {size}")
    for each in slops:
        if each.WhichOneof("kind") != "int_value" or not 0 <= each.int_value <= MAX_PHRASE_SLOP:
            what = f"must be an integer from 0 to {MAX_PHRASE_SLOP}, got {_shown(each)}"
            raise InvalidRequestError.at(f"{path.removesuffix('.$phrase')}.$slop", what)
    phrase = Phrase.of(analyser_of(lexical), text.string_value, sum(each.int_value for each in slops))
    if phrase is None:
        raise InvalidRequestError.at(path, f"has no word that is indexed: {_shown(text)}")
    if phrase.length > MAX_PHRASE_WORDS:
        raise InvalidRequestError.at(path, f"must have at most {MAX_PHRASE_WORDS} words, got {phrase.length}")
    return HasPhrase(TEXT_FIELD, phrase)


class Truth(enum.Enum):
    """A boolean with which a dynamic attribute is compared. True equals 1, and filters by them are not the same."""

    FALSE = False
    TRUE = True


Scalar: TypeAlias = str | int | float | bool | dt.datetime | Truth


@dataclass(frozen=True, slots=True)
class Compare:
    """Compares the field with one value of the field's type."""

    field: str
    operator: Literal["eq", "gt", "gte", "lt", "lte"]
    value: Scalar


@dataclass(frozen=True, slots=True)
class IsIn:
    """The field equals one of the values."""

    field: str
    values: tuple[Scalar, ...]


@dataclass(frozen=True, slots=True)
class Exists:
    """The field is set."""

    field: str


@dataclass(frozen=True, slots=True)
class Empty:
    """The field is not set, or is a list without values."""

    field: str


@dataclass(frozen=True, slots=True)
class Not:
    """The part does not match."""

    part: Node


@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part matches."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part matches."""

    parts: tuple[Node, ...]


Condition: TypeAlias = Compare | IsIn | HasAll | StringMatch | HasPhrase | GeoWithin | Exists | Empty
"""Condition of one field."""
Node: TypeAlias = Condition | Not | AllOf | AnyOf
"""Immutable and hashable: the key of the filter cache."""


def size_of(node: Node) -> int:
    """Return the memory of a filter in bytes."""
    node_bytes = sys.getsizeof(node) + sys.getsizeof(getattr(node, "field", None))
    match node:
        case AllOf(parts) | AnyOf(parts):
            return node_bytes + sys.getsizeof(parts) + sum(map(size_of, parts))
        case Not(part):
            return node_bytes + size_of(part)
        case IsIn(_, values) | HasAll(_, values):
            return node_bytes + sys.getsizeof(values) + sum(map(sys.getsizeof, values))
        case Compare(_, _, value) | StringMatch(_, _, value):
            return node_bytes + sys.getsizeof(value)
        case HasPhrase(_, phrase):
            node_bytes += phrase.size_bytes
        case GeoWithin(_, area):
            return node_bytes + sys.getsizeof(area) + 4 * sys.getsizeof(0.0)
    return node_bytes


def form_of(node: Node) -> Hashable | None:
    """Return what a filter has besides its values, which filters that take about as long have in common.

    None: each takes its own time, since values or texts are read for it, unless it was asked before.
    """
    match node:
        case AllOf(parts) | AnyOf(parts):
            forms = tuple(map(form_of, parts))
            return None if None in forms else (type(node), forms)
        case Not(part):
            form = form_of(part)
            return None if form is None else (Not, form)
        case HasPhrase() | StringMatch(_, "substring" | "isubstring", _):
            return None
        case IsIn(name, values) | HasAll(name, values):
            return type(node), name, len(values).bit_length()
        case Compare(name, operator, _) | StringMatch(name, operator, _):
            return type(node), name, operator
    return type(node), node.field


def has_condition(node: Node) -> bool:
    """Return whether a filter compares anything: the negation of a negated empty filter does not."""
    match node:
        case AllOf(parts) | AnyOf(parts):
            return any(map(has_condition, parts))
        case Not(part):
            return has_condition(part)
    return True


_ORDERS: dict[int, Literal["gt", "gte", "lt", "lte"]] = {
    pb.OPERATOR_GT: "gt",
    pb.OPERATOR_GTE: "gte",
    pb.OPERATOR_LT: "lt",
    pb.OPERATOR_LTE: "lte",
}
_EQUALITIES = (pb.OPERATOR_EQ, pb.OPERATOR_NE)
_MEMBERSHIPS = (pb.OPERATOR_IN, pb.OPERATOR_NIN)
_NEGATED = (pb.OPERATOR_NE, pb.OPERATOR_NIN)


def parse_filter(
    message: pb.Filter, spec: IndexSpec, *, path: str = "where", joined: bool = False
) -> Node | None:
    """Return the filter as a tree, or None if it allows every row.

    Args:
        message: the filter.
        spec: of the index: its attributes, and whether it takes others, too: then no name is unknown.
        path: where the filter is in the request, for errors.
        joined: a root made it of two, each of which is as large as any: that of a batch, and that of a query.

    Raises:
        InvalidRequestError: an unknown field, a value of the wrong type, or an exceeded limit; names the path.

    """
    fields = {**FIXED_FIELDS, **spec.attributes}
    parser = _Parser(fields, spec, limit_factor=2 if joined else 1)
    return parser.node(message, path, 1)


class _Parser:
    """Walks over one filter and counts its parts: the limits apply to the filter as a whole."""

    def __init__(
        self,
        fields: Mapping[str, AttributeType],
        spec: IndexSpec,
        *,
        limit_factor: int,
    ) -> None:
        self._fields = fields
        self._spec = spec
        self._limit_factor = limit_factor
        self._parts = 0
        self._conditions = 0
        self._phrases = 0
        self._values = 0

    def node(self, message: pb.Filter, path: str, depth: int) -> Node | None:
        self._check(depth, MAX_FILTER_DEPTH, path, "levels of nesting")
        self._parts += 1
        self._check(self._parts, MAX_FILTER_PARTS, path, "parts")
        kind = message.WhichOneof("kind")
        if kind is None:
            return None
        if kind == "condition":
            return self._condition(message.condition, path)
        if kind == "negation":
            part = self.node(message.negation, f"{path}.$not", depth + 1)
            # A part that allows every row is None; its negation allows none.
            return Not(part or AllOf(()))
        if kind == "all_of":
            return self._all_of(message.all_of, path, depth)
        return self._any_of(message.any_of, path, depth)

    def _all_of(self, message: pb.FilterList, path: str, depth: int) -> Node | None:
        _not_empty(message, f"{path}.$and")
        # The phrases of a query stand beside the filter of its request, which may be as deep as any.
        is_joined = depth == 1 and any(map(_is_phrase, message.filters))
        # The path omits `$and`: clients also send it for several keys of one dictionary.
        parts = (self.node(item, path, depth + (not is_joined)) for item in message.filters)
        present = tuple(part for part in parts if part is not None)
        return AllOf(present) if present else None

    def _any_of(self, message: pb.FilterList, path: str, depth: int) -> Node | None:
        _not_empty(message, f"{path}.$or")
        parts = [self.node(item, f"{path}.$or[{i}]", depth + 1) for i, item in enumerate(message.filters)]
        present = tuple(part for part in parts if part is not None)
        # One part that allows every row suffices; all parts are validated.
        return AnyOf(present) if len(present) == len(parts) else None

    def _condition(self, message: pb.Condition, path: str) -> Node:
        here = _condition_path(message, path)
        if message.operator == pb.OPERATOR_PHRASE:
            self._phrases += 1
            self._check(self._phrases, MAX_FILTER_CONDITIONS, path, "phrases")
            return parse_phrase(message, self._spec.lexical, here)
        self._conditions += 1
        self._values += len(message.values)
        self._check(self._conditions, MAX_FILTER_CONDITIONS, path, "conditions")
        self._check(self._values, MAX_FILTER_VALUES, path, _VALUES)
        name, kind = self._field(message.field, path)
        if message.operator == pb.OPERATOR_EXISTS:
            return _has(Exists(name), message, here)
        if message.operator == pb.OPERATOR_EMPTY:
            return _has(Empty(name), message, here)
        node = self._positive(message, name, kind, here)
        return _negated(node) if message.operator in _NEGATED else node

    def _positive(self, message: pb.Condition, name: str, kind: FieldKind, path: str) -> Node:
        if message.operator in GEO:
            return parse_geo(message, name, kind, path)
        if message.operator in MATCHES:
            return parse_match(message, name, kind, path)
        if message.operator in HAS_ALL:
            return parse_has_all(message, name, kind, path, typed=lambda value, at: _typed(value, kind, at))
        if message.operator in _MEMBERSHIPS:
            return _is_in(name, message.values, kind, path)
        return _compare(message, name, kind, path)

    def _field(self, dotted: str, path: str) -> tuple[str, FieldKind]:
        """Return the name of a field, and its type."""
        name = field_name(dotted, self._spec)
        if name is None or not dotted:
            raise InvalidRequestError.at(
                f"{path}.{dotted:.80}", unknown_name(dotted, self._fields, "attribute")
            )
        return name, self._fields.get(dotted, "dynamic")

    def _check(self, count: int, limit: int, path: str, what: str) -> None:
        limit *= self._limit_factor
        if count > limit:
            raise InvalidRequestError.at(path.split(".", 1)[0], f"has more than {limit} {what}")


def _is_phrase(message: pb.Filter) -> bool:
    return message.condition.operator == pb.OPERATOR_PHRASE


def _compare(message: pb.Condition, name: str, kind: FieldKind, path: str) -> Node:
    if len(message.values) != 1:
        raise InvalidRequestError.at(path, f"needs exactly one value, got {len(message.values)}")
    if message.operator in _EQUALITIES:
        return _equals(name, message.values[0], kind, path)
    order = _ORDERS.get(message.operator)
    if order is None:
        raise InvalidRequestError.at(path, f"unknown operator {message.operator}")
    value = _typed(message.values[0], kind, path)
    if isinstance(value, (bool, Truth)):
        raise InvalidRequestError.at(path, "booleans have no order; use $eq")
    return Compare(name, order, value)


def unknown_name(name: str, choices: Mapping[str, object], what: str) -> str:
    """Return "no such `what`" with the most similar known name, or all known names if none is similar."""
    if is_too_long(name):
        return f"no such {what}; names have at most {MAX_NAME_BYTES} bytes, and {MAX_DEPTH} levels"
    near = difflib.get_close_matches(name[:80], choices, n=1, cutoff=0.5)
    return f"no such {what}; " + (f"did you mean {near[0]}?" if near else f"there are: {', '.join(choices)}")


_VALUES = "values; ask several times with a part of them, or filter by an attribute that these rows share"


def _equals(name: str, message: pb.Value, kind: FieldKind, path: str) -> Node:
    if message.WhichOneof("kind") is None:
        return Not(Exists(name))
    return Compare(name, "eq", _typed(message, kind, path))


def _is_in(name: str, messages: Sequence[pb.Value], kind: FieldKind, path: str) -> Node:
    if not messages:
        raise InvalidRequestError.at(path, "must not be empty")
    values_set = [
        (i, message) for i, message in enumerate(messages) if message.WhichOneof("kind") is not None
    ]
    values = {_typed(value, kind, f"{path}[{i}]"): None for i, value in values_set}
    node = IsIn(name, tuple(values))
    if len(values_set) == len(messages):
        return node
    return AnyOf((node, Not(Exists(name)))) if values_set else Not(Exists(name))


def _has(node: Exists | Empty, message: pb.Condition, path: str) -> Node:
    if len(message.values) != 1 or message.values[0].WhichOneof("kind") != "bool_value":
        raise InvalidRequestError.at(path, "must be true or false")
    return node if message.values[0].bool_value else Not(node)


def _negated(node: Node) -> Node:
    return node.part if isinstance(node, Not) else Not(node)


def _condition_path(message: pb.Condition, path: str) -> str:
    if message.operator == pb.OPERATOR_EQ:
        return f"{path}.{message.field}"
    return f"{path}.{message.field}.${_NAMES.get(message.operator, message.operator)}"


_NAMES = {number: name.removeprefix("OPERATOR_").lower() for name, number in pb.Operator.items()}
"""Name of each operator in paths."""


def _not_empty(message: pb.FilterList, path: str) -> None:
    if not message.filters:
        raise InvalidRequestError.at(path, "must not be empty")


def _typed(message: pb.Value, kind: FieldKind, path: str) -> Scalar:
    """Return the value converted to the attribute's type; conversions that lose information are refused."""
    if kind == "dynamic":
        return _any_scalar(message, path)
    kind_set = message.WhichOneof("kind")
    if kind_set is None or kind_set not in _ACCEPTED[kind]:
        raise InvalidRequestError.at(path, f"must be {_ARTICLES[kind]}, got {_shown(message)}")
    if (kind, kind_set) in _AS_THEY_ARE:
        same: Scalar = getattr(message, kind_set)
        return same
    if kind == "float" and kind_set == "int_value" and float(message.int_value) != message.int_value:
        return message.int_value  # between two floats: compared exactly, and equal to none
    value = _datetime(message, path) if kind_set == "timestamp_value" else getattr(message, kind_set)
    if isinstance(value, float) and math.isnan(value):
        raise InvalidRequestError.at(path, "must be a number, got NaN; null stands for no value")
    element: AttributeType = "string" if kind == "string_list" else kind
    try:
        typed: Scalar = attribute_value(value, element, field=path)
    except InvalidRecordError as error:
        raise InvalidRequestError.at(path, f"must be {_ARTICLES[kind]}, got {_shown(message)}") from error
    return typed


def _any_scalar(message: pb.Value, path: str) -> Scalar:
    """Return a value to compare a dynamic attribute with."""
    kind = message.WhichOneof("kind")
    if kind == "timestamp_value":
        return _datetime(message, path)
    if kind not in _SCALARS:
        raise InvalidRequestError.at(
            path, f"must be a string, a number, true or false, got {_shown(message)}"
        )
    value: Scalar = getattr(message, kind)
    if isinstance(value, bool):
        return Truth(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError.at(path, f"must be finite, got {value}")
    return value


def _datetime(message: pb.Value, path: str) -> dt.datetime:
    try:
        return message.timestamp_value.ToDatetime(tzinfo=dt.timezone.utc)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError.at(path, "must lie in the years 1 to 9999") from error


_SCALARS = ("string_value", "int_value", "float_value", "bool_value")
_STRINGS = ("string_value",)
_ACCEPTED: dict[AttributeType, tuple[str, ...]] = {
    "string": _STRINGS,
    "string_list": _STRINGS,
    "int": ("int_value", "float_value"),
    "float": ("int_value", "float_value"),
    "bool": ("bool_value",),
    "timestamp": ("timestamp_value", "string_value", "int_value", "float_value"),
    "geo": (),
}
_AS_THEY_ARE = {
    ("string", "string_value"),
    ("string_list", "string_value"),
    ("int", "int_value"),
    ("bool", "bool_value"),
}
"""Types of attributes, and the kinds of values that are of them without any conversion."""
_ARTICLES: dict[AttributeType, str] = {
    "string": "a string",
    "string_list": "a string, compared with each element",
    "int": "a 64-bit integer",
    "float": "a finite number",
    "bool": "true or false",
    "timestamp": "a timestamp (ISO 8601, or seconds since 1970)",
    "geo": "null (places are compared with $geo_radius and $geo_box)",
}


def _shown(message: pb.Value) -> str:
    kind = message.WhichOneof("kind")
    if kind is None:
        return "null"
    shown = repr(list(message.string_list_value.values)) if kind == "string_list_value" else None
    shown = shown or repr(getattr(message, kind)).strip()
    return shown if len(shown) <= 80 else shown[:77] + "..."
