"""The Connect protocol of unary calls: codes, errors, timeouts, bodies.

Protocol: https://connectrpc.com/docs/protocol. Unlike most Connect servers, this one refuses unknown fields in JSON, so
that no part of a request is ignored.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from functools import lru_cache
from typing import TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode

from scannery.runtime.errors import InvalidRequestError
from scannery.serving.transport.http.head import too_long
from scannery.serving.transport.http.json_errors import json_error
from scannery.serving.transport.lifecycle import decoded
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "GZIPPED",
    "HTTP_STATUS",
    "MAX_JSON_BYTES",
    "MIN_GZIP_BYTES",
    "code_name",
    "compressed",
    "decoded_json",
    "decompressed",
    "encoded_json",
    "error_body",
    "response_type",
]

HTTP_STATUS: dict[StatusCode, int] = {
    StatusCode.CANCELLED: 499,
    StatusCode.UNKNOWN: 500,
    StatusCode.INVALID_ARGUMENT: 400,
    StatusCode.DEADLINE_EXCEEDED: 504,
    StatusCode.NOT_FOUND: 404,
    StatusCode.ALREADY_EXISTS: 409,
    StatusCode.PERMISSION_DENIED: 403,
    StatusCode.RESOURCE_EXHAUSTED: 429,
    StatusCode.FAILED_PRECONDITION: 400,
    StatusCode.ABORTED: 409,
    StatusCode.OUT_OF_RANGE: 400,
    StatusCode.UNIMPLEMENTED: 501,
    StatusCode.INTERNAL: 500,
    StatusCode.UNAVAILABLE: 503,
    StatusCode.DATA_LOSS: 500,
    StatusCode.UNAUTHENTICATED: 401,
}
"""HTTP status by code, as Connect defines it."""

MAX_JSON_BYTES = 8 << 20
"""Longest JSON body; parsed, it takes about thirty times its size in memory."""
GZIP_LEVEL = 1
MIN_GZIP_BYTES = 1 << 10
"""Shorter answers are not compressed."""
GZIPPED = (("content-encoding", "gzip"), ("vary", "accept-encoding"))
"""Headers of a compressed answer."""
_READ_BYTES = 1 << 20

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
    return b"".join(parts)


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


def encoded_json(kind: type[Message], data: bytes) -> bytes:
    """Return a serialised message as JSON."""
    return json_format.MessageToJson(kind.FromString(data), indent=None, ensure_ascii=False).encode()


@lru_cache
def response_type(path: str) -> type[Message]:
    """Return the response type of the method at `path`."""
    service, _, method = path.strip("/").rpartition("/")
    found = Default().FindServiceByName(service).methods_by_name[method]
    return GetMessageClass(found.output_type)
