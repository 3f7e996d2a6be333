"""Environments that have a wheel and what it declares, and nothing else.

The packages are links to the files of environments that exist, so that nothing is fetched, and what one environment has
compiled, bytecode and kernels, is there for the next one. What is missing in a declaration is missing there, as it is
for a stranger who installs the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["Installed", "UndeclaredError", "declared_environment", "installed_wheel", "packages_of"]


_COMPILED = "__pycache__"


class UndeclaredError(Exception):
    """A requirement cannot be met by the packages that are installed."""


class Installed:
    """The distributions of site-packages folders; that of the first folder counts."""

    def __init__(self, folders: Iterable[Path]) -> None:
        """Read the names and files of all of them."""
        self.by_name: dict[str, Distribution] = {}
        for folder in folders:
            for each in distributions(path=[str(folder)]):
                self.by_name.setdefault(canonicalize_name(each.metadata["Name"]), each)
        self.owners = Counter(top for each in self.by_name.values() for top in _tops(each))
        """Number of distributions with files below each folder, or of each name."""


def installed_wheel(folder: Path, wheel: Path) -> Path:
    """Install a wheel by pip into a new environment, without what it requires; return the folder of its packages."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    install = [sys.executable, "-I", "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    # With no variable of this process: PYTHONPATH would show the packages of the repository.
    subprocess.run([*install, "--no-index", "--no-compile", str(wheel)], check=True, env={"PATH": os.defpath})
    return packages_of(folder)


def declared_environment(folder: Path, requirements: Sequence[str], installed: Installed) -> Path:
    """Make an environment with what requirements need, and return its `bin`.

    Args:
        folder: of the environment; is created.
        requirements: as of `pip install`: `scannery[minilm]`.
        installed: where the files of packages are.

    Raises:
        UndeclaredError: a requirement is not installed in the wanted version.

    """
    venv.create(folder, with_pip=False, symlinks=True)
    for each in _closure(requirements, installed.by_name):
        _link(each, packages_of(folder), installed.owners)
        _copy_scripts(each, folder / "bin")
    return folder / "bin"


def packages_of(environment: Path) -> Path:
    """Return the folder of the packages of an environment."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _closure(requirements: Sequence[str], known: Mapping[str, Distribution]) -> Iterator[Distribution]:
    """Yield the distributions that requirements need, each once."""
    waiting = [(Requirement(text), frozenset[str]()) for text in requirements]
    given: dict[str, set[str]] = {}
    while waiting:
        requirement, extras_of_owner = waiting.pop()
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras_of_owner or {""}):
            continue
        name = canonicalize_name(requirement.name)
        distribution = known.get(name)
        if distribution is None:
            raise UndeclaredError(f"{requirement} is required, and is not installed here")
        if not requirement.specifier.contains(distribution.version, prereleases=True):
            raise UndeclaredError(f"{requirement} is required, installed here is {distribution.version}")
        is_new, extras = name not in given, given.setdefault(name, set())
        added = requirement.extras - extras
        extras |= added
        if is_new:
            yield distribution
        if is_new or added:
            below = frozenset({"", *added}) if is_new else frozenset(added)
            waiting += [(Requirement(text), below) for text in distribution.requires or ()]


def _tops(distribution: Distribution) -> set[str]:
    """Return the first parts of the files of a distribution, without those outside of site-packages."""
    return {file.parts[0] for file in distribution.files or ()} - {".."}


def _link(distribution: Distribution, root: Path, owners: Mapping[str, int]) -> None:
    """Link the files of a distribution into a site-packages folder, without its scripts.

    A folder that no other distribution has files in is linked as a whole. Of others, the folders of what is compiled
    are: to compile the kernels takes a minute.
    """
    shared = set()
    for top in _tops(distribution):
        if owners[top] > 1:
            shared.add(top)
        else:
            (root / top).symlink_to(str(distribution.locate_file(top)))
    for file in distribution.files or ():
        if file.parts[0] in shared and file.parent.name != _COMPILED:
            link = root / file
            link.parent.mkdir(parents=True, exist_ok=True)
            compiled = Path(str(distribution.locate_file(file))).parent / _COMPILED
            if file.suffix == ".py" and not (link.parent / _COMPILED).exists():
                compiled.mkdir(exist_ok=True)
                (link.parent / _COMPILED).symlink_to(compiled)
            if not link.exists():  # some packages name the same file
                link.symlink_to(str(distribution.locate_file(file)))


def _copy_scripts(distribution: Distribution, bin: Path) -> None:
    """Copy the scripts in Python of a distribution; they name the Python of their environment in the first line."""
    for file in distribution.files or ():
        if file.parent.name == "bin" and file.parts[0] == "..":
            first, _, rest = Path(str(distribution.locate_file(file))).read_bytes().partition(b"\n")
            if first.startswith(b"#!") and b"python" in first:
                script = bin / file.name
                script.write_bytes(b"#!%s\n%s" % (os.fsencode(bin / "python"), rest))
                script.chmod(0o755)
