"""Values of records and frames → values as datapoints have them: Python's own, ids as text, and valid Unicode."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import inspect
import math
import numbers
import uuid
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

from scannery.client.errors import InvalidArgumentError

__all__ = ["Identifier", "as_identifier", "not_unicode", "plain_value", "refuses_surrogates"]


def plain_value(value: Any) -> Any:
    """Return a value as datapoints have it, None for what stands for nothing: NaN, and pandas' NA and NaT.

    NumPy's scalars are Python's; decimals are integers where they are whole, else floats; UUIDs and times of day are
    texts, and periods the time when they begin. Arrays of numbers stay arrays. Durations stay durations: as numbers of
    seconds, they would be times since 1970, truth values and texts, too.
    """
    if type(value).__name__ == "Period" and hasattr(value, "start_time"):
        value = value.start_time
    for kinds, convert in _CONVERSIONS:
        if isinstance(value, kinds):
            return convert(value)
    # pandas' NA and NaT have no common class; NaT is a datetime that is not equal to itself.
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _datetime(value: dt.datetime) -> dt.datetime | None:
    if type(value).__name__ == "NaTType":
        return None
    return value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value


def _duration(value: dt.timedelta) -> dt.timedelta:
    return value.to_pytimedelta() if hasattr(value, "to_pytimedelta") else value


def _decimal(value: decimal.Decimal) -> int | float | None:
    if not value.is_finite():
        return None if value.is_nan() else float(value)
    return int(value) if value == value.to_integral_value() else float(value)


def _numpy(value: np.generic) -> Any:
    if isinstance(value, np.datetime64):
        return None if np.isnat(value) else value.astype("datetime64[us]").item()
    if isinstance(value, np.timedelta64):
        return None if np.isnat(value) else plain_value(value.astype("timedelta64[us]").item())
    return plain_value(value.item())


def _array(value: np.ndarray) -> Any:
    # Arrays of numbers are vectors; others are lists, of strings say.
    if value.dtype.kind in "fiu":
        return value
    return [plain_value(item) for item in (value if value.dtype.kind in "mM" else value.tolist())]


_CONVERSIONS: tuple[tuple[tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((str, bool, bytes), lambda value: value),
    ((np.generic,), _numpy),
    ((float,), lambda value: None if math.isnan(value) else value),
    ((decimal.Decimal,), _decimal),
    ((numbers.Integral,), int),
    ((uuid.UUID,), str),
    ((dt.datetime,), _datetime),
    ((dt.time,), lambda value: value.isoformat()),
    ((dt.timedelta,), _duration),
    ((np.ndarray,), _array),
    ((Mapping,), lambda value: {name: plain_value(item) for name, item in value.items()}),
    ((list, tuple), lambda value: [plain_value(item) for item in value]),
)


P = ParamSpec("P")
T = TypeVar("T")


def not_unicode(field: str, error: UnicodeEncodeError) -> InvalidArgumentError:
    """Return the error for a text that a message could not take."""
    return InvalidArgumentError(f"{field}: is not valid Unicode: {error.object!a:.80}", field=field)


def refuses_surrogates(build: Callable[P, T]) -> Callable[P, T]:
    """Make a function that builds a message raise InvalidArgumentError, with the argument's name, for such a text."""
    signature = inspect.signature(build)

    @functools.wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return build(*args, **kwargs)
        except UnicodeEncodeError as error:
            arguments = signature.bind(*args, **kwargs).arguments
            names = {**arguments, **arguments.pop("options", {})}
            raise not_unicode(_holder(names, error.object), error) from error

    return checked


def _holder(arguments: Mapping[str, Any], text: str) -> str:
    """Return the argument that a text comes from; the last one if it cannot be told."""
    names = (name for name, value in arguments.items() if text in _texts(value))
    return next(names, list(arguments)[-1])


def _texts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        return tuple(value)
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)


Identifier: TypeAlias = str | int | uuid.UUID
"""An integer becomes its digits."""


def as_identifier(value: object, field: str) -> str:
    """Return an id as text.

    Raises:
        InvalidArgumentError: it is no string, integer or UUID; `field` names it.

    """
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(
        value,
        (bool, np.timedelta64),  # which are integers to Python and to NumPy
    ):
        return str(int(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    raise InvalidArgumentError(
        f"{field}: must be a string or an integer, got {type(value).__name__} {value!r:.80}", field=field
    )
