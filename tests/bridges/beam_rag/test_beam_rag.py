"""Pipelines of Beam's RAG package that chunk, embed, write and enrich through Scannery."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.ml.rag.chunking.base import ChunkingTransformProvider
from apache_beam.ml.rag.embeddings.base import create_text_adapter
from apache_beam.ml.rag.ingestion.base import VectorDatabaseWriteTransform
from apache_beam.ml.rag.types import Chunk, Content, EmbeddableItem, Embedding
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.enrichment import Enrichment

import scannery
from scannery.bridges.beam_rag import ScanneryVectorSearch, ScanneryVectorWriterConfig
from scannery.testing import WordEncoder
from tests.served import serving

DOCUMENTS = [
    {"id": "bees", "text": "Bees make honey. A beehive in winter. Honey is sweet.", "year": 2024},
    {"id": "trains", "text": "Trains run on rails. A rail strike in May.", "year": 2020},
]
DIMENSIONS = 32
_numbers = count()


class Sentences(ChunkingTransformProvider):
    """Cuts texts into sentences."""

    def __init__(self) -> None:
        super().__init__(chunk_id_fn=lambda chunk: f"{chunk.metadata['document']}-{chunk.index}")

    def get_splitter_transform(self) -> Any:
        return beam.FlatMap(_sentences)


def _sentences(document: dict[str, Any]) -> Iterator[Chunk]:
    for number, text in enumerate(document["text"].split(". ")):
        metadata = {"document": document["id"], "year": document["year"]}
        yield Chunk(content=Content(text=text), index=number, metadata=metadata)


def embedded(item: EmbeddableItem) -> EmbeddableItem:
    """Embed with the adapter that the package's own embeddings use."""
    adapter = create_text_adapter()
    vectors = WordEncoder(DIMENSIONS).encode_documents(adapter.input_fn([item]))
    return adapter.output_fn([item], [[float(value) for value in vector] for vector in vectors])[0]


def query(text: str, **fields: Any) -> EmbeddableItem:
    return embedded(EmbeddableItem.from_text(text, id=text, **fields))


def run() -> Any:
    return beam.Pipeline(options=PipelineOptions(["--runner=DirectRunner", "--direct_num_workers=1"]))


