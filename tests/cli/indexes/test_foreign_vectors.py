"""Vectors of another model in commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from tests.indexer.vectors.test_strangeness import model, vectors
from tests.serving.services.test_foreign_vectors import FOREIGN, OWN, built


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("foreign"), vector_model="org/model-a")


def run(capsys: pytest.CaptureFixture[str], store: Path, *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments, "--index", "given", "--store", str(store)])
    output = capsys.readouterr()
    return status, output.out, output.err


def test_a_search_names_its_model(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = json.dumps(OWN[0].tolist())
    status, _, problem = run(capsys, store, "search", "--vector", vector, "--vector-model", "model-b")
    assert status == 2
    assert "is 'model-b', but the vectors of index 'given' are of 'org/model-a'" in " ".join(problem.split())
    status, text, _ = run(capsys, store, "search", "--vector", vector, "--vector-model", "model-a")
    assert status == 0
    assert "row0" in text


def test_explain_warns(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vector = json.dumps(FOREIGN[0].tolist())
    _, text, _ = run(capsys, store, "search", "--vector", vector, "--explain")
    assert "warning: the vector of the query does not look like those of the index" in text


def test_an_upsert_tells_of_foreign_vectors(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        {"id": f"x{row}", "vector": row_D.tolist()}
        for row, row_D in enumerate(vectors(model(3), 20, topic=1))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, problem = run(
        capsys, store, "upsert", str(tmp_path / "rows.jsonl"), "--vector-model", "model-b"
    )
    assert status == 2
    assert "org/model-a" in problem
    status, text, warning = run(capsys, store, "upsert", str(tmp_path / "rows.jsonl"))
    assert (status, text.split()[0]) == (0, "20")
    assert "warning: upserts[0].datapoint.vector: 20 of 20 vectors" in " ".join(warning.split())
