"""Connect unary calls as HTTP/1.1: answers become messages, and errors those of the SDK.

The protocol: https://connectrpc.com/docs/protocol#unary-request.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from scannery.client.errors import InvalidArgumentError, ScanneryError
from scannery.client.transport.retries import error_from_status
from scannery.runtime import http1
from scannery.runtime.http1 import ProtocolError, Response
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "ForeignAnswerError",
    "call_head",
    "read_answer",
]

MessageT = TypeVar("MessageT", bound=Message)


_ERROR_DETAIL = ErrorDetail.DESCRIPTOR.full_name

# What a status means without an error of Connect in the body: it comes from a proxy.
_CODES_OF_STATUS = {
    400: "internal",
    401: "unauthenticated",
    403: "permission_denied",
    404: "unimplemented",
    429: "unavailable",
    502: "unavailable",
    503: "unavailable",
    504: "unavailable",
}


class ForeignAnswerError(ProtocolError):
    """A response that is no answer of Scannery: of a proxy, or of another server.

    Attributes:
        code: what its status means in Connect's terms.

    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def call_head(path: str, host: str, metadata: tuple[tuple[str, str], ...]) -> bytes:
    """Return `http1.call_head`; raises InvalidArgumentError, for example for a token with a line break."""
    try:
        return http1.call_head(path, host, metadata)
    except ValueError as error:
        raise InvalidArgumentError(str(error), field=str(error).partition(":")[0]) from error


def read_answer(response: Response, kind: type[MessageT]) -> MessageT:
    """Return the message of a response.

    Raises:
        ScanneryError: the server answered with an error.
        ForeignAnswerError: this is no answer of Scannery.

    """
    content_type = response.headers.get(b"content-type", b"")
    if response.status == 200 and content_type == b"application/proto":
        try:
            return kind.FromString(response.body)
        except DecodeError as error:
            raise ProtocolError(f"the body is no {kind.__name__}") from error
    if response.status != 200 and content_type.partition(b";")[0].strip().lower() == b"application/json":
        answered = _connect_error(response)
        if answered is not None:
            raise answered
    code = _CODES_OF_STATUS.get(response.status, "unknown")
    raise ForeignAnswerError(
        f"HTTP status {response.status} with content type {content_type.decode('latin-1')!r}, "
        "which is not an answer of Scannery",
        code,
    )


def _connect_error(response: Response) -> ScanneryError | None:
    """Return the error in a body, as gRPC would give it; None if there is none."""
    try:
        body = json.loads(response.body)
        code, message = body["code"], body.get("message", "")
        detail = _error_detail(body.get("details", []))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError):
        return None
    if not isinstance(code, str) or not isinstance(message, str):
        return None
    if code == "canceled":
        # This client cancels no calls: a server that is stopping dropped it.
        code = "unavailable"
    return error_from_status(code, message or code.replace("_", " "), detail)


def _error_detail(details: list[dict[str, str]]) -> ErrorDetail | None:
    for detail in details:
        if detail["type"].rpartition("/")[2] == _ERROR_DETAIL:
            try:
                value = base64.b64decode(detail["value"] + "=" * (-len(detail["value"]) % 4), validate=True)
            except binascii.Error as error:
                raise ValueError("the detail is no base64") from error
            return ErrorDetail.FromString(value)
    return None
