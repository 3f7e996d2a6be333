"""The shape of the repository: links, rooms, and what the wheel holds."""

from __future__ import annotations

import ast
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.data import ROOT

ROOMS = (
    "bridges", "cli", "client", "console", "embed", "evaluation", "indexer", "live", "pipelines", "runtime", "serving",
    "training",
)  # fmt: skip
MAX_MODULES = 20
"""In a folder: more of them are rooms in one room."""

# Which rooms a room may import (docs/architecture.md). `client` reaches `serving` lazily, in embedded mode
# only, and `indexer` for records by the names of a spec.
MAY_IMPORT = {
    "runtime": {"v1"},
    "embed": {"runtime"},
    "indexer": {"runtime"},
    "live": {"embed", "indexer", "runtime"},
    "serving": {"embed", "indexer", "live", "runtime", "v1", "vertex"},
    "pipelines": {"embed", "indexer", "runtime"},
    "evaluation": {"indexer", "pipelines"},
    "client": {"runtime", "v1"},
    "console": {"client", "runtime", "v1"},
    "training": {"client", "embed", "evaluation", "indexer", "pipelines", "runtime"},
    "bridges": {*(set(ROOMS) - {"bridges", "evaluation", "training"}), "v1", "vertex"},
    "cli": {*(set(ROOMS) - {"bridges"}), "v1"},
}  # fmt: skip
LAZY = {("client", "serving"), ("client", "indexer")}


def tracked(*patterns: str) -> list[str]:
    output = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [name for name in output.stdout.split("\0") if name and (ROOT / name).exists()]


def test_each_room_is_linked_exactly_once():
    package = ROOT / "src" / "scannery"
    links = {path.name: path.readlink() for path in package.iterdir() if path.is_symlink()}
    assert links == {room: Path("../..") / room for room in ROOMS}
    assert {path.name for path in package.iterdir()} - {"__pycache__"} == {
        "__init__.py", "__main__.py", "adapters.py", "py.typed", "testing.py", "v1", "vertex", *ROOMS,
    }  # fmt: skip


def test_proto_is_no_package():
    # `proto` is the import name of proto-plus, which Beam needs: a package of ours there would replace it.
    assert not [name for name in tracked("proto") if name.endswith(".py")]


@pytest.mark.system
@pytest.mark.parametrize("room", ROOMS)
def test_imports_run_one_way(room: str):
    wrong = []
    for name in tracked(f"{room}/*.py"):
        for target, lazy in _imported_rooms(ROOT / name):
            allowed = target in MAY_IMPORT[room] | {room} or (lazy and (room, target) in LAZY)
            if not allowed:
                wrong.append(f"{name} imports scannery.{target}")
    assert not wrong


@pytest.mark.system
@pytest.mark.parametrize("room", [*ROOMS, "tests"])
def test_a_folder_has_few_modules(room: str):
    folders = Counter(
        Path(name).parent for name in tracked(f"{room}/*.py") if Path(name).name != "__init__.py"
    )
    assert {str(folder): count for folder, count in folders.items() if count > MAX_MODULES} == {}


def _imported_rooms(path: Path) -> list[tuple[str, bool]]:
    """Return (room, is it imported inside a function or for types only) for each import of ours."""
    tree = ast.parse(path.read_text())
    eager = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module] if node.module != "scannery" else [f"scannery.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found += [
            (name.split(".")[1], id(node) not in eager) for name in names if name.startswith("scannery.")
        ]
    return found


@pytest.mark.system
def test_the_wheel_holds_every_tracked_module(tmp_path: Path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
    )
    wheel = zipfile.ZipFile(next(tmp_path.glob("*.whl")))
    packed = set(wheel.namelist())
    expected = {
        f"scannery/{name}"
        for room in ROOMS
        for name in tracked(room)
        if Path(name).suffix in {".py", ".jsonl", ".yaml", ".json", ".js", ".css", ".html", ".svg", ".txt"}
    }
    expected |= {"scannery/adapters.py", "scannery/testing.py"}
    expected |= {name.removeprefix("src/") for name in tracked("src/scannery/v1", "src/scannery/vertex")}
    assert expected | {"scannery/py.typed"} <= packed
    assert not [name for name in packed if name.split("/")[0] in {*ROOMS, "tests", "proto"}]


PREPOSITIONS = frozenset(
    (
        "after", "as", "at", "before", "behind", "beside", "between", "by", "for", "from", "in", "of", "on", "over",
    )
) | {"to", "under", "with", "within", "without"}  # fmt: skip


