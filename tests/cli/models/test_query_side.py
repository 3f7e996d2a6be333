"""`scannery train --kind query_side`: an encoder of queries is trained, promoted, kept by builds, and rolled back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.references import located_model
from scannery.indexer.models.registry import ModelRegistry
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build
from scannery.pipelines.tuning import search_measurement
from tests.cli.models.test_train import SPEC, built, current, judged, long_talk, records, short_talk, store
from tests.served import copied, made_once

pytestmark = pytest.mark.system
__all__ = ["built", "store"]

QUICK = "steps: 3\nbatch: 16\nlearning_rate: 2.0e-4\n"
NAME = "animals@1"


@pytest.fixture(scope="module", autouse=True)
def few_questions() -> Iterator[None]:
    """Let a small index be measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_measurement, "LEAST_QUESTIONS", 10)
        yield


def spec_of(folder: Path, more: str = QUICK, answer: Callable[[str, str], str] = short_talk) -> Path:
    """Return the spec of a training in a few steps."""
    spec = judged(folder, answer)
    spec.write_text(spec.read_text() + more)
    return spec


def trained(spec: Path, store: Path) -> EncoderVersion:
    assert main(["train", str(spec), "--kind", "query_side", "--store", str(store)]) == 0
    return ModelRegistry(Store.open(store)).read_encoder("animals")


def query_vector(store: Path, reference: str, text: str) -> np.ndarray:
    from scannery.embed import Encoder

    with located_model(f"store:{reference}", Path(), str(store)) as folder:
        vector_D: np.ndarray = Encoder.load(folder, device="cpu").encode_queries([text])[0]
    return vector_D


@pytest.fixture(scope="module")
def with_model(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with an index, and a model that was trained on it."""

    def make(folder: Path) -> None:
        trained(spec_of(folder), copied(built, folder))

    return made_once(tmp_path_factory, "talks-query-side", make) / "copy"


@pytest.fixture
def copy(with_model: Path, tmp_path: Path) -> Path:
    return copied(with_model, tmp_path)


def test_a_model_for_queries_is_promoted_kept_and_rolled_back(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, before = ("--store", str(copy)), current(copy)
    model = ModelRegistry(Store.open(copy)).read_encoder(NAME)
    assert model.kind == "query_side"
    assert model.evaluation is not None
    assert model.evaluation.target.low > 0.2
    assert not any(item.key for item in Store.open(copy).list("_models/animals/runs"))

    assert main(["model", "promote", NAME, "-i", "talks", *where]) == 0
    assert "animals@1 orders its hits, and store:animals@1 encodes its queries" in capsys.readouterr().out
    after = current(copy)
    assert [entry.sha256 for entry in after.segments] == [entry.sha256 for entry in before.segments]
    assert after.encoder == before.encoder
    with scannery.connect(copy) as client:
        index = client.index("talks")
        [hit] = index.search("chess and prices", 1, mode="dense", return_vectors=True)
        assert hit.vector is not None
        score = float(np.dot(query_vector(copy, NAME, "chess and prices"), hit.vector))
        assert hit.score == pytest.approx(score, abs=2e-3)
        hits = index.search("chess and prices", 5, explain=True, max_per_group=1, fields=[])
        assert hits[0].document_id == "chess-prices"
        assert hits.explanation is not None
        assert hits.explanation.ranker is not None
        assert hits.explanation.ranker.model == NAME
        index.upsert([{"id": "late", "text": "A late talk about chess."}])
    assert seal(Store.open(copy), "talks") is not None
    (tmp_path / "more.jsonl").write_text(json.dumps(records()[0] | {"id": "more"}))
    build(SPEC, [str(tmp_path / "more.jsonl")], str(copy))
    kept, state = current(copy).search_state.model_dump(), after.search_state.model_dump()
    assert kept == state, "a spec that names none keeps it"

    assert main(["model", "gc", *where, "--keep", "1"]) == 0
    assert main(["model", "rollback", "-i", "talks", *where]) == 0
    assert current(copy).search_state == before.search_state
    assert main(["model", "rollback", "-i", "talks", *where]) == 3


def test_a_model_is_compared_with_the_one_before_as_if_neither_knew_the_queries(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(copy))
    first = ModelRegistry(Store.open(copy)).read_encoder(NAME).evaluation
    assert main(["model", "promote", NAME, "-i", "talks", *where]) == 0
    second = trained(spec_of(tmp_path), copy).evaluation
    assert first is not None
    assert second is not None
    assert second.target.current == pytest.approx(first.target.candidate)
    assert second.target.candidate == pytest.approx(first.target.candidate, abs=0.01), "from the same base"
    assert second.compared_with == NAME
    capsys.readouterr()
    # An order would be fitted to vectors of queries that the encoder knows.
    assert main(["train", str(tmp_path / "train.yaml"), *where]) == 2
    assert "are among the queries that the model is fitted to" in " ".join(capsys.readouterr().err.split())


def test_other_queries_compare_a_model(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "q.jsonl").write_text(json.dumps({"_id": "a", "text": "what does a violin cost"}))
    (tmp_path / "r.tsv").write_text("query-id\tcorpus-id\tscore\na\tviolin-prices\t1\n")
    files = ("--queries", str(tmp_path / "q.jsonl"), "--qrels", str(tmp_path / "r.tsv"))
    capsys.readouterr()
    assert main(["model", "evaluate", NAME, "-i", "talks", "--store", str(copy), *files, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["queries"], told["model"]) == (1, NAME)


def test_an_index_without_words_learns_queries_alone(tmp_path: Path) -> None:
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()))
    store = tmp_path / "store"
    build(SPEC | {"lexical": False}, [str(tmp_path / "talks.jsonl")], str(store))
    model = trained(spec_of(tmp_path, "steps: 4\nbatch: 16\nlearning_rate: 4.0e-4\n", long_talk), store)
    assert model.search is not None
    assert model.search.ranker is None
    assert model.evaluation is not None
    assert model.evaluation.target.low > 0
    assert main(["model", "promote", "animals", "-i", "talks", "--store", str(store)]) == 0
    with scannery.connect(store) as client:
        [hit] = client.index("talks").search("chess and prices", 1, return_vectors=True)
        assert hit.vector is not None
        score = float(np.dot(query_vector(store, NAME, "chess and prices"), hit.vector))
    assert hit.score == pytest.approx(score, abs=2e-3)
    assert main(["model", "rollback", "-i", "talks", "--store", str(store)]) == 0
    assert current(store).query_encoder is None
