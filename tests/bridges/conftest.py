"""The frameworks and other people's clients are installed in the environment of `make test-clients` only."""

from __future__ import annotations

import os
import socket

import pytest

if not os.environ.get("SCANNERY_TEST_CLIENTS"):
    _FRAMEWORKS = ("beam_rag", "haystack", "langchain", "llama_index", "mteb")
    collect_ignore_glob = [
        "test_connection.py",
        "test_examples.py",
        "*/test_official_*.py",
        *(f"{framework}/test_*.py" for framework in _FRAMEWORKS),
    ]


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that no server listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
