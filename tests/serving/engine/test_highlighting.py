"""Highlighted hits: the best sentence by the encoder or by words, and where the words of the query are."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import Blend, FailedPreconditionError, InvalidArgumentError, Like
from scannery.client import Snippet
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.encoding.reranker import BATCH_SENTENCES, SentenceVectors
from scannery.serving.engine.hydrator import WrittenHits
from scannery.v1 import search_pb2
from tests.data import datapoints
from tests.embed.tiny_models import make_cross_encoder, make_model
from tests.served import MINILM, publish_version, serving

pytestmark = pytest.mark.usefixtures("merges_by_hand")

QUERY = "how do volcanoes erupt"
TEXTS = {
    "geology": "Welcome back to the show. Molten rock rises until the volcano erupts. Thanks for listening, Dr. Ott.",
    "bread": "Knead the dough. Let it rise overnight, and bake it until the crust is brown. Eat.",
    "talk": "**Ann:** Do you like chess? [00:12] I do.\n**Bob:** An erup\u00adtion of a Vo\u0301lcano, once.",
    "one": "Volcanoes",
}
BEST = "Molten rock rises until the volcano erupts."


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The index `episodes`, built by Beam: with words, an encoder and a reranker; `vectors` has texts, and neither."""
    folder = tmp_path_factory.mktemp("highlighted")
    reranker = make_cross_encoder(folder / "cross")
    spec = {
        "index": "episodes",
        "source": {"id": "id", "text": "text"},
        "encoder": {"model": MINILM},
        "lexical": True,
        "reranker": {"model": str(reranker)},
        "live": {"seal_rows": 100_000, "merge_segments": 2},
    }
    lines = [{"id": name, "text": text} for name, text in TEXTS.items()]
    build(spec, written(folder / "texts.jsonl", lines), str(folder / "store"))
    encoder = Encoder.load(MINILM, device="cpu")
    opened = Store.open(folder / "store")
    plain = {"source": {"id": "id", "text": "text", "vector": "vector"}, "shards": 1}
    for changes in (
        {"index": "vectors", "encoder": {"model": MINILM}},
        {"index": "words", "lexical": {"analyser": 3}},
    ):
        made = parse_spec({**plain, **changes})
        columns = {"document_id": list(TEXTS), "text": list(TEXTS.values())}
        vectors_ND = encoder.encode_documents(list(TEXTS.values()))
        table = datapoints(made, vectors_ND, ids=list(TEXTS), columns=columns)
        fingerprint = encoder.fingerprint.to_dict() if made.encoder else None
        publish_version(opened, made, table, folder, encoder=fingerprint)
    return folder / "store"


def written(path: Path, records: list[dict[str, Any]]) -> list[str]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(path)]


@pytest.fixture(scope="module")
def index(store: Path) -> Iterator[scannery.Index]:
    with scannery.connect(store) as client:
        yield client.index("episodes")


def marked(hit: scannery.Hit) -> list[str]:
    assert hit.snippet is not None and hit.text is not None
    return [hit.text[start:end] for start, end in hit.snippet.words]


def places(hit: scannery.Hit) -> tuple[tuple[int, int], tuple[tuple[int, int], ...]]:
    """Return where the sentence and the words are; the cosine depends a little on what is encoded beside it."""
    assert hit.snippet is not None
    return (hit.snippet.start, hit.snippet.end), hit.snippet.words


def by_id(hits: scannery.Hits) -> dict[str, scannery.Hit]:
    return {hit.id: hit for hit in hits}


@pytest.mark.system
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid", None])
def test_the_encoder_chooses_the_sentence(index: scannery.Index, mode: Any) -> None:
    hit = by_id(index.search(QUERY, 4, mode=mode, highlight=True))["geology"]
    assert hit.snippet is not None and hit.text is not None
    assert hit.snippet.text == BEST == hit.text[hit.snippet.start : hit.snippet.end]
    encoder = Encoder.load(MINILM, device="cpu")
    cosine = encoder.encode_documents([BEST])[0] @ encoder.encode_queries([QUERY])[0]
    assert hit.snippet.score == pytest.approx(float(cosine), abs=2e-3)
    assert marked(hit) == ["volcano", "erupts"]


