"""The programs of examples/frameworks, run as they stand there."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store
from scannery.serving.config import VertexConfig
from tests.data import ROOT
from tests.pages import blocks
from tests.served import MINILM, serving

PROGRAMS = ROOT / "examples" / "frameworks"
BEES = "Bees dance to tell each other where the flowers are."
LAVA = "Lava is molten rock that reaches the surface."
VIOLINS = "The violins wait for the conductor to lift the baton."


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder: programs without arguments make a store there."""
    monkeypatch.chdir(tmp_path)


def run(name: str, *arguments: str) -> None:
    """Run a program in this process."""
    program = str(PROGRAMS / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [program, *arguments])
        runpy.run_path(program, run_name="__main__")


def test_every_program_is_run_here_and_is_listed() -> None:
    tests, page = Path(__file__).read_text(), (ROOT / "docs" / "adapters.md").read_text()
    programs = [path.name for path in PROGRAMS.glob("*.py")]
    assert len(programs) == 7
    for name in programs:
        assert f'"{name}"' in tests
        assert f"examples/frameworks/{name}" in page
        assert len((PROGRAMS / name).read_text().splitlines()) <= 60


@pytest.mark.parametrize(("name", "lines"), [
    ("with_langchain.py", [f"nearest: {BEES}", f"after page 7: {LAVA}", f"retrieved: {LAVA} (lava)"]),
    ("with_haystack.py", [f"prompt: [bees] {BEES} Q: How do insects communicate?",
     "since 2023: ['lava', 'violins']"]),
    ("with_llama_index.py", [f"nearest: {BEES}", f"since 2023: {VIOLINS}"]),
    ("with_beam_rag.py", [f"how do insects communicate: {BEES} (bees)",
     f"what comes out of volcanoes: {LAVA} (lava)"]),
])  # fmt: skip
def test_a_framework_over_a_store_in_the_process(
    name: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # the second time, the index is there
        run(name)
        assert sorted(capsys.readouterr().out.splitlines()) == sorted(lines)


def test_a_framework_over_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "served", create=True)
    with serving(tmp_path / "served", device="cpu", models=(MINILM,)) as server:
        run("with_langchain.py", server.address)
        assert f"nearest: {BEES}" in capsys.readouterr().out


def test_the_client_of_openai(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "served", create=True)
    with serving(tmp_path / "served", device="cpu", models=(MINILM,)) as server:
        run("with_openai.py", f"http://127.0.0.1:{server.http_port}")
    assert capsys.readouterr().out == f"{MINILM}: {BEES} (bees)\n"


def test_the_client_of_the_managed_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(tmp_path / "served", create=True)
    with serving(tmp_path / "served", vertex=VertexConfig()) as server:
        for _ in range(2):  # nothing is left
            run("with_vertex.py", server.address)
            found = capsys.readouterr().out.splitlines()
            assert found[-2:] == ["nearest: [('orange', 1.0), ('red', 0.9)]", "cold: ['green']"]


def test_the_client_of_the_managed_service_s_collections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Store.open(tmp_path / "served", create=True)
    vertex = VertexConfig(models={"text-embedding-005": MINILM})
    with serving(tmp_path / "served", device="cpu", vertex=vertex) as server:
        for _ in range(2):  # nothing is left
            run("with_vertex_collections.py", server.address)
            assert capsys.readouterr().out == f"nearest: {BEES}\n"


def test_the_examples_of_the_page_of_frameworks(tmp_path: Path) -> None:
    from llama_index.core import Document, MockEmbedding

    found = {
        name: next(
            block.text for block in blocks("docs/adapters.md") if f"scannery.bridges.{name} " in block.text
        )
        for name in ("langchain", "haystack", "llama_index")
    }
    Store.open(tmp_path / "served", create=True)
    with serving(tmp_path / "served", device="cpu", models=(MINILM,)) as server:
        given: dict[str, Any] = {
            "documents": [Document(text="Bees make honey.")],
            "embed_model": MockEmbedding(embed_dim=4),
        }
        ran: dict[str, dict[str, Any]] = {}
        for name, text in found.items():
            names = ran[name] = dict(given)
            exec(text.replace("localhost:7077", server.address), names)
        assert [each.id for each in ran["langchain"]["store"].similarity_search("insects")] == ["a"]
        assert [each.id for each in ran["haystack"]["store"].filter_documents()] == ["a"]
        assert [each.text for each in ran["llama_index"]["retriever"].retrieve("honey")] == [
            "Bees make honey."
        ]
        for names in ran.values():
            names["store"].close()
