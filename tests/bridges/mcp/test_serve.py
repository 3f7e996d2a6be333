"""The tools beside a server (`serve --mcp`): whose keys they use, and the life of their process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

import scannery
from scannery.cli.main import main
from tests.bridges.mcp.conftest import agent_over_http
from tests.served import copied
from tests.serving.process.test_supervisor import children, started, wait_until
from tests.tools.ports import free_port

pytestmark = pytest.mark.system

OPTIONS = ("--device", "cpu", "--mcp")


async def test_agents_have_the_rights_of_their_own_keys(
    podcasts: Path, keys: tuple[Path, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANNERY_API_KEY", "not-for-callers")
    (file, secrets), tools = keys, f"127.0.0.1:{free_port()}"
    options = (*OPTIONS, tools, "--keys", str(file), "--workers", "2")
    with started(copied(podcasts, tmp_path / "store"), *options) as (process, address):
        url = f"http://{tools}/mcp"
        query, where = "how glass is made in a furnace", {"explicit": False}
        async with agent_over_http(url, secrets["reader"]) as agent:
            answer = await agent.call("search", index="podcasts", query=query, where=where, k=3)
        with scannery.connect(address, api_key=secrets["reader"]) as client:
            hits = client.index("podcasts").search(query, 3, where=where)
        assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in hits]
        async with agent_over_http(url, secrets["stranger"]) as agent:
            assert (await agent.call("list_indexes"))["indexes"] == []
            assert "there is no index 'podcasts'" in await agent.error("count", index="podcasts")
        async with agent_over_http(url, "not-for-callers") as agent:
            assert "UnauthenticatedError" not in (message := await agent.error("list_indexes"))
            assert "Authorization: Bearer KEY" in message
        async with httpx2.AsyncClient() as http:
            assert (await http.post(url, json={})).status_code == 401
        process.terminate()
        assert process.wait(30) == 0


async def test_the_process_of_the_tools_is_started_again(podcasts: Path, tmp_path: Path) -> None:
    tools = f"127.0.0.1:{free_port()}"
    options = (*OPTIONS, tools, "--listen", "0.0.0.0:0", "--insecure")
    with started(copied(podcasts, tmp_path / "store"), *options) as (process, _):
        url = f"http://{tools}/mcp"
        for _ in range(2):
            async with agent_over_http(url) as agent:
                assert (await agent.call("count", index="podcasts"))["count"] > 300
            os.kill(children(process.pid)[-1], signal.SIGKILL)  # the first one is the worker
            wait_until(lambda: not answers(url))
            wait_until(lambda: answers(url))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def answers(url: str) -> bool:
    """Return whether something answers at a URL."""
    try:
        return httpx2.get(url).status_code == 405
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mcp", "7090"], "mcp: must be host:port, got '7090'"),
        (
            ["--mcp", "0.0.0.0:0"],
            "mcp: 0.0.0.0:0 can be reached from other machines, and this server does not",
        ),
        (["--mcp", "0.0.0.0:0", "--keys", "{keys}"], "keys and tokens would be sent there in the clear"),
        (["--mcp", "127.0.0.1:0", "--tls-dev", "{folder}"], "mcp: has no TLS here"),
        (["--mcp", "127.0.0.1:0", "--role", "leaf", "--group", "0/2"], "mcp: is not for a leaf"),
    ],
)
def test_wrong_options_are_refused(
    options: list[str],
    message: str,
    podcasts: Path,
    keys: tuple[Path, dict[str, str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = [option.format(keys=keys[0], folder=tmp_path / "tls") for option in options]
    assert main(["serve", "--store", str(podcasts), "--listen", "127.0.0.1:0", *values]) == 2
    assert message in capsys.readouterr().err


def test_without_the_extra_the_server_says_what_to_install(podcasts: Path) -> None:
    code = "import sys; sys.modules['mcp'] = None; from scannery.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "--store", str(podcasts), "--mcp", "127.0.0.1:0"]
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 2
    assert "scannery serve --mcp needs mcp" in process.stderr
    assert "pip install 'scannery[mcp]'" in process.stderr
