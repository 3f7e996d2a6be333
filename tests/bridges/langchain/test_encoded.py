"""Texts that the index encodes itself, by the real model: no embedding, hybrid search, reranking, times."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.embeddings import Embeddings

import scannery
from scannery.bridges.langchain import ScanneryRetriever, ScanneryVectorStore
from scannery.bridges.langchain.documents import scored_document
from scannery.client import Hit
from scannery.indexer import Store
from tests.embed.tiny_models import make_cross_encoder, make_model
from tests.served import MINILM, SENTENCES, serving


class ByIndex(Embeddings):
    """The vectors of the index's own encoder, as an embedding of the caller."""

    def __init__(self, index: scannery.Index) -> None:
        self._index = index

    def embed_query(self, text: str) -> list[float]:
        return self._index.embed([text])[0].tolist()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return self._index.embed(texts, kind="document").tolist()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("encoded")
    reranker = make_cross_encoder(tmp_path_factory.mktemp("cross"))
    Store.open(folder, create=True)
    with serving(folder, device="cpu", models=(MINILM,), reranker=str(reranker)) as server:
        yield server.address


@pytest.fixture(scope="module")
def store(target: str) -> Iterator[ScanneryVectorStore]:
    made = ScanneryVectorStore(target=target, index="texts", encoder=MINILM, timeout_s=120)
    made.add_texts(
        list(SENTENCES.values()), [{"letters": len(text)} for text in SENTENCES.values()], ids=list(SENTENCES)
    )
    yield made
    made.close()


def test_the_encoder_of_the_server_is_used(store: ScanneryVectorStore):
    document, score = store.similarity_search_with_score("how do volcanoes erupt", k=1)[0]
    assert document.id == "volcano" and 0.2 < score < 1
    assert store.similarity_search("a game with pieces", k=1)[0].id == "chess"
    assert store.max_marginal_relevance_search("music", k=2, fetch_k=6)[0].id == "orchestra"
    assert asyncio.run(store.asimilarity_search("income", k=1))[0].id == "tax"


def test_the_retriever_searches_by_meaning_and_words(store: ScanneryVectorStore):
    retriever = ScanneryRetriever(vectorstore=store, k=3, alpha=0.5)
    found = retriever.invoke("a knight erupts")
    assert {document.id for document in found[:2]} == {"volcano", "chess"}
    chess = next(document for document in found if document.id == "chess")
    assert chess.metadata["lexical_score"] > 0 and chess.metadata["dense_score"] > 0
    assert chess.metadata["letters"] == len(SENTENCES["chess"])
    assert asyncio.run(retriever.ainvoke("a knight erupts")) == found
    words = ScanneryRetriever(vectorstore=store, mode="lexical", filter={"letters": {"$gt": 0}})
    assert [document.id for document in words.invoke("knight")] == ["chess"]


def test_the_relevance_of_a_hit_is_in_the_metadata():
    hit = Hit(id="a", document_id="a", score=0.5, relevance=0.75)
    assert scored_document(hit).metadata == {"score": 0.5, "relevance": 0.75}


def test_an_embedding_of_the_caller_gets_the_same_hits(store: ScanneryVectorStore, target: str):
    with scannery.connect(target) as client:
        own = ScanneryVectorStore(ByIndex(client.index("texts")), target=target, index="texts")
        for options in ({"mode": "hybrid"}, {"mode": "dense", "rerank": 4}, {"mode": "lexical"}):
            theirs = ScanneryRetriever(vectorstore=store, **options).invoke("a knight erupts")
            ours = ScanneryRetriever(vectorstore=own, **options).invoke("a knight erupts")
            assert [document.id for document in ours] == [document.id for document in theirs]
        own.close()


def test_reranked_documents_come_in_the_order_of_the_cross_encoder(store: ScanneryVectorStore):
    found = ScanneryRetriever(vectorstore=store, k=4, rerank=4).invoke("how do eruptions happen")
    scores = [document.metadata["rerank_score"] for document in found]
    assert scores == sorted(scores, reverse=True) and len(scores) == 4


def test_times_and_documents_of_passages_are_in_the_metadata(store: ScanneryVectorStore, target: str):
    with scannery.connect(target) as client:
        client.index("texts").upsert(
            [
                {
                    "id": "talk#3",
                    "document_id": "talk",
                    "title": "On whales",
                    "text": "Whales sing across the ocean.",
                    "time_start_s": 61.5,
                    "time_end_s": 64.0,
                    "payload": {"url": "x"},
                }
            ]
        )
    metadata = ScanneryRetriever(vectorstore=store, k=1).invoke("whales")[0].metadata
    assert metadata["title"] == "On whales" and metadata["document_id"] == "talk"
    assert (metadata["time_start_s"], metadata["time_end_s"]) == (61.5, 64.0)
    assert metadata["payload"] == {"url": "x"}
    store.delete(["talk#3"])


def test_embedded_the_model_is_named(tmp_path: Path):
    store = ScanneryVectorStore(target=tmp_path / "store", index="texts", encoder=MINILM)
    store.add_texts(list(SENTENCES.values()), ids=list(SENTENCES))
    assert store.similarity_search("how do volcanoes erupt", k=1)[0].id == "volcano"
    store.close()


def test_without_embedding_and_encoder_the_only_model_of_the_server_is_used(tmp_path: Path):
    Store.open(tmp_path / "store", create=True)
    with serving(tmp_path / "store", device="cpu", models=(MINILM,)) as server:
        store = ScanneryVectorStore(target=server.address, index="texts", timeout_s=120)
        store.add_texts(list(SENTENCES.values()), ids=list(SENTENCES))
        assert store.similarity_search("how do volcanoes erupt", k=1)[0].id == "volcano"
        store.close()


def test_where_no_model_or_several_are_possible_one_must_be_named(tmp_path: Path):
    store = ScanneryVectorStore(target=tmp_path / "store", index="texts")
    with pytest.raises(scannery.InvalidArgumentError, match="name the model .* has no encoder") as caught:
        store.similarity_search("volcano")
    assert caught.value.field == "encoder"
    store.close()
    models = [str(make_model("static", tmp_path / name)) for name in ("one", "two")]
    with serving(tmp_path / "store", device="cpu", models=tuple(models)) as server:
        store = ScanneryVectorStore(target=server.address, index="texts")
        with pytest.raises(scannery.InvalidArgumentError, match="/one/model, .*/two/model"):
            store.similarity_search("volcano")
        store.close()
