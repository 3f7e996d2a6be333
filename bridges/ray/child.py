"""Runs the command as a child that ends with its parent: `python -m scannery.bridges.ray.child PARENT ARGUMENTS`."""

from __future__ import annotations

import sys

from scannery.cli.main import run
from scannery.serving.process.os_calls import die_with_parent

__all__: list[str] = []

if __name__ == "__main__":
    die_with_parent(int(sys.argv.pop(1)))
    run()
