"""A leaf whose answers are scripted: what is tested is the root's side. Run as a process, it tells its address.

python -m tests.serving.leaves.leaf_server GROUP/GROUPS [PORT]
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.protobuf.message import Message

from scannery.serving.contract import LEAF_SERVICE
from scannery.serving.status import DETAIL_KEY
from scannery.v1.leaf_pb2 import (
    At,
    LeafIndex,
    LeafSearchRequest,
    LeafSearchResponse,
    LeafStatistics,
    LeafStatisticsRequest,
    LeafStatus,
)
from scannery.v1.leaf_pb2_grpc import LeafServiceServicer, add_LeafServiceServicer_to_server
from scannery.v1.types_pb2 import ErrorDetail

__all__ = ["SEARCH", "STATISTICS", "ScriptedLeaf", "state"]

SEARCH, STATISTICS = f"/{LEAF_SERVICE}/Search", f"/{LEAF_SERVICE}/GetStatistics"


def state(version: int = 1, index: str = "books", index_id: str = "a", sequence: int = 0) -> At:
    return At(index=index, index_id=index_id, version=version, sequence=sequence)


class ScriptedLeaf(LeafServiceServicer):
    """A leaf on a port of 127.0.0.1; `search` and `status` can be replaced while it runs."""

    def __init__(
        self, group: int = 0, groups: int = 1, *, port: int = 0, keys: set[str] | None = None
    ) -> None:
        self.group, self.groups, self.keys = group, groups, keys
        self.states = [state()]
        self.delay_s = 0.0
        self.fails: tuple[grpc.StatusCode, str, ErrorDetail] | None = None
        self.on_search: Callable[[LeafSearchRequest, grpc.ServicerContext], None] = lambda request, context: (
            None
        )
        self.searches = 0
        self.cancelled = threading.Semaphore(0)
        self.http: tuple[tuple[str, str], ...] = ()
        """What status calls tell of HTTP."""
        self.metadata: dict[str, Any] = {}
        self.left_s = 0.0
        self.mute = threading.Event()
        """Set: status calls are not answered."""
        self.full = False
        """Whether status calls are refused, as by a leaf that has no room for a request."""
        self.refused = 0
        self.answer: LeafSearchResponse | None = None
        """To all searches."""
        self._server = grpc.server(
            ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)]
        )
        add_LeafServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def stop(self) -> None:
        self.mute.clear()
        self._server.stop(None).wait()

    def wait(self) -> None:
        self._server.wait_for_termination()

    def GetStatus(self, request: Any, context: grpc.ServicerContext) -> LeafStatus:  # noqa: N802
        self._check_key(context)
        if self.full:
            self.refused += 1
            detail = ErrorDetail(message="full", retry_after_ms=50)
            context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        while self.mute.is_set() and context.is_active():
            time.sleep(0.01)
        context.set_trailing_metadata(self.http)
        indexes = [LeafIndex(at=at, rows=10, shards=2) for at in self.states]
        return LeafStatus(
            group=self.group, groups=self.groups, indexes=indexes, in_flight=1, in_flight_limit=64
        )

    def Search(self, request: LeafSearchRequest, context: grpc.ServicerContext) -> LeafSearchResponse:  # noqa: N802
        self._check_key(context)
        self.searches += 1
        self.metadata = dict(context.invocation_metadata())
        self.left_s = context.time_remaining() or 0.0
        code_of: Any = context  # whose stubs lack the method `code`
        context.add_callback(lambda: self.cancelled.release() if code_of.code() is None else None)
        self.on_search(request, context)
        if self.delay_s:
            time.sleep(self.delay_s)
        if self.fails is not None:
            code, message, detail = self.fails
            context.set_trailing_metadata(((DETAIL_KEY, detail.SerializeToString()),))
            context.abort(code, message)
        return self.answer or LeafSearchResponse(allowed=100 * self.group + request.wanted)

    def GetStatistics(self, request: LeafStatisticsRequest, context: grpc.ServicerContext) -> LeafStatistics:  # noqa: N802
        return LeafStatistics(rows=self.group + 1, length=os.getpid(), frequencies=[len(request.terms)])

    def Fetch(self, request: Message, context: grpc.ServicerContext) -> Any:  # noqa: N802
        raise NotImplementedError

    Scan: Any = Fetch
    Count: Any = Fetch
    ReadRows: Any = Fetch

    def _check_key(self, context: grpc.ServicerContext) -> None:
        if self.keys is not None:
            told = dict(context.invocation_metadata()).get("authorization", "")
            if str(told).removeprefix("Bearer ") not in self.keys:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "the key is not valid")


def main() -> None:
    group, groups = (int(part) for part in sys.argv[1].split("/"))
    leaf = ScriptedLeaf(group, groups, port=int(sys.argv[2]) if len(sys.argv) > 2 else 0)
    print(leaf.address, flush=True)
    leaf.wait()


if __name__ == "__main__":
    main()
