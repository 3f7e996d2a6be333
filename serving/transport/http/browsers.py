"""Refuses cross-site requests from browsers.

A browser sends requests of any page to any address it can reach, including loopback. With DNS rebinding, the owner of a
name resolves it to such an address, so that server and page seem to have one origin. `Origin` and `Host` are therefore
checked, also where no credentials are required.
"""

from __future__ import annotations

import ipaddress

from grpc import StatusCode

from scannery.serving.config import ListenConfig, split_address
from scannery.serving.transport.http.head import Head, RefusedError

__all__ = ["Browsers"]

_PREFLIGHT = (("access-control-allow-methods", "POST, GET, HEAD"), ("access-control-max-age", "7200"))
_HEADERS = (
    "authorization, content-type, content-encoding, accept-encoding, connect-protocol-version, "
    "connect-timeout-ms, scannery-client, traceparent, tracestate"
)
_EXPOSED = (
    "access-control-expose-headers",
    "scannery-worker, scannery-server, trailer-scannery-error-bin, retry-after, www-authenticate",
)


class Browsers:
    """Checks `Host` and `Origin`, and writes CORS headers."""

    def __init__(self, config: ListenConfig) -> None:
        """Read the allowed origins and names from `config`."""
        security = config.security
        # Browsers send origins in lower case.
        self._origins = frozenset(origin.lower() for origin in config.http_cors)
        self._scheme = "https" if security.tls_cert or security.behind_tls else "http"
        names = {"localhost", split_address(config.listen)[0], split_address(config.http_address)[0]}
        self._names = frozenset(name.lower() for name in (*names, *config.http_hosts))
        # Under a foreign name the browser rejects the certificate, or the page has no token to send.
        self._any_name = not config.http_hosts and bool(security.tls_cert or security.tokens)

    def check(self, head: Head) -> None:
        """Raise RefusedError for a foreign `Host` or `Origin`."""
        # No browser sends a request without a Host.
        nameless = head.is_old and not head.host
        if not self._any_name and not nameless and not self._is_own(head.host):
            raise RefusedError(
                403,
                StatusCode.PERMISSION_DENIED,
                f"host: {head.host!r:.100} is not a name of this server; allow it with --http-host",
            )
        if head.origin and not self._allows(head):
            raise RefusedError(
                403,
                StatusCode.PERMISSION_DENIED,
                f"origin: pages of {head.origin!r:.100} may not call this server; allow it with --http-cors",
            )

    def preflight(self, head: Head) -> tuple[tuple[str, str], ...]:
        """Return the headers of a preflight answer, in addition to `headers`."""
        if head.origin not in self._origins:
            return ()
        # A page that may call at all may send any header: clients add their own, as OpenAI's does `x-stainless-…`.
        also = (value for name, value in head.metadata if name == "access-control-request-headers")
        return (*_PREFLIGHT, ("access-control-allow-headers", ", ".join((_HEADERS, *also))))

    def headers(self, head: Head) -> tuple[tuple[str, str], ...]:
        """Return the CORS headers of an answer; empty if the origin is not allowed."""
        if head.origin not in self._origins:
            return ()
        return ("access-control-allow-origin", head.origin), ("vary", "origin"), _EXPOSED

    def _allows(self, head: Head) -> bool:
        return head.origin in self._origins or head.origin == f"{self._scheme}://{head.host}"

    def _is_own(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower().rstrip(".")
        return name in self._names or _is_address(name)


def _is_address(name: str) -> bool:
    """Return whether a host is an IP address: DNS rebinding needs a name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
