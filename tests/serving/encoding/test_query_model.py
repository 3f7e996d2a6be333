"""An index whose queries are encoded by a model of their own, and its documents by another one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.request import calls
from scannery.embed import Encoder, InvalidArgumentError
from scannery.indexer import Store, parse_spec, read_manifest
from scannery.pipelines import SpecConflictError, build
from scannery.serving import EncoderConfig, EncoderServer, RemoteConfig
from tests.cluster.servers import started_cluster
from tests.embed.tiny_models import make_model
from tests.served import MINILM, PAUSE_S, RELEVANCE, SENTENCES, commit_relevance, copied, serving
from tests.serving.encoding.query_models import make_query_model

QUERIES = ["how do eruptions happen", "vehicles and climate change", "gambit", "what is due in spring"]
WAYS = ("embedded", "server", "encoder process", "cluster")


@pytest.fixture(scope="module")
def query_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_query_model(tmp_path_factory.mktemp("query_model"))


@pytest.fixture(scope="module")
def documents() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.fixture(scope="module")
def queries(query_model: Path) -> Encoder:
    return Encoder.load(query_model, device="cpu")


def built(folder: Path, encoder: dict[str, Any], **spec: Any) -> Path:
    """Build `texts` of the sentences, and return the store."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps({"id": key, "text": text}) + "\n" for key, text in SENTENCES.items()))
    source = {"id": "id", "text": "text"}
    build(
        {"index": "texts", "source": source, "encoder": encoder, **spec}, [str(rows)], str(folder / "store")
    )
    return folder / "store"


@pytest.fixture
def store(tmp_path: Path, query_model: Path) -> Path:
    return built(tmp_path, {"model": MINILM, "query_model": str(query_model)})


@contextmanager
def reached(store: Path, way: str) -> Iterator[scannery.Client]:
    """Connect to a store in one of WAYS."""
    with ExitStack() as opened:
        options: dict[str, Any] = {}
        if way == "encoder process":
            config = EncoderConfig(store=str(store), listen="127.0.0.1:0", device="cpu")
            process = opened.enter_context(EncoderServer(config))
            options["encoder"] = RemoteConfig(address=process.address)
        target: str | Path = store
        if way == "cluster":
            root, _ = opened.enter_context(started_cluster(store, 2, device="cpu"))
            target = root.address
        elif way != "embedded":
            target = opened.enter_context(serving(store, device="cpu", **options)).address
        yield opened.enter_context(scannery.connect(target))


def scores(index: scannery.Index, text: str) -> dict[str, float]:
    return {hit.id: hit.score for hit in index.search(text, 20)}


def exact(queries: Encoder, documents: Encoder, text: str, texts: dict[str, str]) -> dict[str, float]:
    vectors_ND = documents.encode_documents(list(texts.values()))
    query_D = queries.encode_queries([text])[0]
    # Leading components are shorter than 1.
    cosines_N = vectors_ND @ query_D / np.linalg.norm(vectors_ND, axis=1) / np.linalg.norm(query_D)
    return dict(zip(texts, cosines_N.tolist(), strict=True))


@pytest.mark.system
@pytest.mark.parametrize("way", WAYS)
def test_queries_and_documents_have_a_model_each(
    store: Path, way: str, documents: Encoder, queries: Encoder
) -> None:
    manifest = read_manifest(Store.open(store), "texts")
    assert manifest.encoder is not None and manifest.query_encoder is not None
    digests = manifest.encoder["digest"], manifest.query_encoder["digest"]
    assert digests == (documents.fingerprint.digest, queries.fingerprint.digest)
    with reached(store, way) as client:
        index = client.index("texts")
        texts = dict(SENTENCES)
        if way != "cluster":  # whose log would be a database
            texts["new"] = "A harbour at night, with ships that wait for the tide."
            index.upsert([{"id": "new", "text": texts["new"]}])
        for text in QUERIES:
            expected = exact(queries, documents, text, texts)
            assert scores(index, text) == pytest.approx(expected, abs=2e-3)
            assert exact(documents, documents, text, texts) != pytest.approx(expected, abs=2e-2)
        many = index.search_many(QUERIES, k=20)
        for text, hits in zip(QUERIES, many, strict=True):
            assert {hit.id: hit.score for hit in hits} == pytest.approx(
                exact(queries, documents, text, texts), abs=2e-3
            )
        # Each kind of text by its side, and each model by its fingerprint.
        assert np.allclose(index.embed(QUERIES), queries.encode_queries(QUERIES), atol=2e-3)
        assert np.allclose(
            index.embed(QUERIES, kind="document"), documents.encode_documents(QUERIES), atol=2e-2
        )
        [hits] = index.search_many(QUERIES[:1], explain=True)
        assert hits.explanation is not None
        assert hits.explanation.query_models == (manifest.spec.encoder.query_model,)  # type: ignore[union-attr]
        # As the OpenAI API, which names a model always: with an index, it is that of the documents.
        query_vectors = client._run(calls.embed(QUERIES, "query", index="texts", model=MINILM))
        assert np.allclose(query_vectors, queries.encode_queries(QUERIES), atol=2e-3)
        document_vectors = client._run(calls.embed(QUERIES, "document", index="texts", model=MINILM))
        assert np.allclose(document_vectors, documents.encode_documents(QUERIES), atol=2e-2)
        named = client.embed(QUERIES, model=MINILM)
        assert np.allclose(named, documents.encode_queries(QUERIES), atol=2e-3)
        assert np.allclose(client.embed(QUERIES), queries.encode_queries(QUERIES), atol=2e-3)
        assert {each.fingerprint for each in client.encoders()} == set(digests)
        # Sentences of hits are compared as documents.
        [hit] = index.search(QUERIES[0], 1, highlight=True)
        cosine = exact(queries, documents, QUERIES[0], texts)[hit.id]
        assert hit.snippet is not None and hit.snippet.score == pytest.approx(cosine, abs=2e-3)


