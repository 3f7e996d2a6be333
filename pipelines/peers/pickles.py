"""What a foreign file may have in a pickle: loading one can otherwise call any function.

Qdrant's local mode keeps its points as pickles. Python tells an audit hook of each name that a pickle refers to, before
it is looked up, also in loads of other packages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from scannery.pipelines.errors import PeerError

__all__ = ["only_plain_pickles"]

PLAIN = frozenset(
    {
        ("qdrant_client.http.models.models", "PointStruct"),
        ("qdrant_client.http.models.models", "SparseVector"),
        ("builtins", "bytearray"),
        ("builtins", "frozenset"),
        ("builtins", "object"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("copyreg", "_reconstructor"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("numpy", "dtype"),
        ("numpy", "ndarray"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "scalar"),
        ("numpy._core.numeric", "_frombuffer"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy.core.numeric", "_frombuffer"),
        ("uuid", "SafeUUID"),
        ("uuid", "UUID"),
    }
)
"""Modules and names: data, and nothing that runs a file's choice of code."""
_SOURCE: ContextVar[str | None] = ContextVar("scannery_pickle_source", default=None)


@contextmanager
def only_plain_pickles(source: str) -> Iterator[None]:
    """Refuse pickles with other names than those of PLAIN while this thread is inside.

    Raises:
        PeerError: a pickle has another name; it is not looked up.

    """
    _add_hook()
    token = _SOURCE.set(source)
    try:
        yield
    finally:
        _SOURCE.reset(token)


@lru_cache(maxsize=1)
def _add_hook() -> None:
    sys.addaudithook(_check)  # for the life of the process: it cannot be taken away


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "pickle.find_class":
        return
    source = _SOURCE.get()
    if source is not None and tuple(arguments) not in PLAIN:
        module, name = arguments
        raise PeerError(
            f"{source}: a pickle in it refers to {module!r:.80}.{name!r:.80}, and could run any code; it is not read"
        )
