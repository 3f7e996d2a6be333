"""Words at rest and BM25, against a few lines of Python that do the same slowly."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scannery
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
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.lexical.words import MAX_MARKS, _few_marks
from scannery.pipelines import build
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


@pytest.mark.system
@settings(max_examples=20)
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
    allowed.setflags(write=False)
    found, scores = score_rows(segment.postings, {"volcano": 1.0}, 1.0, segment.allow(allowed))
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


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("co\u00adoperate", "cooperate"), ("foot\u2060note", "footnote"), ("\ufeffstart", "start"),
        ("STRASSE", "straße"), ("ΟΔΥΣΣΕΥΣ", "οδυσσευς"), ("σοφος", "σοφοσ"),
        ("\u0645\u064f\u062d\u064e\u0645\u0651\u064e\u062f", "\u0645\u062d\u0645\u062f"),
        ("\u0645\u0640\u0640\u062d\u0645\u062f", "\u0645\u062d\u0645\u062f"), ("שָׁלוֹם", "שלום"), ("ﬁsh", "FISH"),
        ("e\u034f\u0301t\u00e9", "été"), ("x\u200d\u200cy", "xy"),
    ],
)  # fmt: skip
def test_spellings_that_a_reader_takes_for_one_word_are_one_term(one: str, other: str) -> None:
    analyser = Analyser(LexicalSpec(language="none", analyser=2))
    assert analyser.terms(one) == analyser.terms(other)
    assert len(analyser.terms(one)) == 1


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]), ("ที่นี่", ["ที่นี่"]), ("ก", ["ก"]),
        ("abc ไทย 12", ["abc", "ไท", "ทย", "12"]), ("ไท\u200bทย", ["ไท", "ทย"]), ("မြန်မာ", ["မြန်", "န်မာ"]),
    ],
)  # fmt: skip
def test_scripts_without_spaces_become_pairs_of_syllables(text: str, terms: list[str]) -> None:
    assert Analyser(LexicalSpec(language="none", analyser=2)).terms(text) == terms


@pytest.mark.parametrize(
    ("language", "text", "terms"),
    [
        ("none", "東京タワー", ["東", "京", "東京", "京タ", "タワ", "ワー"]),
        ("none", "時々水 が", ["時", "々", "水", "時々", "々水", "が"]),
        ("none", "水。abc", ["水", "abc"]),
        ("none", "서울에서 물 K팝", ["서울", "울에", "에서", "물", "k팝"]),
        ("none", "ภาษาไทย", ["ภา", "าษ", "ษา", "าไ", "ไท", "ทย"]),
        ("none", "cafe\u0301 CAFÉ cafe", ["cafe", "cafe", "cafe"]),
        ("none", "Ångström Đà Łódź Ærø ещё май", ["angstrom", "da", "lodz", "aero", "еще", "май"]),
        ("none", "Αθήνα", ["αθηνα"]),
        ("none", "नमस्ते", ["नमस्ते"]),
        ("spanish", "canción cancion", ["cancion", "cancion"]),
        ("french", "mangée mange", ["mang", "mange", "mang"]),
        ("german", "Häuser Hauses", ["haus", "haus"]),
    ],
)
def test_ideographs_become_pairs_and_accents_are_removed(language: Any, text: str, terms: list[str]) -> None:
    assert Analyser(LexicalSpec(language=language, analyser=3)).terms(text) == terms


@pytest.mark.system
def test_only_runs_of_marks_that_nobody_writes_are_cut() -> None:
    assert _few_marks("e" + "\u0301" * MAX_MARKS + "x") == "e" + "\u0301" * MAX_MARKS + "x"
    assert _few_marks("e" + "\u0301\u0316" * 40 + "x") == "e" + "\u0301\u0316" * 15 + "x"
    # Whatever normalisation sorts is counted: what is, or decomposes to, characters with a combining class.
    for code in range(0x110000):
        char = chr(code)
        if not 0xD800 <= code < 0xE000 and unicodedata.combining(unicodedata.normalize("NFKD", char)[0]):
            assert len(_few_marks(char * 40)) == MAX_MARKS, hex(code)


@pytest.mark.system
def test_an_index_keeps_the_rules_by_which_its_words_were_made(tmp_path: Path) -> None:
    """Of before there were versions, it says nothing, and has the first; a new one says that it has the newest."""
    path = tmp_path / "in.jsonl"
    path.write_text('{"id": "a", "v": [1, 0], "text": "Straße und Haus"}\n')
    store = tmp_path / "store"
    old = {**SPEC, "lexical": {"language": "none"}}
    spec = parse_spec(old)
    table = datapoints(spec, clustered(1, 2), ids=["z"], columns={"text": ["Gasse STRASSE"]})
    publish(Store.open(store, create=True), spec, table, tmp_path)

    def found(word: str) -> set[str]:
        with scannery.connect(store) as client:
            return {hit.id for hit in client.index("words").search(word, mode="lexical")}

    assert (found("strasse"), found("straße")) == ({"z"}, set())
    with scannery.connect(store) as client:
        client.index("words").upsert([{"id": "live", "vector": [0, 1], "text": "die Straße"}])
    assert (found("strasse"), found("straße")) == ({"z"}, {"live"})
    build(old, [str(path)], str(store))
    assert (found("strasse"), found("straße")) == ({"z"}, {"live", "a"})
    assert open_index(Store.open(store), "words").manifest.spec.lexical == spec.lexical
    build({**old, "lexical": {"language": "none", "analyser": 2}}, [str(path)], str(store))
    assert found("strasse") == found("STRASSE") == found("straße") >= {"z", "a"}
    fresh = Store.open(tmp_path / "fresh", create=True)
    build(old, [str(path)], fresh.uri)
    lexical = open_index(fresh, "words").manifest.spec.lexical
    assert lexical is not None and lexical.version == ANALYSER_VERSION
    assert build(old, [str(path)], fresh.uri).up_to_date


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


@pytest.mark.system
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
    monkeypatch.setattr(LexicalSpec, "version", 99)
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
