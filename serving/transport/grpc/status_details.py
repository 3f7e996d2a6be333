"""The details of an error in the form of Google's error model, for clients in other languages.

https://google.aip.dev/193. The messages are those of `google/rpc/status.proto` and `google/rpc/error_details.proto`, of
which a server needs no more than these few fields.
"""

from __future__ import annotations

import re

from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from grpc import StatusCode

from scannery.serving.engine.wire_fields import framed, varint
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["status_details"]

MAX_MESSAGE_BYTES = 400
"""The message is sent in full beside the details, and all trailing metadata together may take 8 KiB."""
_TYPE_URL = "type.googleapis.com/"


def status_details(code: StatusCode, message: str, detail: ErrorDetail, error: Exception) -> bytes:
    """Return a serialised `google.rpc.Status` with ErrorInfo, RetryInfo, BadRequest and our own ErrorDetail.

    Args:
        code: of the call.
        message: of the call.
        detail: field and retry delay.
        error: whose class is the reason in ErrorInfo.

    """
    short = message.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
    own = ErrorDetail(field=detail.field, message=short, retry_after_ms=detail.retry_after_ms)
    # ErrorInfo: reason, domain.
    reason = "INTERNAL" if code is StatusCode.INTERNAL else _reason(type(error).__name__)
    details = [
        _any("google.rpc.ErrorInfo", framed(1, reason.encode()) + framed(2, b"scannery")),
        _any(own.DESCRIPTOR.full_name, own.SerializeToString()),
    ]
    if detail.retry_after_ms:
        delay = Duration()
        delay.FromMilliseconds(detail.retry_after_ms)
        details.append(_any("google.rpc.RetryInfo", framed(1, delay.SerializeToString())))
    if detail.field and code is StatusCode.INVALID_ARGUMENT:
        # BadRequest: violations with field and description.
        violation = framed(1, detail.field.encode()) + framed(2, b"see the message of the status")
        details.append(_any("google.rpc.BadRequest", framed(1, violation)))
    # Status: code, message, details.
    status = b"\x08" + varint(code.value[0]) + framed(2, short.encode())
    return status + b"".join(framed(3, each.SerializeToString()) for each in details)


def _any(name: str, data: bytes) -> Message:
    return Any(type_url=_TYPE_URL + name, value=data)


def _reason(name: str) -> str:
    """Return the name of an error's class as a reason: `UnknownIndexError` is `UNKNOWN_INDEX`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).upper()
