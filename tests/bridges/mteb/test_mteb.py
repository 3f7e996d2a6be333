"""mteb evaluates Scannery on Cranfield, from local files, as a search system and as an index of a model's vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
from datasets import Dataset
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import SearchEncoderWrapper
from mteb.models.model_meta import ModelMeta
from mteb.models.models_protocols import SearchProtocol

import scannery
from benchmarks.collections import cranfield
from scannery.bridges.mteb import ScanneryIndex, ScannerySearch
from scannery.testing import WordEncoder
from tests.data import shared_data
from tests.served import MINILM, serving

DOCUMENTS, QUERIES = 300, 40


class CranfieldTask(AbsTaskRetrieval):
    """The first documents of Cranfield, and questions about them."""

    metadata = TaskMetadata(
        name="Cranfield300", type="Retrieval", main_score="ndcg_at_10", description="Abstracts on aerodynamics.",
        reference=None, dataset={"path": "local", "revision": "1"}, eval_splits=["test"], eval_langs=["eng-Latn"],
        modalities=["text"], category="t2t", date=None, domains=[], task_subtypes=[], license=None,
        annotations_creators=None, dialect=[], sample_creation=None, bibtex_citation="",
    )  # fmt: skip
    ranked = False

    def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
        collection = cranfield()
        documents = collection.documents[:DOCUMENTS]
        known = {name for name, _, _ in documents}
        judged = {
            name: {document: level for document, level in levels.items() if document in known}
            for name, levels in collection.judgements.items()
        }
        asked = [name for name, levels in judged.items() if len(levels) > 2][:QUERIES]
        data = RetrievalSplitData(
            corpus=Dataset.from_list(
                [dict(zip(("id", "title", "text"), one, strict=True)) for one in documents]
            ),
            queries=Dataset.from_list([{"id": name, "text": collection.queries[name]} for name in asked]),
            relevant_docs={name: judged[name] for name in asked},
            top_ranked={name: sorted(known)[:50] for name in asked} if self.ranked else None,
        )
        self.dataset = {"default": {"test": data}}
        self.data_loaded = True


class RankedTask(CranfieldTask):
    """The same documents, of which each question has some to rank."""

    metadata = CranfieldTask.metadata.model_copy(update={"name": "Cranfield300Ranked", "type": "Reranking"})
    ranked = True


class WordModel:
    """A model of mteb that encodes texts as their words."""

    mteb_model_meta = ModelMeta.create_empty({"name": "scannery/words", "revision": "1"})

    def __init__(self) -> None:
        self._encoder = WordEncoder(64)

    def encode(self, inputs: Any, **kwargs: Any) -> np.ndarray:
        return np.concatenate([self._encoder.encode_documents(batch["text"]) for batch in inputs])

    def similarity(self, one: Any, other: Any) -> Any:
        return np.asarray(one) @ np.asarray(other).T

    def similarity_pairwise(self, one: Any, other: Any) -> Any:
        return (np.asarray(one) * np.asarray(other)).sum(1)


@pytest.fixture(scope="module", params=["store", "grpc"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    shared_data("ir-cranfield")  # skips without the data
    folder: Path = tmp_path_factory.mktemp("mteb")
    if request.param == "store":
        yield str(folder / "store")
        return
    with serving(folder) as server:
        yield server.address


def score(model: Any, task: AbsTaskRetrieval, measure: str = "ndcg_at_10") -> float:
    result = mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False)
    [only] = result.task_results
    return float(only.scores["test"][0][measure])


@pytest.mark.parametrize("task", [CranfieldTask, RankedTask])
def test_an_index_ranks_as_the_comparison_of_all_vectors(
    target: str, task: Callable[[], AbsTaskRetrieval]
) -> None:
    index = ScanneryIndex(target, exact=True)
    try:
        found = score(SearchEncoderWrapper(WordModel(), index_backend=index), task())
        wanted = score(SearchEncoderWrapper(WordModel()), task())
    finally:
        index.close()
    assert found == pytest.approx(wanted, abs=1e-3)
    assert wanted > 0.05


def test_a_service_is_a_model_of_mteb(target: str) -> None:
    model = ScannerySearch(target, mode="lexical", keep=True)
    try:
        assert isinstance(model, SearchProtocol)
        assert model.mteb_model_meta.name == "scannery/words-lexical"
        found = score(model, CranfieldTask())
        assert 0.4 < found < 0.6
        assert 0 < score(model, RankedTask()) < 1
        with scannery.connect(target) as client:
            assert [info.name for info in client.indexes()] == [
                "mteb-cranfield300-test-default", "mteb-cranfield300ranked-test-default",
            ]  # fmt: skip
            assert client.index("mteb-cranfield300-test-default").count() == DOCUMENTS
            for info in client.indexes():
                client.drop_index(info.name)
    finally:
        model.close()


def test_the_service_encodes_texts_and_cuts_them(tmp_path: Path) -> None:
    corpus = [
        {"id": "bees", "title": "Bees", "text": "make honey. " + "The river is long. " * 60 + "Insects of a hive."},
        {"id": "trains", "title": None, "text": "Trains run on rails."},
        {"id": "empty", "title": "", "text": ""},
    ]  # fmt: skip
    queries = {"id": ["q", "r"], "text": ["a beehive", "railways"]}
    task = {
        "task_metadata": CranfieldTask.metadata,
        "hf_split": "test",
        "hf_subset": "x/Y",
        "encode_kwargs": {},
    }
    model = ScannerySearch(
        tmp_path / "store",
        encoder=MINILM,
        mode="hybrid",
        alpha=0.9,
        create={"chunk": {"max_tokens": 32, "overlap_tokens": 8}},
    )
    try:
        assert model.mteb_model_meta.name == "scannery/all-MiniLM-L6-v2-hybrid"
        with pytest.raises(ValueError, match="no corpus was indexed"):
            model.search(queries, top_k=2, **task)
        model.index(corpus, **task)
        found = model.search(queries, top_k=2, **task)
        assert [next(iter(scores)) for scores in found.values()] == ["bees", "trains"]
        assert {name for scores in found.values() for name in scores} == {"bees", "trains"}
        model.index(corpus, **task)
        ranked = model.search(queries, top_k=2, top_ranked={"q": ["trains", "empty"]}, **task)
        assert {name: list(scores) for name, scores in ranked.items()} == {"q": ["trains"], "r": []}
        with scannery.connect(tmp_path / "store") as client:
            assert not client.indexes()
    finally:
        model.close()


def test_ranked_documents_are_the_only_ones(target: str) -> None:
    index = ScanneryIndex(target, "own")
    vectors = np.eye(4, dtype=np.float32)
    try:
        index.add_documents(vectors[:2], ["a", "b"])
        index.add_documents(vectors[2:], ["c", "d"])
        scores, numbers = index.search(vectors[2:3], 2)
        assert numbers[0][0] == 2
        assert scores[0] == pytest.approx([1, 0])
        with pytest.warns(UserWarning, match="no ranked documents for query 1"):
            scores, numbers = index.search(
                vectors[:2], 9, top_ranked={"q": ["d", "a"]}, query_idx_to_id={0: "q", 1: "r"}
            )
        assert numbers == [[1, 0], []]
        assert scores[0] == pytest.approx([1, 0])
        with pytest.raises(scannery.InvalidArgumentError, match="idxs: must be 1"):
            index.add_documents(vectors[:1], [])
        index.clear()
        with pytest.raises(ValueError, match="nothing was added"):
            index.search(vectors, 1)
    finally:
        index.close()


def test_euclidean_scores_are_minus_the_distance(target: str) -> None:
    index = ScanneryIndex(target, "euclid", distance="squared_l2")
    try:
        index.add_documents(np.array([[0.0, 0.0], [3.0, 4.0]]), ["a", "b"])
        scores, numbers = index.search(np.array([[0.0, 0.0]]), 2)
        assert numbers == [[0, 1]]
        assert scores[0] == pytest.approx([0, -5])
    finally:
        index.close()
