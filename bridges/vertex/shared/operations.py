"""Long-running operations: kept in the store, so that every worker answers for them, also after a restart.

The work of an operation runs in a thread of the worker that got the request. That worker renews a time stamp; an
operation whose stamp is old has lost its worker, and is reported as aborted.

The service that clients ask for the state of operations.
"""

from __future__ import annotations

import base64
import contextvars
import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from google.protobuf import any_pb2
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpc import StatusCode

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.names import is_visible, owns, page_of, unknown_resource
from scannery.bridges.vertex.shared.state import JsonDocument, Resources
from scannery.indexer import IndexerError
from scannery.runtime.errors import ClosedError, OverloadedError, ServingError, UnsupportedError
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.bridging import BRIDGED, CURRENT, status_for_callers, waiting
from scannery.vertex.v1 import operations_pb2 as pb

__all__ = ["OPERATIONS_KEY", "OPERATIONS_PACKAGE", "OperationMethods", "Operations", "Progress"]


_LOG = logging.getLogger(__name__)

OPERATIONS_KEY = "vertex-operations.json"
BEAT_EVERY_S = 5.0
LOST_AFTER_S = 30.0
"""Age of the time stamp of a running operation whose worker is gone."""
KEPT_S = 7 * 86400.0
MAX_KEPT = 1000
"""Operations of a store; beyond it those that have ended are forgotten, the oldest of whom has most first."""
MAX_KEPT_BYTES = 8 << 20
"""Bytes of their results, about; beyond it operations are forgotten likewise."""
MAX_RUNNING = 16
"""Operations that run or wait in a process."""
_KIND = "operations"

Progress: TypeAlias = Callable[[Message], None]
"""Takes the metadata of a running operation; it is stored with the next time stamp. ClosedError ends the operation."""
Work: TypeAlias = Callable[[Progress], Message]