def _documented(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each documentation of a field or a constant."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for field, text in pairwise(body) if isinstance(body, list) else ():
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if (
                isinstance(field, (ast.AnnAssign, ast.Assign))
                and is_text
                and isinstance(text.value.value, str)
            ):
                yield text.lineno, text.value.value


def test_a_field_is_documented_with_its_noun() -> None:
    documented = [
        (f"{path.relative_to(ROOT)}:{line}", text)
        for room in ROOMS
        for path in (ROOT / room).glob("**/*.py")
        for line, text in _documented(path)
    ]
    assert len(documented) > 2000
    without_noun = [
        place for place, text in documented if text.split()[0].lower().strip(".,;:") in PREPOSITIONS
    ]
    assert not without_noun, "Say what the field is: 'Bytes of a page', not 'Of a page'."


GLOSSARY = {
    "asked": "query, search, request, requested",
    "found": "hits, rows, files, match, snapshot: what was found",
    "given": "value, settings, message, override: what was given",
    "how": "mode, method, explanation",
    "known": "registration, cached, allowed, names: what is known",
    "left": "remaining, tail; `left` beside `right` is one of two sides",
    "most": "limit, maximum, max_tokens",
    "one": "the noun of the collection: entry, row, element; first and second of two",
    "other": "the noun, or second of two; `__add__(self, other)` is Python's",
    "others": "the noun: siblings, unread, alternatives",
    "own": "local, encoder, columns: whose it is follows from the class",
    "place": "position, location, address, path, field_path; `place()` may be a verb",
    "places": "positions, addresses, folders, ranks",
    "rest": "tail, remainder, arguments",
    "told": "report, message",
    "wanted": "requested, selection, limit, reference",
    "written": "output, count, state, paths",
}
"""Words that are refused as names, and nouns that say which thing it is; texts and comments may have the words."""

PUBLIC_NAMES = {
    "Written": {"client/response/results.py"},
    "written": {"bridges/importers/writing.py", "cli/uploads.py", "client/response/results.py"},
    "place": {"pipelines/profiling/checking.py"},
    "wanted": {
        "bridges/companions.py",
        "bridges/openai/plugin.py",
        "bridges/vertex/plugin.py",
        "serving/bridging/api.py",
    },
}
"""Names that users or other packages know: results of the SDK, keys of reports, the protocol of a bridge."""


def _bindings(tree: ast.Module) -> Iterator[tuple[ast.AST, list[tuple[ast.AST, str]]]]:
    """Yield the module and each of its functions with the names that it binds itself, and their nodes."""
    scopes: list[ast.AST] = [tree]
    for scope in scopes:
        names: list[tuple[ast.AST, str]] = []
        nodes = list(ast.iter_child_nodes(scope))
        for node in nodes:
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.append((node, name))
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    names.append((node, name))
                case ast.arg(arg=name) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                    names.append((node, name))
                case ast.alias(asname=str(name)):
                    names.append((node, name))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                scopes.append(node)
            else:
                nodes += ast.iter_child_nodes(node)
        yield scope, names


def _refused_names(tree: ast.Module, path: str) -> Iterator[str]:
    """Yield what to rename in a module: line, name, and what to write instead."""
    for scope, bindings in _bindings(tree):
        names = {name for _, name in bindings}
        for node, name in bindings:
            word = name.strip("_").lower()
            is_term = (
                word not in GLOSSARY
                or path in PUBLIC_NAMES.get(name, ())
                or (name == "left" and "right" in names)
                or (name == "other" and getattr(scope, "name", "").startswith("__"))
                or (word == "place" and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
            )
            if not is_term:
                yield f"{path}:{getattr(node, 'lineno', 0)}: {name}: {GLOSSARY[word]}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_name_says_what_it_holds(room: str) -> None:
    refused = [
        line
        for path in sorted((ROOT / room).glob("**/*.py"))
        for line in _refused_names(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix())
    ]
    assert not refused, "Name a thing by its noun; what to write instead follows each name."


def test_the_glossary_is_applied_to_every_kind_of_name() -> None:
    module = """
import hits as found
class Known:
    own: int
    def __init__(self, given, *others): self._most = given
    def __add__(self, other): return other
    def place(self): return None
def told(**rest):
    left, right = rest
    return [one for one in (lambda asked: asked)(left)]
def _wanted():
    try: place: int = 1
    except ValueError as how: pass
"""
    refused = [line.split(": ")[1] for line in _refused_names(ast.parse(module), "a.py")]
    assert sorted(refused) == sorted(
        [
            "found", "Known", "own", "given", "others", "_most", "told", "rest", "one", "asked", "_wanted", "place",
            "how",
        ]
    )  # fmt: skip
