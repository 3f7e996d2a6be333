"""What workers share stays shared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from scannery.serving.holes import LEAST_BYTES, MOST_BYTES, fill_holes
from tests.data import ROOT

PAGE_BYTES = 4096
# In a process of its own: here everything is imported by now.
LATE = """
import sys
from scannery.serving import ServerConfig
from scannery.serving.preload import preload
from scannery.serving.server import Server

config = ServerConfig(store=sys.argv[1], listen="127.0.0.1:0")
preloaded = preload(config)
before = set(sys.modules)
with Server(config, preloaded=preloaded):
    print(*sorted(set(sys.modules) - before))
"""


def test_new_objects_keep_away_from_the_pages_of_old_ones() -> None:
    for size in (LEAST_BYTES, 96, MOST_BYTES):
        length = size - sys.getsizeof(b"")
        old = [bytes(length) for _ in range(10_000)][::2]
        pages = {id(each) // PAGE_BYTES for each in old}
        beside = {id(each) // PAGE_BYTES for each in [bytes(length) for _ in range(1000)]}
        assert len(beside & pages) > 10, "there were no holes to fill"
        filling = fill_holes()
        new = {id(each) // PAGE_BYTES for each in [bytes(length) for _ in range(1000)]}
        assert filling
        assert len(new & pages) <= 3  # a place may become free at any moment


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