@pytest.mark.system
def test_words_choose_the_sentence_without_an_encoder(index: scannery.Index, store: Path) -> None:
    for hits in (
        index.search(QUERY, 4, highlight="words"),
        scannery.connect(store).index("words").search(QUERY, 4, highlight=True),
    ):
        hit = by_id(hits)["geology"]
        assert hit.snippet is not None
        assert (hit.snippet.text, hit.snippet.score, marked(hit)) == (BEST, None, ["volcano", "erupts"])


@pytest.mark.system
def test_an_index_without_words_is_analysed_in_the_language_of_its_hits(store: Path) -> None:
    hits = scannery.connect(store).index("vectors").search("how do you bake the bread", 4, highlight=True)
    hit = by_id(hits)["bread"]
    assert hit.snippet is not None and hit.snippet.score is not None
    assert marked(hit) == ["bake"], "function words are not marked, stems are"


@pytest.mark.system
def test_words_are_found_as_they_were_written(index: scannery.Index) -> None:
    hit = by_id(index.search("eruption of a volcano", 4, highlight=True))["talk"]
    assert marked(hit) == ["erup\u00adtion", "Vo\u0301lcano"]
    assert hit.snippet is not None and hit.snippet.text == "An erup\u00adtion of a Vo\u0301lcano, once."


def test_the_words_of_a_query_without_others_are_marked(index: scannery.Index) -> None:
    assert "the" in marked(by_id(index.search("the", 4, highlight=True))["geology"])


def test_every_hit_of_many_queries_has_its_snippet(index: scannery.Index) -> None:
    queries = [QUERY, "a game with a queen", "flour and yeast"]
    alone = [index.search(query, 3, highlight=True) for query in queries]
    assert index.search_many(queries, 3, highlight=True) == alone
    assert list(index.search_each(queries, 3, highlight=True, batch_size=2)) == alone
    filtered = index.search_many(queries, 3, highlight=True, where={"$not": {"id": "bread"}})
    assert all(hit.snippet for hits in filtered for hit in hits)
    assert [hit.snippet for hit in alone[0]] != [hit.snippet for hit in alone[1]]


def test_pages_fit_together(index: scannery.Index) -> None:
    whole = index.search(QUERY, 4, highlight=True)
    assert [
        *index.search(QUERY, 2, highlight=True),
        *index.search(QUERY, 2, offset=2, highlight=True),
    ] == whole


def test_groups_of_texts(index: scannery.Index) -> None:
    hits = index.search(Blend([QUERY, Like("bread"), "rock"], [1, 0.5, 0.5]), 4, mode="dense", highlight=True)
    hit = by_id(hits)["geology"]
    assert "bread" not in by_id(hits)
    assert (
        hit.snippet is not None and hit.snippet.text == BEST and marked(hit) == ["rock", "volcano", "erupts"]
    )
    assert "rock" not in marked(
        by_id(index.search(Blend([QUERY, "rock"], [1, -0.1]), 4, mode="dense", highlight=True))["geology"]
    )


def test_reranked_hits(index: scannery.Index) -> None:
    hits = index.search(QUERY, 2, rerank=4, highlight=True, explain=True)
    assert all(hit.rerank_score is not None and hit.snippet is not None for hit in hits)
    assert hits.explanation is not None and "highlight" in hits.explanation.stages_us


def test_fields_without_the_text_leave_offsets(index: scannery.Index) -> None:
    with_text = by_id(index.search(QUERY, 4, highlight=True))["geology"].snippet
    without = by_id(index.search(QUERY, 4, highlight=True, fields=[]))["geology"]
    assert with_text is not None and without.text is None and without.snippet is not None
    assert (without.snippet.start, without.snippet.end) == (with_text.start, with_text.end)
    assert (without.snippet.text, without.snippet.html(), without.snippet.words) == (
        None,
        "",
        with_text.words,
    )


