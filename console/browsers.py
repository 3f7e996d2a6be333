"""Which requests are the console's own page: others are of pages that a browser shows beside it.

A page of any site can send requests to loopback; with DNS rebinding its name even leads there. So `Host` must be a name
of the console, and a call must come from its origin, by `Origin` and by Fetch Metadata (https://www.w3.org/TR/fetch-metadata/).
"""

from __future__ import annotations

import ipaddress

from starlette.datastructures import Headers

from scannery.console.config import ConsoleConfig

__all__ = ["Browsers"]

_TYPES = ("application/json", "application/octet-stream")
"""Content types of calls; a form of another site can send neither without a preflight."""


class Browsers:
    """Checks where requests come from.

    Args:
        config: of the console.

    """

    def __init__(self, config: ConsoleConfig) -> None:
        self._scheme = "https" if config.is_encrypted else "http"
        self._names = {name.lower() for name in ("localhost", config.host, *config.names)}

    def refusal(self, method: str, headers: Headers) -> str | None:
        """Return why a request is refused; None: it is not."""
        host = headers.get("host", "")
        if not self._is_name(host):
            return f"host: {host!r:.100} is not a name of this console; allow it with --host"
        site = headers.get("sec-fetch-site")
        if method in ("GET", "HEAD"):
            # A link from elsewhere may lead here; a frame, a script or an image of another page may not have it.
            is_link = (
                headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            )
            return (
                None
                if site in (None, "none", "same-origin") or is_link
                else "requests of other pages are refused"
            )
        if headers.get("origin") != f"{self._scheme}://{host}":
            return "origin: only the console's own page may call it"
        if site not in (None, "same-origin"):
            return "sec-fetch-site: only the console's own page may call it"
        if headers.get("content-type", "").partition(";")[0].strip() not in _TYPES:
            return f"content-type: must be one of {', '.join(_TYPES)}"
        return None

    def _is_name(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower().rstrip(".")
        try:
            ipaddress.ip_address(name)  # rebinding needs a name
        except ValueError:
            return name in self._names
        return True
