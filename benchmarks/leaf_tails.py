"""The tail of a root's calls to leaves that pause now and then: one row of leaves beside two, whose second is a hedge.

    python -m benchmarks.leaf_tails [--groups 4,8,32] [--calls 1500] [--median-ms 3] [--pauses 0.02]

The root's code is the real one, in this process; leaves are scripted. Each answers over HTTP after a lognormal time,
and in a share of the calls 10 to 60 ms later, independently of its replica. Sixteen leaves share a process. One caller
asks one call after the other. The latency of a call is that of its slowest group.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import grpc.aio
import numpy as np
import uvloop

from benchmarks.report import environment, table
from scannery.runtime.retry import Deadline
from scannery.serving.config import LeavesConfig
from scannery.serving.contract import HTTP_KEY, LEAF_SEARCH, SERVER_KEY
from scannery.serving.leaves.groups import LeafGroups
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1.leaf_pb2 import At, LeafIndex, LeafSearchRequest, LeafSearchResponse, LeafStatus

AT = At(index="bench", index_id="a", version=1)
LEAVES_A_PROCESS = 16
SPREAD = 0.2
"""Standard deviation of the logarithm of a leaf's time."""
PAUSE_S = (0.010, 0.060)
WARM_UP = 300
"""Calls before those that count: roots learn what is slow."""
_ANSWER = b"HTTP/1.1 200 OK\r\nscannery-worker: w/1\r\nscannery-server: bench\r\ncontent-length: 0\r\n\r\n"


class _Answers(asyncio.Protocol):
    """A connection to a leaf: what arrives at once is one request."""

    def __init__(self, median_s: float, pauses: float, chosen: random.Random) -> None:
        self._median_s, self._pauses, self._chosen = median_s, pauses, chosen
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            self._transport.write(_ANSWER)
            return
        wait_s = self._median_s * math.exp(self._chosen.gauss(0, SPREAD))
        if self._chosen.random() < self._pauses:
            wait_s += self._chosen.uniform(*PAUSE_S)
        asyncio.get_running_loop().call_later(wait_s, self._answer)

    def _answer(self) -> None:
        if not self._transport.is_closing():  # the other leaf was sooner
            self._transport.write(_ANSWER)


class _Status:
    """The status of a leaf, over gRPC."""

    def __init__(self, group: int, groups: int, port: int) -> None:
        status = LeafStatus(group=group, groups=groups, indexes=[LeafIndex(at=AT)])
        self._answer, self._port = status.SerializeToString(), str(port)

    def service(self, details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            context.set_trailing_metadata(((HTTP_KEY, self._port), (SERVER_KEY, "bench")))
            return self._answer

        return grpc.unary_unary_rpc_method_handler(answer)


async def serve(leaves: list[int], groups: int, median_s: float, pauses: float) -> None:
    """Serve leaves of these groups, and print their addresses."""
    loop, servers = asyncio.get_running_loop(), []
    for number, group in enumerate(leaves):
        chosen = random.Random(1000 * group + number)
        http = await loop.create_server(partial(_Answers, median_s, pauses, chosen), "127.0.0.1", 0)
        server = grpc.aio.server()
        status: Any = _Status(group, groups, http.sockets[0].getsockname()[1])
        server.add_generic_rpc_handlers((status,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        servers.append((http, server))
        print(f"127.0.0.1:{port}", flush=True)
    await asyncio.Event().wait()


def started(stack: ExitStack, groups: int, rows: int, given: argparse.Namespace) -> str:
    """Start the leaves, and return their addresses."""
    leaves = [str(group) for group in range(groups) for _ in range(rows)]
    addresses = []
    for first in range(0, len(leaves), LEAVES_A_PROCESS):
        part = leaves[first : first + LEAVES_A_PROCESS]
        command = [sys.executable, "-m", "benchmarks.leaf_tails", "--leaves", ",".join(part)]
        command += [
            "--groups",
            str(groups),
            "--median-ms",
            str(given.median_ms),
            "--pauses",
            str(given.pauses),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(process.wait)
        stack.callback(process.kill)
        assert process.stdout is not None
        addresses += [process.stdout.readline().strip() for _ in part]
    return ",".join(addresses)


def measured(groups: int, rows: int, given: argparse.Namespace) -> list[str]:
    """Return a row of the table."""
    metrics = ServerMetrics()
    with ExitStack() as stack:
        leaves = LeafGroups(LeavesConfig(target=started(stack, groups, rows, given)), metrics)
        stack.callback(leaves.close)
        leaves.start(30)
        latencies_s = []
        for number in range(given.calls + WARM_UP):
            if number == WARM_UP:
                cpu_s, hedged = time.process_time(), sum(metrics.leaf_hedges.dump().values())
            began_s = time.monotonic()
            leaves.call(LEAF_SEARCH, LeafSearchRequest(at=AT), LeafSearchResponse, Deadline.after(10), at=AT)
            latencies_s.append(time.monotonic() - began_s)
        cpu_us = 1e6 * (time.process_time() - cpu_s) / given.calls
        second = (sum(metrics.leaf_hedges.dump().values()) - hedged) / given.calls / groups
    p50, p99, p999 = 1e3 * np.quantile(latencies_s[WARM_UP:], (0.5, 0.99, 0.999))
    return [
        f"{groups}", f"{rows}", f"{p50:.1f}", f"{p99:.1f}", f"{p999:.1f}", f"{100 * second:.1f} %",
        f"{cpu_us:.0f}",
    ]  # fmt: skip


def main() -> None:
    """Print the table, or serve leaves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--groups", default="4,8,32")
    parser.add_argument("--calls", type=int, default=1500)
    parser.add_argument("--median-ms", type=float, default=3.0)
    parser.add_argument("--pauses", type=float, default=0.02)
    parser.add_argument("--leaves", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.leaves:
        leaves = [int(group) for group in given.leaves.split(",")]
        uvloop.run(serve(leaves, int(given.groups), given.median_ms / 1e3, given.pauses))
        return
    print(environment("grpcio"), end="\n\n")
    rows = [measured(int(groups), rows, given) for groups in given.groups.split(",") for rows in (1, 2)]
    titles = ["groups", "rows", "p50 ms", "p99 ms", "p99.9 ms", "second calls", "root CPU µs/call"]
    print(table(titles, rows))


if __name__ == "__main__":
    main()
