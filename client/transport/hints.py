"""What probably is wrong when no connection is made, in words of this project: the libraries say it in theirs."""

from __future__ import annotations

__all__ = ["grpc_hint", "http_hint"]

_NO_SERVER = "; is a server running there (`scannery serve`)?"
_NO_TLS = "; the server seems not to speak TLS"

_GRPC = {
    "WRONG_VERSION_NUMBER": _NO_TLS,
    "http1.x server": "; this seems to be the HTTP port: put http:// in front, or give the port of gRPC",
    "Socket closed": "; it may speak TLS, and this client does not (tls, ca)",
    "Connection refused": _NO_SERVER,
}
_HTTP = {
    "WRONG_VERSION_NUMBER": f"{_NO_TLS}: http:// in place of https://",
    "no valid HTTP response": "; this may be the port of gRPC: leave http:// out, or give the port of HTTP",
    "Connection refused": _NO_SERVER,
}


def grpc_hint(message: str) -> str:
    """Return a sentence to append to a message of gRPC; empty: nothing is known.

    >>> grpc_hint("failed to connect to all addresses: Connection refused")
    '; is a server running there (`scannery serve`)?'
    """
    return _hint(message, _GRPC)


def http_hint(message: str) -> str:
    """As `grpc_hint`, for a message of a socket or of the HTTP codec."""
    return _hint(message, _HTTP)


def _hint(message: str, known: dict[str, str]) -> str:
    return next((hint for part, hint in known.items() if part in message), "")
