"""Principals: authenticated callers, their scopes, and the indexes that they can see."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["ALL_INDEXES", "ANONYMOUS", "CURRENT", "SCOPES", "Principal", "Scope"]

Scope = Literal["read", "write", "admin"]
"""No scope includes another: a key with `write` alone cannot read."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

ALL_INDEXES = "*"
"""Stands for all indexes in key files and tokens."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    """Used in logs and for fair sharing among callers; never a secret."""
    scopes: frozenset[Scope]
    indexes: frozenset[str] | None = None
    """The only indexes that the caller can see; None: all."""

    def may(self, scope: Scope) -> bool:
        """Return whether the caller has the scope."""
        return scope in self.scopes

    def sees(self, index: str) -> bool:
        """Return whether the caller can see the index."""
        return self.indexes is None or index in self.indexes

    def visible(self, indexes: Iterable[str]) -> list[str]:
        """Return the indexes that the caller can see, in the given order."""
        return [index for index in indexes if self.sees(index)]


ANONYMOUS = Principal("anonymous", frozenset(SCOPES))
"""Every caller of a server that requires no credentials."""

CURRENT: ContextVar[Principal | None] = ContextVar("scannery_principal", default=None)
"""Caller of the current request, set after authentication; gRPC runs the handler in the same context.

None: the engine is called inside this process.
"""