def test_no_snippet_unless_asked_for(index: scannery.Index) -> None:
    assert all(hit.snippet is None for hit in index.search(QUERY))


@pytest.mark.parametrize("query", [np.ones(384), Like("bread"), Blend([Like("bread"), np.ones(384)])])
def test_a_query_without_a_text_is_refused(index: scannery.Index, query: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="highlight: query must be a text") as caught:
        index.search(query, mode="dense", highlight=True)
    assert caught.value.field == "highlight"
    with pytest.raises(InvalidArgumentError, match=r"highlight: queries\[1\] must be a text"):
        index.search_many(["a", query], mode="dense", highlight=True)


@pytest.mark.system
def test_wrong_options_name_the_field(index: scannery.Index, store: Path) -> None:
    for options, field in (
        ({"k": 1001}, "highlight"),
        ({"k": 1000, "offset": 1}, "highlight"),
        ({"highlight": "both"}, "highlight"),
    ):
        with pytest.raises(InvalidArgumentError) as caught:
            index.search("a", **{"highlight": True, **options})  # type: ignore[arg-type]
        assert caught.value.field == field
    with pytest.raises(InvalidArgumentError, match="exceed 10000 hits to highlight"):
        index.search_many(["a"] * 101, 100, highlight=True)
    with pytest.raises(InvalidArgumentError, match=r"highlight.by_encoder: index 'words' has no encoder"):
        scannery.connect(store).index("words").search("a", highlight="encoder")


@pytest.mark.system
def test_it_is_the_same_over_every_wire(index: scannery.Index, store: Path) -> None:
    expected = index.search(QUERY, 4, highlight=True)
    assert all(hit.snippet for hit in expected)
    with serving(store) as server:
        for target, http in ((server.address, False), (f"http://127.0.0.1:{server.http_port}", True)):
            with scannery.connect(target, http=http) as client:
                assert client.index("episodes").search(QUERY, 4, highlight=True) == expected
                with pytest.raises(InvalidArgumentError, match="highlight: query must be a text"):
                    client.index("episodes").search(np.ones(384), highlight=True)

        async def ask() -> scannery.Hits:
            async with scannery.aio.connect(server.address, http=False) as client:
                return await client.index("episodes").search(QUERY, 4, highlight=True)

        assert asyncio.run(ask()) == expected


@pytest.mark.system
def test_it_is_the_same_before_and_after_seal_merge_and_rollback(store: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(store, tmp_path / "store"))
    with scannery.connect(path) as client:
        live = client.index("episodes")
        before = live.search(QUERY, 4, highlight=True)
        live.upsert([{"id": "new", "text": "Hello. A volcano can sleep for years, and then erupt. Bye."}])
        fresh = by_id(live.search(QUERY, 5, highlight=True))
    opened = Store.open(path)
    for change in (lambda: seal(opened, "episodes"), lambda: merge(opened, "episodes")):
        change()
        with scannery.connect(path) as client:
            now = by_id(client.index("episodes").search(QUERY, 5, highlight=True))
            assert places(now["new"]) == places(fresh["new"]) == ((7, 53), ((9, 16), (47, 52)))
    rollback(opened, "episodes", 1)
    with scannery.connect(path) as client:
        after = client.index("episodes").search(QUERY, 4, highlight=True)
        assert list(map(places, after)) == list(map(places, before))


def test_html_is_escaped() -> None:
    snippet = Snippet(
        text='<b>fire</b> & "ice"\nfire', start=10, end=34, words=((0, 4), (13, 17), (30, 34), (40, 44))
    )
    assert snippet.html() == "&lt;b&gt;<mark>fire</mark>&lt;/b&gt; &amp; &quot;ice&quot; <mark>fire</mark>"
    assert "<b>fire</b>" in snippet.html("b")
    with pytest.raises(ValueError, match="tag"):
        snippet.html("script src=x")


