"""The OpenAPI 3.1 description, generated from the Protobuf descriptors.

Schemas follow the JSON mapping of Protobuf: names in lowerCamelCase, 64-bit integers as strings, bytes in base64.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from scannery.serving.transport.http.connect import HTTP_STATUS, code_name
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


def description(paths: Iterable[str], *, credentials: bool) -> bytes:
    """Return the description as JSON.

    Args:
        paths: of the served methods.
        credentials: whether callers must send a key or a token.

    """
    schemas: dict[str, Schema] = {_ERROR: _error_schema()}
    _add(schemas, ErrorDetail.DESCRIPTOR)
    components: Schema = {"schemas": schemas}
    document: Schema = {
        "openapi": "3.1.0",
        "info": {"title": "Scannery", "version": _version()},
        "paths": {path: {"post": _operation(path, schemas)} for path in sorted(paths)},
        "components": components,
    }
    if credentials:
        components["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
    return json.dumps(document, indent=1).encode()


def _version() -> str:
    try:
        return version("scannery")
    except PackageNotFoundError:
        return "0"


def _operation(path: str, schemas: dict[str, Schema]) -> Schema:
    service, _, name = path.strip("/").rpartition("/")
    method = Default().FindServiceByName(service).methods_by_name[name]
    for message in (method.input_type, method.output_type):
        _add(schemas, message)
    binary: Schema = {"type": "string", "format": "binary"}
    return {
        "operationId": f"{service.rpartition('.')[2]}_{name}",
        "tags": [service],
        "parameters": [
            {
                "name": "Connect-Timeout-Ms",
                "in": "header",
                "required": False,
                "schema": {"type": "integer", "minimum": 0, "maximum": 9_999_999_999},
            }
        ],
        "requestBody": {
            "required": True,
            "content": {JSON: {"schema": _reference(method.input_type)}, PROTO: {"schema": binary}},
        },
        "responses": {
            "200": {
                "description": method.output_type.name,
                "content": {JSON: {"schema": _reference(method.output_type)}, PROTO: {"schema": binary}},
            },
            "default": {
                "description": "An error.",
                "content": {JSON: {"schema": {"$ref": f"#/components/schemas/{_ERROR}"}}},
            },
        },
    }


def _error_schema() -> Schema:
    detail = {
        "type": "object",
        "required": ["type", "value"],
        "properties": {
            "type": {"type": "string", "const": ErrorDetail.DESCRIPTOR.full_name},
            "value": {"type": "string", "contentEncoding": "base64"},
            "debug": _reference(ErrorDetail.DESCRIPTOR),
        },
    }
    return {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "string", "enum": sorted(map(code_name, HTTP_STATUS))},
            "message": {"type": "string"},
            "details": {"type": "array", "items": detail},
        },
    }


def _add(schemas: dict[str, Schema], message: Descriptor) -> None:
    """Add the schemas of a message and of the messages in its fields."""
    if message.full_name in schemas or message.full_name in _WELL_KNOWN:
        return
    schema = schemas[message.full_name] = {"type": "object", "additionalProperties": False}
    if message.fields:
        schema["properties"] = {field.json_name: _field(schemas, field) for field in message.fields}


def _field(schemas: dict[str, Schema], field: FieldDescriptor) -> Schema:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return {"type": "object", "additionalProperties": _single(schemas, message.fields_by_name["value"])}
    one = _single(schemas, field)
    return {"type": "array", "items": one} if field.is_repeated else one


def _single(schemas: dict[str, Schema], field: FieldDescriptor) -> Schema:
    if field.message_type is not None:
        _add(schemas, field.message_type)
        return _reference(field.message_type)
    if field.enum_type is not None:
        return {"type": "string", "enum": [value.name for value in field.enum_type.values]}
    return _SCALARS[field.type]


def _reference(message: Descriptor) -> Schema:
    known = _WELL_KNOWN.get(message.full_name)
    return known or {"$ref": f"#/components/schemas/{message.full_name}"}
