"""Principals: authenticated callers, their scopes, and the indexes that they can see."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Literal, TypeAlias, get_args

from scannery.runtime.errors import PermissionDeniedError, UnknownIndexError
from scannery.serving.security.access import Access, Seen, access_to
from scannery.serving.security.limits import Limits

__all__ = [
    "ALL_INDEXES",
    "ANONYMOUS",
    "BRIDGED",
    "CURRENT",
    "SCOPES",
    "Needed",
    "Principal",
    "Scope",
    "anonymous_at",
    "check_method",
    "check_visible",
    "current_access",
    "current_account",
    "current_client",
    "current_principal",
    "current_seen",
    "is_visible",
]

Scope = Literal["read", "write", "admin"]
"""No scope includes another: a key with `write` alone cannot read."""

SCOPES: tuple[Scope, ...] = get_args(Scope)

Needed: TypeAlias = Literal[Scope, "credentials"]
"""What a method needs of its caller: a scope, or valid credentials alone."""

ALL_INDEXES = "*"
"""Stands for all indexes in key files and tokens."""

_ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller."""

    name: str
    """Used in logs and for fair sharing among callers; never a secret."""
    scopes: frozenset[Scope]
    indexes: frozenset[str] | None = None
    """The only indexes that the caller can see; None: all."""

    expires_s: float = field(default=math.inf, compare=False)
    """Time after which the credentials are refused, in seconds since 1970; infinite: never."""

    access: tuple[Access, ...] = ()
    """What the caller sees of the indexes that it can see: the first entry whose pattern names an index counts, and of
    an index that none names nothing is seen. Empty: all of them are open."""

    address: str = ""
    """Where a caller without credentials calls from; empty: it has some, or that is not known."""

    limits: Limits | None = field(default=None, compare=False)
    """What the credentials allow to ask for; None: they do not say."""

    # Fields, since every request reads them several times.
    account: str = field(init=False, repr=False, compare=False)
    """Who the caller is where callers share something (scheduling/budgets.py)."""
    is_anonymous: bool = field(init=False, repr=False, compare=False)
    """Whether the server requires no credentials."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "account", self.address or self.name)
        object.__setattr__(self, "is_anonymous", self.name == _ANONYMOUS)

    def may(self, scope: Needed) -> bool:
        """Return whether the caller has the scope."""
        return scope == "credentials" or scope in self.scopes

    def check_scope(self, scope: Needed) -> None:
        """Raise PermissionDeniedError if the caller lacks the scope."""
        if not self.may(scope):
            raise PermissionDeniedError(f"these credentials do not have the scope {scope!r}")

    @property
    def is_for_all_indexes(self) -> bool:
        """Whether there is no index that the caller cannot see."""
        return self.indexes is None and (
            not self.access or any(each.index == ALL_INDEXES for each in self.access)
        )

    def sees(self, index: str) -> bool:
        """Return whether the caller can see the index."""
        if self.indexes is not None and index not in self.indexes:
            return False
        return not self.access or access_to(self.access, index) is not None

    def access_to(self, index: str) -> Access | None:
        """Return what the caller sees of an index that it can see; None: all of it."""
        return access_to(self.access, index) if self.access else None

    def check_method(self, path: str, index: str, *, narrowed: bool) -> None:
        """Raise PermissionDeniedError if the caller may not call a method for an index.

        Args:
            path: of the method.
            index: empty: the method is about no index, or about several.
            narrowed: whether the method serves callers who see a part of an index.

        """
        if not self.access:
            return
        entry = self.access_to(index) if index else None
        entries = self.access if entry is None else (entry,)
        name = path.rpartition("/")[2]
        if not any(each.opens_method(name) for each in entries):
            raise PermissionDeniedError(f"these credentials do not open the method {name}")
        if not narrowed and any(each.seen is not None for each in entries):
            raise PermissionDeniedError(
                f"{name} is about all of an index, and these credentials open a part of it"
            )

    def visible(self, indexes: Iterable[str]) -> list[str]:
        """Return the indexes that the caller can see, in the given order."""
        return [index for index in indexes if self.sees(index)]


ANONYMOUS = Principal(_ANONYMOUS, frozenset(SCOPES))
"""Every caller of a server that requires no credentials."""

_HOST_BITS = 64
"""Bits of an address of IPv6: whoever has one of a network has all of them."""


@lru_cache(maxsize=4096)
def anonymous_at(host: str) -> Principal:
    """Return the caller without credentials at an address of IPv4 or IPv6; all at one address are the same."""
    if ":" in host:
        address = IPv6Address(host)
        host = str(address.ipv4_mapped or IPv6Address(int(address) >> _HOST_BITS << _HOST_BITS))
    return replace(ANONYMOUS, address=host)


def current_account() -> str:
    """Return the account of the caller of the current request; empty: the engine is called inside this process."""
    principal = CURRENT.get()
    return principal.account if principal is not None else ""


def current_client(client_id: str) -> str:
    """Return who asks: the account of the caller of the current request, and whom it says that it asks for, if any."""
    account = current_account()
    return f"{account}\0{client_id}" if client_id else account


CURRENT: ContextVar[Principal | None] = ContextVar("scannery_principal", default=None)
"""Caller of the current request, set after authentication; gRPC runs the handler in the same context.

None: the engine is called inside this process.
"""

BRIDGED: ContextVar[str] = ContextVar("scannery_bridged", default="")
"""Path of the method of a bridge that the current request calls, which credentials name; empty: none of a bridge."""


def current_principal() -> Principal:
    """Return the authenticated caller of the current request."""
    principal = CURRENT.get()
    if principal is None:
        # Never serve a call that bypassed authentication.
        raise RuntimeError("no principal: the call did not pass authentication")
    return principal


def is_visible(index: str) -> bool:
    """Return whether the caller of the current request can see an index; inside this process, all are seen."""
    principal = CURRENT.get()
    return principal is None or principal.sees(index)


def current_access(index: str) -> Access | None:
    """Return what the caller of the current request sees of an index; None: all of it."""
    principal = CURRENT.get()
    return principal.access_to(index) if principal is not None and principal.access else None


def current_seen(index: str) -> Seen | None:
    """Return the part of an index that the caller of the current request sees; None: all of it."""
    access = current_access(index)
    return None if access is None else access.seen


def check_method(path: str, index: str, *, narrowed: bool) -> None:
    """As `Principal.check_method`, for the caller of the current request; inside this process, all are open.

    What a method of a bridge calls is open where that method is.
    """
    principal = CURRENT.get()
    if principal is not None and principal.access:
        principal.check_method(BRIDGED.get() or path, index, narrowed=narrowed)


def check_visible(index: str) -> None:
    """Raise UnknownIndexError if the caller may not see the index; an empty name passes."""
    # The catalog checks as well; this covers methods that do not use the catalog.
    if index and not current_principal().sees(index):
        raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")
