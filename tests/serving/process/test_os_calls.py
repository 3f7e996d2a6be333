"""What servers ask of the kernel."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system


def test_a_server_may_open_as_many_files_as_the_system_allows() -> None:
    script = """
import os, resource
import pytest

from scannery.serving.process.os_calls import allow_open_files
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
allow_open_files()
print(len([os.dup(0) for _ in range(200)]), resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout == "200 True\n", done.stderr
