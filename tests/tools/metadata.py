"""Metadata of a checkout: a worktree that is only on PYTHONPATH has none, or those of an earlier commit."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import tomllib

__all__ = ["bring_up_to_date"]

GROUP = "scannery.bridges"


def bring_up_to_date(root: Path) -> None:
    """Write `src/scannery.egg-info`, which is found first on PYTHONPATH, if entry points differ from pyproject.toml.

    Raises:
        RuntimeError: an installation is found first, and is older.

    """
    declared = _declared(root / "pyproject.toml")
    if _installed() == declared:
        return
    setup = "from setuptools import setup; setup()"
    subprocess.run([sys.executable, "-c", setup, "-q", "egg_info"], cwd=root, check=True, capture_output=True)
    if (found := _installed()) != declared:
        raise RuntimeError(f"scannery is installed with the bridges {found}, not {declared}: run make")


def _declared(file: Path) -> dict[str, str]:
    project: dict[str, dict[str, dict[str, str]]] = tomllib.loads(file.read_text())["project"]
    return project["entry-points"][GROUP]


def _installed() -> dict[str, str]:
    try:
        package = metadata.distribution("scannery")
    except metadata.PackageNotFoundError:
        return {}
    return {entry.name: entry.value for entry in package.entry_points.select(group=GROUP)}
