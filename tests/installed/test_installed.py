"""README's commands and the examples, where only what the wheel declares is installed."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from tests.data import ROOT
from tests.installed.conftest import Environments
from tests.installed.program import Environment
from tests.pages import blocks
from tests.tools.ports import free_port

PROGRAMS = sorted((ROOT / "examples" / "frameworks").glob("*.py"))
README = "scannery[minilm,documents]"
"""What README installs."""
ANSWERS = {
    "with_beam_rag.py": ["(bees)", "(lava)"],
    "with_haystack.py": ["[bees]", "since 2023: ['lava', 'violins']"],
    "with_langchain.py": ["nearest: Bees", "(lava)"],
    "with_llama_index.py": ["nearest: Bees", "since 2023: The violins"],
    "with_openai.py": ["(bees)"],
    "with_vertex.py": ["nearest: [('orange', 1.0)", "cold: ['green']"],
    "with_vertex_collections.py": ["nearest: Bees"],
}
OPTIONAL = {
    "scannery.bridges.beam_rag.enrichment": "google.api_core",
    "scannery.bridges.mcp.": "'mcp",
    "scannery.console.": "No module named",
    "scannery.live.log.postgres.": "psycopg",
    "scannery.runtime.asgi_server": "No module named",
}
"""Modules that others import when they are needed, after a look for the package of an extra."""
IMPORTS = """
import importlib, json, pkgutil, scannery, sys
failed = {}
def names(package):
    for each in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        yield each.name, each.ispkg
def visit(package):
    for name, is_package in names(package):
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            failed[name] = str(error)
        else:
            if is_package:
                visit(module)
visit(scannery)
json.dump(failed, sys.stdout)
"""
"""Imports all modules, and prints the errors by module; what is below a package that cannot be imported is left out."""


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_an_example_runs_where_its_own_first_lines_are_followed(
    environments: Environments, program: Path
) -> None:
    lines = re.findall(r"^    (.+)$", ast.get_docstring(ast.parse(program.read_text())) or "", re.MULTILINE)
    named = [
        word.strip("'") for line in lines if line.startswith("pip install ") for word in line.split()[2:]
    ]
    environment = environments.make([README, *named])
    address = _followed(environment, [line for line in lines if not line.startswith("pip ")])
    target = f"http://{address}" if "[URL]" in lines[-1] else address
    said = environment.run(f"python {program} {target}", tries=3)
    assert all(answer in said for answer in ANSWERS[program.name]), said


def _followed(environment: Environment, lines: list[str]) -> str:
    """Follow the lines of an example but the last one, which runs it; return the address of a server, or nothing."""
    address = ""
    for line in lines[:-1]:
        if line.startswith("scannery serve"):
            address = f"127.0.0.1:{free_port()}"
            command = line.removesuffix("&").replace("127.0.0.1:7080", address)
            listen = f"127.0.0.1:{free_port()}" if command != line.removesuffix("&") else address
            environment.serve(f"{command} --listen {listen}")
        else:
            environment.run(line)
    return address


def test_readme(environments: Environments) -> None:
    environment = environments.make([README], new=True)
    (environment.folder / "docs").symlink_to(ROOT / "docs")
    environment.run("scannery --version; scannery demo --store ./demo-store")
    for number, block in enumerate(blocks("README.md")):
        if block.language == "python":
            file = environment.folder / f"block{number}.py"
            file.write_text(block.text)
            environment.run(f"python {file}", tries=3)
        elif block.language == "sh" and "make " not in block.text:
            environment.run(block.text)
    environment.run(f"python {ROOT / 'examples' / 'podcasts' / 'prepare.py'} --help")


def test_modules_need_only_what_the_wheel_declares_or_name_the_extra(environments: Environments) -> None:
    environment = environments.make(["scannery"])
    failed = json.loads(environment.run(f"python -c '{IMPORTS}'"))
    unexpected = {
        name: error
        for name, error in failed.items()
        if "pip install 'scannery[" not in error
        and not any(name.startswith(front) and package in error for front, package in OPTIONAL.items())
    }
    assert unexpected == {}
    assert "scannery.bridges.langchain" in failed  # else the frameworks are there
