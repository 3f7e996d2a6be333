"""Phrases in queries and filters: over every wire, in every mode, of built and live rows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery import FailedPreconditionError, InvalidArgumentError, Words
from scannery.client.request.filters import Where
from scannery.indexer import Store, parse_spec
from scannery.live.maintenance.seal import seal
from tests.data import clustered, datapoints
from tests.served import WIRES, connected, publish_version

TITLES = {"title": "Plate boundaries", "split": "The plate"}
TEXTS = {
    "near": "At a plate boundary, a volcano erupts.",
    "forms": "Volcanoes erupt where the plates' boundaries are.",
    "apart": "A plate has a boundary, a volcano a crater.",
    "turned": "Boundary, plate, volcano.",
    "title": "A volcano.",
    "split": "boundary of a volcano",  # the title ends where the text begins
    "none": "A volcano, and nothing else.",
}
VECTORS_ND = clustered(len(TEXTS), 8, seed=4)
ROWS: list[Any] = [
    {
        "id": name, "vector": vector_D, "vectors": {"topic": vector_D}, "text": text, "title": TITLES.get(name, ""),
        "attributes": {"even": number % 2 == 0},
    }
    for number, ((name, text), vector_D) in enumerate(zip(TEXTS.items(), VECTORS_ND, strict=True))
]  # fmt: skip
HAVE = {"near", "forms", "title"}
NEAR = {*HAVE, "apart"}


@pytest.fixture(scope="module", params=WIRES)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[scannery.Client]:
    with connected(tmp_path_factory.mktemp("phrases") / "store", request.param) as client:
        index = client.create_index(
            "phrases", dimensions=8, lexical=True, attributes={"even": "bool"},
            named_vectors={"topic": {"dimensions": 8}},
        )  # fmt: skip
        index.upsert(ROWS)
        client.create_index("silent", dimensions=8)
        yield client


@pytest.fixture
def index(client: scannery.Client) -> scannery.Index:
    return client.index("phrases")


def ids(hits: scannery.Hits) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.parametrize("quoted", ['"plate boundary"', "“plate boundary”", "„plate boundary“"])
def test_hits_have_the_phrase(index: scannery.Index, quoted: str) -> None:
    hits = index.search(f"volcano {quoted}", k=20)
    assert hits.mode == "lexical" and {*ids(hits)} == HAVE
    plain = {hit.id: hit.score for hit in index.search("volcano plate boundary", k=20)}
    assert {hit.id: hit.score for hit in hits} == {name: plain[name] for name in HAVE}
    assert {*ids(index.search(f"{quoted}~2 volcano", k=20))} == NEAR
    assert {*ids(index.search('"volcano"', k=20))} == {*TEXTS}
    assert {*ids(index.search(f'{quoted} "volcanoes erupt"', k=20))} == {"near", "forms"}


def test_hybrid_hits_have_it_dense_ones_need_not(index: scannery.Index) -> None:
    query = Words('"plate boundary" volcano', VECTORS_ND[2])
    for fusion in ("weighted_score", "reciprocal_rank"):
        hits = index.search(query, k=20, fusion=fusion)
        assert hits.mode == "hybrid" and {*ids(hits)} == HAVE
        where = {"text": {"$phrase": "plate boundary"}}
        plain = Words("plate boundary volcano", VECTORS_ND[2])
        assert hits == index.search(plain, k=20, fusion=fusion, where=where)
    assert {*ids(index.search(query, k=20, vectors=["topic", ""], mode="hybrid"))} == HAVE
    assert {*ids(index.search(query, k=20, mode="dense"))} == {*TEXTS}


def test_filters_crowding_and_pages_apply(index: scannery.Index) -> None:
    whole = index.search('"plate boundary"', k=20)
    pages = [index.search('"plate boundary"', k=1, offset=start) for start in range(4)]
    assert [hit for page in pages for hit in page] == list(whole)
    even = [name for number, name in enumerate(TEXTS) if number % 2 == 0]
    assert ids(index.search('"plate boundary"', k=20, where={"even": True})) == [
        name for name in ids(whole) if name in even
    ]
    assert len(index.search('"plate boundary"', k=20, max_per_group=1, group_by="even")) == 2


def test_queries_of_a_batch_have_phrases_of_their_own(index: scannery.Index) -> None:
    queries = ['"plate boundary"', "volcano", '"plate boundary"~2', '"no such phrase" volcano']
    batch = index.search_many(queries, k=20)
    assert batch == [index.search(query, k=20) for query in queries]
    assert [{*ids(hits)} for hits in batch] == [HAVE, {*TEXTS}, NEAR, {*TEXTS}]
    where = {"even": True}
    assert index.search_many(queries, k=20, where=where) == [
        index.search(query, k=20, where=where) for query in queries
    ]


def test_a_phrase_that_no_row_has_is_words(index: scannery.Index) -> None:
    assert index.search('"volcano plate"', k=20) == index.search("volcano plate", k=20)
    assert not index.search("volcano plate", k=20, where={"text": {"$phrase": "volcano plate"}})
    hits = index.search('"volcano plate" magma', explain=True)
    assert hits.explanation is not None and hits.explanation.phrases == ()
    # One that rows have is required, though the filter allows none of them.
    assert not index.search('"plate boundary"', where={"id": "none"})


def test_phrases_are_explained(index: scannery.Index) -> None:
    queries = ['volcano "plate boundary"~2 “erupts”', "volcano"]
    phrases = [('"plate boundary"~2', '"erupts"'), ()]
    several = index.search_many(queries, explain=True)
    for hits, expected in zip(
        [*several, index.search(queries[0], explain=True)], [*phrases, phrases[0]], strict=True
    ):
        assert hits.explanation is not None and hits.explanation.phrases == expected


def test_the_time_of_reading_texts_is_that_of_filtering(client: scannery.Client) -> None:
    index = client.create_index("apart", dimensions=8, lexical=True)
    index.upsert([
        {"id": str(number), "vector": VECTORS_ND[0], "text": f"a plate and its boundary, {number} times"}
        for number in range(1000)
    ])  # fmt: skip
    explanation = index.search('"plate boundary"', explain=True).explanation
    assert explanation is not None and explanation.phrases == ()
    assert explanation.stages_us["filter"] > explanation.stages_us["search"]


def test_words_of_phrases_are_highlighted(index: scannery.Index) -> None:
    [hit] = index.search('"plate boundary" volcano', where={"id": "near"}, highlight=True)
    assert hit.snippet is not None and hit.text is not None
    assert [hit.text[start:end] for start, end in hit.snippet.words] == ["plate", "boundary", "volcano"]


def test_filters_have_phrases(index: scannery.Index) -> None:
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({"$phrase": "plate boundary"}, HAVE),
        ({"$phrase": "Plates, boundaries", "$slop": 0}, HAVE),
        ({"$phrase": "plate boundary", "$slop": 2}, NEAR),
        ({"$phrase": "plate boundary", "$not": {"$phrase": "volcanoes erupt"}}, HAVE - {"near", "forms"}),
        ({"$not": {"$phrase": "plate boundary", "$slop": 2}}, {*TEXTS} - NEAR),
        ({"$phrase": "no such words"}, set()),
    ]  # fmt: skip
    for condition, names in cases:
        where = {"text": condition}
        assert {*ids(index.search(VECTORS_ND[0], k=20, where=where))} == names, condition
        assert index.count(where) == len(names)
        assert {point.id for point in index.scan(where=where)} == names
    either: Where = {"$or": [{"text": {"$phrase": "nothing else"}}, {"id": "near"}]}
    assert {point.id for point in index.scan(where=either)} == {"none", "near"}


@pytest.mark.parametrize(("where", "message"), [
    ({"even": {"$phrase": "a"}}, r"where.even.\$phrase: is for the field `text`"),
    ({"text": {"$phrase": "?!"}}, r"where.text.\$phrase: has no word that is indexed"),
    ({"text": {"$phrase": 3}}, r"where.text.\$phrase: must be a string, got 3"),
    ({"text": {"$phrase": "x" * 40_000}}, r"where.text.\$phrase: must have at most 32768 bytes, got 40000"),
    ({"text": {"$phrase": "x " * 33}}, r"where.text.\$phrase: must have at most 32 words, got 33"),
    ({"text": {"$phrase": "a b", "$slop": 101}}, r"where.text.\$slop: must be an integer from 0 to 100, got 101"),
    ({"text": {"$phrase": "a b", "$slop": 0.5}}, r"where.text.\$slop: must be an integer from 0 to 100, got 0.5"),
    ({"text": {"$slop": 1}}, r"where.text.\$slop: belongs to \$phrase"),
    ({"text": {"$match_phrase": "a b"}}, r"use \$phrase, with \$slop"),
    ({"text": "a b"}, r"where.text: no such attribute"),
])  # fmt: skip
def test_what_does_not_fit_is_named(index: scannery.Index, where: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        index.search("volcano", where=where)


def test_an_index_without_words_refuses_phrases(client: scannery.Client) -> None:
    with pytest.raises(FailedPreconditionError, match=r"where.text.\$phrase: the index has no words"):
        client.index("silent").count({"text": {"$phrase": "a b"}})


def naively(phrase: list[str], slop: int, fields: list[str]) -> bool:
    """Return whether a field has the words in order and near enough; words are equal by their first letters here."""
    for field in fields:
        text = field.split()
        for chosen in combinations(range(len(text)), len(phrase)):
            is_near = chosen[-1] - chosen[0] - len(phrase) + 1 <= slop
            if is_near and all(text[at][:4] == word[:4] for at, word in zip(chosen, phrase, strict=True)):
                return True
    return False


LATIN = [
    "plate",
    "plates",
    "boundary",
    "boundaries",
    "of",
    "the",
    "volcano",
    "volcanoes",
    "erupt",
    "erupts",
    "magma",
]


@pytest.mark.system
def test_live_rows_updates_and_deletes_are_read(tmp_path: Path) -> None:
    rng = random.Random(5)

    def fields() -> list[str]:
        return [" ".join(rng.choices(LATIN, k=rng.randrange(size))) for size in (4, 12)]

    rows = {f"d{number}": fields() for number in range(300)}
    spec = parse_spec(
        {"index": "live", "source": {"vector": "v", "text": "text"}, "lexical": True, "shards": 2}
    )
    columns = {"title": [title for title, _ in rows.values()], "text": [text for _, text in rows.values()]}
    table = datapoints(spec, clustered(300, 8), ids=list(rows), columns=columns)
    store = Store.open(tmp_path / "store", create=True)
    publish_version(store, spec, table, tmp_path, shards=2)
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("live")
        check(index, rows, rng)
        for step in range(3):
            for number in rng.sample(range(400), 60):
                rows[f"d{number}"] = fields()
                title, text = rows[f"d{number}"]
                index.upsert([{"id": f"d{number}", "vector": [1.0] * 8, "title": title, "text": text}])
            gone = rng.sample(sorted(rows), 20)
            index.delete(gone)
            for name in gone:
                del rows[name]
            check(index, rows, rng)
            if step == 1:
                seal(store, "live")
                check(index, rows, rng)
        removed = {name for name, own in rows.items() if naively(["plate", "boundary"], 0, own)}
        assert removed and index.delete(where={"text": {"$phrase": "plate boundary"}}).deleted == len(removed)
        check(index, {name: own for name, own in rows.items() if name not in removed}, rng)


def check(index: scannery.Index, rows: dict[str, list[str]], rng: random.Random) -> None:
    for _ in range(12):
        phrase, slop = rng.choices(LATIN, k=rng.randrange(1, 4)), rng.choice([0, 0, 1, 3])
        expected = {name for name, own in rows.items() if naively(phrase, slop, own)}
        where: Where = {"text": {"$phrase": " ".join(phrase), "$slop": slop}}
        assert {point.id for point in index.scan(where=where)} == expected, where
        if expected:
            hits = index.search(f'"{" ".join(phrase)}"~{slop}', k=500, mode="lexical")
            assert {*ids(hits)} == expected
