"""The tools over HTTP: what is refused, slow and hostile clients, and the end of the process."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import scannery
from scannery.bridges.mcp.http import HttpConfig, serve_http
from scannery.cli.main import main
from scannery.runtime.asgi_server import ConnectionLimits
from tests.bridges.mcp.conftest import agent_over_http, http_process
from tests.served import serving

pytestmark = pytest.mark.system

CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "list_indexes", "arguments": {}},
}
HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}


@asynccontextmanager
async def served(store: Path, **config: Any) -> AsyncIterator[str]:
    """Serve the tools in this event loop, until a SIGTERM at the end."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    async with scannery.aio.connect(store) as client:
        task = asyncio.create_task(serve_http(client, HttpConfig(**config), url.set_result))
        yield await asyncio.wait_for(url, 30)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(task, 30)


def raw(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").removesuffix("/mcp").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


async def test_only_calls_of_this_machine_are_answered(podcasts: Path) -> None:
    async with served(podcasts) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        port = url.split(":")[2].partition("/")[0]
        answer = await http.post(url, json=CALL)
        assert answer.status_code == 200
        assert json.loads(answer.text)["result"]["structuredContent"]["total"] == 1
        for headers, status in (
            ({"host": f"localhost:{port}"}, 200),
            ({"host": f"attacker.example:{port}"}, 421),
            ({"origin": f"http://localhost:{port}"}, 200),
            ({"origin": "http://attacker.example"}, 403),
            ({"origin": "null"}, 403),
            ({"content-type": "text/plain"}, 400),
            ({"authorization": "Basic eDp5"}, 401),
            ({"authorization": "Bearer any"}, 200),
        ):
            assert (await http.post(url, json=CALL, headers=headers)).status_code == status, headers
        twice = [*HEADERS.items(), ("authorization", "Bearer a"), ("authorization", "Bearer b")]
        assert (await http.post(url, json=CALL, headers=twice)).status_code == 401
        assert (await http.get(url)).status_code == 405
        assert (await http.delete(url)).status_code == 405
        assert (await http.post(url + "/more", json=CALL)).status_code == 404
        assert (await http.post(url, content=b"x" * (1 << 19))).status_code == 413
        assert (await http.post(url, content=b"[" * 100_000)).status_code == 400
        assert (await http.post(url, json=CALL)).status_code == 200


async def test_names_and_keys_are_those_of_the_configuration(podcasts: Path) -> None:
    config = {"names": ["search.example"], "needs_secret": True}
    async with served(podcasts, **config) as url, httpx2.AsyncClient(headers=HEADERS) as http:
        named = {"host": "search.example", "origin": "https://search.example"}
        refused = await http.post(url, json=CALL, headers=named)
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        named["authorization"] = "Bearer any"
        assert (await http.post(url, json=CALL, headers=named)).status_code == 200


async def test_slow_clients_are_ended_and_stop_nobody(podcasts: Path) -> None:
    head = b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"
    async with served(podcasts, limits=ConnectionLimits(request_s=1.0, answer_s=30.0, connections=8)) as url:
        slow = [raw(url) for _ in range(6)]
        for position, connection in enumerate(slow):
            # Nothing, half of a head, or a body that does not come.
            connection.sendall((b"", head, head + b"content-length: 10\r\n\r\n1")[position % 3])
        started = time.monotonic()
        async with httpx2.AsyncClient(headers=HEADERS) as http:
            assert (await http.post(url, json=CALL)).status_code == 200
        assert time.monotonic() - started < 1.0
        for connection in slow:
            assert await asyncio.to_thread(ended, connection)
        assert time.monotonic() - started < 10.0


async def test_connections_are_bounded_and_the_oldest_idle_makes_room(podcasts: Path) -> None:
    async with served(podcasts, limits=ConnectionLimits(request_s=60.0, connections=8)) as url:
        idle = [raw(url) for _ in range(8)]
        await asyncio.sleep(0.1)
        for _ in range(3):
            async with httpx2.AsyncClient(headers=HEADERS) as http:
                assert (await http.post(url, json=CALL)).status_code == 200
        assert await asyncio.to_thread(ended, idle[0])
        for connection in idle[1:]:
            connection.close()


async def test_a_flood_of_calls_is_answered_in_turns(podcasts: Path) -> None:
    async with (
        served(podcasts, max_running=2) as url,
        httpx2.AsyncClient(headers=HEADERS, timeout=60) as http,
    ):
        answers = await asyncio.gather(*(http.post(url, json=CALL) for _ in range(60)))
        assert {answer.status_code for answer in answers} == {200}


def ended(connection: socket.socket) -> bool:
    """Return whether the server ends a connection, without an answer that is more than an error."""
    try:
        while data := connection.recv(4096):
            assert not data.startswith(b"HTTP/1.1 200")
    except ConnectionError:
        pass
    connection.close()
    return True


async def test_the_process_ends_by_sigterm(podcasts: Path) -> None:
    with http_process("--store", str(podcasts)) as (url, process):
        async with agent_over_http(url) as agent:
            assert (await agent.call("count", index="podcasts"))["count"] > 300
            idle = raw(url)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0
            idle.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either --target HOST:PORT or --store URI"),
        (["--target", "localhost:1", "--store", "x"], "give either --target HOST:PORT or --store URI"),
        (["--store", "{store}", "--behind-tls"], "need --http"),
        (["--store", "{store}", "--http", "7090"], "--http must be HOST:PORT, got '7090'"),
        (
            ["--store", "{store}", "--http", "0.0.0.0:0"],
            "beyond loopback would carry keys and texts unencrypted",
        ),
        (["--store", "{store}", "--http", "0.0.0.0:0", "--behind-tls"], "a store checks no keys"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str], message: str, podcasts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *(option.format(store=podcasts) for option in options or ["--timeout", "5"])]) == 2
    assert message in capsys.readouterr().err


def test_a_server_without_keys_is_not_opened_to_others(
    podcasts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(podcasts, device="cpu") as server:
        assert main(["mcp", "--target", server.address, "--http", "127.0.0.1:0", "--behind-tls"]) != 0
    assert "the target answers without a key" in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install() -> None:
    code = "import sys; sys.modules['mcp'] = None; from scannery.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.run(
        [sys.executable, "-c", code, "mcp", "--store", "."],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode != 0
    assert "scannery mcp needs mcp" in process.stderr
    assert "pip install 'scannery[mcp]'" in process.stderr
