"""Who calls, and what they may do."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, get_args

__all__ = ["ANONYMOUS", "CURRENT", "SCOPES", "Principal", "Scope"]

Scope = Literal["read", "write", "admin"]
"""`write` and `admin` do not include the others: a key that only writes cannot read."""

SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller whose credentials were right."""

    name: str
    """For logs and for sharing the server among callers; never a secret."""
    scopes: frozenset[Scope]
    indexes: frozenset[str] | None = None
    """The only indexes that exist for them; None: all."""

    def may(self, scope: Scope) -> bool:
        """Return whether they may do what needs the scope."""
        return scope in self.scopes

    def sees(self, index: str) -> bool:
        """Return whether the index exists for them."""
        return self.indexes is None or index in self.indexes

    def visible(self, indexes: Iterable[str]) -> list[str]:
        """Return those of the indexes that exist for them."""
        return [index for index in indexes if self.sees(index)]


ANONYMOUS = Principal("anonymous", frozenset(SCOPES))
"""Everybody, where nobody is asked for credentials."""

CURRENT: ContextVar[Principal | None] = ContextVar("scannery_principal", default=None)
"""Set by the gate; gRPC runs the handler of a call in the same context. None: the engine is called in this process."""
