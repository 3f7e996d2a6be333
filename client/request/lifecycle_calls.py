"""The calls that create, change and remove indexes and their aliases.

Specs of indexes to create, from Python values to JSON; the server checks what they say.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Call, Method
from scannery.client.request.named_vectors import build_named_spec
from scannery.client.request.values import refuses_surrogates
from scannery.client.response.decoding import (
    parse_index,
    parse_migration,
    parse_vectors,
    parse_version,
)
from scannery.client.response.index_info import IndexInfo, Migration, VersionInfo
from scannery.v1 import index_pb2

__all__ = [
    "alter_index",
    "branch_index",
    "build_changes",
    "build_spec",
    "build_time",
    "create_index",
    "delete_alias",
    "drop_index",
    "get_migration",
    "get_version",
    "kept_queries",
    "list_aliases",
    "list_versions",
    "migrate_index",
    "rollback_index",
    "set_alias",
]


def build_spec(
    spec: str | Mapping[str, Any],
    *,
    dimensions: int = 0,
    chunk: Mapping[str, Any] | None = None,
    sparse: bool | None = None,
    **parts: Any,
) -> str:
    """Return a spec as JSON.

    Args:
        spec: with the keys of SPEC.yaml; or the name of the index, and the rest in `parts`.
        dimensions: components of a vector; 0: not given.
        chunk: `source.chunk` of the spec.
        sparse: whether datapoints may have sparse vectors.
        parts: keys of the spec; None: not given. An encoder or a reranker may be the name of its model. Without a
            `source`, an index has `id` and `text`, and without an encoder also `vector`, unless it is one without
            vectors. An index made by its name takes datapoints without a vector, unless `vectors` says otherwise; it is
            one without vectors if it has words or sparse vectors, and neither an encoder nor dimensions. Named vectors
            may be the names of models, or numbers of dimensions.

    Raises:
        InvalidArgumentError: it is neither a name nor a mapping, or cannot be JSON.

    """
    settings = {name: value for name, value in parts.items() if value is not None}
    if isinstance(spec, str):
        made: dict[str, Any] = {"index": spec, **settings}
        if dimensions or sparse or any(made.get(name) for name in ("encoder", "lexical", "named_vectors")):
            made.setdefault("vectors", "optional")
    elif isinstance(spec, Mapping):
        if "dimensions" in spec:
            raise InvalidArgumentError(
                "spec.dimensions: is no key of a spec; give it as an argument: create_index(…, dimensions=…)",
                field="spec.dimensions",
            )
        made = {**spec, **settings}
    else:
        raise InvalidArgumentError(
            f"spec: must be a mapping with the keys of SPEC.yaml, or a name, got {spec!r:.80}", field="spec"
        )
    _name_models(made, "spec")
    alone = bool(made.get("named_vectors"))
    without = (made.get("vectors") == "optional" or alone) and not dimensions
    made.setdefault("source", _TEXTS if made.get("encoder") or without else _VECTORS)
    extra = {"chunk": chunk, "sparse_vector": "sparse_vector" if sparse else None}
    if extra := {name: value for name, value in extra.items() if value is not None}:
        if not isinstance(made["source"], Mapping):
            raise InvalidArgumentError(
                f"spec.source: must be a mapping, got {made['source']!r:.80}", field="spec.source"
            )
        made["source"] = {**made["source"], **extra}
    return _json(made, "spec")


def build_changes(**parts: Any) -> str:
    """Return the changed keys of a spec as JSON; a part that is None is not changed.

    Raises:
        InvalidArgumentError: nothing is changed, or it cannot be JSON.

    """
    changes = {name: value for name, value in parts.items() if value is not None}
    if not changes:
        raise InvalidArgumentError(f"changes: give at least one of {', '.join(parts)}", field="changes")
    _name_models(changes, "changes")
    return _json(changes, "changes")


def build_version(version: object, field: str = "if_version") -> int:
    """Return the number of a version, 0 for None; `field` is the argument that has it."""
    if version is None:
        return 0
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version < 1 << 64:
        raise InvalidArgumentError(f"{field}: must be a number from 1, got {version!r:.80}", field=field)
    return version


def keeps_existing(if_exists: object) -> bool:
    """Return whether `if_exists` is `keep`."""
    if if_exists not in ("error", "keep"):
        raise InvalidArgumentError(
            f"if_exists: must be 'error' or 'keep', got {if_exists!r:.80}", field="if_exists"
        )
    return if_exists == "keep"


def _name_models(parts: dict[str, Any], field: str) -> None:
    for name in ("encoder", "reranker"):
        if isinstance(parts.get(name), str):
            parts[name] = {"model": parts[name]}
    if parts.get("named_vectors") is not None:
        parts["named_vectors"] = build_named_spec(parts["named_vectors"], f"{field}.named_vectors")


def _json(value: Mapping[str, Any], field: str) -> str:
    attributes = value.get("attributes")
    for name, kind in attributes.items() if isinstance(attributes, Mapping) else ():
        if isinstance(kind, type):
            raise InvalidArgumentError(
                f"{field}.attributes.{name}: must be the name of a type, such as 'string', got {kind!r}",
                field=f"{field}.attributes.{name}",
            )
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{field}: is not JSON: {error}", field=field) from error


_TEXTS = {"id": "id", "text": "text"}
_VECTORS = {"id": "id", "vector": "vector", "text": "text"}


def build_dimensions(dimensions: object) -> int:
    """Return the number of components of a vector, 0 for None."""
    if dimensions is None:
        return 0
    if isinstance(dimensions, bool) or not isinstance(dimensions, int) or not 0 <= dimensions < 1 << 32:
        raise InvalidArgumentError(
            f"dimensions: must be a number from 1, got {dimensions!r:.80}", field="dimensions"
        )
    return dimensions


MAX_KEPT = 10_000
"""Most queries of one call."""
PAGE_OF_VERSIONS = 100
"""Versions of one call."""

CREATE_INDEX = Method(
    "/scannery.v1.IndexService/CreateIndex", index_pb2.CreateIndexRequest, index_pb2.CreateIndexResponse
)
ALTER_INDEX = Method(
    "/scannery.v1.IndexService/AlterIndex", index_pb2.AlterIndexRequest, index_pb2.AlterIndexResponse
)
BRANCH_INDEX = Method(
    "/scannery.v1.IndexService/BranchIndex", index_pb2.BranchIndexRequest, index_pb2.BranchIndexResponse
)
MIGRATE_INDEX = Method(
    "/scannery.v1.IndexService/MigrateIndex", index_pb2.MigrateIndexRequest, index_pb2.MigrateIndexResponse
)
GET_MIGRATION = Method(
    "/scannery.v1.IndexService/GetMigration", index_pb2.GetMigrationRequest, index_pb2.GetMigrationResponse
)
LIST_VERSIONS = Method(
    "/scannery.v1.IndexService/ListVersions", index_pb2.ListVersionsRequest, index_pb2.ListVersionsResponse
)
GET_VERSION = Method(
    "/scannery.v1.IndexService/GetVersion", index_pb2.GetVersionRequest, index_pb2.GetVersionResponse
)
ROLLBACK_INDEX = Method(
    "/scannery.v1.IndexService/RollbackIndex", index_pb2.RollbackIndexRequest, index_pb2.RollbackIndexResponse
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
def branch_index(
    index: str,
    branch: str,
    *,
    version: int | None,
    time: dt.datetime | dt.timedelta | str | None,
    request_id: str,
    timeout_s: float | None = None,
) -> Call[index_pb2.BranchIndexRequest, index_pb2.BranchIndexResponse, IndexInfo]:
    """Return the call that makes a branch of an index."""
    request = index_pb2.BranchIndexRequest(
        index=_name(index, "index"), branch=_name(branch, "branch"), request_id=request_id
    )
    if version is not None:
        request.version = build_version(version, "version")
    if time is not None:
        request.time.FromDatetime(build_time(time))
    return Call(BRANCH_INDEX, request, lambda response: parse_index(response.index), timeout_s)


@refuses_surrogates
def migrate_index(
    index: str, goal: index_pb2.MigrationGoal.ValueType, *, timeout_s: float | None = None, **parts: Any
) -> Call[index_pb2.MigrateIndexRequest, index_pb2.MigrateIndexResponse, Migration]:
    """Return the call that leads a migration to a goal; `parts` are the changes, None where nothing changes."""
    request = index_pb2.MigrateIndexRequest(index=_name(index, "index"), goal=goal)
    if any(part is not None for part in parts.values()):
        request.changes_json = build_changes(**parts)
    return Call(MIGRATE_INDEX, request, lambda response: parse_migration(response.migration), timeout_s)


@refuses_surrogates
def get_migration(
    index: str, *, timeout_s: float | None = None
) -> Call[index_pb2.GetMigrationRequest, index_pb2.GetMigrationResponse, Migration]:
    """Return the call for the state of a migration."""
    request = index_pb2.GetMigrationRequest(index=_name(index, "index"))
    return Call(GET_MIGRATION, request, lambda response: parse_migration(response.migration), timeout_s)


@refuses_surrogates
def list_versions(
    index: str, page_token: str, *, timeout_s: float | None = None
) -> Call[index_pb2.ListVersionsRequest, index_pb2.ListVersionsResponse, tuple[list[VersionInfo], str]]:
    """Return the call for one page of versions: the page, and the token of the next one (empty: it was the last)."""
    request = index_pb2.ListVersionsRequest(
        index=_name(index, "index"), page_size=PAGE_OF_VERSIONS, page_token=page_token
    )
    return Call(
        LIST_VERSIONS,
        request,
        lambda response: ([parse_version(item) for item in response.versions], response.next_page_token),
        timeout_s,
    )


@refuses_surrogates
def get_version(
    index: str, version: int | None, *, timeout_s: float | None = None
) -> Call[index_pb2.GetVersionRequest, index_pb2.GetVersionResponse, VersionInfo]:
    """Return the call for a version of an index, None: the current one."""
    request = index_pb2.GetVersionRequest(
        index=_name(index, "index"), version=build_version(version, "version")
    )
    return Call(GET_VERSION, request, lambda response: parse_version(response.version), timeout_s)


@refuses_surrogates
def rollback_index(
    index: str, version: int, *, if_version: int | None, timeout_s: float | None = None
) -> Call[index_pb2.RollbackIndexRequest, index_pb2.RollbackIndexResponse, IndexInfo]:
    """Return the call that publishes an earlier version of an index again."""
    request = index_pb2.RollbackIndexRequest(
        index=_name(index, "index"),
        version=build_version(version, "version"),
        if_version=build_version(if_version),
    )
    return Call(ROLLBACK_INDEX, request, lambda response: parse_index(response.index), timeout_s)


def build_time(time: object) -> dt.datetime:
    """Return a time in UTC.

    Args:
        time: a datetime, naive ones in UTC; a text of one in ISO 8601; or how long ago it was, as a timedelta or a text
            such as `90s`, `30m`, `2h`, `7d`.

    Raises:
        InvalidArgumentError: it is none of these.

    """
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(time, str):
            if match := _AGO.fullmatch(time.strip()):
                time = dt.timedelta(seconds=float(match[1]) * _UNITS_S[match[2]])
            else:  # Python 3.10 does not read the Z
                time = dt.datetime.fromisoformat(re.sub("[zZ]$", "+00:00", time.strip()))
        if isinstance(time, dt.timedelta):
            return dt.datetime.now(dt.timezone.utc) - time
        if isinstance(time, dt.datetime):
            utc = dt.timezone.utc
            return time.replace(tzinfo=utc) if time.tzinfo is None else time.astimezone(utc)
    raise InvalidArgumentError(
        f"time: must be a time in ISO 8601, or how long ago it was, as 90s, 30m, 2h or 7d, got {time!r:.80}",
        field="time",
    )


_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


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
