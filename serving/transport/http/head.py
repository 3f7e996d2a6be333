"""The head of a request: request line and headers, parsed and checked before the body is read.

One request and its answer.

Status lines and headers of responses.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING

from grpc import StatusCode

from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.bridging.api import HttpCall, RefusedError
from scannery.serving.security.principal import Principal
from scannery.serving.transport.lifecycle import ActiveRequest, told_client

if TYPE_CHECKING:
    from scannery.serving.scheduling.admission import Ticket
    from scannery.serving.transport.http.connection import Connection

__all__ = [
    "CONTINUE",
    "JSON",
    "MAX_HEADERS",
    "MAX_HEADER_BYTES",
    "NO_HEAD",
    "PROTO",
    "Exchange",
    "Head",
    "Header",
    "RefusedError",
    "Responses",
    "malformed",
    "not_served",
    "read_head",
    "too_long",
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
_TIMEOUT = re.compile(r"[0-9]{1,10}")
_ABSOLUTE = re.compile(r"https?://(?P<host>[^/?#@]+)(?P<path>[/?].*)?", re.IGNORECASE)
"""The target that a client sends to a proxy (RFC 9112, 3.2.2)."""

Header = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Head:
    """The parsed head of a request."""

    method: str
    """HTTP method."""
    path: str
    """Path of the target, without its query; `*`: OPTIONS asks about the whole server."""
    query: str
    """Text behind the `?` of the target; empty: none."""
    is_old: bool
    """Whether it came by HTTP/1.0, whose connections stay open only if both sides say so."""
    metadata: tuple[tuple[str, str], ...]
    """The headers, names in lower case; called metadata in gRPC."""
    host: str
    """Host of the target, or else of the header; empty: HTTP/1.0 without one."""
    origin: str
    """Empty: not sent."""
    json: bool
    """Whether bodies are in JSON."""
    is_chunked: bool
    """Whether a body of unknown length follows."""
    gzipped: bool
    """Whether the body of the request is compressed."""
    accepts_gzip: bool
    timeout_s: float | None
    """Timeout of the caller in seconds; None: none was sent."""
    expects_continue: bool
    client: str
    """Address under which admission accounts for callers without credentials; empty: it does not say."""


NO_HEAD = Head(
    method="",
    path="",
    query="",
    is_old=False,
    metadata=(),
    host="",
    origin="",
    json=False,
    is_chunked=False,
    gzipped=False,
    accepts_gzip=False,
    timeout_s=None,
    expects_continue=False,
    client="",
)
"""Head in place of a head that is not parsed yet or malformed."""


def read_head(method: str, target: bytes, headers: Sequence[Header], *, sized: bool, version: str) -> Head:
    """Parse the head of a request.

    Args:
        method: HTTP method.
        target: from the request line.
        headers: raw, without Content-Length.
        sized: whether Content-Length was sent.
        version: of HTTP.

    Raises:
        RefusedError, InvalidRequestError: the head violates HTTP or Connect.

    """
    metadata = tuple((name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in headers)
    fields = _fields(metadata)
    is_old = version == "1.0"
    if is_old:
        fields.pop("expect", None)  # as RFC 9110, 10.1.1 has it
    elif version != "1.1":
        raise malformed(f"HTTP/{version} is not served, HTTP/1.1 is")
    elif "host" not in fields:
        raise malformed("there must be one Host header")
    _check_framing(fields, sized=sized, is_old=is_old)
    host, path, query = _read_target(method, target.decode("latin-1"), fields.get("host", ""))
    if method == "POST":
        _check_content(fields)
    timeout = fields.get("connect-timeout-ms")
    return Head(
        method=method,
        path=path,
        query=query,
        is_old=is_old,
        metadata=metadata,
        host=host,
        origin=fields.get("origin", ""),
        json=_media_type(fields) == JSON,
        is_chunked="transfer-encoding" in fields,
        gzipped=_coding(fields) == "gzip",
        accepts_gzip="gzip" in fields.get("accept-encoding", "") and _accepts_gzip(fields["accept-encoding"]),
        timeout_s=None if timeout is None else _read_timeout(timeout),
        expects_continue="expect" in fields,
        client=told_client(metadata),
    )


def _read_target(method: str, target: str, host: str) -> tuple[str, str, str]:
    """Return host, path and query; the host of a target in absolute form counts, and the header does not."""
    if target == "*" and method == "OPTIONS":
        return host, target, ""
    if not target.startswith("/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None:
            raise malformed("the target must be a path, or a URL with http:// or https://")
        host, target = absolute["host"], absolute["path"] or "/"
        target = target if target.startswith("/") else f"/{target}"
    path, _, query = target.partition("?")
    return host, path, query


def _read_timeout(text: str) -> float:
    """Return the seconds of a `Connect-Timeout-Ms` header."""
    if not _TIMEOUT.fullmatch(text):
        raise InvalidRequestError(f"connect-timeout-ms: must have 1 to 10 digits, got {text!r:.50}")
    return int(text) / 1000


def _fields(metadata: Sequence[tuple[str, str]]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in metadata:
        if name not in fields:
            fields[name] = value
        elif name in _ONCE:
            raise malformed(f"there are several {name} headers")
        else:
            fields[name] += f", {value}"
    return fields


def _check_framing(fields: dict[str, str], *, sized: bool, is_old: bool) -> None:
    encoding = fields.get("transfer-encoding")
    if encoding is not None:
        # Request smuggling: servers that prefer different ones disagree on where the next request begins.
        if sized:
            raise malformed("there are both Content-Length and Transfer-Encoding")
        if is_old:
            raise malformed("transfer-encoding: HTTP/1.0 has none")
        if encoding.lower() != "chunked":
            raise malformed("transfer-encoding: must be chunked")
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
    if _coding(fields) not in ("identity", "gzip"):
        raise RefusedError(
            501,
            StatusCode.UNIMPLEMENTED,
            f"content-encoding: must be gzip or identity, got {fields['content-encoding']!r:.100}",
            headers=(("accept-encoding", "gzip"),),
        )
    if fields.get("connect-protocol-version", "1") != "1":
        raise malformed(
            f"connect-protocol-version: must be 1, got {fields['connect-protocol-version']!r:.50}"
        )


def _coding(fields: dict[str, str]) -> str:
    coding = fields.get("content-encoding", "identity").lower()
    return "gzip" if coding == "x-gzip" else coding  # as RFC 9110, 8.4.1.3 has it


def _media_type(fields: dict[str, str]) -> str:
    return fields.get("content-type", "").partition(";")[0].strip().lower()


def _accepts_gzip(accepted: str) -> bool:
    for item in accepted.split(","):
        coding, _, quality = item.replace(" ", "").lower().partition(";")
        if coding == "gzip":
            return not _ZERO.fullmatch(quality)
    return False


def malformed(message: str) -> RefusedError:
    """Return the error of a request that violates HTTP or Connect."""
    return RefusedError(400, StatusCode.INVALID_ARGUMENT, message)


def not_served(method: str, allowed: Iterable[str]) -> RefusedError:
    """Return the error of an HTTP method that a target does not have."""
    allow = (("allow", ", ".join(allowed)),)
    return RefusedError(405, StatusCode.UNIMPLEMENTED, f"{method} is not served here", headers=allow)


def too_long(what: str, maximum: int) -> RefusedError:
    """Return the error of a body with more than `maximum` bytes."""
    return RefusedError(413, StatusCode.RESOURCE_EXHAUSTED, f"{what} has at most {maximum} bytes")


class Exchange:
    """A request, as far as it was read, and the state of its answer."""

    __slots__ = (
        "active",
        "admitted_s",
        "body",
        "bridged",
        "close",
        "connection",
        "deadline",
        "error",
        "head",
        "head_only",
        "principal",
        "ticket",
    )

    def __init__(self, connection: Connection, *, head_only: bool = False) -> None:
        """Begin an exchange on `connection`; `head_only`: the method is HEAD, whose answer has no body."""
        self.connection, self.head, self.head_only = connection, NO_HEAD, head_only
        self.body: bytes | bytearray = b""
        self.error: Exception | None = None
        """Why the request is refused; its body is then dropped."""
        self.close = False
        """Whether the connection is closed after the answer."""
        self.bridged: HttpCall | None = None
        """The call that a request of a bridge stands for."""
        self.principal: Principal = connection.anonymous
        self.admitted_s = 0.0
        """When the credentials were checked."""
        self.ticket: Ticket | None = None
        self.active: ActiveRequest
        self.deadline: Deadline

    @property
    def path(self) -> str:
        """The path of the RPC method that is called."""
        return self.head.path if self.bridged is None else self.bridged.path

    @property
    def has_begun(self) -> bool:
        """Whether the request was admitted, so that its end is observed."""
        return hasattr(self, "active")

    def is_wanted(self) -> bool:
        """Return whether the caller is still connected."""
        return self.connection.is_open


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROTO = b"content-type: application/proto\r\n"
_REASONS = {status.value: status.phrase for status in HTTPStatus} | {499: "Client Closed Request"}


class Responses:
    """Formats the heads of responses, with the headers common to all."""

    def __init__(self, *, server: str, worker: str, workers: int) -> None:
        """Prepare the common headers.

        Args:
            server: id of the server; clients compare it with the id from gRPC metadata.
            worker: id of this process.
            workers: number of processes of the server.

        """
        self._identity = f"scannery-worker: {worker}/{workers}\r\nscannery-server: {server}\r\n".encode(
            "ascii"
        )
        self._common = b""
        self._ok = b""
        self.tell_time()

    def tell_time(self) -> None:
        """Update the `date` header; call once a second."""
        date = formatdate(time.time(), usegmt=True).encode("ascii")
        self._common = self._identity + b"date: " + date + b"\r\n"
        self._ok = b"HTTP/1.1 200 OK\r\n" + _PROTO + self._common + b"content-length: "

    def ok(self, size: int) -> bytes:
        """Return the head of a Protobuf response of `size` bytes on a connection that stays open."""
        return self._ok + b"%d\r\n\r\n" % size

    def head(
        self, status: int, size: int, kind: str, headers: Iterable[tuple[str, str]] = (), *, close: bool
    ) -> bytes:
        """Return the head of a response.

        Args:
            status: HTTP status.
            size: bytes of the body.
            kind: media type of the body; empty: no body.
            headers: additional headers.
            close: whether the connection is closed after it.

        """
        lines = [f"content-type: {kind}"] if kind else []
        lines += [f"{name}: {value}" for name, value in headers]
        if close:
            lines.append("connection: close")
        if status != HTTPStatus.NO_CONTENT:
            lines.append(f"content-length: {size}")
        text = "".join(f"{line}\r\n" for line in lines)
        return (
            f"HTTP/1.1 {status} {_REASONS.get(status, '')}\r\n".encode("ascii")
            + self._common
            + text.encode("latin-1")
            + b"\r\n"
        )
