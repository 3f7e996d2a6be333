"""The asynchronous client: the names of the synchronous one, awaitable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from google.protobuf.message import Message
from typing_extensions import Self, Unpack

from scannery.client import calls
from scannery.client.bulk import Progress, QueryStream, ask_each_async, batches
from scannery.client.calls import Call, checked_timeout
from scannery.client.connect import DEFAULT_TIMEOUT_S, checked_options, embedded_transport, remote_target
from scannery.client.credentials import ConnectOptions
from scannery.client.queries import Queries, QueryLike, SearchOptions
from scannery.client.results import Datapoint, Hits, IndexInfo
from scannery.client.transport import AsyncTransport, GrpcAioTransport, ThreadTransport

__all__ = ["AsyncClient", "AsyncIndex", "connect"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")


def connect(
    target: str | Path, *, timeout_s: float = DEFAULT_TIMEOUT_S, **options: Unpack[ConnectOptions]
) -> AsyncClient:
    """Return an asynchronous client; see `scannery.connect`."""
    timeout_s = checked_timeout(timeout_s)
    remote = remote_target(target)
    credentials, channels = checked_options(target if remote else None, **options)
    transport: AsyncTransport = (
        GrpcAioTransport(remote, credentials, channels=channels)
        if remote
        else ThreadTransport(embedded_transport(target))
    )
    return AsyncClient(transport, timeout_s=timeout_s)


class AsyncClient:
    """See `scannery.Client`. Belongs to the event loop of its first call."""

    def __init__(self, transport: AsyncTransport, *, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s

    def index(self, name: str) -> AsyncIndex:
        """Return a handle on an index."""
        return AsyncIndex(self, name)

    async def indexes(self) -> list[IndexInfo]:
        """Return the indexes there are, by name, without their segments and specs."""
        found, token = await self._run(calls.list_indexes(""))
        while token:
            page, token = await self._run(calls.list_indexes(token))
            found += page
        return found

    async def close(self) -> None:
        """Let go of connections and memory; later calls fail."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, call: Call[RequestT, ResponseT, ResultT]) -> ResultT:
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return call.parse(await self._transport.call(call.method, call.request, timeout_s))


class AsyncIndex:
    """See `scannery.Index`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def search(self, query: QueryLike, k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """Return the k best datapoints for a query, best first; see `scannery.Index.search`."""
        return await self._client._run(calls.search(self.name, query, k, **options))

    async def search_many(
        self, queries: Queries, k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hits]:
        """Return the hits of each query, in their order."""
        return await self._client._run(calls.search_many(self.name, queries, k, **options))

    def search_each(
        self,
        queries: QueryStream,
        k: int = 10,
        *,
        batch_size: int = 100,
        in_flight: int = 4,
        progress: Progress = False,
        **options: Unpack[SearchOptions],
    ) -> AsyncIterator[Hits]:
        """Return the hits of any number of queries, in their order, as they come; see `scannery.Index.search_each`."""
        parts = batches(queries, k, batch_size, in_flight)
        return ask_each_async(lambda part: self.search_many(part, k, **options), parts, in_flight, progress)

    async def get(
        self,
        ids: Sequence[str],
        *,
        fields: Sequence[str] | None = None,
        vectors: bool = False,
        timeout_s: float | None = None,
    ) -> list[Datapoint | None]:
        """Return the datapoints with these ids, in their order; None for one that is not there."""
        return await self._client._run(
            calls.get(self.name, ids, fields=fields, vectors=vectors, timeout_s=timeout_s)
        )

    async def stats(self, *, timeout_s: float | None = None) -> IndexInfo:
        """Return what the index is."""
        return await self._client._run(calls.get_index(self.name, timeout_s=timeout_s))

    def __repr__(self) -> str:
        return f"AsyncIndex({self.name!r})"
