"""For programs that use the managed service's clients: connect them to a Scannery server without TLS."""

from __future__ import annotations

__all__ = ["insecure"]


def insecure() -> None:
    """Let the managed service's Python clients of this process connect without TLS, and without credentials.

    They have no option for that. Call it once, before clients are made; then give `host:port` as their endpoint, and
    `google.auth.credentials.AnonymousCredentials()` as their credentials. Their asyncio clients and those of
    google-cloud-vectorsearch are included, if that is installed.

    Raises:
        ImportError: neither google-cloud-aiplatform nor google-cloud-vectorsearch is installed.

    """
    from scannery.vertex._transports import make_insecure

    make_insecure()
