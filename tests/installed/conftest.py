"""Environments take seconds to make, and programs seconds to start: `make test-installed` runs these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.data import ROOT
from tests.installed.program import Environment
from tests.tools.declared_environment import Installed, declared_environment

if not os.environ.get("SCANNERY_TEST_INSTALLED"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The packages of the environments of the tests, those of `make test-clients` first."""
    return Installed(Path(folder) for folder in sys.path if folder.endswith("site-packages"))


@pytest.fixture
def environments(wheel: Path, installed: Installed, tmp_path: Path) -> Iterator[Environments]:
    made = Environments(wheel, installed, tmp_path)
    yield made
    made.close()


class Environments:
    """Makes environments; their programs run in one empty folder."""

    def __init__(self, wheel: Path, installed: Installed, folder: Path) -> None:
        self._wheel, self._installed, self._folder = wheel, installed, folder
        self._made: list[Environment] = []

    def make(self, requirements: Sequence[str]) -> Environment:
        """Return an environment with the wheel and requirements of it or others."""
        bin = declared_environment(self._folder / "env", self._wheel, requirements, self._installed)
        work = self._folder / "work"
        work.mkdir()
        environment = Environment(bin, work)
        self._made.append(environment)
        # As `make` does after an install: what is compiled and loaded first must not count against the first call.
        environment.run("python -m scannery.indexer.warm; python -m scannery.embed.warm")
        return environment

    def close(self) -> None:
        """Stop the servers that run."""
        for each in self._made:
            each.close()
