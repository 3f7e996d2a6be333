"""A connection of a framework's object: made when it is first used, and left behind when the object is pickled.

Frameworks build their objects before they need them, copy them, and send them to other processes; and they call one
object from threads and from coroutines of several event loops.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import scannery
from scannery.bridges.ids import pages
from scannery.client import Client, Index, IndexInfo, NotFoundError, aio
from scannery.client.aio import AsyncClient, AsyncIndex
from scannery.client.connect import connect_config

__all__ = ["Connection", "pages"]


_LOG = logging.getLogger(__name__)


class _LoopClient(NamedTuple):
    """The client of an event loop."""

    client: AsyncClient
    open: AsyncGenerator[None, None]
    """Closes the client when it ends."""


class Connection:
    """One index of a server or a store, which is created if it is absent. Safe to use from several threads.

    Args:
        target: `host:port`, `http://host:port` or the path or URI of a store, as of `scannery.connect`.
        name: of the index.
        new_index: returns the arguments of `Client.create_index` besides the name; called if the index is absent.
        options: of `scannery.connect`: credentials, TLS, `timeout_s`.
        secrets: returns further options when it connects; they are neither kept nor pickled.

    Raises:
        InvalidArgumentError: the target or an option is wrong.

    """

    def __init__(
        self,
        target: str | Path,
        name: str,
        new_index: Callable[[Client], Mapping[str, Any]],
        options: Mapping[str, Any],
        secrets: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        checked = {key: value for key, value in options.items() if key != "timeout_s"}
        config = connect_config(target, **checked)
        self.is_store = config.target is None
        """Whether the target is a store in this process."""
        self._target = str(target)
        self._name = name
        self._new_index = new_index
        self._options = dict(options)
        self._secrets = secrets
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._info: IndexInfo | None = None
        self._by_loop: dict[asyncio.AbstractEventLoop, _LoopClient] = {}

    def index(self) -> Index:
        """Return the index; the first call connects, and creates it if it is absent."""
        with self._lock:
            if self._client is None:
                self._client = scannery.connect(self._target, **self._creating(), **self._connecting())
            if self._info is None:
                self._info = self._found_or_created(self._client)
            return self._client.index(self._name)

    async def aindex(self) -> AsyncIndex:
        """Return the index for coroutines of the running event loop; what `index` connected reads its writes."""
        if self._info is None:
            await asyncio.to_thread(self.index)
        return (await self._async_client()).index(self._name)

    @property
    def info(self) -> IndexInfo:
        """What the index was when it was first used."""
        self.index()
        assert self._info is not None
        return self._info

    def recreate(self) -> Index:
        """Return the index, empty: the one that there was is removed."""
        self.index()
        with self._lock:
            assert self._client is not None
            self._client.drop_index(self._name, missing_ok=True)
            self._info = None
        return self.index()

    def close(self) -> None:
        """Close the connections, except those of event loops that run; the next call connects again."""
        with self._lock:
            client, self._client, self._info = self._client, None, None
            if self.is_store:
                self._by_loop.clear()
        if client is not None:
            client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop, and those that `close` closes."""
        with self._lock:
            loop_client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if loop_client is not None:
            await loop_client.open.aclose()
        await asyncio.to_thread(self.close)

    async def _async_client(self) -> AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            for closed_loop in [each for each in self._by_loop if each.is_closed()]:
                del self._by_loop[closed_loop]
            if (loop_client := self._by_loop.get(loop)) is not None:
                return loop_client.client
            assert self._client is not None
            client = aio.connect_beside(self._client, self._target, **self._connecting())
            new_client = self._by_loop[loop] = _LoopClient(client, self._open(client, loop))
        await anext(new_client.open)
        return client

    async def _open(self, client: AsyncClient, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Stand still while a client is open, and close it at the end.

        An event loop ends its generators before it closes (`asyncio.run` does so), which is the last moment at which
        connections can be closed. That of a store is closed with the synchronous client, whose indexes it shares.
        """
        try:
            yield
        finally:
            # Without the lock: only this loop puts clients of its own there.
            if (loop_client := self._by_loop.get(loop)) is not None and loop_client.client is client:
                del self._by_loop[loop]
            if not self.is_store:
                await client.close()

    def _found_or_created(self, client: Client) -> IndexInfo:
        with suppress(NotFoundError):
            return client.index(self._name).stats()
        self._warn_of_another_name(client)
        # Outside of the handler, so that an error here does not begin with one that there is no index. Another process
        # may create it at the same time.
        return client.create_index(self._name, if_exists="keep", **self._new_index(client)).stats()

    def _warn_of_another_name(self, client: Client) -> None:
        """Log it if there is an index of nearly this name: a misspelt one would only be found empty."""
        # Names with another number are meant: `tenant-1`, `tenant-2`.
        names = [info.name for info in client.indexes() if _letters(info.name) != _letters(self._name)]
        for name in difflib.get_close_matches(self._name, names, n=1, cutoff=0.85):
            _LOG.warning(
                "there is no index %r, which is created when it is written; did you mean %r?",
                self._name,
                name,
            )

    def _connecting(self) -> dict[str, Any]:
        return {**self._options, **self._secrets()}

    def _creating(self) -> dict[str, Any]:
        return {"create": True} if self.is_store and "://" not in self._target else {}

    def __getstate__(self) -> dict[str, Any]:
        kept = ("is_store", "_target", "_name", "_new_index", "_options", "_secrets")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def _letters(name: str) -> str:
    return "".join(each for each in name if not each.isdigit())
