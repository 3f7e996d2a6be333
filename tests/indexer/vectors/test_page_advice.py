"""The kernel is told how vectors are read where memory is short for them, and only there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data import ROOT

CODE = """
import json, re, sys
from pathlib import Path
from scannery.indexer.vectors import page_advice

limit, *paths = sys.argv[1:]
page_advice.cgroup_limit = lambda: int(limit) or None

def flags(path):
    text = Path("/proc/self/smaps").read_text()
    parts = [part for part in re.split(r"\\n(?=[0-9a-f]+-)", text) if path in part]
    return re.search(r"VmFlags: (.*)", parts[0])[1].split()

seen, arrays = [], []
for _ in range(5):  # what was closed does not count
    page_advice.mapped_vectors(Path(paths[0]))
for path in paths:
    arrays.append(page_advice.mapped_vectors(Path(path)))
    seen.append(["rr" in flags(each) for each in paths[: len(arrays)]])
page_advice.expect(arrays[0])
print(json.dumps([seen, float(arrays[-1][-1, -1])]))
"""


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [(0, [[False], [False, False]]), (1 << 21, [[False], [True, True]]), (1 << 20, [[True], [True, True]])],
)
def test_vectors_are_read_at_random_where_memory_is_short(
    tmp_path: Path, limit: int, wanted: list[list[bool]]
) -> None:
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    for path in paths:
        np.save(path, np.full((5000, 32), 7, np.float32))  # 640 kB
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(limit), *map(str, paths)],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == [wanted, 7.0]


MANY = """
import sys, time
from pathlib import Path
from scannery.indexer.vectors import page_advice

def mapped_s(count):
    started_s = time.process_time()
    arrays.extend(page_advice.mapped_vectors(Path(sys.argv[1])) for _ in range(count))
    return time.process_time() - started_s

arrays = []
print(mapped_s(500), mapped_s(3000) and mapped_s(500))
"""


def test_the_time_to_map_one_does_not_grow_with_those_that_are_mapped(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((10, 16), np.float32))
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "a.npy")],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    first_s, later_s = map(float, done.stdout.split())
    assert later_s < 3 * first_s
