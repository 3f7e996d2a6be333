"""Sync and async offer the same names, and options are the documented ones (names: tests/contracts/python.txt)."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

import scannery
from scannery.client.request.queries import SearchOptions, build_options
from tests.data import ROOT


def public(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [(scannery.Client, scannery.aio.AsyncClient), (scannery.Index, scannery.aio.AsyncIndex)],
)
def test_sync_and_async_have_the_same_methods_with_the_same_arguments(sync: type, asynchronous: type) -> None:
    one, other = public(sync), public(asynchronous)
    assert one.keys() == other.keys()
    for name, signature in one.items():
        assert list(signature.parameters.values()) == list(other[name].parameters.values()), name
    assert (
        inspect.signature(scannery.connect).parameters == inspect.signature(scannery.aio.connect).parameters
    )


def test_documented_options_are_those_that_are_taken() -> None:
    taken = {name for name in inspect.signature(build_options).parameters if name not in {"k", "unknown"}}
    assert set(SearchOptions.__annotations__) == taken | {"timeout_s", "client_id"}


@pytest.mark.parametrize(
    ("name", "told"), [("wher", "no option 'wher'; did you mean 'where'"), ("colour", "no option 'colour'$")]
)
def test_an_option_that_does_not_exist_is_named_with_the_one_that_was_meant(name: str, told: str) -> None:
    options: Any = {name: None}
    with pytest.raises(TypeError, match=told):
        build_options(10, **options)


@pytest.mark.system
@pytest.mark.parametrize("room", ["client", "serving", "cli"])
def test_every_module_says_what_it_exports(room: str) -> None:
    import ast

    from tests.data import ROOT

    for path in (ROOT / room).glob("**/*.py"):
        tree = ast.parse(path.read_text())
        assigned = [
            t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        ]
        if any(isinstance(n, (ast.FunctionDef, ast.ClassDef)) for n in tree.body):
            assert "__all__" in assigned, path
        assert ast.get_docstring(tree), path


@pytest.mark.system
@pytest.mark.parametrize(("module", "framework"), [("llama_index", "llama_index"), ("mteb", "mteb")])
def test_a_missing_framework_is_named_with_its_extra(module: str, framework: str) -> None:
    if find_spec(framework) is not None:
        pytest.skip(f"{framework} is installed")
    with pytest.raises(ImportError, match=rf"pip install 'scannery\[{module.replace('_', '-')}\]'"):
        import_module(f"scannery.bridges.{module}")


@pytest.mark.system
def test_no_framework_is_imported_unasked() -> None:
    code = (
        "import sys, scannery, scannery.client, scannery.bridges\n"
        "print(*{name.partition('.')[0] for name in sys.modules} & {'llama_index', 'mteb', 'apache_beam', 'torch'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.strip() == ""