class Operations:
    """The operations of a store. Safe to use from several threads and processes."""

    def __init__(self, document: JsonDocument, *, clock: Callable[[], float] = time.time) -> None:
        """Start no thread yet.

        Args:
            document: where they are kept.
            clock: returns seconds since 1970.

        """
        self._document, self._clock = document, clock
        self._lock = threading.Lock()
        self._running: dict[str, tuple[Call, Message]] = {}
        """The operations of this process by id: the call that began each, and its metadata."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="scannery-operation")
        self._beat = PeriodicTask("operations", self._renew, every_s=BEAT_EVERY_S)
        self._began = self._closing = False

    def finished(
        self,
        call: Call,
        resource: str,
        *,
        index: str,
        owner: str = "",
        metadata: Message,
        response: Message,
    ) -> pb.Operation:
        """Record an operation that has ended, and return it.

        Args:
            call: that began it.
            resource: name of the resource; the operation is named below it.
            index: that it is about: who sees the index sees the operation.
            owner: of the resource, if it is about no index: the owner sees it, and who sees all indexes.
            metadata: of the operation, without times.
            response: its result.

        """
        id = secrets.token_hex(16)
        record = self._record(call, resource, index, metadata)
        record.update(owner=owner, done=True, response=_stored(call, response))
        self._document.change(lambda resources: self._add(resources, id, record))
        return _operation(record, id)

    def begin(
        self,
        call: Call,
        resource: str,
        *,
        index: str,
        metadata: Message,
        work: Work,
        commit: Callable[[], object] = lambda: None,
    ) -> pb.Operation:
        """Begin an operation, and return it.

        Args:
            call: that begins it.
            resource: as of `finished`.
            index: as of `finished`.
            metadata: at the beginning.
            work: runs in a thread as the caller; returns the response; its errors become that of the operation.
            commit: changes what goes with it, once there is room for the operation; its errors end the call.

        Raises:
            OverloadedError: MAX_RUNNING operations wait in this process.

        """
        id = secrets.token_hex(16)
        with self._lock:
            if len(self._running) >= MAX_RUNNING:
                raise OverloadedError(f"{MAX_RUNNING} operations are running, which is the limit")
            self._running[id] = call, metadata
            if not self._began:
                self._began = True
                self._beat.start()
        record = self._record(call, resource, index, metadata)
        try:
            commit()
            self._document.change(lambda resources: self._add(resources, id, record))
        except BaseException:
            self._forget(id)
            raise
        # As the caller, and without the permit of the call, which ends before.
        context = contextvars.Context()
        context.run(CURRENT.set, CURRENT.get())
        context.run(BRIDGED.set, BRIDGED.get())
        self._threads.submit(context.run, self._run, id, call, work)
        return _operation(record, id)

    def get(self, name: str) -> pb.Operation:
        """Return an operation by its name; raises UnknownResourceError."""
        id = name.rpartition("/operations/")[2]
        record = self._document.read().get(_KIND, {}).get(id)
        if record is None or name != _name(record, id) or not _may_see(record):
            raise unknown_resource(name)
        return self._shown(record, id)

    def below(self, resource: str) -> Iterable[tuple[str, pb.Operation]]:
        """Return the operations of a resource or location, each with a key; the newest has the least key."""
        listed = []
        for id, record in self._document.read().get(_KIND, {}).items():
            if f"{record['resource']}/".startswith(f"{resource}/") and _may_see(record):
                age = 10**12 - int(record["created_s"] * 1000) // 10
                listed.append((f"{age:013d}{id}", self._shown(record, id)))
        return sorted(listed, key=lambda item: item[0])

    def delete(self, name: str) -> None:
        """Forget an operation that has ended; raises UnknownResourceError."""
        operation = self.get(name)
        id = name.rpartition("/operations/")[2]
        if operation.done:
            self._document.change(lambda resources: resources.get(_KIND, {}).pop(id, None))

    def close(self) -> None:
        """Drop the operations that wait, which are reported as aborted, and end the one that runs.

        It ends when it tells its progress, or is finished.
        """
        self._closing = True
        self._threads.shutdown(wait=True, cancel_futures=True)
        if self._began:
            self._beat.stop()

    def _run(self, id: str, call: Call, work: Work) -> None:
        def progress(metadata: Message) -> None:
            if self._closing:
                raise ClosedError("the server that ran this operation is stopping; begin it again")
            self._running[id] = call, metadata

        try:
            result: dict[str, Any] = {"response": _stored(call, work(progress))}
        except Exception as error:  # noqa: BLE001  the table of statuses has every one
            code, message, _ = status_for_callers(error)
            if code is StatusCode.INTERNAL:
                _LOG.error("unexpected error of an operation", exc_info=error)
            result = {"error": {"code": code.value[0], "message": message}}
        _, metadata = self._running[id]
        try:
            self._document.change(lambda resources: self._end(resources, id, call, metadata, result))
        except (IndexerError, ServingError) as error:
            _LOG.error("the result of an operation cannot be stored: %s", error)
        finally:
            self._forget(id)

    def _renew(self) -> None:
        running = dict(self._running)
        if not running:
            return

        def renewed(resources: Resources) -> None:
            for id, (call, metadata) in running.items():
                record = resources.get(_KIND, {}).get(id)
                if record is not None and not record["done"]:
                    record.update(updated_s=self._clock(), metadata=_stored(call, metadata))

        self._document.change(renewed)

    def _forget(self, id: str) -> None:
        with self._lock:
            self._running.pop(id, None)

    def _record(self, call: Call, resource: str, index: str, metadata: Message) -> dict[str, Any]:
        now_s = self._clock()
        return {
            "resource": resource,
            "index": index,
            "created_s": now_s,
            "updated_s": now_s,
            "done": False,
            "metadata": _stored(call, metadata),
        }

    def _add(self, resources: Resources, id: str, record: dict[str, Any]) -> None:
        records = resources.setdefault(_KIND, {})
        records[id] = record
        oldest_s = self._clock() - KEPT_S
        for key in [key for key, item in records.items() if item["done"] and item["created_s"] < oldest_s]:
            del records[key]
        for size, limit in ((_single, MAX_KEPT), (_size, MAX_KEPT_BYTES)):
            ended = {key: item for key, item in records.items() if item["done"] and key != id}
            for key in _largest(ended, size, sum(map(size, records.values())) - limit):
                del records[key]

    def _end(
        self, resources: Resources, id: str, call: Call, metadata: Message, result: dict[str, Any]
    ) -> None:
        record = resources.get(_KIND, {}).get(id)
        if record is not None:
            record.update(result, done=True, updated_s=self._clock(), metadata=_stored(call, metadata))

    def _shown(self, record: dict[str, Any], id: str) -> pb.Operation:
        operation = _operation(record, id)
        if not operation.done and self._clock() - record["updated_s"] > LOST_AFTER_S:
            operation.done = True
            operation.error.code = StatusCode.ABORTED.value[0]
            operation.error.message = "the server that ran this operation has stopped; begin it again"
        return operation


def _may_see(record: dict[str, Any]) -> bool:
    return is_visible(record["index"]) if record["index"] else owns(record.get("owner", ""))


def _size(record: dict[str, Any]) -> int:
    """Return about how many bytes the messages of an operation take."""
    return sum(len(record[name].get("value", "")) for name in ("metadata", "response") if name in record)


def _single(record: dict[str, Any]) -> int:
    return 1


def _largest(
    ended: dict[str, dict[str, Any]], size: Callable[[dict[str, Any]], int], spare: int
) -> Iterator[str]:
    """Yield operations until their sizes are `spare`: those of the index or owner with most, the oldest first.

    So a caller with many, or large ones, keeps others from nothing.
    """
    groups = defaultdict[tuple[str, str], list[str]](list)
    for key in sorted(ended, key=lambda key: ended[key]["created_s"], reverse=True):
        groups[ended[key]["index"], ended[key].get("owner", "")].append(key)
    sizes = {group: sum(size(ended[key]) for key in keys) for group, keys in groups.items()}
    while spare > 0 and groups:
        group = max(groups, key=sizes.__getitem__)
        key = groups[group].pop()
        if not groups[group]:
            del groups[group]
        sizes[group] -= size(ended[key])
        spare -= size(ended[key])
        yield key


def _name(record: dict[str, Any], id: str) -> str:
    return f"{record['resource']}/operations/{id}"


def _stored(call: Call, message: Message) -> dict[str, str]:
    packed = call.packed(message)
    return {"type_url": packed.type_url, "value": base64.b64encode(packed.value).decode()}


def _loaded(stored: dict[str, str]) -> any_pb2.Any:
    return any_pb2.Any(type_url=stored["type_url"], value=base64.b64decode(stored["value"]))


def _operation(record: dict[str, Any], id: str) -> pb.Operation:
    operation = pb.Operation(
        name=_name(record, id), done=record["done"], metadata=_loaded(record["metadata"])
    )
    if "response" in record:
        operation.response.CopyFrom(_loaded(record["response"]))
    elif "error" in record:
        operation.error.code, operation.error.message = record["error"]["code"], record["error"]["message"]
    return operation


OPERATIONS_PACKAGE = "google.longrunning"
MAX_WAIT_S = 60.0
POLL_S = 0.1


class OperationMethods:
    """`google.longrunning.Operations`."""

    def __init__(self, operations: Operations) -> None:
        """Answer for the operations of a store."""
        self._operations = operations
        service = "Operations"
        self.methods = (
            ForeignMethod(service, "GetOperation", pb.GetOperationRequest, self.get, "read"),
            ForeignMethod(service, "ListOperations", pb.ListOperationsRequest, self.list, "read"),
            ForeignMethod(service, "WaitOperation", pb.WaitOperationRequest, self.wait, "read"),
            ForeignMethod(service, "CancelOperation", pb.CancelOperationRequest, self.cancel, "admin"),
            ForeignMethod(service, "DeleteOperation", pb.DeleteOperationRequest, self.delete, "admin"),
        )

    def get(self, request: pb.GetOperationRequest, call: Call) -> pb.Operation:
        """Return an operation."""
        return self._operations.get(request.name)

    def list(self, request: pb.ListOperationsRequest, call: Call) -> pb.ListOperationsResponse:
        """Return the operations of a resource or location, the newest first."""
        if request.filter:
            raise UnsupportedError("filter: operations are listed without a filter", field="filter")
        name = request.name.removesuffix("/operations")
        operations = [*self._operations.below(name)]
        page, token = page_of(operations, size=request.page_size, token=request.page_token, query_key=name)
        return pb.ListOperationsResponse(operations=page, next_page_token=token)

    def wait(self, request: pb.WaitOperationRequest, call: Call) -> pb.Operation:
        """Return an operation when it has ended, or after the timeout."""
        limit_s = float(request.timeout.seconds) if request.HasField("timeout") else MAX_WAIT_S
        # A second is left to answer before the caller gives up.
        until_s = time.monotonic() + min(limit_s, MAX_WAIT_S, max(0.0, call.deadline.remaining_s - 1))
        operation = self._operations.get(request.name)
        with waiting():
            while not operation.done and time.monotonic() < until_s:
                # Another process may run the operation, so that there is nothing to wait on.
                time.sleep(POLL_S)
                operation = self._operations.get(request.name)
        return operation

    def cancel(self, request: pb.CancelOperationRequest, call: Call) -> Empty:
        """Refuse: an operation that has ended cannot be cancelled, and one that runs ends by itself."""
        if self._operations.get(request.name).done:
            return Empty()
        raise UnsupportedError("operations cannot be cancelled")

    def delete(self, request: pb.DeleteOperationRequest, call: Call) -> Empty:
        """Forget an operation that has ended."""
        self._operations.delete(request.name)
        return Empty()
