"""The OpenAPI 3.1 description, generated from the Protobuf descriptors and the comments of the contract.

Schemas follow the JSON mapping of Protobuf: names in lowerCamelCase, 64-bit integers as strings, bytes in base64. A
field is required in requests if its comment begins with `Required`, and in answers if they always have it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from scannery.serving.transport.http.connect import HTTP_STATUS, always_written, code_name
from scannery.serving.transport.http.head import JSON, PROTO
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["description"]

Schema = dict[str, Any]

_F = FieldDescriptor
_INTEGER: Schema = {"type": "integer", "format": "int32"}
_UNSIGNED: Schema = {"type": "integer", "format": "int64", "minimum": 0, "maximum": (1 << 32) - 1}
_LONG: Schema = {"type": ["string", "integer"], "format": "int64"}
_SCALARS: dict[int, Schema] = {
    _F.TYPE_DOUBLE: {"type": "number", "format": "double"},
    _F.TYPE_FLOAT: {"type": "number", "format": "float"},
    _F.TYPE_BOOL: {"type": "boolean"},
    _F.TYPE_STRING: {"type": "string"},
    _F.TYPE_BYTES: {"type": "string", "contentEncoding": "base64"},
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), _INTEGER),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), _UNSIGNED),
    **dict.fromkeys(
        (_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64, _F.TYPE_UINT64, _F.TYPE_FIXED64), _LONG
    ),
}
_WELL_KNOWN: dict[str, Schema] = {
    Timestamp.DESCRIPTOR.full_name: {"type": "string", "format": "date-time"},
    FieldMask.DESCRIPTOR.full_name: {"type": "string"},
}
"""Messages with a JSON form of their own."""
_ERROR = "connect.Error"
_REFUSALS = {
    "400": "The request is invalid, or the index does not allow it. The message names the field.",
    "401": "The credentials are missing or not valid.",
    "403": "The credentials do not have the scope, or a browser may not call from its page.",
    "404": "There is no such index or datapoint.",
    "413": "The body is too long.",
    "429": "The server has too much to do. Repeat the request after the seconds in `Retry-After`, or some more.",
    "503": "The server is stopping, or another one of the cluster does not answer. Repeat the request.",
    "504": "The deadline passed: `Connect-Timeout-Ms`, or that of the server.",
    "default": "Another error; its `code` tells.",
}
_RETRY_AFTER = {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}


def description(paths: Iterable[str], *, credentials: bool) -> bytes:
    """Return the description as JSON.

    Args:
        paths: of the served methods.
        credentials: whether callers must send a key or a token.

    """
    methods = {path: _method(path) for path in sorted(paths)}
    requests = _reachable(method.input_type for method in methods.values())
    services = {method.containing_service.full_name for method in methods.values()}
    schemas: dict[str, Schema] = {_ERROR: _error_schema()}
    for message in _reachable((*_types(methods.values()), ErrorDetail.DESCRIPTOR)).values():
        schemas[message.full_name] = _message_schema(message, is_asked=message.full_name in requests)
        for enum in [_value_of(field).enum_type for field in message.fields]:
            if enum is not None:
                schemas[enum.full_name] = _enum_schema(enum)
    bearer: Schema = {"bearer": []}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {
            "title": "Scannery",
            "version": _version(),
            "description": "Vector search and embedding retrieval. Each method is a POST of JSON or Protobuf.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The server that gives this description."}],
        # Without credentials a server takes requests with and without them.
        "security": [bearer] if credentials else [bearer, {}],
        "tags": [{"name": name, "description": _comment(name)} for name in sorted(services)],
        "paths": {path: {"post": _operation(method)} for path, method in methods.items()},
        "components": {
            "schemas": schemas,
            "responses": {name: _refusal(name, text) for name, text in _REFUSALS.items()},
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key or a token of the server.",
                }
            },
        },
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _version() -> str:
    try:
        return version("scannery")
    except PackageNotFoundError:
        return "0"


@cache
def _comments() -> dict[str, str]:
    """Return the comments of the contract by the names of what they are about (tests/tools/generate_protos.py)."""
    comments: dict[str, str] = json.loads(files("scannery.v1").joinpath("comments.json").read_bytes())
    return comments


def _comment(name: str) -> str:
    return _comments().get(name, "")


def _method(path: str) -> MethodDescriptor:
    service, _, name = path.strip("/").rpartition("/")
    return Default().FindServiceByName(service).methods_by_name[name]


def _types(methods: Iterable[MethodDescriptor]) -> Iterator[Descriptor]:
    for method in methods:
        yield from (method.input_type, method.output_type)


def _reachable(messages: Iterable[Descriptor]) -> dict[str, Descriptor]:
    """Return messages with those in their fields, but for entries of maps, by name."""
    names: dict[str, Descriptor] = {}
    pending = list(messages)
    while pending:
        message = pending.pop()
        if message.full_name in names or message.full_name in _WELL_KNOWN:
            continue
        if not message.GetOptions().map_entry:
            names[message.full_name] = message
        pending += [field.message_type for field in message.fields if field.message_type is not None]
    return names


def _operation(method: MethodDescriptor) -> Schema:
    service, name = method.containing_service.full_name, method.name
    binary: Schema = {"type": "string", "format": "binary"}
    about = _comment(method.full_name)
    return {
        "operationId": f"{service.rpartition('.')[2]}_{name}",
        "tags": [service],
        "summary": about.partition(". ")[0].rstrip(".") or name,
        "description": about,
        "parameters": [
            {
                "name": "Connect-Timeout-Ms",
                "in": "header",
                "description": "How long the caller waits, in milliseconds.",
                "required": False,
                "schema": {"type": "integer", "minimum": 0, "maximum": 9_999_999_999},
            }
        ],
        "requestBody": {
            "description": _comment(method.input_type.full_name),
            "required": True,
            "content": {JSON: {"schema": _reference(method.input_type)}, PROTO: {"schema": binary}},
        },
        "responses": {
            "200": {
                "description": _comment(method.output_type.full_name) or method.output_type.name,
                "content": {JSON: {"schema": _reference(method.output_type)}, PROTO: {"schema": binary}},
            },
            **{name: {"$ref": f"#/components/responses/{name}"} for name in _REFUSALS},
        },
    }


def _refusal(name: str, text: str) -> Schema:
    refusal: Schema = {
        "description": text,
        "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{_ERROR}"}}},
    }
    return {**refusal, "headers": {"Retry-After": _RETRY_AFTER}} if name == "429" else refusal


def _error_schema() -> Schema:
    detail = {
        "type": "object",
        "description": "The detail that gRPC sends, too.",
        "required": ["type", "value"],
        "properties": {
            "type": {
                "type": "string",
                "const": ErrorDetail.DESCRIPTOR.full_name,
                "description": "Name of the message.",
            },
            "value": {
                "type": "string",
                "contentEncoding": "base64",
                "description": "The message in Protobuf.",
            },
            "debug": {
                **_reference(ErrorDetail.DESCRIPTOR),
                "description": "The message in JSON.",
            },
        },
    }
    return {
        "type": "object",
        "description": "An error, as Connect has it.",
        "required": ["code", "message"],
        "properties": {
            "code": {
                "type": "string",
                "enum": sorted(map(code_name, HTTP_STATUS)),
                "description": "That of gRPC, in Connect's spelling.",
            },
            "message": {"type": "string", "description": "What is wrong, for people."},
            "details": {"type": "array", "items": detail, "description": "What is wrong, for programs."},
        },
    }


def _message_schema(message: Descriptor, *, is_asked: bool) -> Schema:
    """Return the schema of a message; `is_asked`: requests have it, which may leave out what answers always have."""
    schema: Schema = {
        "type": "object",
        "description": _comment(message.full_name),
        "additionalProperties": False,
    }
    if message.fields:
        schema["properties"] = {field.json_name: _field(field) for field in message.fields}
    required = [
        field.json_name
        for field in message.fields
        if _comment(field.full_name).startswith("Required")
        or (not is_asked and always_written(field) and message.full_name != ErrorDetail.DESCRIPTOR.full_name)
    ]
    return {**schema, "required": required} if required else schema


def _enum_schema(enum: EnumDescriptor) -> Schema:
    meanings = [
        f"`{value.name}`: {text}"
        for value in enum.values
        if (text := _comment(_value_name(enum, value.name)))
    ]
    return {
        "type": "string",
        "description": " ".join((_comment(enum.full_name), *meanings)),
        "enum": [value.name for value in enum.values],
    }


def _value_name(enum: EnumDescriptor, name: str) -> str:
    return f"{enum.full_name}.{name}"


def _value_of(field: FieldDescriptor) -> FieldDescriptor:
    """Return the field of the values of a map; of a field that is no map, the field."""
    message = field.message_type
    return (
        message.fields_by_name["value"] if message is not None and message.GetOptions().map_entry else field
    )


def _field(field: FieldDescriptor) -> Schema:
    value = _value_of(field)
    schema, about = _single(value), {"description": _comment(field.full_name)}
    if value is not field:
        return {"type": "object", "additionalProperties": schema, **about}
    return {"type": "array", "items": schema, **about} if field.is_repeated else {**schema, **about}


def _single(field: FieldDescriptor) -> Schema:
    if field.message_type is not None:
        return _reference(field.message_type)
    return _reference(field.enum_type) if field.enum_type is not None else _SCALARS[field.type]


def _reference(kind: Descriptor | EnumDescriptor) -> Schema:
    schema = _WELL_KNOWN.get(kind.full_name)
    return schema or {"$ref": f"#/components/schemas/{kind.full_name}"}
