"""`scannery-client`: programs that only ask a server, where nothing of what serves and builds is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from tests.data import ROOT
from tests.installed.conftest import Environments
from tests.installed.program import Environment
from tests.installed.test_installed import ANSWERS
from tests.tools.declared_environment import Installed
from tests.tools.ports import free_port

PROGRAM = """
import sys
import numpy as np
import scannery
{imports}
with scannery.connect(sys.argv[1], timeout_s=120) as client:
    index = client.create_index(sys.argv[2], dimensions=4, attributes={{"n": "int"}})
    rows = [{{"id": str(i), "vector": np.eye(4)[i % 4] + i / 100, "attributes": {{"n": i}}}} for i in range(40)]
    {write}
    print(len(index.search(np.eye(4)[2], k=5, where={{"n": {{"$lt": 20}}}})), index.count())
    index.delete(["0"])
    print(index.count(), [each.id for each in index.get(["1"])])
print(sorted({{"grpc", "pyarrow", "pydantic", "torch", "scann"}} & sys.modules.keys()))
"""
TABLE = """
ids, vectors = [each["id"] for each in rows], [list(each["vector"]) for each in rows]
    index.upsert_many(pa.table({"id": ids, "vector": vectors, "n": range(40)}))
""".strip()
MISSING = """
import scannery
for target in ("./store", "127.0.0.1:1"):
    try:
        scannery.connect(target)
    except ModuleNotFoundError as error:
        print(error)
with scannery.connect("http://127.0.0.1:1", retries=False) as client:
    try:
        client.index("a").upsert([{"id": "a", "vector": [1.0], "title": 5}])
    except ModuleNotFoundError as error:
        print(error)
for framework in ("haystack", "langchain", "llama_index", "mteb"):
    try:
        __import__(f"scannery.bridges.{framework}")
    except ImportError as error:
        print(error)
import scannery.indexer
dir(scannery.indexer)
"""
MODEL = "sentence-transformers/all-MiniLM-L6-v2"
MEGABYTES = {"scannery-client": 90, "scannery-client[grpc]": 150}
FRAMEWORKS = {
    "haystack": "with_haystack.py",
    "langchain": "with_langchain.py",
    "llama-index": "with_llama_index.py",
}


@pytest.fixture(scope="module")
def served(
    installed: Installed, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """Addresses of a server over gRPC and over HTTP."""
    environments = Environments(installed, tmp_path_factory.mktemp("server"), cache)
    address, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
    server = environments.make(["scannery[minilm]"])
    server.run("python -c 'import scannery; scannery.connect(\"./s\", create=True).close()'")
    server.serve(f"scannery serve --store ./s --listen {address} --http {http} --model {MODEL}")
    yield address, f"http://{http}"
    environments.close()


@pytest.mark.parametrize(
    ("requirement", "write", "imports", "modules"),
    [
        ("scannery-client", "index.upsert(rows)", "", []),
        ("scannery-client[grpc]", "index.upsert_many(rows)", "", ["grpc"]),
        ("scannery-client[tables]", TABLE, "import pyarrow as pa", ["pyarrow", "pydantic"]),
    ],
)
def test_it_writes_and_searches(
    environments: Environments,
    served: tuple[str, str],
    requirement: str,
    write: str,
    imports: str,
    modules: Sequence[str],
) -> None:
    grpc, http = served
    client = environments.make([requirement])
    program = client.folder / "program.py"
    program.write_text(PROGRAM.format(write=write, imports=imports))
    said = client.run(f"python {program} {grpc if 'grpc' in requirement else http} alone{len(requirement)}")
    assert said.splitlines() == ["5 40", "39 ['1']", str(modules)]
    if requirement in MEGABYTES:
        assert _megabytes(client) <= MEGABYTES[requirement]


def _megabytes(environment: Environment) -> float:
    """Return the size of the installed files, with bytecode, in MB of a million bytes."""
    return int(environment.run("du -sbL --exclude=bin ../env/lib | cut -f1")) / 1e6


def test_what_is_missing_is_named(environments: Environments) -> None:
    client = environments.make(["scannery-client"])
    (client.folder / "program.py").write_text(MISSING)
    store, target, title, *frameworks = client.run("python program.py").splitlines()
    assert store.startswith("a store without a server needs ") and store.endswith("pip install 'scannery'")
    assert target.startswith("the target '127.0.0.1:1'") and target.endswith("'scannery-client[grpc]'")
    assert title.startswith("a title that is not a string") and title.endswith("'scannery-client[tables]'")
    extras = [framework.rpartition(" pip install ")[2] for framework in frameworks]
    assert extras == [
        f"'scannery-client[{extra}]'" for extra in ("haystack", "langchain", "llama-index", "mteb")
    ]


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_the_vector_stores_of_frameworks_need_no_more(
    environments: Environments, served: tuple[str, str], extra: str
) -> None:
    _, http = served
    client, program = environments.make([f"scannery-client[{extra}]"]), FRAMEWORKS[extra]
    said = client.run(f"python {ROOT / 'examples' / 'frameworks' / program} {http}", tries=3)
    assert all(answer in said for answer in ANSWERS[program]), said


def test_both_packages_declare_the_same_versions() -> None:
    whole, alone = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
        for folder in (".", "packaging/client")
    )
    extras = whole["optional-dependencies"]
    declared = {
        Requirement(each)
        for each in [*whole["dependencies"], *(each for group in extras.values() for each in group)]
    }
    assert {Requirement(each) for each in alone["dependencies"]} <= declared
    for extra, requirements in alone["optional-dependencies"].items():
        assert {Requirement(each) for each in requirements} <= declared, extra
        assert extra in ("grpc", "tables") or extras[extra] == requirements
    assert alone["requires-python"] == whole["requires-python"]
