"""Text that is no valid Unicode, refused by name: Python's strings can hold lone surrogates, messages cannot."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from scannery.client.errors import InvalidArgumentError

__all__ = ["not_unicode", "refuses_surrogates"]

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
            given = signature.bind(*args, **kwargs).arguments
            names = {**given, **given.pop("options", {})}
            raise not_unicode(_holder(names, error.object), error) from error

    return checked


def _holder(arguments: Mapping[str, Any], text: str) -> str:
    """Return the argument that a text comes from; the last one if it cannot be told."""
    found = (name for name, value in arguments.items() if text in _texts(value))
    return next(found, list(arguments)[-1])


def _texts(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Mapping):
        return tuple(value)
    return tuple(value) if isinstance(value, (list, tuple, set, frozenset)) else (value,)
