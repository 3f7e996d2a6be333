"""`scannery train --kind encoder`: an encoder is trained and registered, and an index of it replaces another."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, read_manifest
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.reader import open_index
from scannery.pipelines.tuning import search_measurement
from scannery.training.encoder.sample import sampled
from scannery.training.encoder.training import _base_of
from scannery.training.judged import judged_queries
from scannery.training.pairs.corpus import read_corpus
from scannery.training.spec import JudgedQueries
from tests.cli.models.test_train import SPEC, built, current, judged, short_talk, store
from tests.http1 import eventually
from tests.served import copied

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


def spec_of(folder: Path, more: str = QUICK) -> Path:
    """Return the spec of a training in a few steps, with a guard."""
    spec = judged(folder, short_talk)
    lines = spec.read_text().replace(
        "qrels.tsv}", "qrels.tsv, guards: [{name: bees, queries: g.jsonl, qrels: g.tsv}]}"
    )
    spec.write_text(lines + more)
    (folder / "g.jsonl").write_text(json.dumps({"_id": "a", "text": "what does a violin cost"}))
    (folder / "g.tsv").write_text("query-id\tcorpus-id\tscore\na\tviolin-prices\t1\n")
    return spec


def trained(spec: Path, store: Path) -> EncoderVersion:
    assert main(["train", str(spec), "--kind", "encoder", "--store", str(store)]) == 0
    return ModelRegistry(Store.open(store)).read_encoder("animals")


@pytest.fixture(scope="module")
def with_model(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with an index, and an encoder that was trained on it."""
    folder = tmp_path_factory.mktemp("encoder")
    copy = copied(built, folder)
    trained(spec_of(folder), copy)
    return copy


@pytest.fixture
def copy(with_model: Path, tmp_path: Path) -> Path:
    return copied(with_model, tmp_path)


def test_an_encoder_is_registered_with_what_it_is_worth(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = ModelRegistry(Store.open(copy)).read_encoder(NAME)
    assert (model.kind, model.base, model.search) == ("encoder", SPEC["encoder"]["model"], None)
    assert model.fingerprint is not None
    assert model.fingerprint["model"] == "store:animals@1"
    assert model.evaluation is not None
    assert model.evaluation.target.queries == 100
    assert model.evaluation.guards["bees"].queries == 1
    assert model.training["sample"] == {"passages": 135, "of": 135}
    assert model.training["used_signals"] == ["judged"], "no talk has a title"
    assert model.evaluation.target.low > 0.2, "its own weight of hybrid search is another one"
    assert not any(item.key for item in Store.open(copy).list("_models/animals/runs"))
    assert current(copy).parent is None, "nothing is published"
    assert main(["model", "promote", NAME, "-i", "talks", "--store", str(copy)]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "by `scannery index migrate talks --encoder store:animals@1`" in message


def test_an_index_moves_to_a_new_encoder_and_back_and_no_query_fails(copy: Path) -> None:
    where = ("--store", str(copy))
    before = read_manifest(Store.open(copy), "talks")
    model = ModelRegistry(Store.open(copy)).read_encoder(NAME)
    assert model.fingerprint is not None
    problems: list[Exception] = []
    answered: list[int] = []
    done = threading.Event()
    with scannery.connect(copy) as client:
        index = client.index("talks")

        def ask() -> None:
            while not done.is_set():
                try:
                    answered.append(len(index.search("chess and prices", 3, fields=[])))
                except Exception as error:  # noqa: BLE001  whatever fails is what is tested
                    problems.append(error)

        former = first_vector(index)
        thread = threading.Thread(target=ask)
        thread.start()
        try:
            assert main(["index", "migrate", "talks", "--encoder", "store:animals@1", *where]) == 0
            manifest = read_manifest(Store.open(copy), "talks")
            eventually(lambda: first_vector(index) != former)
            assert main(["index", "migrate", "talks", "--undo", *where]) == 0
            eventually(lambda: first_vector(index) == former)
        finally:
            done.set()
            thread.join()
    assert not problems
    assert answered
    assert set(answered) == {3}
    assert manifest.encoder is not None
    assert manifest.encoder["digest"] == model.fingerprint["digest"]
    assert manifest.fusion is not None and manifest.fusion != before.fusion, "it has a weight of its own"
    base = _base_of(manifest, ModelRegistry(Store.open(copy)))
    assert base.model == SPEC["encoder"]["model"], "a next training begins where no judged query was seen"
    back = read_manifest(Store.open(copy), "talks")
    assert (back.encoder, back.fusion, back.search_state) == (
        before.encoder,
        before.fusion,
        before.search_state,
    )


def first_vector(index: scannery.Index) -> list[float]:
    [hit] = index.search("chess and prices", 1, mode="dense", return_vectors=True, fields=[])
    assert hit.vector is not None
    return list(hit.vector)


def test_a_sample_has_whole_documents_of_judged_queries_and_what_is_like_them(
    built: Path, tmp_path: Path
) -> None:
    spec_of(tmp_path)
    corpus = read_corpus(open_index(Store.open(built), "talks"))
    assert len(corpus) == 135
    first = corpus.rows_of(corpus.numbers["digest-prices"])
    assert corpus.text(first[0]).startswith("Then somebody says volcano")
    assert {corpus.documents_N[row] for row in first} == {corpus.numbers["digest-prices"]}
    with scannery.connect(built) as client:
        index = client.index("talks")
        target = judged_queries(index, JudgedQueries(queries="queries.jsonl", qrels="qrels.tsv"), tmp_path)
        guard = judged_queries(index, JudgedQueries(queries="g.jsonl", qrels="g.tsv"), tmp_path)
        sample = sampled(index, corpus, target, {"bees": guard}, limit=60, seed=1)
        hit = index.search("what does a violin cost", 1, mode="dense", return_vectors=True)[0]
    names = [corpus.document_ids[number] for number in corpus.documents_N[sample.rows_S]]
    assert len(sample.rows_S) == 60
    assert 25 <= len(sample.target.texts) <= 30
    assert {key for keys in sample.target.relevant.values() for key in keys} <= {*names}
    assert [*sample.guards["bees"].texts] == ["a"]
    assert sample.target.current_Q.shape == (len(sample.target.texts),)
    assert any(name.startswith("digest") for name in names), "what searches find"
    row = int(np.flatnonzero(sample.rows_S == corpus.row_numbers[hit.id])[0])
    assert hit.vector is not None
    assert np.allclose(sample.vectors()[row], hit.vector, atol=1e-6)
