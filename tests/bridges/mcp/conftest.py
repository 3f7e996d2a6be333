"""A server with the sample podcasts, cut into passages, behind keys; and the tools in front of it, as processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent

import scannery
from scannery.cli.sample import EPISODES_PATH
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from tests.served import MINILM, serving

ATTRIBUTES = {
    "show": "string",
    "speakers": "string_list",
    "published": "timestamp",
    "topic": "string",
    "minutes": "int",
    "explicit": "bool",
}
SPEC = {
    "index": "podcasts",
    "source": {"id": "id", "title": "title", "text": "description", "chunk": {"max_tokens": 40}},
    "encoder": {"model": MINILM},
    "attributes": ATTRIBUTES,
    "lexical": True,
}
COMMAND = ("-m", "scannery.cli.main", "mcp")


@pytest.fixture(scope="package")
def podcasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `podcasts`."""
    folder = tmp_path_factory.mktemp("mcp") / "store"
    episodes = [json.loads(line) for line in EPISODES_PATH.read_text().splitlines()]
    with scannery.connect(folder, create=True) as client:
        client.create_index(SPEC).upsert_many(episodes)
    return folder


@pytest.fixture(scope="package")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file of keys, and the keys by name."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    names = {"reader": None, "stranger": ["another"]}
    return file.path, {name: file.create(name, indexes=indexes)[1] for name, indexes in names.items()}


@pytest.fixture(scope="package")
def server(podcasts: Path, keys: tuple[Path, dict[str, str]]) -> Iterator[Server]:
    with serving(podcasts, security=SecurityConfig(keys_file=str(keys[0])), device="cpu") as server:
        yield server


@contextmanager
def http_process(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start `scannery mcp --http`, and give its URL; the process ends by SIGTERM."""
    command = [sys.executable, *COMMAND, "--http", "127.0.0.1:0", *options]
    # Its own key must not be used for callers.
    environment = {**os.environ, "SCANNERY_API_KEY": "not-for-callers"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2].rstrip(";"), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@pytest.fixture(scope="package")
def url(server: Server) -> Iterator[str]:
    """The tools over HTTP."""
    with http_process("--target", server.address) as (url, _):
        yield url


def text_of(answer: CallToolResult) -> str:
    """Return what a model reads of an answer, which is one text."""
    (text,) = answer.content
    assert isinstance(text, TextContent)
    return text.text


class Agent:
    """Calls tools as an agent does."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Return the fields of an answer."""
        answer = await self.client.call_tool(tool, arguments)
        assert not answer.is_error, text_of(answer)
        assert text_of(answer).strip()
        return answer.structured_content

    async def error(self, tool: str, **arguments: Any) -> str:
        """Return the text of an error."""
        answer = await self.client.call_tool(tool, arguments)
        assert answer.is_error
        assert answer.structured_content is None
        return text_of(answer)


@asynccontextmanager
async def agent_over_http(url: str, key: str = "", mode: Any = "auto") -> AsyncIterator[Agent]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Agent(client)


@asynccontextmanager
async def agent_over_stdio(*options: str, **environment: str) -> AsyncIterator[Agent]:
    paths = {"PYTHONPATH": os.environ.get("PYTHONPATH", "src")}
    process = StdioServerParameters(
        command=sys.executable, args=[*COMMAND, *options], env={**paths, **environment}
    )
    async with Client(stdio_client(process)) as client:
        yield Agent(client)
