"""URIs and connection strings as messages show them: a user may have put a password or a key into one."""

from __future__ import annotations

__all__ = ["has_credentials", "without_credentials"]


def without_credentials(text: str) -> str:
    """Return a URI without user, password and options; a connection string of other form is not shown at all."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return "(not shown: it may have a password)" if "=" in text else text
    # Up to the last "@": a password may have others, and slashes, that should have been written as %XX.
    return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def has_credentials(uri: str) -> bool:
    """Return whether the URI of a bucket has what none needs: a password, or options."""
    _, _, rest = uri.partition("://")
    return ":" in rest.partition("/")[0] or "?" in rest
