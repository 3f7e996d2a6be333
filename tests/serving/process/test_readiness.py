"""A server is ready when it can answer: not while none of its indexes can be opened."""

from __future__ import annotations

import logging
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import scannery
from tests.served import LIBRARY, make_library_store, serving

pytestmark = pytest.mark.system


def ready(address: str) -> int:
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_a_cache_that_cannot_be_written_is_told_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_library_store(tmp_path / "store")
    (tmp_path / "file").touch()
    cache = tmp_path / "file" / "cache"  # root, too, cannot make it
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(cache))
    with (
        caplog.at_level(logging.ERROR),
        serving(store, http="127.0.0.1:0", check_every_s=0.05) as server,
        scannery.connect(server.address, retries=False) as client,
    ):
        assert ready(f"127.0.0.1:{server.http_port}") == 503
        with pytest.raises(scannery.ScanneryError, match="SCANNERY_CACHE_DIR"):
            client.index(LIBRARY.index).search([0.0] * 15 + [1.0], k=1)
        problems = {index.name: index.problem for index in client.indexes()}
        assert problems.keys() == {"flat", LIBRARY.index}
        assert all("SCANNERY_CACHE_DIR" in problem for problem in problems.values())
    assert str(cache) in caplog.text
    assert "this server is not ready" in caplog.text
