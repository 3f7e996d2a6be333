"""A training of `scannery train` in a process that is ended by a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["checkpoints", "end_twice"]


def end_twice(store: Path, spec: Path, kind: str, number: signal.Signals) -> None:
    """Begin a training twice, and end it by a signal after its first new checkpoint."""
    command = [
        sys.executable, "-m", "scannery", "train", str(spec), "--kind", kind, "--store", str(store),
    ]  # fmt: skip
    for _ in range(2):
        process = subprocess.Popen(command, env=os.environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
        before = {*checkpoints(store)}
        deadline = time.monotonic() + 120
        while not {*checkpoints(store)} - before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, message = process.communicate(timeout=60)
        assert process.returncode == (-9 if number == signal.SIGKILL else 4), message


def checkpoints(store: Path) -> list[Path]:
    """Return the checkpoints of the model `animals` in a store."""
    return sorted((store / "_models").glob("animals/runs/*/*/*.safetensors"))
