"""The asynchronous client: the names of the synchronous one, awaitable."""

from __future__ import annotations

from pathlib import Path

from typing_extensions import Unpack

from scannery.client._async.client import AsyncClient
from scannery.client._async.index import AsyncIndex
from scannery.client.connect import DEFAULT_TIMEOUT_S, connect_config
from scannery.client.request.calls import checked_timeout
from scannery.client.transport.base import ThreadTransport
from scannery.client.transport.credentials import ConnectOptions
from scannery.client.transport.embedded import EmbeddedTransport
from scannery.client.transport.http.endpoint import Endpoint

__all__ = ["AsyncClient", "AsyncIndex", "connect"]


def connect(
    target: str | Path,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    create: bool = False,
    **options: Unpack[ConnectOptions],
) -> AsyncClient:
    """Return an asynchronous client; see `scannery.connect`."""
    timeout_s = checked_timeout(timeout_s)
    config = connect_config(target, create=create, **options)
    if isinstance(config.target, Endpoint):
        from scannery.client.transport._async.http import AsyncHttpTransport

        return AsyncClient(
            AsyncHttpTransport(config.target, config.credentials, retries=config.retries), timeout_s=timeout_s
        )
    if config.target is not None:
        from scannery.client.transport._async.grpc import AsyncGrpcTransport

        return AsyncClient(
            AsyncGrpcTransport(config.target, config.credentials, **config.grpc), timeout_s=timeout_s
        )
    return AsyncClient(ThreadTransport(EmbeddedTransport.open(target, create=create)), timeout_s=timeout_s)