def test_notebooks_and_tables_have_the_snippet(index: scannery.Index) -> None:
    hits = index.search(QUERY, 4, highlight=True)
    assert "until the <mark>volcano</mark> <mark>erupts</mark>." in hits._repr_html_()
    table = hits.to_arrow()
    assert BEST in table.column("snippet").to_pylist()
    assert {"snippet_start", "snippet_end", "snippet_score"} <= set(table.column_names)


class SlowEncoder:
    """Encodes batches in a time that a clock shows."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now_s, self.batches = seconds, 0.0, 0

    def __call__(self, texts: Any, deadline: Deadline, *, path: str) -> np.ndarray:
        self.batches += 1
        self.now_s += self.seconds
        if deadline.remaining_s == 0:
            raise DeadlineError("late")
        return np.array([[len(text), 1] for text in texts], np.float32)


def test_sentences_are_encoded_while_there_is_time_and_kept() -> None:
    encoder = SlowEncoder(0.4)
    vectors = SentenceVectors(encoder)
    sentences = [f"sentence {number}" for number in range(5 * BATCH_SENTENCES)]
    found = vectors.find(sentences, Deadline(1.0, lambda: encoder.now_s))
    assert encoder.batches == 2 and list(found) == sentences[: 2 * BATCH_SENTENCES]
    assert len(vectors.find(sentences[:BATCH_SENTENCES], Deadline(0.0, lambda: 1.0))) == BATCH_SENTENCES
    assert encoder.batches == 2, "known ones are not encoded again"
    late = SlowEncoder(2.0)
    assert SentenceVectors(late).find(["a"], Deadline(1.0, lambda: late.now_s)) == {}
    small = SentenceVectors(encoder, cached_bytes=100)
    assert small.find(["a"], Deadline.after(None)) and small._vectors.size_bytes <= 100


@pytest.mark.system
def test_an_encoder_that_is_gone_leaves_the_words(tmp_path: Path) -> None:
    model = make_model("bert-cls", tmp_path)
    spec = {
        "index": "gone",
        "source": {"id": "id", "text": "text"},
        "encoder": {"model": str(model)},
        "lexical": True,
    }
    lines = [{"id": name, "text": text} for name, text in TEXTS.items()]
    build(spec, written(tmp_path / "texts.jsonl", lines), str(tmp_path / "store"))
    shutil.rmtree(model)
    with scannery.connect(tmp_path / "store") as client:
        hit = by_id(client.index("gone").search(QUERY, 4, mode="lexical", highlight=True))["geology"]
        assert hit.snippet is not None and (hit.snippet.text, hit.snippet.score) == (BEST, None)
        with pytest.raises(FailedPreconditionError, match="cannot be encoded"):
            client.index("gone").search(QUERY, 4, mode="lexical", highlight="encoder")


def test_snippets_are_added_to_hits_of_any_size() -> None:
    sizes = [0, 1, 100, 127, 128, 300, 20_000]
    hits = [search_pb2.Hit(score=size) for size in sizes]
    for hit, size in zip(hits, sizes, strict=True):
        hit.datapoint.text = "x" * size
    lists = [hits[:3], [], hits[3:]]
    data = [search_pb2.HitList(hits=each).SerializeToString() for each in lists]
    written = WrittenHits(np.frombuffer(b"".join(data), np.uint8), np.cumsum([0, *map(len, data)]))
    snippets = [
        [search_pb2.Snippet(start=size, end=9).SerializeToString() for size in sizes[:3]],
        [],
        [b""] * 4,
    ]
    with_snippets = written.with_field(search_pb2.Hit.SNIPPET_FIELD_NUMBER, snippets)
    found = [search_pb2.HitList.FromString(each).hits for each in with_snippets.lists()]
    assert [[hit.snippet.start for hit in each] for each in found] == [sizes[:3], [], [0] * 4]
    assert [len(hit.datapoint.text) for each in found for hit in each] == sizes
    assert not found[2][0].HasField("snippet")
