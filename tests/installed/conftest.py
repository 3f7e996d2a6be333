"""Environments take seconds to make, and programs seconds to start: `make test-clients` runs these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.data import ROOT
from tests.installed.program import Environment
from tests.served import made_once
from tests.tools.declared_environment import Installed, declared_environment, installed_wheel, packages_of

PROJECTS = {"whole": ".", "alone": "packaging/client"}

if not os.environ.get("SCANNERY_TEST_CLIENTS"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheels, before the packages of the environments of the tests, those of `make test-clients` first."""
    return _installed(made_once(tmp_path_factory, "wheels", _make))


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder where models are kept as they load quickly, for all processes of this run of pytest."""
    return made_once(tmp_path_factory, "models", lambda _: None)


def _installed(folder: Path) -> Installed:
    # The whole package's files come first where both have them.
    own = [packages_of(folder / name / "env") for name in PROJECTS]
    return Installed([*own, *(Path(each) for each in sys.path if each.endswith("site-packages"))])


def _make(folder: Path) -> None:
    """Build and install the wheels, and compile the kernels of the first one."""
    with ThreadPoolExecutor() as pool:
        packages, _ = pool.map(lambda name: _built(ROOT / PROJECTS[name], folder / name), PROJECTS)
    # As `make` does after an install: what is compiled first must not count against the first call. What the
    # repository's environment has compiled of the same source is taken from there: numba compares the contents.
    for room in (ROOT / "src" / "scannery").iterdir():
        for kernel in room.resolve().rglob("__pycache__/*.nb[ic]"):
            copy = packages / "scannery" / room.name / kernel.relative_to(room.resolve())
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(kernel, copy)
    first = Environment(declared_environment(folder / "first", ["scannery"], _installed(folder)), folder)
    first.run("python -m scannery.cli.warm")


def _built(project: Path, folder: Path) -> Path:
    """Build a wheel and install it; return the folder of its packages."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    # Not with what an earlier build has left in the repository.
    base = f"--config-setting=--global-option=build --build-base={folder / 'build'}"
    subprocess.run([*build, base, str(project)], check=True, capture_output=True)
    return installed_wheel(folder / "env", next(folder.glob("*.whl")))


@pytest.fixture
def environments(installed: Installed, cache: Path, tmp_path: Path) -> Iterator[Environments]:
    environments = Environments(installed, tmp_path, cache)
    yield environments
    environments.close()


class Environments:
    """Makes environments; their programs run in one empty folder each."""

    def __init__(self, installed: Installed, folder: Path, cache: Path) -> None:
        self._installed, self._folder, self._cache = installed, folder, cache
        self._environments: list[Environment] = []

    def make(self, requirements: Sequence[str], *, new: bool = False) -> Environment:
        """Return an environment with what requirements need; `scannery` is the wheel.

        `new`: nothing was done before on its machine; else, models were loaded by their library, which takes long.
        """
        folder = self._folder / f"{len(self._environments)}"
        bin = declared_environment(folder / "env", requirements, self._installed)
        work = folder / "work"
        work.mkdir()
        self._environments.append(Environment(bin, work, None if new else self._cache))
        return self._environments[-1]

    def close(self) -> None:
        """Stop the servers that run."""
        for each in self._environments:
            each.close()
