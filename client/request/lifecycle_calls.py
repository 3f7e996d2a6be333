"""The calls that create, change and remove indexes and their aliases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Call, Method
from scannery.client.request.specs import (
    build_changes,
    build_dimensions,
    build_spec,
    build_version,
    keeps_existing,
)
from scannery.client.request.unicode import refuses_surrogates
from scannery.client.response.decoding import parse_index, parse_vectors
from scannery.client.response.index_info import IndexInfo
from scannery.v1 import index_pb2

__all__ = [
    "alter_index",
    "create_index",
    "delete_alias",
    "drop_index",
    "kept_queries",
    "list_aliases",
    "set_alias",
]

MAX_KEPT = 10_000
"""Most queries of one call."""

CREATE_INDEX = Method(
    "/scannery.v1.IndexService/CreateIndex", index_pb2.CreateIndexRequest, index_pb2.CreateIndexResponse
)
ALTER_INDEX = Method(
    "/scannery.v1.IndexService/AlterIndex", index_pb2.AlterIndexRequest, index_pb2.AlterIndexResponse
)
DROP_INDEX = Method(
    "/scannery.v1.IndexService/DropIndex", index_pb2.DropIndexRequest, index_pb2.DropIndexResponse
)
SET_ALIAS = Method(
    "/scannery.v1.IndexService/SetAlias", index_pb2.SetAliasRequest, index_pb2.SetAliasResponse
)
DELETE_ALIAS = Method(
    "/scannery.v1.IndexService/DeleteAlias", index_pb2.DeleteAliasRequest, index_pb2.DeleteAliasResponse
)
KEPT_QUERIES = Method(
    "/scannery.v1.IndexService/GetKeptQueries",
    index_pb2.GetKeptQueriesRequest,
    index_pb2.GetKeptQueriesResponse,
)
LIST_ALIASES = Method(
    "/scannery.v1.IndexService/ListAliases", index_pb2.ListAliasesRequest, index_pb2.ListAliasesResponse
)


@refuses_surrogates
def create_index(
    spec: str | Mapping[str, Any],
    *,
    dimensions: int | None,
    request_id: str,
    if_exists: str = "error",
    timeout_s: float | None = None,
    **parts: Any,
) -> Call[index_pb2.CreateIndexRequest, index_pb2.CreateIndexResponse, IndexInfo]:
    """Return the call that creates an index; `parts` are those of `build_spec`, None where they are not given."""
    size = build_dimensions(dimensions)
    request = index_pb2.CreateIndexRequest(
        spec_json=build_spec(spec, dimensions=size, **parts),
        dimensions=size,
        request_id=request_id,
        keep_existing=keeps_existing(if_exists),
    )
    return Call(CREATE_INDEX, request, lambda response: parse_index(response.index), timeout_s)


@refuses_surrogates
def alter_index(
    index: str, *, if_version: int | None = None, timeout_s: float | None = None, **parts: Any
) -> Call[index_pb2.AlterIndexRequest, index_pb2.AlterIndexResponse, IndexInfo]:
    """Return the call that changes the spec of an index; `parts` are keys of the spec, None where they stay."""
    request = index_pb2.AlterIndexRequest(
        index=index, changes_json=build_changes(**parts), if_version=build_version(if_version)
    )
    return Call(ALTER_INDEX, request, lambda response: parse_index(response.index), timeout_s)


@refuses_surrogates
def drop_index(
    index: str, *, missing_ok: bool = False, timeout_s: float | None = None
) -> Call[index_pb2.DropIndexRequest, index_pb2.DropIndexResponse, bool]:
    """Return the call that removes an index; the answer says whether there was one."""
    request = index_pb2.DropIndexRequest(index=_name(index, "index"), missing_ok=bool(missing_ok))
    return Call(DROP_INDEX, request, lambda response: response.dropped, timeout_s)


@refuses_surrogates
def set_alias(
    alias: str, index: str, *, timeout_s: float | None = None
) -> Call[index_pb2.SetAliasRequest, index_pb2.SetAliasResponse, str | None]:
    """Return the call that sets or moves an alias; the answer is the index that it stood for, None for a new one."""
    request = index_pb2.SetAliasRequest(alias=_name(alias, "alias"), index=_name(index, "index"))
    return Call(SET_ALIAS, request, lambda response: response.previous or None, timeout_s)


@refuses_surrogates
def delete_alias(
    alias: str, *, missing_ok: bool = False, timeout_s: float | None = None
) -> Call[index_pb2.DeleteAliasRequest, index_pb2.DeleteAliasResponse, bool]:
    """Return the call that deletes an alias; the answer says whether there was one."""
    request = index_pb2.DeleteAliasRequest(alias=_name(alias, "alias"), missing_ok=bool(missing_ok))
    return Call(DELETE_ALIAS, request, lambda response: response.deleted, timeout_s)


def list_aliases(
    *, timeout_s: float | None = None
) -> Call[index_pb2.ListAliasesRequest, index_pb2.ListAliasesResponse, dict[str, str]]:
    """Return the call for the index that each alias stands for."""
    return Call(
        LIST_ALIASES,
        index_pb2.ListAliasesRequest(),
        lambda response: dict(sorted(response.aliases.items())),
        timeout_s,
    )


def kept_queries(
    index: str, *, limit: int | None = None, timeout_s: float | None = None
) -> Call[index_pb2.GetKeptQueriesRequest, index_pb2.GetKeptQueriesResponse, np.ndarray]:
    """Return the call for a sample of the vectors of queries; the answer is float32 (queries, dimensions)."""
    request = index_pb2.GetKeptQueriesRequest(index=_name(index, "index"))
    if limit is not None:
        if isinstance(limit, bool) or not 0 < int(limit) <= MAX_KEPT:
            raise InvalidArgumentError(f"limit: must be 1 to {MAX_KEPT}, got {limit!r:.80}", field="limit")
        request.limit = limit
    return Call(KEPT_QUERIES, request, lambda response: parse_vectors(response.vectors), timeout_s)


def _name(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{field}: must be a name, got {value!r:.80}", field=field)
    return value
