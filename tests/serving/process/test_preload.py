"""What workers share stays shared."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scannery.pipelines import build
from scannery.serving import ServerConfig
from scannery.serving.process.preload import preload
from scannery.serving.process.server import Server
from tests.cluster.processes import wait_until
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


def test_workers_share_the_documents_of_words_and_no_query_waits_for_them(tmp_path: Path) -> None:
    spec = {
        "index": "talks",
        "source": {"text": "text", "document_id": "talk"},
        "vectors": "optional",
        "lexical": True,
    }
    config = ServerConfig(store=str(tmp_path / "store"), listen="127.0.0.1:0", check_every_s=0.1)

    def built(number: int) -> None:
        lines = [
            {"id": f"{number}-{part}", "talk": f"t{number}", "text": f"part {part}"} for part in range(3)
        ]
        (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
        build(spec, [str(tmp_path / "in.jsonl")], config.store)

    built(0)
    preloaded = preload(config)
    [segment] = preloaded.indexes["talks"].segments
    documents = vars(segment)["document_words"]
    with Server(config, preloaded=preloaded) as server:
        [segment] = server._catalog.snapshot("talks").segments
        assert segment.document_words is documents
        built(1)
        wait_until(lambda: server._catalog.snapshot("talks").manifest.version == 2)
        [segment] = server._catalog.snapshot("talks").segments
        assert "document_words" in vars(segment)
