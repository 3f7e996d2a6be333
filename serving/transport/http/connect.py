"""The Connect protocol of unary calls: codes, errors, timeouts, bodies.

Protocol: https://connectrpc.com/docs/protocol. Unlike most Connect servers, this one refuses unknown fields in JSON, so
that no part of a request is ignored.

Refuses cross-site requests from browsers.

A browser sends requests of any page to any address it can reach, including loopback. With DNS rebinding, the owner of a
name resolves it to such an address, so that server and page seem to have one origin. `Origin` and `Host` are therefore
checked, also where no credentials are required.
"""

from __future__ import annotations

import base64
import gzip
import ipaddress
import json
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from scannery.runtime.errors import STATUSES, InvalidRequestError
from scannery.runtime.pieces import joined
from scannery.runtime.retry import Deadline
from scannery.serving.config import ListenConfig, split_address
from scannery.serving.request.parsing import parsed
from scannery.serving.transport.http.head import Head, RefusedError, too_long
from scannery.serving.transport.http.json_errors import json_error
from scannery.serving.transport.lifecycle import decoded
from scannery.v1.types_pb2 import ErrorDetail, Vector

__all__ = [
    "GZIPPED",
    "HTTP_STATUS",
    "MAX_JSON_BYTES",
    "MIN_GZIP_BYTES",
    "Browsers",
    "always_written",
    "code_name",
    "compressed",
    "decoded_json",
    "decompressed",
    "encoded_json",
    "error_body",
    "response_type",
]


HTTP_STATUS: dict[StatusCode, int] = {StatusCode[name]: status.http for name, status in STATUSES.items()}

MAX_JSON_BYTES = 8 << 20
"""Longest JSON body; parsed, it takes about thirty times its size in memory."""
GZIP_LEVEL = 1
MIN_GZIP_BYTES = 1 << 10
"""Shorter answers are not compressed."""
GZIPPED = (("content-encoding", "gzip"), ("vary", "accept-encoding"))
"""Headers of a compressed answer."""
_READ_BYTES = 1 << 20
_JSON = json.JSONEncoder(ensure_ascii=False)

_EMPTY: dict[int, object] = {
    FieldDescriptor.CPPTYPE_INT32: 0,
    FieldDescriptor.CPPTYPE_UINT32: 0,
    FieldDescriptor.CPPTYPE_INT64: "0",
    FieldDescriptor.CPPTYPE_UINT64: "0",
    FieldDescriptor.CPPTYPE_FLOAT: 0.0,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.0,
    FieldDescriptor.CPPTYPE_BOOL: False,
}
_OTHER_FORM = Vector.DESCRIPTOR.fields_by_name["values"].full_name
"""Answers have the numbers of a vector in its other field."""

MessageT = TypeVar("MessageT", bound=Message)


def error_body(code: StatusCode, message: str, detail: ErrorDetail | None) -> bytes:
    """Return a Connect error as JSON; `detail` is the same as over gRPC."""
    body: dict[str, object] = {"code": code_name(code), "message": message}
    if detail is not None:
        value = base64.b64encode(detail.SerializeToString()).decode().rstrip("=")
        debug = json_format.MessageToDict(detail)
        body["details"] = [{"type": detail.DESCRIPTOR.full_name, "value": value, "debug": debug}]
    return json.dumps(body, ensure_ascii=False).encode()


def code_name(code: StatusCode) -> str:
    """Return the Connect name of a code."""
    # The only code that Connect spells differently.
    return "canceled" if code is StatusCode.CANCELLED else code.name.lower()


