"""A console in a thread of the test, and its caller: a browser's headers with a cookie jar."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2

from scannery.cli.commands.servers.console import judgement_sets
from scannery.cli.console_files import file_formats
from scannery.client import aio
from scannery.console.application import serve_console
from scannery.console.config import ConsoleConfig
from scannery.console.sessions import caller_secret

START_S = 60.0


@contextmanager
def console_on(location: str | Path, **options: Any) -> Iterator[str]:
    """Serve a console on a target or a store, and give the address that it prints."""
    folder = tempfile.TemporaryDirectory()
    options = {"judgements": judgement_sets(Path(folder.name)), **options}
    config = ConsoleConfig(title=str(location), **options)
    connection: dict[str, Any] = {"token": caller_secret} if config.takes_keys else {}
    address: Future[str] = Future()
    running: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = Future()

    async def serve() -> None:
        task = asyncio.current_task()
        assert task is not None
        running.set_result((asyncio.get_running_loop(), task))
        transport = aio.open_transport(location, **connection)
        try:
            await serve_console(transport, config, file_formats(), address.set_result)
        finally:
            await transport.close()

    def run() -> None:
        # As the command does: calls that still wait for the target are cancelled before the loop is closed.
        with suppress(asyncio.CancelledError):
            asyncio.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address.result(timeout=START_S)
    finally:
        loop, task = running.result()
        loop.call_soon_threadsafe(task.cancel)
        thread.join(timeout=START_S)
        assert not thread.is_alive()
        folder.cleanup()


def browser_on(address: str) -> httpx2.Client:
    """Return a client that sends what the page's own calls have."""
    origin = address.partition("#")[0].rstrip("/")

    def keep_proof(response: httpx2.Response) -> None:
        if (
            response.request.url.path == "/session"
            and response.request.method == "POST"
            and response.is_success
        ):
            response.read()
            client.headers["scannery-session"] = response.json()["proof"]

    client = httpx2.Client(
        base_url=origin,
        headers={"origin": origin, "sec-fetch-site": "same-origin", "content-type": "application/json"},
        timeout=120.0,
        event_hooks={"response": [keep_proof]},
    )
    return client
