"""Metadata of a checkout: a worktree that is only on PYTHONPATH has none, or those of an earlier commit."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

__all__ = ["bring_up_to_date"]


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
    _, _, section = file.read_text().partition('[project.entry-points."scannery.bridges"]\n')
    lines = (line.partition(" = ") for line in section.partition("\n\n")[0].splitlines())
    return {name: value.strip('"') for name, _, value in lines}


def _installed() -> dict[str, str]:
    try:
        text = metadata.distribution("scannery").read_text("entry_points.txt") or ""
    except metadata.PackageNotFoundError:
        return {}
    _, _, section = text.partition("[scannery.bridges]\n")
    lines = (line.partition(" = ") for line in section.partition("\n\n")[0].splitlines())
    return {name: value for name, _, value in lines if name}
