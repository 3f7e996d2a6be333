"""The console beside a server (`serve --console`), and the options of `scannery console`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx2
import pytest

from scannery.cli.main import main
from tests.console.consoles import browser_on
from tests.served import copied
from tests.serving.process.test_supervisor import children, started, wait_until
from tests.tools.ports import free_port

pytestmark = pytest.mark.system

COUNT = "/scannery.v1.SearchService/Count"


def count_at(url: str) -> int | None:
    """Return the number of datapoints that the page is told; None: nothing answers."""
    try:
        with browser_on(url) as browser:
            answer = browser.post(COUNT, json={"index": "podcasts"})
            return int(answer.json()["count"]) if answer.status_code == 200 else None
    except httpx2.TransportError:
        return None


def test_a_console_beside_a_server(
    podcasts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = f"127.0.0.1:{free_port()}"
    with started(copied(podcasts, tmp_path / "store"), "--device", "cpu", "--console", page) as (
        process,
        address,
    ):
        url = f"http://{page}/"
        assert count_at(url) == 300
        # What anybody may ask here is not carried beyond this machine by a console either.
        assert (
            main(["console", "--target", address, "--listen", "0.0.0.0:0", "--behind-tls", "--no-open"]) != 0
        )
        assert "the target answers without a key" in capsys.readouterr().err
        # The console is started again when it dies.
        os.kill(children(process.pid)[-1], signal.SIGKILL)  # the first one is the worker
        wait_until(lambda: count_at(url) is None)
        wait_until(lambda: count_at(url) == 300)
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["console", "--no-open"], "give either --target HOST:PORT or --store URI"),
        (["console", "--target", "127.0.0.1:1", "--listen", "7090"], "--listen must be HOST:PORT"),
        (
            ["console", "--target", "127.0.0.1:1", "--listen", "0.0.0.0:0"],
            "would carry keys and texts unencrypted",
        ),
        (["console", "--target", "127.0.0.1:1", "--tls-cert", "c.pem"], "--tls-cert needs --tls-key"),
        (["console", "--store", "{folder}/none"], "no store"),
        (["serve", "--store", "{folder}", "--console", "7090"], "--console: must be host:port"),
        (["serve", "--store", "{folder}", "--console", "0.0.0.0:0"], "does not authenticate callers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options_are_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([each.format(folder=tmp_path) for each in arguments]) != 0
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