@pytest.mark.system
def test_another_query_model_embeds_and_rebuilds_nothing(
    store: Path, query_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = read_manifest(Store.open(store), "texts")
    files = sorted(str(path.relative_to(store)) for path in (store / "texts" / "embeddings").rglob("*"))
    built(tmp_path, {"model": MINILM})
    after = read_manifest(Store.open(store), "texts")
    assert after.version == before.version + 1
    assert (after.query_encoder, after.encoder) == (None, before.encoder)
    assert after.segments == before.segments
    built(tmp_path, {"model": MINILM, "query_model": str(query_model)})
    again = read_manifest(Store.open(store), "texts")
    assert (again.query_encoder, again.segments) == (before.query_encoder, before.segments)
    assert files == sorted(
        str(path.relative_to(store)) for path in (store / "texts" / "embeddings").rglob("*")
    )


@pytest.mark.system
def test_the_other_model_takes_the_prompts_dimensions_and_tokens_that_are_for_it(
    tmp_path: Path, query_model: Path
) -> None:
    options = {"query_prompt": "query: ", "document_prompt": "passage: ", "max_tokens": 32, "dimensions": 128}
    path = built(tmp_path, {"model": MINILM, "query_model": str(query_model), **options})
    manifest = read_manifest(Store.open(path), "texts")
    queries = Encoder.load(query_model, device="cpu", query_prompt="query: ", dimensions=128, max_tokens=32)
    documents = Encoder.load(MINILM, device="cpu", **options)  # type: ignore[arg-type]
    assert manifest.query_encoder == {**queries.fingerprint.to_dict(), "model": str(query_model)}
    with scannery.connect(path) as client:
        expected = exact(queries, documents, QUERIES[0], SENTENCES)
        assert scores(client.index("texts"), QUERIES[0]) == pytest.approx(expected, abs=2e-3)


@pytest.mark.system
def test_a_query_model_with_a_lower_limit_of_tokens_keeps_it(query_model: Path) -> None:
    own = Encoder.load(query_model, device="cpu").max_tokens
    assert Encoder.load(query_model, device="cpu", cap_tokens=own + 100).max_tokens == own
    assert Encoder.load(query_model, device="cpu", cap_tokens=own - 100).max_tokens == own - 100
    with pytest.raises(InvalidArgumentError, match="max_tokens"):
        Encoder.load(query_model, device="cpu", max_tokens=own + 100)


@pytest.mark.system
def test_named_vectors_have_a_query_model_too(
    tmp_path: Path, query_model: Path, documents: Encoder, queries: Encoder
) -> None:
    named = {"named_vectors": {"title": {"encoder": {"model": MINILM, "query_model": str(query_model)}}}}
    with scannery.connect(tmp_path / "new", create=True) as client:
        index = client.create_index("notes", encoder=MINILM, **named)  # type: ignore[arg-type]
        index.upsert([{"id": key, "title": text, "text": "same"} for key, text in SENTENCES.items()])
        hits = index.search(QUERIES[0], 20, vectors="title")
        expected = exact(queries, documents, QUERIES[0], SENTENCES)
        assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=2e-3)
        assert np.allclose(index.embed(QUERIES), documents.encode_queries(QUERIES), atol=2e-3)


def test_a_query_model_of_other_dimensions_is_refused(tmp_path: Path) -> None:
    small = make_model("static", tmp_path / "small")
    encoder = {"model": MINILM, "query_model": str(small)}
    with pytest.raises(SpecConflictError, match="dimensions") as caught:
        built(tmp_path, encoder)
    assert caught.value.field == "encoder.query_model"
    with scannery.connect(tmp_path / "new", create=True) as client:
        with pytest.raises(scannery.InvalidArgumentError, match="384 dimensions") as refused:
            client.create_index("notes", encoder=encoder)
        assert refused.value.field == "spec.encoder.query_model"


