"""Text queries, by the real model."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.embed import DeviceError, Encoder
from scannery.indexer import Manifest, Store, read_manifest
from scannery.runtime.retry import Deadline
from scannery.serving import EncoderUnavailableError, InvalidRequestError
from scannery.serving.catalog.roles import embedded_catalog
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.encoding.query_encoder import QueryEncoder
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.services.search import Service
from tests.http1 import SEARCH, SEARCH_MANY, Http, over_grpc
from tests.served import MINILM, SENTENCES, serving


@pytest.fixture(scope="module")
def manifest(texts: Path) -> Manifest:
    return read_manifest(Store.open(texts), "texts")


@pytest.fixture(scope="module")
def pool() -> EncoderPool:
    return EncoderPool(device="cpu")


def test_meaning_is_found_without_a_shared_word(texts: Path, pool: EncoderPool) -> None:
    service = Service(embedded_catalog(Store.open(texts), encoders=pool))
    queries = {
        "how do eruptions happen": "volcano",
        "vehicles and climate change": "battery",
        "gambit": "chess",
    }
    for query, expected in queries.items():
        response = service.search(search("texts", query, 1).request, Deadline.after(60))
        assert response.hits[0].datapoint.id == expected
    many = service.search_many(search_many("texts", list(queries), 1).request, Deadline.after(60))
    assert [result.hits[0].datapoint.id for result in many.results] == list(queries.values())


def test_texts_vectors_and_ids_may_be_mixed_in_a_batch(texts: Path, pool: EncoderPool) -> None:
    from scannery import Like

    service = Service(embedded_catalog(Store.open(texts), encoders=pool))
    vector = Encoder.load(MINILM, device="cpu").encode_queries(["music"])[0]
    request = search_many("texts", ["music", vector, Like("orchestra"), "music"], 2).request
    first, second, like, last = service.search_many(request, Deadline.after(60)).results
    assert [hit.datapoint.id for hit in first.hits] == [hit.datapoint.id for hit in second.hits]
    assert first.hits[0].score == pytest.approx(second.hits[0].score, abs=1e-4)
    assert first == last
    assert first.hits[0].datapoint.id == "orchestra"
    assert "orchestra" not in [hit.datapoint.id for hit in like.hits]


def test_indexes_with_the_same_encoder_share_it(manifest: Manifest, pool: EncoderPool) -> None:
    other = manifest.model_copy(update={"index": "other", "version": 7})
    assert pool.encoder_of(manifest) is pool.encoder_of(other)


def test_an_encoder_that_did_not_make_the_vectors_is_refused_with_both_named(
    manifest: Manifest, pool: EncoderPool
) -> None:
    assert manifest.encoder is not None
    wrong = manifest.model_copy(update={"encoder": {**manifest.encoder, "weights_sha256": "0" * 64}})
    with pytest.raises(EncoderUnavailableError) as caught:
        pool.encoder_of(wrong)
    assert "weights 000000000000" in caught.value.message
    assert f"weights {manifest.encoder['weights_sha256'][:12]}" in caught.value.message


def test_vectors_of_another_size_refuse_the_encoder(manifest: Manifest, pool: EncoderPool) -> None:
    wrong = manifest.model_copy(update={"encoder": None, "dimensions": 5})
    with pytest.raises(EncoderUnavailableError, match=r"vectors have 5 dimensions, those of .* have 384"):
        pool.encoder_of(wrong)


def test_a_model_that_is_not_there_leaves_vector_queries(manifest: Manifest, pool: EncoderPool) -> None:
    spec = manifest.spec.model_copy(
        update={
            "encoder": manifest.spec.encoder and manifest.spec.encoder.model_copy(update={"model": "/none"})
        }
    )
    with pytest.raises(EncoderUnavailableError, match="/none"):
        pool.encoder_of(manifest.model_copy(update={"spec": spec}))


class CountingEncoder:
    """Encodes a text as its length, and counts."""

    dimensions = 1

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.encoded: list[str] = []
        self.batches: list[int] = []

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        self.encoded += texts
        self.batches.append(len(texts))
        return np.array([[len(text)] for text in texts], np.float32)

    encode_documents = encode_queries


def test_queries_are_encoded_once_and_forgotten_in_the_end() -> None:
    counting = CountingEncoder()
    encoder = QueryEncoder(counting, cached=2)  # type: ignore[arg-type]
    assert encoder.encode(["a", "bb", "a"]).tolist() == [[1], [2], [1]]
    assert encoder.encode(["bb", "ccc"]).tolist() == [[2], [3]]
    assert counting.encoded == ["a", "bb", "ccc"]
    encoder.encode(["a"])
    assert counting.encoded == ["a", "bb", "ccc", "a"]


@pytest.mark.parametrize(("device", "batches"), [("cpu", [128, 128, 44]), ("cuda:0", [256, 44])])
def test_a_batch_of_documents_fills_the_device(device: str, batches: list[int]) -> None:
    counting = CountingEncoder(device)
    encoder = QueryEncoder(counting)  # type: ignore[arg-type]
    texts = [f"text {number}" for number in range(300)]
    assert len(encoder.encode_documents(texts, Deadline.after(60), path="texts")) == 300
    assert counting.batches == batches


class BrokenEncoder(CountingEncoder):
    """An encoder whose device fails, as one that is out of memory."""

    def encode_queries(self, texts: list[str]) -> np.ndarray:
        raise DeviceError("out of memory on a single text")

    encode_documents = encode_queries


def test_a_device_that_fails_is_not_the_callers_error() -> None:
    encoder = QueryEncoder(BrokenEncoder())  # type: ignore[arg-type]
    with pytest.raises(EncoderUnavailableError, match="out of memory"):
        encoder.encode(["a"])
    with pytest.raises(EncoderUnavailableError, match="out of memory"):
        encoder.encode_documents(["a"], Deadline.after(60), path="texts")


def test_a_text_that_cannot_be_encoded_is_the_callers_error() -> None:
    encoder = QueryEncoder(Encoder.load(MINILM, device="cpu"))
    with pytest.raises(InvalidRequestError) as caught:
        encoder.encode(["\ud800"], path="query")
    assert caught.value.field == "query"


@pytest.mark.system
def test_texts_are_answered_over_http_as_over_grpc(texts: Path) -> None:
    with serving(texts) as server, Http(server.http_port) as http:
        for text in ("baking", "a game", *SENTENCES.values()):
            body = search("texts", text, 3).request.SerializeToString()
            first = http.post(SEARCH, body)
            assert first.code == "ok"
            # From the cache now.
            assert http.post(SEARCH, body).body == first.body == over_grpc(server, SEARCH, body)[1]
        body = search_many("texts", ["baking", "tax"], 2).request.SerializeToString()
        assert http.post(SEARCH_MANY, body).body == over_grpc(server, SEARCH_MANY, body)[1]


@pytest.mark.system
def test_what_is_remembered_of_queries_is_bounded_in_bytes() -> None:
    class Wide(CountingEncoder):
        dimensions = 256

        def encode_queries(self, texts: list[str]) -> np.ndarray:
            return np.zeros((len(texts), self.dimensions), np.float32)

    most_bytes = 1 << 20
    encoder = QueryEncoder(Wide(), cached_bytes=most_bytes, batched=False)  # type: ignore[arg-type]
    tracemalloc.start()
    try:
        for number in range(60):
            # One long text, and one vector that is asked for of a batch of fifty.
            encoder.encode([f"{number} {'x' * 30_000}"])
            encoder.encode([f"{number}-{place}" for place in range(50)])
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes <= most_bytes + (64 << 10)
    assert encoder.cached_vector("59-49") is not None
    assert encoder.cached_vector("0-0") is None


@pytest.mark.parametrize(("cached", "encoded"), [(10, ["a", "a"]), (0, ["a", "a", "a", "a"])])
def test_what_one_caller_asked_answers_no_other_sooner(cached: int, encoded: list[str]) -> None:
    counting = CountingEncoder()
    encoder = QueryEncoder(counting, cached=cached)  # type: ignore[arg-type]
    for name in ("ann", "ann", "bob", "bob"):
        token = CURRENT.set(Principal(name, frozenset(("read",))))
        try:
            encoder.encode(["a"])
            assert (encoder.cached_vector("a") is not None) == bool(cached)
        finally:
            CURRENT.reset(token)
    assert counting.encoded == encoded
