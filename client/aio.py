"""The asynchronous client: the names of the synchronous one, awaitable."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import Message
from typing_extensions import Unpack

from scannery.client._async.client import AsyncClient
from scannery.client._async.index import AsyncIndex
from scannery.client._sync.client import Client
from scannery.client.connect import DEFAULT_TIMEOUT_S, ConnectConfig, connect_config
from scannery.client.request.calls import Method, checked_timeout
from scannery.client.transport._async.server import async_server_transport
from scannery.client.transport.base import AsyncTransport, Transport
from scannery.client.transport.credentials import ConnectOptions
from scannery.client.transport.embedded import EmbeddedTransport

__all__ = ["AsyncClient", "AsyncIndex", "connect", "connect_beside", "open_transport"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def connect(
    target: str | Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    create: bool = False,
    query_ids: bool = False,
    **options: Unpack[ConnectOptions],
) -> AsyncClient:
    """Return an asynchronous client; see `scannery.connect`."""
    timeout_s = checked_timeout(timeout_s)
    transport = open_transport(target, create=create, query_ids=query_ids, **options)
    return AsyncClient(transport, timeout_s=timeout_s)


def open_transport(
    target: str | Path, *, create: bool = False, query_ids: bool = False, **options: Unpack[ConnectOptions]
) -> AsyncTransport:
    """Return what carries messages to a server or a store, for programs that pass them on; see `scannery.connect`."""
    config = connect_config(target, create=create, query_ids=query_ids, **options)
    return _remote_transport(config) or ThreadTransport(
        EmbeddedTransport.open(target, create=create, query_ids=query_ids)
    )


def connect_beside(
    client: Client,
    target: str | Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    **options: Unpack[ConnectOptions],
) -> AsyncClient:
    """Return an asynchronous client beside a synchronous one: each of the two reads what the other has written.

    Of a store, they share the open indexes, and closing one of them closes both.

    Args:
        client: of the same target.
        target: as of `scannery.connect`, like the other arguments.
        timeout_s: default timeout of a call, in seconds.
        options: credentials, TLS and connections.

    """
    timeout_s = checked_timeout(timeout_s)
    transport = _remote_transport(connect_config(target, **options)) or ThreadTransport(client._transport)
    made = AsyncClient(transport, timeout_s=timeout_s)
    made._sequences = client._sequences
    return made


def _remote_transport(config: ConnectConfig) -> AsyncTransport | None:
    """Return the transport to a server; None for a store."""
    return None if config.target is None else async_server_transport(config.target, **config.options)


class ThreadTransport:
    """A blocking transport made awaitable: each call runs in a thread.

    Args:
        transport: the blocking one.

    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.remote = transport.remote

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float
    ) -> ResponseT:
        """Return the answer; raise a ScanneryError."""
        return await asyncio.to_thread(self._transport.call, method, request, timeout_s)

    async def close(self) -> None:
        """Close the transport."""
        await asyncio.to_thread(self._transport.close)