def test_a_spec_without_a_query_model_is_written_as_earlier_releases_read_it() -> None:
    spec = parse_spec({"index": "i", "source": {"id": "id", "text": "text"}, "encoder": {"model": MINILM}})
    assert "query_model" not in spec.model_dump_json()
    assert "query_model" not in json.dumps(spec.model_dump(mode="json"))


@pytest.mark.system
def test_the_query_model_is_altered_while_clients_search(
    tmp_path: Path, query_model: Path, documents: Encoder, queries: Encoder
) -> None:
    path = built(tmp_path, {"model": MINILM})
    answers = {
        str(sides): exact(queries if sides else documents, documents, QUERIES[0], SENTENCES)
        for sides in (False, True)
    }
    failures: list[str] = []
    seen: set[str] = set()
    stop = threading.Event()

    def ask(address: str) -> None:
        with scannery.connect(address) as client:
            index = client.index("texts")
            while not stop.is_set():
                try:
                    answer = scores(index, QUERIES[0])
                    matching = [
                        name for name, each in answers.items() if answer == pytest.approx(each, abs=2e-3)
                    ]
                    seen.update(matching)
                    if len(matching) != 1:
                        failures.append(str(answer))
                except Exception as error:  # noqa: BLE001
                    failures.append(repr(error))
                time.sleep(PAUSE_S)

    with serving(path, device="cpu", models=(str(query_model),)) as server:
        threads = [threading.Thread(target=ask, args=(server.address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        with scannery.connect(server.address) as client:
            index = client.index("texts")
            assert scores(index, QUERIES[0]) == pytest.approx(answers["False"], abs=2e-3)
            for turn in range(3):
                time.sleep(0.3)
                info = index.alter(encoder={"query_model": str(query_model)})
                assert info.version == 2 * turn + 2
                assert info.encoder is not None and info.encoder.query_model == str(query_model)
                assert info.encoder.query_fingerprint == queries.fingerprint.digest
                assert info.spec["encoder"]["query_model"] == str(query_model)
                assert scores(index, QUERIES[0]) == pytest.approx(answers["True"], abs=2e-3)
                time.sleep(0.3)
                index.alter(encoder={"query_model": None})
                assert scores(index, QUERIES[0]) == pytest.approx(answers["False"], abs=2e-3)
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
    assert seen == {"False", "True"}
    first, last = (read_manifest(Store.open(path), "texts", version) for version in (1, 7))
    assert (last.spec, last.vectors, last.segments) == (first.spec, first.vectors, first.segments)
    assert last.columns_version == first.columns_version, "rows of the log fit all of them"


@pytest.mark.parametrize(
    ("encoder", "field", "told"),
    [
        ({"model": "other"}, "changes.encoder", "--full"),
        ({"max_tokens": 32, "query_model": MINILM}, "changes.encoder", "--full"),
        ({"query_model": 3}, "changes.encoder.query_model", "string"),
        ({"query_model": "nowhere/at-all"}, "changes.encoder.query_model", "nowhere"),
    ],
)
def test_what_else_is_altered_of_an_encoder_is_refused(
    texts: Path, tmp_path: Path, encoder: dict[str, Any], field: str, told: str
) -> None:
    with scannery.connect(copied(texts, tmp_path)) as client:
        with pytest.raises(scannery.ScanneryError, match=told) as caught:
            client.index("texts").alter(encoder=encoder)
        assert getattr(caught.value, "field", "") == field
        assert client.index("texts").stats().version == 1


@pytest.mark.system
def test_a_server_loads_only_query_models_that_its_operator_names(
    texts: Path, tmp_path: Path, query_model: Path
) -> None:
    with (
        serving(copied(texts, tmp_path), device="cpu", models=()) as server,
        scannery.connect(server.address) as client,
        pytest.raises(scannery.FailedPreconditionError, match="not among the models"),
    ):
        client.index("texts").alter(encoder={"query_model": str(query_model)})


@pytest.mark.system
def test_what_was_measured_with_the_other_queries_is_not_kept(
    texts: Path, tmp_path: Path, query_model: Path
) -> None:
    path = copied(texts, tmp_path)
    store = Store.open(path)
    digest = read_manifest(store, "texts").vectors[""].sides_digest
    measured = RELEVANCE.model_copy(update={"encoder": digest})
    before = commit_relevance(store, "texts", measured)
    with scannery.connect(path) as client:
        client.index("texts").alter(encoder={"query_model": str(query_model)})
    altered = read_manifest(store, "texts")
    assert before.fusion is not None and altered.fusion is None and altered.ranker is None
    assert altered.relevance is not None and altered.relevance.curves.keys() == {"lexical"}
    # Scores of named vectors and by words are what they were.
    assert altered.relevance.models == measured.models
    assert altered.relevance.encoder == altered.vectors[""].sides_digest != digest
