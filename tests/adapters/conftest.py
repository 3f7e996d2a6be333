"""The frameworks are installed in the environment of `make test-clients` only."""

from __future__ import annotations

import os
import socket

import pytest

if not os.environ.get("SCANNERY_TEST_CLIENTS"):
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that no server listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
