"""Pairs of a corpus and of judged queries: what stands in them, and which documents give none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store
from scannery.indexer.reader import OpenIndex, open_index
from scannery.pipelines import build
from scannery.pipelines.errors import CollectionError
from scannery.training.encoder.models import _parts
from scannery.training.encoder.sample import Sample
from scannery.training.judged import Judged
from scannery.training.pairs.batches import PairBatches
from scannery.training.pairs.corpus import Corpus, read_corpus
from scannery.training.pairs.judged import judged_pairs
from scannery.training.pairs.signals import Pair, question_answer, title_passage

ROWS_PER_DOCUMENT, DOCUMENTS = 3, 12


def corpus(*, titles: bool = True) -> Corpus:
    """Return documents of three passages; the title stands in the first one."""
    numbers = [number for number in range(DOCUMENTS) for _ in range(ROWS_PER_DOCUMENT)]
    texts = [
        f"Part {row} of THE STORY {row // ROWS_PER_DOCUMENT}, and what was said."
        for row in range(len(numbers))
    ]
    table = pa.table(
        {
            "id": [f"{number}#{row}" for row, number in enumerate(numbers)],
            "document_id": [f"d{number:02}" for number in numbers],
            "title": pa.array([f"The Story {number}" if titles else None for number in numbers], pa.string()),
            "text": texts,
        }
    )
    names = [f"d{number:02}" for number in range(DOCUMENTS)]
    rows_N = np.arange(len(numbers))
    return Corpus(table, cast(Any, None), np.zeros_like(rows_N), rows_N, np.array(numbers), names)


def batches(held_out: set[int], *, batch: int = 8, seed: int = 1, **signals: float) -> PairBatches:
    judged = [
        Pair(f"query {number}", "passage", number) for number in range(DOCUMENTS) if number not in held_out
    ]
    return PairBatches(
        corpus(titles="title_passage" in signals), judged, signals or {"judged": 1.0},
        held_out=held_out, batch=batch, seed=seed,
    )  # fmt: skip


def test_a_title_does_not_stand_in_the_passage_that_it_asks_for() -> None:
    pair = title_passage(corpus(), 4, np.random.default_rng(0))
    assert pair is not None
    assert pair.query == "The Story 1"
    assert pair.passage == "Part 4 of  , and what was said."
    assert pair.document == 1


def interview(*texts: str) -> Corpus:
    """Return the passages of one document."""
    table = pa.table(
        {
            "id": [f"i#{row}" for row in range(len(texts))],
            "document_id": ["i"] * len(texts),
            "title": ["Bees"] * len(texts),
            "text": texts,
        }
    )
    rows_N = np.arange(len(texts))
    return Corpus(table, cast(Any, None), 0 * rows_N, rows_N, 0 * rows_N, ["i"])


def test_a_question_asks_for_what_follows_it_and_does_not_stand_in_it() -> None:
    talk = interview(
        "Welcome. How did you come to keep bees on a roof? My neighbour had two hives, and gave me one of them.",
        "The first winter was hard, and then I learned to feed them early enough.",
        "I said so before. What do you feed them in a winter that is so long",
    )
    random = np.random.default_rng(0)
    pair = question_answer(talk, 0, random)
    assert pair is not None
    assert pair.query == "How did you come to keep bees on a roof?"
    assert pair.passage.startswith("Bees\nMy neighbour had two hives")
    assert pair.passage.endswith("feed them early enough."), "it is short, so it goes on"
    assert question_answer(talk, 1, random) is None
    assert question_answer(talk, 2, random) is None, "nobody answers"


def test_the_pairs_of_a_step_follow_from_its_number_and_are_of_documents_of_their_own() -> None:
    made, again = (batches(set(), title_passage=0.5, judged=0.5) for _ in range(2))
    later = [made.pairs(step) for step in (7, 3)]
    assert [again.pairs(step) for step in (3, 7)] == later[::-1]
    assert later[0] != later[1]
    assert batches(set(), seed=2, title_passage=0.5, judged=0.5).pairs(7) != later[0]
    assert all(len({pair.document for pair in pairs}) == 8 for pairs in later)
    judged = sum(pair.passage == "passage" for step in range(100) for pair in made.pairs(step))
    assert 300 < judged < 500, "half of 800"


def test_documents_that_are_held_out_give_no_pairs() -> None:
    made = batches({0, 3, 5}, batch=64, title_passage=1.0)
    assert {pair.document for step in range(5) for pair in made.pairs(step)} == {*range(DOCUMENTS)} - {
        0,
        3,
        5,
    }


def test_signals_that_give_nothing_are_left_out() -> None:
    untitled = PairBatches(
        corpus(titles=False), [Pair("a", "b", 0)], {"title_passage": 0.9, "judged": 0.1},
        held_out=(), batch=4, seed=1,
    )  # fmt: skip
    assert untitled.signals == ("judged",)
    with pytest.raises(CollectionError, match="none of title_passage gives pairs"):
        PairBatches(corpus(titles=False), [], {"title_passage": 1.0}, held_out=(), batch=4, seed=1)


def queries(*documents: list[str]) -> Sample:
    """Return a sample of all passages, with a query for each list of documents that answer it."""
    names = [f"q{number}" for number in range(len(documents))]
    target = Judged(
        dict(zip(names, names, strict=True)),
        {name: dict.fromkeys(keys, 1) for name, keys in zip(names, documents, strict=True)},
        passages=False,
        current_Q=np.zeros(len(names)),
    )
    return Sample(corpus(), np.arange(len(corpus())), target, {})


def test_queries_that_share_documents_are_held_out_together() -> None:
    sample = queries(["d00", "d01"], ["d02"], ["d03"], ["d01", "d04"], ["d05"], ["d04"])
    first, second = map(set, _parts(sample, 1))
    assert first | second == {f"q{number}" for number in range(6)}
    assert {"q0", "q3", "q5"} <= first or {"q0", "q3", "q5"} <= second
    with pytest.raises(CollectionError, match="none can be held out"):
        [*_parts(queries(["d00"], ["d00", "d01"]), 1)]


@pytest.mark.system
def test_a_judged_query_whose_documents_are_held_out_gives_no_pair(folder_index: OpenIndex) -> None:
    made = read_corpus(folder_index)
    judged = queries(["a"], ["b"], ["a", "b"]).target
    vectors_QD = np.array([[1, 0], [0, 1], [1, 0]], np.float32)
    pairs = judged_pairs(made, judged, vectors_QD, held_out={})
    assert [(pair.query, pair.passage) for pair in pairs] == [
        ("q0", "first of a"), ("q1", "second of b"), ("q2", "first of a"), ("q2", "first of b"),
    ]  # fmt: skip
    held_out = {made.numbers["b"]}
    assert [pair.query for pair in judged_pairs(made, judged, vectors_QD, held_out=held_out)] == ["q0"]


@pytest.fixture
def folder_index(tmp_path: Path) -> OpenIndex:
    """Return an index of two documents, each with a passage along each axis."""
    rows = [
        {"id": f"{name}{number}", "document": name, "text": f"{part} of {name}", "vector": vector}
        for name in "ab"
        for number, (part, vector) in enumerate([("first", [1.0, 0.0]), ("second", [0.0, 1.0])])
    ]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    source = {"id": "id", "document_id": "document", "text": "text", "vector": "vector"}
    build({"index": "rows", "source": source}, [str(tmp_path / "rows.jsonl")], str(tmp_path / "store"))
    return open_index(Store.open(tmp_path / "store"), "rows")
