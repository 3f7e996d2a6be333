"""GET and HEAD pages: health and the OpenAPI description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from scannery.serving.config import ListenConfig
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import ANONYMOUS
from scannery.serving.transport.health import SERVING, Health
from scannery.serving.transport.http.connect import GZIPPED, MIN_GZIP_BYTES, compressed
from scannery.serving.transport.http.head import JSON, Head

__all__ = ["Page", "Pages"]


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to GET, HEAD or OPTIONS."""

    status: int
    body: bytes = b""
    kind: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


class Pages:
    """The pages of one server."""

    def __init__(
        self, config: ListenConfig, authorizer: Authorizer, health: Health, openapi: Callable[[], bytes]
    ) -> None:
        """Prepare the pages.

        Args:
            config: whether health is public.
            authorizer: authenticates callers of all other pages.
            health: state of the server.
            openapi: returns the description of the API, JSON.

        """
        self._authorizer, self._health = authorizer, health
        self._compressed = lru_cache(maxsize=4)(compressed)
        self._public = {"/healthz", "/readyz"} if config.security.public_health else frozenset[str]()
        self._pages: dict[str, Callable[[], Page]] = {
            "/healthz": lambda: Page(200, b'{"status":"ok"}'),
            "/readyz": self._ready,
            "/openapi.json": lambda: Page(200, openapi()),
        }

    def has(self, path: str) -> bool:
        """Return whether there is a page at a path."""
        return path in self._pages

    def check_caller(self, head: Head) -> None:
        """Raise UnauthenticatedError if a caller without credentials asks for anything but a public page."""
        if head.path not in self._public:
            self._authorizer.known(head.metadata)

    def page(self, head: Head, preflight: tuple[tuple[str, str], ...]) -> Page:
        """Return the page at the path of a head; for OPTIONS, an empty one with the `preflight` headers."""
        if head.method == "OPTIONS":
            return Page(204, kind="", headers=preflight or (("allow", "POST, GET, HEAD"),))
        page = self._pages[head.path]()
        if head.accepts_gzip and len(page.body) >= MIN_GZIP_BYTES:
            return replace(page, body=self._compressed(page.body), headers=GZIPPED)
        return page

    def _ready(self) -> Page:
        if self._health.status("", ANONYMOUS) == SERVING:
            return Page(200, b'{"status":"ok"}')
        return Page(503, b'{"status":"not ready"}')
