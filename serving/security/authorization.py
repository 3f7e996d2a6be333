"""Authorization: whether a caller may call a method. Every port checks it before reading a request; streams recheck."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from scannery.runtime.errors import PermissionDeniedError, UnauthenticatedError, UnsupportedError
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.principal import Principal, Scope

__all__ = ["Authorizer", "Metadata"]

Metadata: TypeAlias = "Iterable[tuple[str, str | bytes]] | None"


class Authorizer:
    """Compares the scopes of callers with the scope that each method needs. Safe to use from several threads."""

    def __init__(
        self, authenticator: Authenticator, scope_of: Callable[[str], Scope | None], *, about: str = ""
    ) -> None:
        """Keep them.

        Args:
            authenticator: identifies callers.
            scope_of: returns the scope that a method needs, by its path; None: there is no such method.
            about: what callers of a method that is not there are told of this process.

        """
        self._authenticator = authenticator
        self._scope_of = scope_of
        self._about = about

    def known(self, metadata: Metadata) -> Principal:
        """Return the caller, for any method; raise UnauthenticatedError without valid credentials."""
        principal = self._authenticator.principal(metadata)
        if principal is None:
            raise UnauthenticatedError("valid credentials are needed: an API key or a token for this server")
        return principal

    def principal(self, path: str, metadata: Metadata) -> Principal:
        """Return the caller of the method at `path`, by the metadata of the call.

        Raises:
            UnauthenticatedError: there are no credentials, or they are unknown, expired or revoked.
            UnsupportedError: there is no such method; only authenticated callers get this error.
            PermissionDeniedError: the caller lacks the method's scope.

        """
        principal = self.known(metadata)
        scope = self._scope_of(path)
        if scope is None:
            raise UnsupportedError(f"there is no such method{_hint(path) or self._about}")
        if not principal.may(scope):
            raise PermissionDeniedError(f"these credentials do not have the scope {scope!r}")
        return principal

    def admits(self, path: str, metadata: Metadata) -> bool:
        """Return whether `principal` would succeed."""
        try:
            self.principal(path, metadata)
        except (UnauthenticatedError, UnsupportedError, PermissionDeniedError):
            return False
        return True


def _hint(path: str) -> str:
    """Return how a server answers a method of the managed service, which a program with its client may expect."""
    managed = path.startswith(("/google.cloud.aiplatform.", "/google.cloud.vectorsearch."))
    return "; `scannery serve --vertex` has those that docs/vertex.md lists" if managed else ""
