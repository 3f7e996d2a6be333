"""Scores of rows by the words of their whole documents, against a few lines of Python that do the same slowly."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import (
    Analyser,
    LexicalSpec,
    OpenIndex,
    QueryText,
    SegmentCache,
    Store,
    WeightedTerms,
    open_index,
    parse_spec,
    weighted_terms,
)
from scannery.indexer.kernels import posting_kernels
from scannery.indexer.lexical.word_index import warm_up
from tests.data import clustered, datapoints, publish, without_ids

SPEC = {
    "index": "words",
    "source": {"vector": "v", "text": "text", "document_id": "doc"},
    "lexical": {"scope": "document"},
}
WORDS = ["ant", "bee", "cat", "dog", "elk"]

passages = st.tuples(st.sampled_from("ABCD"), st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join))


def opened(
    folder: Path,
    corpus: list[tuple[str, str]],
    *,
    scope: str = "document",
    dead: Collection[str] = (),
    **options: Any,
) -> OpenIndex:
    columns = {"document_id": [document for document, _ in corpus], "text": [text for _, text in corpus]}
    store, spec = Store.open(folder / "store", create=True), parse_spec({**SPEC, "lexical": {"scope": scope}})
    publish(store, spec, datapoints(spec, clustered(len(corpus), 4), columns=columns), folder, **options)
    if dead:
        without_ids(store, "words", dead)
    return open_index(store, "words", cache=SegmentCache(folder / "cache"))


def scores(index: OpenIndex, query: str) -> dict[str, float]:
    assert index.words is not None
    analyser = Analyser(LexicalSpec())
    [words] = weighted_terms([[QueryText(query, 1.0)]], analyser, index.words.statistics)
    found: dict[str, float] = {}
    whole = index.words.search(words)
    for number, (segment, alive) in enumerate(zip(index.segments, index.alive, strict=True)):
        rows, values = whole.best(number, segment.rows, alive)
        found |= dict(zip(segment.ids_of(rows), values.tolist(), strict=True))
    return found


def right_scores(corpus: dict[str, tuple[str, str]], query: str) -> dict[str, float]:
    """Return the score of each matching id; the corpus: document and text by id."""
    bags = {name: Counter(text.split()) for name, (_, text) in corpus.items()}
    documents: dict[str, Counter[str]] = defaultdict(Counter)
    for name, (document, _) in corpus.items():
        documents[document].update(bags[name])
    filled = [bag for bag in bags.values() if bag]
    mean = sum(map(Counter.total, filled)) / len(filled) if filled else 1.0
    whole = [bag for bag in documents.values() if bag]
    document_mean = sum(map(Counter.total, whole)) / len(whole) if whole else 1.0

    def bm25(bag: Counter[str], average: float) -> float:
        norm = 1.2 * (1 - 0.75 + 0.75 * bag.total() / average)
        score = 0.0
        for term in query.split():
            frequency = sum(term in other for other in filled)
            idf = math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
            score += idf * bag[term] / (bag[term] + norm)
        return score

    return {
        name: (bm25(bag, mean) + bm25(documents[corpus[name][0]], document_mean)) / 2
        for name, bag in bags.items()
        if any(term in bag for term in query.split())
    }


@pytest.mark.system
@settings(max_examples=20)
@given(
    corpus=st.lists(passages, min_size=1, max_size=20),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
)
def test_scores_are_those_of_the_oracle_for_any_number_of_shards(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[tuple[str, str]], query: str
) -> None:
    right = right_scores({f"d{number}": row for number, row in enumerate(corpus)}, query)
    one = scores(opened(tmp_path_factory.mktemp("one"), corpus), query)
    assert one == pytest.approx(right, rel=1e-6)
    eight = scores(opened(tmp_path_factory.mktemp("eight"), corpus, shards=8), query)
    assert eight == one  # to the last bit


def test_all_kernels_of_searches_by_words_are_compiled_before_the_first() -> None:
    warm_up()
    used = (
        "add_bm25", "add_document_counts", "add_document_scores", "add_row_counts", "count_allowed", "count_rows",
        "keep_best",
        "look_up_bm25", "look_up_counts", "measure_blocks", "pack", "rows_of_best_documents", "sum_by_document",
        "take_row_counts", "unpack",
    )  # fmt: skip
    assert [name for name in used if not getattr(posting_kernels, name).signatures] == []


def right_matches(corpus: dict[str, tuple[str, str]], query: str) -> dict[str, tuple[str, float, int]]:
    """Return the document of each id, the share of the query's weights that it has, and its number of words."""
    words: dict[str, list[str]] = defaultdict(list)
    for document, text in corpus.values():
        words[document] += text.split()
    filled = [set(text.split()) for _, text in corpus.values() if text]
    frequencies = {term: sum(term in each for each in filled) for term in query.split()}
    idf = {
        term: math.log(1 + (len(filled) - frequency + 0.5) / (frequency + 0.5))
        for term, frequency in frequencies.items()
        if frequency
    }
    weights = Counter(term for term in query.split() if term in idf)
    whole = sum(weights[term] * idf[term] for term in weights) or 1.0
    return {
        name: (
            document,
            sum(weights[term] * idf[term] for term in weights if term in words[document]) / whole,
            len(words[document]),
        )
        for name, (document, _) in corpus.items()
    }


@pytest.mark.system
@pytest.mark.parametrize("scope", ["document", "passage"])
@settings(max_examples=10)
@given(
    corpus=st.lists(passages, min_size=2, max_size=20),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    deleted=st.sets(st.integers(0, 19), max_size=4),
)
def test_matches_of_rows_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory,
    corpus: list[tuple[str, str]],
    query: str,
    deleted: set[int],
    scope: str,
) -> None:
    dead = {f"d{number}" for number in deleted if number < len(corpus) - 1}
    kept = {f"d{number}": row for number, row in enumerate(corpus) if f"d{number}" not in dead}
    if scope == "passage":
        kept = {name: (name, text) for name, (_, text) in kept.items()}
    right = right_matches(kept, query)
    for shards in (1, 4):
        index = opened(tmp_path_factory.mktemp("matches"), corpus, shards=shards, scope=scope, dead=dead)
        assert index.words is not None
        [words] = weighted_terms([[QueryText(query, 1.0)]], Analyser(LexicalSpec()), index.words.statistics)
        places = [
            (number, row, name)
            for number, segment in enumerate(index.segments)
            for row, name in enumerate(segment.ids_of(np.arange(segment.rows)))
            if name not in dead
        ]
        numbers_R, rows_R = (np.array(each) for each in list(zip(*places, strict=True))[:2])
        matches = index.words.search(words).matches(numbers_R, rows_R)
        documents: dict[int, set[str]] = defaultdict(set)
        for (*_, name), document, coverage, length in zip(places, *matches, strict=True):
            documents[int(document)].add(right[name][0])
            assert (coverage, length) == pytest.approx(right[name][1:])
        assert sorted(map(sorted, documents.values())) == sorted(
            [each] for each in {document for document, *_ in right.values()}
        )
        # A root sends its leaves nothing of a query that has no words.
        without = index.words.search(WeightedTerms({}, 0.0)).matches(numbers_R, rows_R)
        assert without.documents_R.tolist() == matches.documents_R.tolist()
        assert without.words_R.tolist() == matches.words_R.tolist()
