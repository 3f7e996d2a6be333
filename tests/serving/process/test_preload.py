"""What workers share stays shared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data import ROOT

pytestmark = pytest.mark.system

# In a process of its own: here everything is imported by now.
LATE = """
import sys
from scannery.serving import ServerConfig
from scannery.serving.process.preload import preload
from scannery.serving.process.server import Server

config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0")
preloaded = preload(config)
before = set(sys.modules)
with Server(config, preloaded=preloaded):
    print(*sorted(set(sys.modules) - before))
"""


def test_a_server_that_starts_imports_nothing_that_was_not_imported_before(library: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE, str(library)],
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.split() == []
