"""Memory of hits on the wire, level however sizes change. Measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.data import ROOT

pytestmark = pytest.mark.system

LIMIT_MIB = 24

SETTING = """
import gc, sys
import numpy as np
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.engine import hydrator as module
from tests.data import datapoints
from tests.serving.engine.test_hydrator import EVERYTHING, SPEC, Hydrator, segment

def table(*sizes):
    texts = ["x" * size for size in sizes]
    vectors_ND = np.ones((len(sizes), 3), np.float32)
    columns = {"document_id": ["d"] * len(sizes), "text": texts, "tags": [[""] * 9] * len(sizes)}
    return segment(datapoints(SPEC, vectors_ND, columns=columns))

def written(hydrator, row, hits):
    rows_1H = np.full((1, hits), row, np.int64)
    return hydrator.block(0, rows_1H, np.zeros((1, hits), np.float32))

def private_mib():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024

"""
LOOPS = {
    "sizes in turn": (
        "one = Hydrator([table(500, 20_000)], SPEC, EVERYTHING, group_by=None)",
        "for row in (0, 1): written(one, row, 10)",
        300,
    ),
    "a new snapshot for each search": (
        "segments = [table(2000)]",
        "written(Hydrator(segments, SPEC, EVERYTHING, group_by=None), 0, 10)",
        2000,
    ),
    "a new segment for each search": (
        "pass",
        "written(Hydrator([table(2000)], SPEC, EVERYTHING, group_by=None), 0, 10)",
        2000,
    ),
    "more than 16 MiB": (
        "one = Hydrator([table(1 << 20, 10)], SPEC, EVERYTHING, group_by=None)",
        "for row in (1, 0): written(one, row, 20)",
        3,
    ),
    "refused as too large": (
        "one = Hydrator([table(1 << 16)], SPEC, EVERYTHING, group_by=None)\nmodule.MAX_ANSWER_BYTES = 1 << 23",
        "try: written(one, 0, 1000); sys.exit('not refused')\nexcept InvalidRequestError: pass",
        20,
    ),
    "refused for its vectors": (
        "one = Hydrator([table(1)], SPEC, EVERYTHING, group_by=None)\nmodule.MAX_ANSWER_BYTES = 1 << 20",
        "try: written(one, 0, 60_000); sys.exit('not refused')\nexcept InvalidRequestError: pass",
        50,
    ),
}


@pytest.fixture(scope="module")
def growth_mib() -> dict[str, float]:
    """What memory grows by in each loop, after as many steps as are measured."""
    code = SETTING + "\nimport json\ngrowth_mib = {}\n"
    for name, (begin, step, times) in LOOPS.items():
        body = "\n    ".join(step.split("\n"))
        code += (
            f"{begin}\ndef step():\n    {body}\n"
            f"for _ in range({times}): step()\ngc.collect(); before = private_mib()\n"
            f"for _ in range({times}): step()\ngc.collect(); growth_mib[{name!r}] = private_mib() - before\n"
        )
    code += "print(json.dumps(growth_mib))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("name", LOOPS)
def test_memory_is_level(name: str, growth_mib: dict[str, float]) -> None:
    assert growth_mib[name] < LIMIT_MIB