def decompressed(data: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip body.

    Raises:
        InvalidRequestError: it is not gzip, or is truncated.
        RefusedError: it has more than `max_bytes`; decompression stops there.

    """
    parts, size = [], 0
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        while data and not stream.eof:
            part = stream.decompress(data, _READ_BYTES)
            data, size = stream.unconsumed_tail, size + len(part)
            if size > max_bytes:
                raise too_long("a body, when it is decompressed,", max_bytes)
            parts.append(part)
    except zlib.error as error:
        raise InvalidRequestError("the body is not gzip") from error
    if not stream.eof or stream.unused_data:
        raise InvalidRequestError("the body is not one whole gzip stream")
    return joined(parts)


def compressed(data: bytes) -> bytes:
    """Compress a body with gzip."""
    return gzip.compress(data, compresslevel=GZIP_LEVEL, mtime=0)


def decoded_json(kind: type[MessageT], data: bytes) -> MessageT:
    """Parse a message from JSON; raises InvalidRequestError, also for what `decoded` refuses."""
    message = kind()
    try:
        json_format.Parse(data, message)
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise json_error(kind, data, str(error)) from error
    # Limits of a request apply to its binary form.
    return decoded(kind, message.SerializeToString())


def encoded_json(kind: type[Message], data: bytes, deadline: Deadline) -> bytes:
    """Return a serialised message as JSON, with the fields that `always_written` names; raises DeadlineError."""
    # Each step of a large one takes seconds.
    message = parsed(kind, data)
    deadline.check()
    value = json_format.MessageToDict(message)
    deadline.check()
    _complete(cast(Descriptor, kind.DESCRIPTOR), value)
    deadline.check()
    return joined([text.encode() for text in _texts(value)])


def _texts(value: object) -> Iterator[str]:
    """Yield JSON, a message of a list at a time: the encoder holds the interpreter lock."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        yield "["
        for number, item in enumerate(value):
            if number:
                yield ", "
            yield from _texts(item)
        yield "]"
    elif isinstance(value, dict) and any(isinstance(item, list) for item in value.values()):
        separator = "{"
        for name, item in value.items():
            yield f"{separator}{_JSON.encode(name)}: "
            yield from _texts(item)
            separator = ", "
        yield "}"
    else:
        yield _JSON.encode(value)


def always_written(field: FieldDescriptor) -> bool:
    """Return whether answers in JSON have a field also if it is 0, false or empty.

    Programs compute with numbers and go through lists and maps: without them a score of 0 is sorted as not-a-number, an
    answer without hits is an error. Protobuf leaves them out. Empty texts are left out here, too.
    """
    if field.full_name == _OTHER_FORM:
        return False
    return bool(field.is_repeated) or (not field.has_presence and field.cpp_type in _EMPTY)


def _complete(kind: Descriptor, value: dict[str, Any]) -> None:
    """Add the fields that `always_written` names to the JSON of a message, and to the messages in it."""
    empty, nested = _fields(kind)
    for name, make in empty:
        if name not in value:
            value[name] = make()
    for name, message, is_map in nested:
        inner = value.get(name)
        if inner is not None:
            each = inner.values() if is_map else inner if isinstance(inner, list) else (inner,)
            for item in each:
                _complete(message, item)


@lru_cache(maxsize=256)
def _fields(
    kind: Descriptor,
) -> tuple[list[tuple[str, Callable[[], object]]], list[tuple[str, Descriptor, bool]]]:
    """Return the fields to write always, each with what makes its empty value, and the fields with messages."""
    empty: list[tuple[str, Callable[[], object]]] = []
    nested: list[tuple[str, Descriptor, bool]] = []
    for field in kind.fields:
        message = field.message_type
        is_map = message is not None and message.GetOptions().map_entry
        if always_written(field):
            make = (
                dict if is_map else list if field.is_repeated else partial(_EMPTY.__getitem__, field.cpp_type)
            )
            empty.append((field.json_name, make))
        if message is not None and is_map:
            message = message.fields_by_name["value"].message_type
        # Those of Google have forms of their own.
        if message is not None and not message.full_name.startswith("google."):
            nested.append((field.json_name, message, is_map))
    return empty, nested


@lru_cache
def response_type(path: str) -> type[Message]:
    """Return the response type of the method at `path`."""
    service, _, method = path.strip("/").rpartition("/")
    descriptor = Default().FindServiceByName(service).methods_by_name[method]
    return GetMessageClass(descriptor.output_type)


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
