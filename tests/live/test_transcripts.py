"""Live writes of transcripts: embedded, searched and reranked by what is spoken, also once sealed or changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.request.writes import NewDatapoint
from scannery.embed import Encoder, Reranker
from scannery.indexer import Store, parse_spec
from scannery.live.maintenance.seal import seal
from tests.data import as_webvtt, datapoints
from tests.embed.tiny_models import make_cross_encoder
from tests.served import MINILM, TEXTS, publish_version

pytestmark = pytest.mark.system

SPOKEN = (
    "Magma rises through the crust until the pressure breaks the mountain open and lava runs to the sea. " * 4
)
QUERY = "lava in the sea"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.fixture
def store(tmp_path: Path, encoder: Encoder, reranker: Path) -> Path:
    fields = {
        "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 32, "overlap_tokens": 0}},
        "lexical": True,
        "reranker": {"model": str(reranker)},
    }
    spec = parse_spec({**TEXTS.model_dump(), **fields})
    table = datapoints(
        spec, encoder.encode_documents(["Plain words."]), ids=["p"], columns={"text": ["Plain words."]}
    )
    opened = Store.open(tmp_path / "store", create=True)
    publish_version(opened, spec, table, tmp_path, encoder=encoder.fingerprint.to_dict())
    return tmp_path / "store"


def pieces(encoder: Encoder, text: str) -> list[str]:
    return [p.embedding_text for p in encoder.chunker(32, 0).split(text)]


def check(client: Any, encoder: Encoder, reranker: Path, title: str) -> None:
    index, text = client.index("texts"), as_webvtt(SPOKEN)
    spoken = {f"cues#{n}": f"{title}\n{part}" for n, part in enumerate(pieces(encoder, text))}
    found = index.get(list(spoken), vectors=True)
    vectors_PD = encoder.encode_documents([part.replace(title, "Volcanoes") for part in spoken.values()])
    for point, expected_D in zip(found, vectors_PD, strict=True):
        assert point.text == text[point.text_start : point.text_end]
        assert point.title == title
        np.testing.assert_allclose(point.vector, expected_D, atol=1e-2)
    assert found[0].time_start_s == 0 and found[-1].time_end_s == len(SPOKEN.split()) // 5 + 1
    assert {hit.document_id for hit in index.search("lava", mode="lexical")} == {"cues"}
    for word in ("zebra", "giraffe", "align", "yellow", "ann", "00:00:03.000", "3"):
        assert not len(index.search(word, mode="lexical")), word
    scores = Reranker.load(reranker, device="cpu").scores(QUERY, list(spoken.values()))
    ranked = {hit.id: hit.rerank_score for hit in index.search(QUERY, k=9, rerank=9)}
    assert [ranked[name] for name in spoken] == pytest.approx(scores.tolist(), abs=1e-5)


@pytest.mark.system
def test_a_live_transcript_is_what_is_spoken(store: Path, encoder: Encoder, reranker: Path) -> None:
    with scannery.connect(store) as client:
        client.index("texts").upsert([{"id": "cues", "title": "Volcanoes", "text": as_webvtt(SPOKEN)}])
        check(client, encoder, reranker, "Volcanoes")
        client.index("texts").update([{"id": "cues", "title": "Mountains"}])
        check(client, encoder, reranker, "Mountains")
    with scannery.connect(store) as client:  # from the log
        check(client, encoder, reranker, "Mountains")
    assert seal(Store.open(store), "texts") is not None
    with scannery.connect(store) as client:  # from a segment
        check(client, encoder, reranker, "Mountains")
        client.index("texts").update([{"id": "cues", "title": "Volcanoes"}])
        check(client, encoder, reranker, "Volcanoes")


def test_a_transcript_with_a_vector_of_its_own_is_searched_by_what_is_spoken(
    store: Path, encoder: Encoder
) -> None:
    vector = encoder.encode_documents(["any"])[0]
    plain: NewDatapoint = {"id": "own", "vector": vector, "text": as_webvtt(SPOKEN)}
    part: NewDatapoint = {
        "id": "part",
        "vector": vector,
        "text": as_webvtt("Lava."),
        "text_start": 7,
        "text_end": 12,
    }
    with scannery.connect(store) as client:
        index = client.index("texts")
        index.upsert([plain])
        index.upsert([part])
        assert {hit.id for hit in index.search("lava", mode="lexical")} == {"own", "part"}
        assert not len(index.search("zebra", mode="lexical"))
