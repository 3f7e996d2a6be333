"""The `where` argument of calls, and values of conditions: what is wrong with one is an error of the SDK."""

from __future__ import annotations

from scannery.client.errors import InvalidArgumentError
from scannery.runtime import where as grammar
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.where import Scalar, Where
from scannery.v1 import types_pb2 as pb

__all__ = ["Scalar", "Where", "build_filter", "build_value"]


def build_filter(where: Where, *, path: str = "where") -> pb.Filter:
    """Return the filter message for a `where` dictionary; an empty one allows everything.

    Raises:
        InvalidArgumentError: it is not in the grammar; `field` is the path to the place.

    """
    try:
        return grammar.build_filter(where, path=path)
    except InvalidRequestError as error:
        raise InvalidArgumentError(error.message, field=error.field) from None


def build_value(value: object, *, path: str) -> pb.Value:
    """Return the message for a scalar; None becomes null. Raises InvalidArgumentError."""
    try:
        return grammar.build_value(value, path=path)
    except InvalidRequestError as error:
        raise InvalidArgumentError(error.message, field=error.field) from None
