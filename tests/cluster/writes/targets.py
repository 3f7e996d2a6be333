"""One server and a cluster over equal stores, each with a log of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from scannery.v1.index_pb2_grpc import IndexServiceStub
from scannery.v1.search_pb2 import OrderBy, ScanRequest, SearchRequest
from scannery.v1.search_pb2_grpc import SearchServiceStub
from tests.cluster.questions import INDEX
from tests.cluster.servers import started_cluster
from tests.cluster.writes.random_writes import AnyRequest
from tests.served import copied, serving

__all__ = ["Pair", "Target", "made_pair"]

GROUPS = 3
TIMEOUT_S = 60


class Target:
    """One server, or a cluster."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self._index, self._search = IndexServiceStub(self.channel), SearchServiceStub(self.channel)

    def write(self, method: str, request: AnyRequest) -> Any:
        """Return a response, or the status and the message of an error."""
        return _answered(getattr(self._index, method), request)

    def found(self, request: SearchRequest) -> Any:
        """Return hits, or the status and the message of an error."""
        answer = _answered(self._search.Search, request)
        return answer if isinstance(answer, tuple) else list(answer.hits)

    def contents(self, sequence: int, *, index: str = INDEX, vectors: bool = True) -> list[bytes]:
        """Return all datapoints by id, with all that they have, or without vectors."""
        request = ScanRequest(
            index=index, min_sequence=sequence, return_vector=vectors, page_size=500,
            order_by=OrderBy(field="id"),
        )  # fmt: skip
        found: list[bytes] = []
        while True:
            page = self._search.Scan(request, timeout=TIMEOUT_S)
            found += [each.SerializeToString(deterministic=True) for each in page.datapoints]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                return found


def _answered(call: Callable[..., Any], request: Any) -> Any:
    try:
        return call(request, timeout=TIMEOUT_S)
    except grpc.RpcError as error:
        return error.code(), error.details()


@dataclass(frozen=True)
class Pair:
    """One server with its own log, and a cluster, over equal stores."""

    store: Path
    """Of the cluster."""
    log: str
    """Of the cluster."""
    alone: Target
    cluster: Target
    root: str
    """Address."""
    leaves: str
    """Addresses."""


@contextmanager
def made_pair(store: Path, folder: Path, log: str) -> Iterator[Pair]:
    """Start both over copies of a store."""
    own, other = (copied(store, Path(tempfile.mkdtemp(dir=folder))) for _ in range(2))
    with ExitStack() as stack:
        alone = stack.enter_context(serving(own, device="cpu"))
        root, [leaves] = stack.enter_context(started_cluster(other, GROUPS, log=log, device="cpu"))
        both = Target(alone.address), Target(root.address)
        for each in both:
            stack.callback(each.channel.close)
        yield Pair(other, log, *both, root.address, ",".join(leaf.address for leaf in leaves))
