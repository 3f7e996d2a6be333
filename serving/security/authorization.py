"""Whether a caller may call a method: what every port asks before it reads a request, and streams ask again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from scannery.runtime.errors import PermissionDeniedError, UnauthenticatedError, UnsupportedError
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.principal import Principal, Scope

__all__ = ["Authorizer", "Metadata"]

Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


class Authorizer:
    """Knows the scope of each method. Safe to use from several threads."""

    def __init__(self, authenticator: Authenticator, scope_of: Callable[[str], Scope | None]) -> None:
        """`scope_of` returns the scope of a method by its path; None: there is no such method."""
        self._authenticator = authenticator
        self._scope_of = scope_of

    def known(self, metadata: Metadata) -> Principal:
        """Return who calls, whatever it is; raise UnauthenticatedError for strangers."""
        principal = self._authenticator.principal(metadata)
        if principal is None:
            raise UnauthenticatedError("valid credentials are needed")
        return principal

    def principal(self, path: str, metadata: Metadata) -> Principal:
        """Return who calls the method at `path`, by the metadata of the call.

        Raises:
            UnauthenticatedError: the credentials are not known (any more).
            UnsupportedError: there is no such method; told to known callers only.
            PermissionDeniedError: the credentials do not have its scope.

        """
        principal = self.known(metadata)
        scope = self._scope_of(path)
        if scope is None:
            raise UnsupportedError("there is no such method")
        if not principal.may(scope):
            raise PermissionDeniedError(f"these credentials do not have the scope {scope!r}")
        return principal

    def admits(self, path: str, metadata: Metadata) -> bool:
        """Return whether `principal` raises nothing."""
        try:
            self.principal(path, metadata)
        except (UnauthenticatedError, UnsupportedError, PermissionDeniedError):
            return False
        return True
