"""The operations of this server as bridges call them: with its own messages, without the wire."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, TypeVar, cast

from google.protobuf.message import Message
from grpc import StatusCode

from scannery.runtime.retry import Deadline
from scannery.serving.audit.trail import AuditTrail
from scannery.serving.contract import (
    ALTER_INDEX,
    CREATE_INDEX,
    DROP_INDEX,
    INDEX_SERVICE,
    SEARCH_SERVICE,
    UPSERT,
)
from scannery.serving.observation.query_observer import Observe
from scannery.serving.request.query import count_queries
from scannery.serving.security.principal import CURRENT, check_visible, current_principal
from scannery.serving.services.registry import MethodRegistry
from scannery.serving.status import status_of
from scannery.serving.telemetry.calls import Call
from scannery.v1 import index_pb2, search_pb2

__all__ = ["Engine"]

AnswerT = TypeVar("AnswerT", bound=Message)


class Engine:
    """The methods of this server. Safe to use from several threads."""

    def __init__(
        self,
        methods: MethodRegistry,
        observe: Observe = lambda index, queries, request_of: None,
        *,
        audit: AuditTrail | None = None,
        checks: bool = True,
    ) -> None:
        """Call methods of a registry.

        Args:
            methods: by path.
            observe: called with each answered search, so that its recall is sampled as that of others.
            audit: records calls, beside those of bridges that make them; None: there is no audit log.
            checks: whether the caller of the current request needs the scope of the method, and must see the index.

        """
        self._methods, self._observe, self._audit, self._checks = methods, observe, audit, checks

    def call(self, path: str, request: Message, deadline: Deadline) -> Message:
        """Call any method of this server, such as `/scannery.v1.IndexService/ListIndexes`.

        Raises:
            PermissionDeniedError: the caller lacks the scope of the method.
            UnknownIndexError: there is no such index, or the caller does not see it.
            ServingError: as the method.

        """
        return cast(Message, self._called(path, request, deadline))

    def create_index(
        self, spec: Mapping[str, Any], *, dimensions: int, deadline: Deadline, request_id: str = ""
    ) -> index_pb2.IndexInfo:
        """Create an empty index from the keys of a spec, or return the one that a request with this id has created."""
        request = index_pb2.CreateIndexRequest(
            spec_json=json.dumps(spec), dimensions=dimensions, request_id=request_id
        )
        answer: index_pb2.CreateIndexResponse = self._called(CREATE_INDEX, request, deadline)
        return answer.index

    def alter_index(self, index: str, changes: Mapping[str, Any], deadline: Deadline) -> index_pb2.IndexInfo:
        """Change some keys of the spec of an index."""
        request = index_pb2.AlterIndexRequest(index=index, changes_json=json.dumps(changes))
        answer: index_pb2.AlterIndexResponse = self._called(ALTER_INDEX, request, deadline)
        return answer.index

    def drop_index(self, index: str, deadline: Deadline, *, missing_ok: bool = False) -> bool:
        """Drop an index, and return whether there was one."""
        request = index_pb2.DropIndexRequest(index=index, missing_ok=missing_ok)
        answer: index_pb2.DropIndexResponse = self._called(DROP_INDEX, request, deadline)
        return answer.dropped

    def index_info(self, index: str, deadline: Deadline) -> index_pb2.IndexInfo:
        """Return the description of an index; raises UnknownIndexError."""
        request = index_pb2.GetIndexRequest(index=index)
        answer: index_pb2.GetIndexResponse = self._called(f"/{INDEX_SERVICE}/GetIndex", request, deadline)
        return answer.index

    def upsert(self, request: index_pb2.UpsertRequest, deadline: Deadline) -> index_pb2.UpsertResponse:
        """Write a batch."""
        return cast(index_pb2.UpsertResponse, self._called(UPSERT, request, deadline))

    def delete(self, request: index_pb2.DeleteRequest, deadline: Deadline) -> index_pb2.DeleteResponse:
        """Delete datapoints by id."""
        return cast(index_pb2.DeleteResponse, self._called(f"/{INDEX_SERVICE}/Delete", request, deadline))

    def delete_where(
        self, request: index_pb2.DeleteWhereRequest, deadline: Deadline
    ) -> index_pb2.DeleteWhereResponse:
        """Delete a batch of datapoints that a filter allows."""
        path = f"/{INDEX_SERVICE}/DeleteWhere"
        return cast(index_pb2.DeleteWhereResponse, self._called(path, request, deadline))

    def search(self, request: search_pb2.SearchRequest, deadline: Deadline) -> search_pb2.SearchResponse:
        """Answer one query."""
        return cast(search_pb2.SearchResponse, self._called(f"/{SEARCH_SERVICE}/Search", request, deadline))

    def search_many(
        self, request: search_pb2.SearchManyRequest, deadline: Deadline
    ) -> search_pb2.SearchManyResponse:
        """Answer many queries from one snapshot."""
        path = f"/{SEARCH_SERVICE}/SearchMany"
        return cast(search_pb2.SearchManyResponse, self._called(path, request, deadline))

    def get(self, request: search_pb2.GetRequest, deadline: Deadline) -> search_pb2.GetResponse:
        """Return datapoints by id."""
        return cast(search_pb2.GetResponse, self._called(f"/{SEARCH_SERVICE}/Get", request, deadline))

    def count(self, request: search_pb2.CountRequest, deadline: Deadline) -> search_pb2.CountResponse:
        """Return the number of datapoints that a filter allows."""
        return cast(search_pb2.CountResponse, self._called(f"/{SEARCH_SERVICE}/Count", request, deadline))

    def scan(self, request: search_pb2.ScanRequest, deadline: Deadline) -> search_pb2.ScanResponse:
        """Return a page of datapoints."""
        return cast(search_pb2.ScanResponse, self._called(f"/{SEARCH_SERVICE}/Scan", request, deadline))

    def _called(self, path: str, request: Message, deadline: Deadline) -> Any:
        principal, code = CURRENT.get(), StatusCode.OK
        call = Call(path, "engine", principal, "" if principal is None else principal.address)
        try:
            return self._answer(call, request, deadline)
        except Exception as error:
            code = status_of(error)[0]
            raise
        finally:
            if self._audit is not None:
                self._audit.ended(call, code.name, time.monotonic() - call.started_s)

    def _answer(self, call: Call, request: Message, deadline: Deadline) -> Message:
        path = call.path
        if self._checks and (scope := self._methods.scope_of(path)) is not None:
            current_principal().check_scope(scope)
        request = self._methods.noted(call, request)
        if self._checks:
            check_visible(self._methods.index_of(request))
        if self._audit is not None and self._methods.changes(path):
            self._audit.begin(call)
        answer = self._methods.call(path, request, deadline, call.stats)
        if isinstance(request, search_pb2.SearchManyRequest):
            self._observe(request.index, count_queries(request), lambda: request)
        elif isinstance(request, search_pb2.SearchRequest):
            self._observe(request.index, 1, lambda: request)
        return answer
