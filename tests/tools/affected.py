"""Test files that a change can affect: those that import a changed file, directly or by other files.

Processes count as imports: a string that names a module or a package of ours stands for what runs it.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = ["affected_tests", "changed_files"]

EVERYTHING = ("pyproject.toml", "constraints.txt", "Makefile", "tests/conftest.py")
"""Files that any test may depend on."""


def affected_tests(root: Path, changed: Iterable[str]) -> set[str] | None:
    """Return the test files that depend on some changed files; None: all do.

    Those of the repository as a whole, such as its documents, are always among them.

    Args:
        root: of the repository.
        changed: paths of the files from the root.

    """
    changed = set(changed)
    if changed & set(EVERYTHING):
        return None
    users = _users(root)
    reached, waiting = set(changed), list(changed)
    while waiting:
        for user in users.get(waiting.pop(), ()):
            if user not in reached:
                reached.add(user)
                waiting.append(user)
    # A server finds bridges by their entry points, which no import tells.
    bridges = {Path(name).parts[1] for name in reached if name.startswith("bridges/")}
    folders = tuple(f"tests/bridges/{bridge}/" for bridge in bridges)
    reached |= {name for name in _git(root, "ls-files", "-z", "tests/bridges") if name.startswith(folders)}
    of_repository = {f"tests/{path.name}" for path in (root / "tests").glob("test_*.py")}
    return of_repository | {
        name for name in reached if name.startswith("tests/") and Path(name).name.startswith("test_")
    }


def changed_files(root: Path, since: str) -> frozenset[str]:
    """Return the files that differ from a revision, with those that are not tracked yet."""
    differing = _git(root, "diff", "--name-only", "-z", since)
    return differing | _git(root, "ls-files", "-z", "--others", "--exclude-standard")


@cache
def _users(root: Path) -> Mapping[str, set[str]]:
    """Return which files use each file."""
    files = {_module(name): name for name in _git(root, "ls-files", "-z", "*.py")}
    packages: dict[str, set[str]] = {}
    for module, name in files.items():
        packages.setdefault(module.rpartition(".")[0], set()).add(name)
    users: dict[str, set[str]] = {}
    for name in files.values():
        for module in _named(root / name):
            # A package that is named runs any of its modules: commands are imported by their names.
            used = {files[module]} if module in files else set()
            for file in used | (packages.get(module, set()) if module.count(".") > 1 else set()):
                users.setdefault(file, set()).add(name)
    return users


def _module(name: str) -> str:
    dotted = name.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    is_of_room = not dotted.startswith(("scannery", "tests.", "benchmarks.", "examples.", "docs."))
    return f"scannery.{dotted}" if is_of_room else dotted


def _named(path: Path) -> Iterator[str]:
    """Yield what a file may name as a module: in imports and in strings."""
    if not path.exists():
        return
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.Constant(value=str(text)) if text.startswith("scannery."):
                yield text.partition(":")[0]


@cache
def _git(root: Path, *arguments: str) -> frozenset[str]:
    output = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout
    return frozenset(filter(None, output.split("\0")))
