"""The demo, run for real: Beam, the encoder, a server on a loopback port, the SDK."""

from __future__ import annotations

import json
import re
import socket
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import scannery
from scannery.cli.commands import demo as demo_module
from scannery.cli.commands.demo import demo
from scannery.cli.main import main
from scannery.cli.sample import EPISODES_PATH, SPEC_PATH, Question, episodes, questions
from scannery.embed import Encoder
from scannery.indexer import read_manifest
from scannery.indexer.store.object_store import Store
from tests.served import MINILM

pytestmark = pytest.mark.system

ASKED = [question for question in questions() if question.demo]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store that a first run leaves: every later run on it is quick."""
    folder = tmp_path_factory.mktemp("demo") / "store"
    assert run("--store", str(folder), "--json").exit_code == 0
    return folder


@pytest.fixture
def three_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus that builds in a second, and a folder for temporary files. Returns the folder."""
    lines = EPISODES_PATH.read_text(encoding="utf-8").splitlines(keepends=True)
    small = tmp_path / "three.jsonl"
    small.write_text("".join(lines[:3]), encoding="utf-8")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(demo_module, "EPISODES_PATH", small)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


@pytest.fixture(scope="module")
def vectors(store: Path) -> np.ndarray:
    """Vectors of the episodes, in their order."""
    with scannery.connect(store) as client:
        points = client.index("sample").get([row["id"] for row in episodes()], vectors=True)
    return np.stack([point.vector for point in points if point is not None and point.vector is not None])


@pytest.fixture(scope="module")
def asked() -> dict[str, np.ndarray]:
    """Vectors of all questions, by their texts."""
    texts = [question.question for question in questions()]
    return dict(zip(texts, Encoder.load(MINILM, device="cpu").encode_queries(texts), strict=True))


@pytest.mark.parametrize("question", questions(), ids=lambda question: question.question)
def test_the_encoder_ranks_the_expected_episodes_first(
    question: Question, vectors: np.ndarray, asked: dict[str, np.ndarray]
):
    scores_N = vectors @ asked[question.question]
    ranked = map(episodes().__getitem__, np.argsort(-scores_N))
    allowed = [row["id"] for row in ranked if _passes(row, question)]
    assert set(question.expect) <= set(allowed[: question.within])


def _passes(row: dict[str, Any], question: Question) -> bool:
    """The few operators that the questions use; the real ones are tested with the engine."""
    for name, wanted in question.where.items():
        tests = wanted if isinstance(wanted, dict) else {"$eq": wanted}
        for operator, bound in tests.items():
            value = row[name]
            if not {"$eq": value == bound, "$gte": value >= bound, "$lte": value <= bound}[operator]:
                return False
    return True


def test_no_two_episodes_mean_the_same(vectors: np.ndarray):
    similarity_NN = vectors @ vectors.T
    np.fill_diagonal(similarity_NN, 0)
    assert similarity_NN.max() < 0.7


def test_every_question_finds_its_episode(store: Path):
    answers = json.loads(run("--store", str(store), "--json").stdout)["answers"]
    assert [answer["question"] for answer in answers] == [question.question for question in ASKED]
    for answer, question in zip(answers, ASKED, strict=True):
        hits = answer["hits"]
        assert len(hits) == 3
        assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
        assert set(question.expect) <= {hit["id"] for hit in hits[: question.within]}
        assert not (question.no_shared_words and hits[0]["shared_words"])
        assert answer["milliseconds"] > 0


def test_the_filtered_question_gets_only_what_passes(store: Path):
    published = {row["id"]: row["published"] for row in episodes()}
    filtered = [
        answer
        for answer in json.loads(run("--store", str(store), "-k", "50", "--json").stdout)["answers"]
        if answer["where"]
    ]
    assert filtered
    for answer in filtered:
        assert len(answer["hits"]) == 50
        assert all(published[hit["id"]] >= answer["where"]["published"]["$gte"] for hit in answer["hits"])


