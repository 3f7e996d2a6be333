"""Memory of the messages of batches: the process keeps it for the next one."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

# In a process of its own: earlier tests have freed large arrays.
BATCHES = """
import resource
import numpy as np
from scannery.client.request.calls import search_many

def batch():
    bodies = [search_many("talks", queries_QD, 10).request.SerializeToString() for _ in range(2)]
    return b"".join(bodies)

queries_QD = np.ones((100, 384), np.float32)
for _ in range(5):
    batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_batch_takes_no_pages_anew() -> None:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", BATCHES], env=plain, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 10  # else more than 50
