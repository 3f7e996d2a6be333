"""The files of the page, and the headers that bind it."""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

__all__ = ["HEADERS", "index_page", "web_file"]

_ROOT = Path(__file__).parent / "web"

HEADERS: Mapping[str, str] = {
    # Nothing from elsewhere, no inline script or style, and no text that becomes markup.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every answer."""


@cache
def _files() -> Mapping[str, tuple[bytes, str, str]]:
    """Return content, type and ETag of the files by their path below `web/`: what is not listed cannot be read."""
    files = {}
    for path in sorted(_ROOT.rglob("*")):
        if path.is_file():
            content = path.read_bytes()
            kind = mimetypes.guess_type(path.name)[0] or "text/plain"
            # Whatever the machine's own table says.
            kind = {".js": "text/javascript", ".css": "text/css"}.get(path.suffix, kind)
            tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
            files[path.relative_to(_ROOT).as_posix()] = content, f"{kind}; charset=utf-8", tag
    return files


async def index_page(request: Request) -> Response:
    """Answer every address of the page: what it shows is in the address."""
    return _answer(request, "index.html")


async def web_file(request: Request) -> Response:
    """Answer a file of the page."""
    return _answer(request, request.path_params["path"])


def _answer(request: Request, path: str) -> Response:
    if (file := _files().get(path)) is None:
        return Response("there is no such file\n", 404, media_type="text/plain")
    content, kind, tag = file
    # Asked again each time, and not sent again while it is the same.
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "content-type": kind})
