"""The metrics over HTTP: `GET /metrics`, and nothing else.

One thread answers all connections, each for one request and a few seconds. A caller that sends nothing, or one byte at
a time, or does not read, takes no thread, and makes room for the next one.

There are no credentials here, and the metrics name the indexes: the address is for those who may know them.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

from scannery.runtime.errors import BindError
from scannery.serving.config import joined_address, split_address

__all__ = ["MetricsServer"]

_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
"""Further ones end the oldest."""
WITHIN_S = 5.0
"""A connection may last this long, from its first byte to its last."""
MAX_REQUEST_BYTES = 8192


class MetricsServer:
    """Answers with what a function returns. Runs in a thread of its own."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        """Listen, and answer.

        Args:
            listen: `host:port`; port 0 takes a free one.
            text: returns the metrics.

        Raises:
            BindError: the address is taken, or is not one of this machine.

        """
        self._listening = _listening(listen)
        self.address = joined_address(split_address(listen)[0], self._listening.getsockname()[1])
        """Where it listens, with the real port."""
        self._text = text
        self._connections: dict[asyncio.Task[Any], bool] = {}
        """The oldest first, and whether its request was read."""
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="scannery-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop answering."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._connected, sock=self._listening, backlog=MAX_CONNECTIONS, limit=MAX_REQUEST_BYTES
        )
        await self._stopped.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        if len(self._connections) >= MAX_CONNECTIONS:
            # The oldest, and rather one that has sent no request.
            oldest = next(iter(self._connections))
            oldest = next((each for each, read in self._connections.items() if not read), oldest)
            del self._connections[oldest]
            oldest.cancel()
        self._connections[connection] = False
        try:
            await asyncio.wait_for(self._converse(connection, reader, writer), WITHIN_S)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass  # the caller went away, or did not keep to the bounds
        finally:
            self._connections.pop(connection, None)
            writer.transport.abort()

    async def _converse(
        self, connection: asyncio.Task[Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        self._connections[connection] = True
        writer.transport.set_write_buffer_limits(0)  # `drain` returns when all is sent
        writer.write(self._answer(request))
        writer.write_eof()
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            status, body = "405 Method Not Allowed", b"only GET\n"
        elif path != b"/metrics":
            status, body = "404 Not Found", b"see /metrics\n"
        else:
            status, body = self._metrics()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body

    def _metrics(self) -> tuple[str, bytes]:
        try:
            return "200 OK", self._text().encode()
        except Exception:  # noqa: BLE001  the next scrape must be answered
            _LOG.exception("the metrics cannot be told")
            return "500 Internal Server Error", b"see the log\n"


def _listening(listen: str) -> socket.socket:
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dualstack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=dualstack)
    except OSError as error:
        raise BindError(f"cannot listen on {listen}: {error.strerror}", field="metrics_listen") from error
