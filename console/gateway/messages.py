"""The methods of the contract by path, their messages as JSON, and errors as Connect has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Method
from scannery.runtime.errors import STATUSES, CodedError
from scannery.v1 import embedding_pb2, index_pb2, search_pb2

__all__ = ["METHODS", "decoded", "encoded", "error_answer"]

RequestT = TypeVar("RequestT", bound=Message)

METHODS: Mapping[str, Method[Message, Message]] = {
    path: Method(path, GetMessageClass(method.input_type), GetMessageClass(method.output_type))
    for file, name in (
        (search_pb2, "SearchService"),
        (index_pb2, "IndexService"),
        (embedding_pb2, "EmbeddingService"),
    )
    for method in file.DESCRIPTOR.services_by_name[name].methods
    if not method.client_streaming
    for path in [f"/{method.containing_service.full_name}/{method.name}"]
}
"""All methods that take one request and give one answer."""


def decoded(method: Method[RequestT, Any], body: bytes) -> RequestT:
    """Return the request of a method; raises InvalidArgumentError."""
    try:
        return json_format.Parse(body, method.request())
    except (json_format.ParseError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request is wrong: {str(error)[:500]}") from error


def encoded(answer: Message) -> bytes:
    """Return an answer as JSON; numbers, booleans and lists are always written."""
    fields = json_format.MessageToDict(answer, always_print_fields_with_no_presence=True)
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def error_answer(error: CodedError) -> tuple[int, bytes]:
    """Return the status of HTTP and the body of an error."""
    debug: dict[str, Any] = {"field": error.field} if error.field else {}
    if retry_after_s := getattr(error, "retry_after_s", None):
        debug["retryAfterMs"] = int(retry_after_s * 1000)
    body: dict[str, Any] = {"code": error.code.lower(), "message": error.message}
    if debug:
        body["details"] = [{"type": "scannery.v1.ErrorDetail", "debug": debug}]
    return STATUSES[error.code].http, json.dumps(body, ensure_ascii=False).encode()