@pytest.fixture(scope="module", params=["store", "grpc", "http"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("beam")
    if request.param == "store":
        yield str(folder / "store")
        return
    with serving(folder, http="auto") as server:
        yield server.address if request.param == "grpc" else f"http://127.0.0.1:{server.http_port}"


@pytest.fixture(scope="module")
def written(target: str) -> str:
    """The name of an index that a pipeline has chunked, embedded and written."""
    name = f"rag-{next(_numbers)}"
    config = ScanneryVectorWriterConfig(
        target=target, index=name, dimensions=DIMENSIONS, document_field="document", batch_size=2
    )
    with run() as pipeline:
        items = (
            pipeline
            | beam.Create(DOCUMENTS)
            | Sentences().get_ptransform_for_processing()
            | "Embed" >> beam.Map(embedded)
            | VectorDatabaseWriteTransform(config)
        )
        assert_that(
            items | beam.Map(lambda item: item.id),
            equal_to(["bees-0", "bees-1", "bees-2", "trains-0", "trains-1"]),
        )
    return name


def test_what_a_pipeline_writes_is_there(target: str, written: str) -> None:
    with scannery.connect(target) as client:
        index = client.index(written)
        assert index.count() == 5
        [point] = index.get(["bees-1"], vectors=True)
        assert point is not None
        assert (point.text, point.document_id) == ("A beehive in winter", "bees")
        assert point.attributes == {"document": "bees", "year": 2024}
        assert point.payload == {"index": 1}
        wanted = WordEncoder(DIMENSIONS).encode_documents(["A beehive in winter"])[0]
        assert point.vector == pytest.approx(wanted, abs=1e-6)


def test_a_pipeline_enriches_items(target: str, written: str) -> None:
    handler = ScanneryVectorSearch(
        target,
        written,
        k=2,
        where=lambda item: {"year": item.metadata["year"]} if "year" in item.metadata else None,
        exact=True,
        max_batch_size=10,
    )
    asked = [query("honey bees"), query("honey", metadata={"year": 2020}), query("rail strike")]
    with run() as pipeline:
        found = pipeline | beam.Create(asked) | Enrichment(handler)
        assert_that(found, _checked)


def _checked(items: list[EmbeddableItem]) -> None:
    found = {item.id: item.metadata["enrichment_data"] for item in items}
    assert set(found["honey bees"]["id"]) == {"bees-0", "bees-2"}
    assert set(found["honey"]["id"]) == {"trains-0", "trains-1"}
    strike = found["rail strike"]
    assert strike["id"][0] == "trains-1"
    assert strike["score"][0] > strike["score"][1]
    assert strike["distance"] == pytest.approx([1 - score for score in strike["score"]])
    assert strike["fields"][0] == {
        "content": "A rail strike in May.",
        "metadata": {"document": "trains", "year": 2020},
        "index": 1,
    }


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_words_enrich_too(target: str, written: str, mode: Any) -> None:
    with ScanneryVectorSearch(target, written, k=3, mode=mode, where={"year": {"$gte": 2000}}) as handler:
        [(item, found)] = handler(query("winter"))
        assert item.id == "winter"
        assert found["id"][0] == "bees-1"
        assert len(found["id"]) == (1 if mode == "lexical" else 3)
        assert handler([]) == []
        with pytest.raises(ValueError, match="has no text and no sparse embedding"):
            handler([EmbeddableItem(content=Content(), id="x", embedding=Embedding(dense_embedding=[0.0]))])


def test_sparse_embeddings_and_images_are_kept(target: str) -> None:
    name = f"rag-{next(_numbers)}"
    config = ScanneryVectorWriterConfig(target=target, index=name, dimensions=2, sparse=True)
    both = Embedding(dense_embedding=[1.0, 0.0], sparse_embedding=([7, 9, 11], [0.5, 2.0, 0.0]))
    image = EmbeddableItem.from_image("gs://bucket/a.jpg", id="image", metadata={"id": 7, "$x": None})
    image.embedding = both
    text = EmbeddableItem.from_text("only text", id="text")
    with run() as pipeline:
        pipeline | beam.Create([image, text]) | config.create_write_transform()
    with ScanneryVectorSearch(target, name, mode="lexical") as handler:
        asked = EmbeddableItem(content=Content(), id="q", embedding=Embedding(sparse_embedding=([9], [3.0])))
        [(_, found)] = handler([asked])
    assert found == {
        "id": ["image"],
        "score": [6.0],
        "distance": [-5.0],
        "fields": [
            {"content": None, "metadata": {"id": 7, "$x": None}, "index": 0, "image": "gs://bucket/a.jpg"}
        ],
    }
    with scannery.connect(target) as client:
        [point] = client.index(name).get(["text"], vectors=True)
        assert point is not None
        assert (point.text, point.vector) == ("only text", None)


@pytest.mark.parametrize(("item", "options", "message"), [
    (EmbeddableItem(content=Content(image=b"bytes"), id="x"), {}, "neither an embedding nor text"),
    (EmbeddableItem.from_text("a", id="x"), {"document_field": "source"}, "no metadata 'source'"),
    (EmbeddableItem(content=Content(text="a"), id="x", embedding=Embedding(dense_embedding=[1.0])), {},
     "must have 2 dimensions"),
])  # fmt: skip
def test_items_that_cannot_be_written_fail_the_pipeline(
    tmp_path: Path, item: EmbeddableItem, options: dict[str, Any], message: str
) -> None:
    config = ScanneryVectorWriterConfig(target=str(tmp_path / "store"), index="rag", dimensions=2, **options)
    with pytest.raises(Exception, match=message), run() as pipeline:
        pipeline | beam.Create([item]) | config.create_write_transform()


def test_wrong_options_are_named(tmp_path: Path) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="batch_size: must be 1 to 1000, got 0"):
        ScanneryVectorWriterConfig(target="x:1", index="a", batch_size=0)
    with pytest.raises(scannery.InvalidArgumentError, match="mode: must be dense, lexical or hybrid"):
        ScanneryVectorSearch("x:1", "a", mode="fast")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no dense embedding"):
        store = str(tmp_path / "store")
        with scannery.connect(store, create=True) as client:
            client.create_index("a", dimensions=2)
        with ScanneryVectorSearch(store, "a") as handler:
            handler([EmbeddableItem.from_text("words")])


def test_handlers_are_sent_to_workers(target: str, written: str) -> None:
    handler = pickle.loads(pickle.dumps(ScanneryVectorSearch(target, written, k=1)))
    with handler:
        [(_, found)] = handler(query("A beehive in winter"))
    assert found["id"] == ["bees-1"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("ScanneryVectorWriterConfig", ""),
        ("ScanneryVectorSearch", "needs the package google-api-core: pip install 'scannery[beam-rag]'"),
    ],
)
def test_only_the_enrichment_needs_the_extra(name: str, error: str) -> None:
    code = f"import sys; sys.modules['google.api_core'] = None; from scannery.bridges.beam_rag import {name}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode == 0, done.stderr.strip().endswith(error)) == (not error, True)


def test_writing_logs_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = ScanneryVectorWriterConfig(target=str(tmp_path / "store"), index="rag", dimensions=2)
    with run() as pipeline:
        item = EmbeddableItem.from_text("words", id="a")
        item.embedding = Embedding(dense_embedding=[1.0, 0.0])
        pipeline | beam.Create([item]) | config.create_write_transform()
    assert not [record.message for record in caplog.records if "type hint" in record.message]
