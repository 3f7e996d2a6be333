"""The head of a request: request line and headers, parsed and checked before the body is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpc import StatusCode

from scannery.serving.transport.http.connect import parse_timeout
from scannery.serving.transport.lifecycle import told_client

__all__ = [
    "JSON",
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "NO_HEAD",
    "PROTO",
    "Head",
    "Header",
    "RefusedError",
    "read_head",
]

MAX_HEADER_BYTES = 16 << 10
"""Limit of request line and headers together, equal to that of gRPC metadata."""
MAX_HEADERS = 64
PROTO, JSON = "application/proto", "application/json"
_TYPES = (PROTO, JSON)
_ONCE = frozenset(
    (
        "host",
        "origin",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "expect",
        "connect-protocol-version",
        "connect-timeout-ms",
    )
)
_ZERO = re.compile(r"q=0(\.0{0,3})?")

Header = tuple[bytes, bytes]


class RefusedError(Exception):
    """The request violates HTTP, Connect or a rule of this server."""

    def __init__(
        self, status: int, code: StatusCode, message: str, *, headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Describe the refusal.

        Args:
            status: HTTP status.
            code: of Connect and gRPC.
            message: for the caller.
            headers: of the answer, in addition to the common ones.

        """
        super().__init__(message)
        self.status, self.code, self.headers = status, code, tuple(headers)


@dataclass(frozen=True, slots=True)
class Head:
    """The parsed head of a request."""

    method: str
    """HTTP method."""
    path: str
    metadata: tuple[tuple[str, str], ...]
    """The headers, names in lower case; called metadata in gRPC."""
    host: str
    origin: str
    """Empty: not sent."""
    json: bool
    """Whether bodies are in JSON."""
    gzipped: bool
    """Whether the body of the request is compressed."""
    accepts_gzip: bool
    timeout_s: float | None
    """Timeout of the caller in seconds; None: none was sent."""
    expects_continue: bool
    client: str
    """Under which admission accounts for callers without credentials; empty: it does not say."""


NO_HEAD = Head(
    method="",
    path="",
    metadata=(),
    host="",
    origin="",
    json=False,
    gzipped=False,
    accepts_gzip=False,
    timeout_s=None,
    expects_continue=False,
    client="",
)
"""In place of a head that is not parsed yet or malformed."""


def read_head(method: str, target: bytes, headers: Sequence[Header], *, sized: bool) -> Head:
    """Parse the head of a request.

    Args:
        method: HTTP method.
        target: from the request line.
        headers: raw, without Content-Length.
        sized: whether Content-Length was sent.

    Raises:
        RefusedError, InvalidRequestError: the head violates HTTP or Connect.

    """
    metadata = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    fields = _fields(metadata)
    if "host" not in fields:
        raise _malformed("there must be one Host header")
    _check_framing(fields, sized=sized)
    path = target.decode("latin-1")
    if not path.startswith("/"):
        raise _malformed("the target must be a path")
    rpc = method == "POST"
    if rpc:
        _check_content(fields)
    else:
        path = path.partition("?")[0]
    timeout = fields.get("connect-timeout-ms")
    return Head(
        method=method,
        path=path,
        metadata=metadata,
        host=fields["host"],
        origin=fields.get("origin", ""),
        json=_media_type(fields) == JSON,
        gzipped=fields.get("content-encoding", "identity") == "gzip",
        accepts_gzip="gzip" in fields.get("accept-encoding", "") and _accepts_gzip(fields["accept-encoding"]),
        timeout_s=None if timeout is None else parse_timeout(timeout),
        expects_continue="expect" in fields,
        client=told_client(metadata),
    )


def _fields(metadata: Sequence[tuple[str, str]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in metadata:
        if name not in fields:
            fields[name] = value
        elif name in _ONCE:
            raise _malformed(f"there are several {name} headers")
        else:
            fields[name] += f", {value}"
    return fields


def _check_framing(fields: dict[str, str], *, sized: bool) -> None:
    encoding = fields.get("transfer-encoding")
    if encoding is not None:
        # Request smuggling: servers that prefer different ones disagree on where the next request begins.
        if sized:
            raise _malformed("there are both Content-Length and Transfer-Encoding")
        if encoding.lower() != "chunked":
            raise _malformed("transfer-encoding: must be chunked")
    if fields.get("expect", "100-continue").lower() != "100-continue":
        raise RefusedError(417, StatusCode.INVALID_ARGUMENT, "expect: must be 100-continue")


def _check_content(fields: dict[str, str]) -> None:
    if _media_type(fields) not in _TYPES:
        # Browsers send the media types of forms without a CORS preflight, for pages of any site.
        raise RefusedError(
            415,
            StatusCode.INVALID_ARGUMENT,
            f"content-type: must be {PROTO} or {JSON}, got {fields.get('content-type', '')!r:.100}",
            headers=(("accept-post", f"{PROTO}, {JSON}"),),
        )
    if fields.get("content-encoding", "identity") not in ("identity", "gzip"):
        raise RefusedError(
            501,
            StatusCode.UNIMPLEMENTED,
            f"content-encoding: must be gzip or identity, got {fields['content-encoding']!r:.100}",
            headers=(("accept-encoding", "gzip"),),
        )
    if fields.get("connect-protocol-version", "1") != "1":
        raise _malformed(
            f"connect-protocol-version: must be 1, got {fields['connect-protocol-version']!r:.50}"
        )


def _media_type(fields: dict[str, str]) -> str:
    return fields.get("content-type", "").partition(";")[0].strip().lower()


def _accepts_gzip(accepted: str) -> bool:
    for item in accepted.split(","):
        coding, _, quality = item.replace(" ", "").lower().partition(";")
        if coding == "gzip":
            return not _ZERO.fullmatch(quality)
    return False


def _malformed(message: str) -> RefusedError:
    return RefusedError(400, StatusCode.INVALID_ARGUMENT, message)
