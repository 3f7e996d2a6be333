"""Serves metrics over HTTP: GET and HEAD of `/metrics` only.

One thread serves all connections, each for one request and at most a few seconds, so slow callers block no others.

There is no authentication, and the metrics contain the names of the indexes: restrict who can reach the address.

Shared memory for metrics: each worker writes its slot, the metrics process reads all.

Publishes the metrics of a process: over HTTP, or to memory that another process reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scannery.runtime.errors import BindError
from scannery.runtime.sharing import SharedBlobs
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.config import WorkerContext, joined_address, split_address
from scannery.serving.telemetry.metrics.families import ServerMetrics
from scannery.serving.telemetry.metrics.registry import merged, rendered

if TYPE_CHECKING:
    from scannery.runtime.retry import Deadline
    from scannery.serving.telemetry.metrics.registry import Dump

__all__ = ["MetricsReader", "MetricsServer", "Publisher", "SharedSlots"]


_LOG = logging.getLogger(__name__)

MAX_CONNECTIONS = 32
"""A further connection closes the oldest."""
WITHIN_S = 5.0
"""Time limit of a connection."""
MAX_REQUEST_BYTES = 8192


class MetricsServer:
    """Serves the text that a function returns, in a thread of its own."""

    def __init__(self, listen: str, text: Callable[[], str]) -> None:
        """Listen, and answer.

        Args:
            listen: `host:port`; port 0 takes a free one.
            text: returns the metrics in Prometheus text format.

        Raises:
            BindError: the address is in use, or is not of this machine.

        """
        self._listening = _bound_socket(listen)
        self.address = joined_address(split_address(listen)[0], self._listening.getsockname()[1])
        """Address with the actual port."""
        self._text = text
        self._connections: dict[asyncio.Task[Any], bool] = {}
        """Whether the request was read, by connection, the oldest first."""
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="scannery-metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Close all connections and end the thread."""
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
            # The oldest without a request, or else the oldest.
            oldest = next(iter(self._connections))
            oldest = next((each for each, read in self._connections.items() if not read), oldest)
            del self._connections[oldest]
            oldest.cancel()
        self._connections[connection] = False
        try:
            await asyncio.wait_for(self._serve_one(connection, reader, writer), WITHIN_S)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError):
            pass  # the caller went away, or exceeded a limit
        except asyncio.CancelledError:
            pass  # it made room, or the server stops; asyncio logs an error for a connection that ends as cancelled
        finally:
            self._connections.pop(connection, None)
            writer.transport.abort()

    async def _serve_one(
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
        method, _, tail = request.partition(b" ")
        path = tail.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            status, body = "405 Method Not Allowed\r\nAllow: GET, HEAD", b"only GET and HEAD\n"
        elif path != b"/metrics":
            status, body = "404 Not Found", b"see /metrics\n"
        else:
            status, body = self._metrics()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else body)

    def _metrics(self) -> tuple[str, bytes]:
        try:
            return "200 OK", self._text().encode()
        except Exception:  # noqa: BLE001  the next scrape must be answered
            _LOG.exception("the metrics cannot be rendered")
            return "500 Internal Server Error", b"see the log\n"


def _bound_socket(listen: str) -> socket.socket:
    host, port = split_address(listen)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    dualstack = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        return socket.create_server((host, port), family=family, dualstack_ipv6=dualstack)
    except OSError as error:
        raise BindError(f"cannot listen on {listen}: {error.strerror}", field="metrics_listen") from error


SLOT_BYTES = 1 << 20


class SharedSlots:
    """Slots of shared memory, created before the fork; one writer and any number of readers each."""

    def __init__(self, count: int) -> None:
        """Reserve memory for `count` slots of 1 MiB."""
        self.count = count
        self._blobs = SharedBlobs(count, SLOT_BYTES)

    def write(self, slot: int, data: bytes) -> bool:
        """Replace the content of a slot; return False without change if `data` does not fit."""
        return self._blobs.write(slot, data)

    def read(self, slot: int) -> Dump:
        """Return the content of a slot; empty: never written, or the writer died while writing."""
        data = self._blobs.read(slot)
        dump: Dump = json.loads(data) if data else {}
        return dump

    def read_all(self, *, but: int = -1) -> list[Dump]:
        """Return the contents of all slots that are not empty; `but`: number of one that is left out."""
        return [dump for slot in range(self.count) if slot != but and (dump := self.read(slot))]


EVERY_S = 1.0
MOST_SHARE = 0.02
"""Share of a processor that publishing takes."""
READ_FOR_S = 10.0
"""Time after a call for metrics in which workers publish, where no process serves them over HTTP: with a thousand
indexes it takes 1 % of a core, which is a fifth of what a worker takes while nobody asks."""


class Publisher:
    """Publishes every second while somebody reads, and once more when it stops."""

    def __init__(self, metrics: ServerMetrics, listen: str, context: WorkerContext) -> None:
        """Prepare; `start` begins to publish.

        Args:
            metrics: of this process.
            listen: `host:port` for HTTP; empty: none.
            context: says where a worker publishes, and when metrics were read; another process serves HTTP then.

        """
        self._registry = metrics.registry
        self._listen, self._publish, self._read = listen, context.publish, context.metrics_read
        self._http: MetricsServer | None = None
        self._task = PeriodicTask("publisher", self._publish_all, every_s=EVERY_S)
        self._started = False
        self.address = ""
        """Actual HTTP address; empty: none."""

    def start(self) -> None:
        """Begin; raises BindError if the HTTP address is in use."""
        self._started = True
        if self._publish is not None:
            self._publish_all()
            self._task.start()
        elif self._listen:
            registry = self._registry
            self._http = MetricsServer(self._listen, lambda: rendered(registry.families, registry.dump()))
            self.address = self._http.address

    def stop(self) -> None:
        """Publish the counters a last time and stop."""
        self._task.stop()
        if self._publish is not None and self._started:
            # Sums keep the counters of an ended process, but not its gauges.
            self._publish(self._registry.to_bytes(gauges=False))
        if self._http is not None:
            self._http.stop()

    def _publish_all(self) -> float:
        """Publish, and return the seconds until the next time: with a thousand indexes, it takes some 20 ms."""
        started_s = time.monotonic()
        if self._publish is not None and (self._listen or self._read.age_s < READ_FOR_S):
            self._publish(self._registry.to_bytes())
        return max(EVERY_S, (time.monotonic() - started_s) / MOST_SHARE)


KEPT_S = 0.5
"""Time for which calls get the same values: any number of pages that read once a second cost what two of them do."""


class MetricsReader:
    """Reads the metrics of all workers of a server. Safe to use from several threads."""

    def __init__(self, metrics: ServerMetrics, listen: str, context: WorkerContext) -> None:
        """Arguments are those of `Publisher`."""
        self.families = metrics.registry.families
        self._registry, self._listen, self._context = metrics.registry, listen, context
        self._lock, self._read_at_s = threading.Lock(), -math.inf
        self._dump: Dump = {}

    def read(self, deadline: Deadline) -> Dump:
        """Return the values of all families.

        The first call after READ_FOR_S waits for the other workers, which publish when they see that somebody reads.
        """
        with self._lock:
            if time.monotonic() - self._read_at_s >= KEPT_S:
                unread_s = self._context.metrics_read.renew()
                if self._context.workers > 1 and not self._listen and unread_s >= READ_FOR_S:
                    time.sleep(min(1.2 * EVERY_S, deadline.remaining_s / 2))
                dumps = [self._registry.dump(), *map(dict, self._context.published())]
                self._dump, self._read_at_s = merged(self.families, dumps), time.monotonic()
            return self._dump