def test_the_whole_corpus_is_in_the_store(store: Path):
    manifest = read_manifest(Store.open(str(store)), "sample")
    assert manifest.rows == len(episodes())
    assert manifest.version == 1  # however often it ran


def test_people_see_hits_words_and_what_to_do_next(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_module._console, "width", 200)
    out = run("--store", str(store)).stdout
    assert re.search(r"Build +300 podcast episodes → 300 vectors of 384 dimensions", out)
    assert re.search(r"gRPC on 127\.0\.0\.1:\d+", out)
    assert "What Comes Out of No Tailpipe  Warm Front, 2018-06-12" in out
    assert "words shared by the question and hit 1: none" in out
    assert 'where {"published"' in out
    assert re.search(r"\d+ ms", out)
    assert f'scannery search --index sample --store {store} "' in out
    assert f"scannery serve --store {store}" in out
    assert str(SPEC_PATH) in out
    assert "Traceback" not in out


def test_a_narrow_terminal_does_not_break_the_commands(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(demo_module._console, "width", 40)
    out = run("--store", str(store)).stdout
    assert f'scannery search --index sample --store {store} "overcoming a fear of flying"\n' in out


def test_your_own_questions(store: Path):
    result = run("--store", str(store), "-k", "1", "--json", "how do volcanoes form", "[bold] brackets")
    first, second = json.loads(result.stdout)["answers"]
    assert [hit["id"] for hit in first["hits"]] == ["curious-residue-004"]
    assert second["question"] == "[bold] brackets"


def test_markup_in_a_question_is_shown_as_it_is(store: Path):
    assert "[bold] brackets" in run("--store", str(store), "[bold] brackets").stdout


def test_a_temporary_store_is_removed(three_episodes: Path):
    result = run()
    assert result.exit_code == 0
    assert list(three_episodes.iterdir()) == []
    assert "scannery demo --store ./demo-store" in result.stdout


def test_a_temporary_store_is_kept_on_request(three_episodes: Path):
    result = run("--keep")
    (folder,) = three_episodes.iterdir()
    assert str(folder) in result.stdout.replace("\n", "")
    assert read_manifest(Store.open(str(folder)), "sample").rows == 3


def test_a_failure_removes_the_temporary_store_and_is_reported(
    three_episodes: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(demo_module, "EPISODES_PATH", three_episodes.parent / "missing.jsonl")
    result = run()
    assert result.exit_code != 0
    assert "missing.jsonl" in str(result.exception)
    assert list(three_episodes.iterdir()) == []


def test_a_store_that_is_a_file_is_one_clear_line(three_episodes: Path, capsys: pytest.CaptureFixture[str]):
    file = three_episodes / "file"
    file.write_text("not a store")
    assert main(["demo", "--store", str(file)]) != 0
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert str(file) in error
    assert error.count("\n") == 1
    assert file.read_text() == "not a store"


def test_nothing_but_loopback_is_contacted(three_episodes: Path, monkeypatch: pytest.MonkeyPatch):
    real = socket.socket.connect
    contacted: list[Any] = []

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
            contacted.append(address)
            raise OSError("there is no network in this test")
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    assert run().exit_code == 0
    assert contacted == []


def run(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(demo)
    return CliRunner().invoke(app, list(arguments))


def test_the_demo_shows_what_a_ranking_changes(store: Path) -> None:
    with scannery.connect(store) as client:
        index = client.index("sample")
        [question] = [each for each in ASKED if each.ranking]
        before, after = (
            index.search(question.question, 3, ranking=ranking) for ranking in (None, question.ranking)
        )
    assert before[0].id == after[0].id == question.expect[0]
    assert [hit.id for hit in before] != [hit.id for hit in after]
    shown = run("--store", str(store)).stdout
    assert f"{question.question}  by the ranking {question.ranking}" in shown
    assert f"{after[0].score:.2f} = {after[0].base_score:.2f}" in shown
