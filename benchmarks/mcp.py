"""What the tools for agents add to a search of the SDK: `python -m benchmarks.mcp`.

Two hundred searches for ten hits, one after the other, of the sample podcasts on a server on this machine: by the SDK,
by the tool in this process, by the official client over both transports, and over HTTP by a plain one.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

import scannery
from benchmarks.harness import options
from scannery.bridges.mcp.server import answer_of
from scannery.cli.sample import EPISODES_PATH
from scannery.serving import Server, ServerConfig

SEARCHES = 200
ARGUMENTS = {"index": "podcasts", "query": "how do volcanoes form"}


async def p50_ms(call: Callable[[], Awaitable[Any]]) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for _ in range(20 + SEARCHES):
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    return statistics.median(times[20:]) * 1000


async def measure(target: str) -> None:
    """Print the medians."""
    async with scannery.aio.connect(target) as client:
        index = client.index(ARGUMENTS["index"])
        print(f"SDK    {await p50_ms(lambda: index.search(ARGUMENTS['query'])):6.2f} ms")
        print(f"tool   {await p50_ms(lambda: answer_of(client, 'search', ARGUMENTS)):6.2f} ms")
    # The client gives a process hardly any of its environment.
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "scannery.cli.main", "mcp", "--target", target],
        env={"PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    )
    async with Client(stdio_client(command)) as agent:
        print(f"stdio  {await p50_ms(lambda: agent.call_tool('search', ARGUMENTS)):6.2f} ms")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scannery.cli.main", "mcp", "--target", target, "--http", "127.0.0.1:0",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    url = (await process.stdout.readline()).decode().split()[2].rstrip(";")
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "search", "arguments": ARGUMENTS},
    }
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
    async with httpx2.AsyncClient(headers=headers) as http:
        print(f"plain  {await p50_ms(lambda: http.post(url, json=call)):6.2f} ms")
    async with Client(streamable_http_client(url)) as agent:
        print(f"HTTP   {await p50_ms(lambda: agent.call_tool('search', ARGUMENTS)):6.2f} ms")
    process.terminate()
    await process.wait()


def main() -> None:
    """Index the sample, serve it, and measure."""
    options(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        spec = {
            "index": "podcasts",
            "source": {"id": "id", "title": "title", "text": "description", "chunk": {"max_tokens": 40}},
            "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
            "attributes": {"show": "string", "published": "timestamp", "topic": "string"},
            "lexical": True,
        }
        with scannery.connect(store, create=True) as client:
            episodes = [json.loads(line) for line in EPISODES_PATH.read_text().splitlines()]
            client.create_index(spec).upsert_many(episodes, extra="ignore")
        with Server(ServerConfig(store=str(store), listen="127.0.0.1:0")) as server:
            asyncio.run(measure(server.address))


if __name__ == "__main__":
    main()
