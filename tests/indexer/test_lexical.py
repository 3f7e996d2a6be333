"""Words at rest and BM25, against a few lines of Python that do the same slowly."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import (
    Analyser,
    FormatError,
    InvalidSpecError,
    LexicalSpec,
    Segment,
    SegmentCache,
    Store,
    build_segment,
    corpus_statistics,
    open_index,
    parse_spec,
    score_rows,
)
from scannery.indexer import segment_writer as writer
from tests.data import clustered, datapoints, publish

WORDS = ["volcano", "volcanoes", "Über", "naïve", "the", "running", "runs", "東京", "can't", "3.14", "!"]
SPEC = {"index": "words", "source": {"vector": "v", "text": "text"}, "lexical": True}

texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)
rows = st.tuples(st.one_of(st.none(), texts), st.one_of(st.none(), texts))


def opened(folder: Path, corpus: list[tuple[str | None, str | None]], **options: Any) -> list[Segment]:
    spec = parse_spec({**SPEC, **options.pop("spec", {})})
    columns = {"title": [title for title, _ in corpus], "text": [text for _, text in corpus]}
    store = Store.open(folder / "store", create=True)
    publish(store, spec, datapoints(spec, clustered(len(corpus), 4), columns=columns), folder, **options)
    return list(open_index(store, "words", cache=SegmentCache(folder / "cache")).segments)


def oracle(corpus: list[tuple[str | None, str | None]], query: str) -> dict[str, float]:
    """Return the BM25 score of each matching id."""
    analyser = Analyser(LexicalSpec())
    bags = [Counter(analyser.terms(f"{title or ''}\n{text or ''}")) for title, text in corpus]
    lengths = [sum(bag.values()) for bag in bags]
    n = sum(length > 0 for length in lengths)
    scores = {}
    for number, bag in enumerate(bags):
        score = 0.0
        for term in analyser.terms(query):
            df = sum(term in other for other in bags)
            if bag[term]:
                norm = 1.2 * (1 - 0.75 + 0.75 * lengths[number] / (sum(lengths) / n))
                score += math.log(1 + (n - df + 0.5) / (df + 0.5)) * bag[term] / (bag[term] + norm)
        if score:
            scores[f"d{number}"] = score
    return scores


def searched(segments: list[Segment], query: str) -> dict[str, float]:
    postings = [segment.postings for segment in segments if segment.postings]
    assert len(postings) == len(segments)
    terms = Analyser(LexicalSpec()).terms(query)
    corpus = corpus_statistics(postings, terms)
    weights = {t: corpus.idf(t) * n for t, n in Counter(terms).items() if t in corpus.frequencies}
    found: dict[str, float] = {}
    for segment, words in zip(segments, postings, strict=True):
        numbers, scores = score_rows(words, weights, corpus.average_length)
        assert len(set(numbers.tolist())) == len(numbers)
        found |= dict(zip(segment.take(numbers, ["id"]).column(0).to_pylist(), scores.tolist(), strict=True))
    return found


@settings(max_examples=60)
@given(corpus=st.lists(rows, min_size=1, max_size=25), query=texts)
def test_scores_are_those_of_the_oracle_for_any_number_of_shards(
    tmp_path_factory: pytest.TempPathFactory, corpus: list[tuple[str | None, str | None]], query: str
) -> None:
    right = oracle(corpus, query)
    one = searched(opened(tmp_path_factory.mktemp("one"), corpus), query)
    assert one == pytest.approx(right, rel=1e-6)
    eight = searched(opened(tmp_path_factory.mktemp("eight"), corpus, shards=8), query)
    assert eight == one  # to the last bit


def test_rows_that_are_not_allowed_are_left_out(tmp_path: Path) -> None:
    [segment] = opened(tmp_path, [(None, "volcano")] * 5)
    assert segment.postings is not None
    allowed = np.array([True, False, True, False, False])
    found, scores = score_rows(segment.postings, {"volcano": 1.0}, 1.0, allowed)
    assert sorted(found.tolist()) == [0, 2]
    assert scores.dtype == np.float32


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("english", "Volcanoes erupted; the volcano's erupting!", ["volcano", "erupt", "the", "volcano", "erupt"]),
        ("none", "Volcanoes ERUPTED", ["volcanoes", "erupted"]),
        ("none", "can't 3.14 U.S.A. e-mail", ["can't", "3.14", "u.s.a", "e", "mail"]),
        ("none", "don’t", ["don't"]),
        ("none", "東京タワー", ["東", "京", "タワー"]),
        ("none", "ﬁne ＡＢＣ Ⅷ", ["fine", "abc", "viii"]),
        ("none", "cafe\u0301 CAFÉ", ["café", "café"]),
        ("german", "Häuser Hauses", ["haus", "haus"]),
        ("russian", "вулканы вулканов", ["вулка", "вулкан"]),
        ("none", " \n ,.!? 🎻 ", []),
        ("none", "x" * 500, ["x" * 128]),
    ],
)  # fmt: skip
def test_texts_become_terms(language: Any, text: str, terms: list[str]) -> None:
    assert Analyser(LexicalSpec(language=language)).terms(text) == terms


def test_stop_words_count_in_every_spelling() -> None:
    analyser = Analyser(LexicalSpec(stop_words=["The", "don’t"]))
    assert analyser.terms("THE cats don't see the dogs") == ["cat", "see", "dog"]


def test_the_file_has_sorted_terms_and_their_counts(tmp_path: Path) -> None:
    spec = parse_spec(SPEC)
    table = datapoints(
        spec, clustered(2, 4), columns={"title": ["Rock", None], "text": ["rocks melt, rock", None]}
    )
    built = build_segment(table, spec=spec, shard=0, directory=tmp_path)
    written = pq.read_table(built.path, columns=["_terms", "_term_counts"]).to_pydict()
    assert written == {"_terms": [["melt", "rock"], []], "_term_counts": [[1, 3], []]}


def test_terms_lie_with_their_rows_where_scann_reorders_them(tmp_path: Path) -> None:
    corpus: list[tuple[str | None, str | None]] = [(None, f"number{row} common") for row in range(1200)]
    [segment] = opened(tmp_path, corpus, spec={"scann": {"exact_below_rows": 1000}})
    assert segment.entry.kind == "scann"
    assert segment.postings is not None
    for row in (0, 17, 1199):
        found, _ = score_rows(segment.postings, {f"number{row}": 1.0}, 2.0)
        assert segment.take(found, ["id"]).column(0).to_pylist() == [f"d{row}"]


def test_an_index_without_words_has_none(tmp_path: Path) -> None:
    [segment] = opened(tmp_path, [(None, "volcano")], spec={"lexical": False})
    assert segment.postings is None


def test_terms_of_a_later_analyser_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "ANALYSER_VERSION", 99)
    with pytest.raises(FormatError, match="version 99 of the analyser"):
        opened(tmp_path, [(None, "volcano")])


@pytest.mark.parametrize(
    ("lexical", "expected"),
    [
        (True, LexicalSpec()),
        (False, None),
        ({}, LexicalSpec()),
        ({"language": "german", "stop_words": ["und"]}, LexicalSpec(language="german", stop_words=["und"])),
    ],
)
def test_specs_say_how(lexical: Any, expected: LexicalSpec | None) -> None:
    spec = parse_spec({**SPEC, "lexical": lexical})
    assert spec.lexical == expected
    assert parse_spec(spec.model_dump()) == spec
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize(
    ("lexical", "message"),
    [
        ("yes", "lexical: must be true, false or a mapping"),
        ({"language": "klingon"}, "lexical.language: "),
        ({"languages": "german"}, "unknown key `lexical.languages`; did you mean `language`?"),
        ({"stop_words": "the"}, "lexical.stop_words: "),
        ({"stop_words": [3]}, "lexical.stop_words.0: "),
    ],
)
def test_wrong_specs_are_clear_errors(lexical: Any, message: str) -> None:
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec({**SPEC, "lexical": lexical})
    assert caught.value.message.startswith(message)
