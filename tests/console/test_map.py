"""Maps by UMAP: the sample of the server's own map, placed in a process, for the caller alone."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from scannery.serving import Server
from tests.console.consoles import browser_on, console_on
from tests.data import at_full_length

pytestmark = pytest.mark.system

WAIT_S = 120.0
WISH = {"index": "podcasts", "limit": 60, "seed": "3"}


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with console_on(server.address) as address:
        yield address


@pytest.fixture
def reader(address: str, keys: tuple[Path, dict[str, str]]) -> Iterator[httpx2.Client]:
    with browser_on(address) as browser:
        assert browser.post("/session", json={"secret": keys[1]["reader"]}).status_code == 200
        yield browser


def placed(browser: httpx2.Client, wish: dict[str, Any]) -> dict[str, Any]:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        answer: dict[str, Any] = browser.post("/map/umap", json=wish).json()
        if answer["state"] in ("done", "failed"):
            return answer
        time.sleep(0.2)
    raise AssertionError(answer)


@pytest.mark.long  # its library compiles for 15 s, as for the map of test_rights.py
@at_full_length("half a minute")
def test_a_map_by_umap_has_the_datapoints_of_the_servers_own(reader: httpx2.Client):
    answer = placed(reader, WISH)
    assert answer["state"] == "done", answer
    own = reader.post("/scannery.v1.SearchService/Project", json=WISH).json()
    assert set(answer["ids"]) == set(own["ids"])
    x, y = (np.frombuffer(base64.b64decode(answer[axis]), "<u2") for axis in "xy")
    assert len(x) == len(y) == 60
    assert max(np.ptp(x), np.ptp(y)) >= 65534
    # Kept: the same request is answered at once, by the same places.
    assert reader.post("/map/umap", json=WISH).json()["x"] == answer["x"]


def test_a_map_that_cannot_be_says_why(reader: httpx2.Client):
    few = placed(reader, {**WISH, "limit": 3})
    assert (few["state"], few["error"]) == ("failed", "a map by UMAP needs 10 datapoints with vectors")
    assert reader.post("/map/umap", json={**WISH, "index": "nope"}).status_code == 404
    assert reader.post("/map/umap", json={"nope": 1}).status_code == 400


def test_a_map_is_of_its_caller(address: str):
    with browser_on(address) as nobody:
        assert nobody.post("/map/umap", json=WISH).status_code == 401
