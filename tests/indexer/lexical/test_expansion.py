"""What the words of a query stand for: typing errors, beginnings of words, and synonyms."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scannery.indexer import (
    AllowedRows,
    Analyser,
    CorpusStatistics,
    Expansion,
    InvalidSpecError,
    LexicalSpec,
    Postings,
    QueryText,
    Synonyms,
    corpus_counts,
    corpus_statistics,
    parse_spec,
    score_rows,
    weighted_terms,
)
from scannery.indexer.lexical import term_patterns, word_variants
from scannery.indexer.lexical.bm25 import invert, term_columns

SPEC = LexicalSpec(analyser=4)
TYPOS, PREFIX, NEITHER = Expansion(), Expansion(typos=False, prefix=True), Expansion(typos=False)
TEXTS = [
    "Volcanoes erupt along the boundary of a plate",
    "An eruption of the volcano was shown on television",
    "artificial intelligence in New York",
    "The category of a cat, and how to categorise it",
    "error E1234 of the parser getUserById",
    "Der Fluß führt Wasser, die Straße ist naß",
    "извержение вулкана в столице",
    "ज्वालामुखी का विस्फोट",
]


def postings_of(texts: list[str], spec: LexicalSpec = SPEC) -> Postings:
    titles = pa.array([None] * len(texts), pa.string())
    return Postings(invert(pa.table(term_columns(pa.table({"title": titles, "text": texts}), spec))))


POSTINGS = postings_of(TEXTS)


def expanded(
    text: str, expansion: Expansion = TYPOS, rules: tuple[str, ...] = (), spec: LexicalSpec = SPEC
) -> dict[str, str]:
    analyser = Analyser(spec)
    postings = POSTINGS if spec is SPEC else postings_of(TEXTS, spec)
    corpus = partial(corpus_statistics, [postings])
    [terms] = weighted_terms([[QueryText(text, 1.0)]], analyser, corpus, expansion, Synonyms(rules, analyser))
    return dict(terms.expanded)


def rows_of(text: str, expansion: Expansion = TYPOS, rules: tuple[str, ...] = ()) -> list[int]:
    """Return the rows that a query finds, best first."""
    analyser, corpus = Analyser(SPEC), partial(corpus_statistics, [POSTINGS])
    [terms] = weighted_terms([[QueryText(text, 1.0)]], analyser, corpus, expansion, Synonyms(rules, analyser))
    rows_M, scores_M = score_rows(POSTINGS, terms.weights, terms.average_length)
    order = np.lexsort((rows_M, -scores_M))
    return rows_M[order].tolist()


@pytest.mark.parametrize(
    ("text", "patterns"),
    [
        ("volcnao", {"volcnao": "volcano"}),
        ("volkano", {"volkano": "volcano"}),
        ("volcno", {"volcno": "volcano"}),
        ("volccano", {"volccano": "volcano"}),
        ("eruptin", {"eruptin": "erupt"}),  # the edit is in the ending, which the stem lacks
        ("televison shwon", {"televison": "televis", "shwon": "shown"}),
        ("artifcal", {"artifcal": "artifc~2"}),  # two edits
        ("вулкна", {"вулкна": "вулка"}),
        ("ज्वालामखी", {"ज्वालामखी": "ज्वालामुखी"}),
        ("Volcanoes", {}),  # a row has it, in another form
        ("yorkk", {"yorkk": "york"}),
        ("zolcano", {}),  # the first letter counts
        ("ncw", {}),  # three letters
        ("E1243", {}),
        ("getUserByIb", {}),  # a word of code
        ("1243", {}),
        ("v0lcano", {}),
    ],
)
def test_words_that_no_row_has_stand_for_similar_ones(text: str, patterns: dict[str, str]) -> None:
    language = "russian" if "в" in text else "none" if "ख" in text else "english"
    spec = SPEC if language == "english" else LexicalSpec(analyser=4, language=language)  # type: ignore[arg-type]
    assert expanded(text, TYPOS, spec=spec) == patterns
    assert expanded(text, NEITHER, spec=spec) == {}


def test_the_most_frequent_similar_words_are_taken() -> None:
    texts = ["house"] * 30 + ["horse"] * 20 + ["hoise"]
    postings, analyser = postings_of(texts), Analyser(SPEC)
    corpus = partial(corpus_statistics, [postings])
    [terms] = weighted_terms([[QueryText("housse hoase", 1.0)]], analyser, corpus, TYPOS)
    assert dict(terms.expanded) == {"housse": "hous", "hoase": "hors|hous"}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("volc", [0, 1]),
        ("the plate bou", [0, 1, 3, 4]),
        ("eruptio", [0, 1]),  # the stem of "eruption" is shorter
        ("cat", [3]),
        ("volc ", []),  # the word has ended
        ("v", []),
        ("volc plate", [0]),  # not the last word
        ("stra", [5]),
    ],
)
def test_the_last_word_may_be_the_beginning_of_one(text: str, rows: list[int]) -> None:
    assert sorted(rows_of(text, PREFIX)) == rows


def test_a_whole_word_is_better_than_one_that_begins_so() -> None:
    postings, analyser = postings_of(["a category", "the cat", "one dog"]), Analyser(SPEC)
    corpus = partial(corpus_statistics, [postings])
    [terms] = weighted_terms([[QueryText("cat", 1.0)]], analyser, corpus, PREFIX)
    rows_M, scores_M = score_rows(postings, terms.weights, terms.average_length)
    assert rows_M[np.argsort(-scores_M)].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("rules", "text", "rows"),
    [
        (("tv, television",), "tv", [1]),
        (("tv, television",), "television", [1]),
        (("telly => television",), "telly", [1]),
        (("television => volcano",), "volcano", [0, 1]),
        (("nyc => new york",), "nyc", [2]),
        (("big apple => new york", "apple => cat"), "the big apple", [0, 1, 2, 3, 4]),
        (("ai, artificial intelligence",), "ai", [2]),
        (("tv, television", "tv, cat"), "tv", [1, 3]),
        (("c++, volcano",), "c", []),
        ((), "tv", []),
    ],
)
def test_synonyms(rules: tuple[str, ...], text: str, rows: list[int]) -> None:
    assert sorted(rows_of(text, NEITHER, rules)) == rows


@pytest.mark.parametrize(
    ("rules", "text", "patterns", "expansion"),
    [
        (
            ("soda, television",),
            "soda",
            {"soda": "soda|televis"},
            TYPOS,
        ),  # no typing error of "shown" or others
        (
            ("xolcano, volcano",),
            "xolcano volcnao",
            {"xolcano": "xolcano|volcano", "volcnao": "volcano"},
            TYPOS,
        ),
        (("boun, television",), "boun", {"boun": "boun*|boun|televis"}, PREFIX),
        (("tv, television, new york",), "tv", {"tv": "tv|televis|new york"}, NEITHER),
        (("tv, television", "tv => new york"), "tv", {"tv": "tv|televis|new york"}, NEITHER),
        (("C++, volcano",), "C++ york", {"c++": "c++|volcano"}, NEITHER),
        (("getUserById, .NET",), "use .NET", {".net": ".net|getuserbyid"}, NEITHER),
        (("!!, ??", "!!, volcano"), "!! volcano", {}, NEITHER),
        (("volcano, volcanoes",), "volcano", {}, NEITHER),
    ],
)
def test_synonyms_beside_other_expansions(
    rules: tuple[str, ...], text: str, patterns: dict[str, str], expansion: Expansion
) -> None:
    assert expanded(text, expansion, rules) == patterns


@pytest.mark.parametrize("text", ["汽车", "汽车很好", "好汽车", "我的汽车很好"])
def test_synonyms_of_scripts_without_spaces(text: str) -> None:
    spec = LexicalSpec(analyser=4, language="none")
    analyser = Analyser(spec)
    corpus = partial(corpus_statistics, [postings_of(["轿车在这里", "出租车"], spec)])
    synonyms = Synonyms(["汽车, 轿车"], analyser)
    [terms] = weighted_terms([[QueryText(text, 1.0)]], analyser, corpus, NEITHER, synonyms)
    assert dict(terms.expanded) == {"汽车": "汽车|轿车"}


def test_rules_with_many_texts_are_bounded() -> None:
    rules = [",".join(["aa", *(f"w{number}x{other}" for other in range(120))]) for number in range(300)]
    [synonyms] = Synonyms(rules, Analyser(SPEC)).of(Analyser(SPEC).query_words("aa"))
    assert len(synonyms.alternatives) == 64


def test_synonyms_count_as_one_word() -> None:
    postings, analyser = postings_of(["a car", "an automobile", "a bicycle"]), Analyser(SPEC)
    corpus = partial(corpus_statistics, [postings])
    synonyms = Synonyms(["car, automobile"], analyser)
    [terms] = weighted_terms([[QueryText("car", 1.0)]], analyser, corpus, NEITHER, synonyms)
    rows_M, scores_M = score_rows(postings, terms.weights, terms.average_length)
    assert sorted(rows_M.tolist()) == [0, 1]
    assert scores_M[0] == scores_M[1]


@pytest.mark.parametrize("rule", ["", "tv", "tv,", "a, => b", "a => ", "a => b => c", "=> b", "x" * 1001])
def test_a_rule_that_is_none_is_refused(rule: str) -> None:
    with pytest.raises(InvalidSpecError, match="synonyms"):
        parse_spec({"index": "x", "source": {"text": "t"}, "lexical": True, "search": {"synonyms": [rule]}})


def test_a_spec_without_rules_is_written_as_earlier_releases_read_it() -> None:
    spec = {"index": "x", "source": {"text": "t"}, "lexical": True, "vectors": "optional"}
    rules = {"typos": False, "synonyms": ["tv, television"]}
    for search, keys in (
        ({}, set()),
        ({"typos": True, "synonyms": []}, set()),
        (rules, {"typos", "synonyms"}),
    ):
        parsed = parse_spec({**spec, "search": {"mode": "lexical", **search}})
        written = parsed.model_dump(mode="json")["search"]
        assert written.keys() - {"mode", "fusion", "alpha"} == keys
        assert parse_spec(parsed.model_dump(mode="json", exclude_defaults=True)) == parsed
    with pytest.raises(InvalidSpecError, match=r"search\.synonyms.*needs `lexical: true`"):
        parse_spec({"index": "x", "source": {"vector": "v"}, "search": {"synonyms": ["a, b"]}})


def test_a_text_of_the_index_is_not_expanded() -> None:
    analyser, corpus = Analyser(SPEC), partial(corpus_statistics, [POSTINGS])
    texts = [QueryText("volcnao tv eru", 1.0, is_typed=False)]
    synonyms = Synonyms(["tv, television"], analyser)
    [terms] = weighted_terms([texts], analyser, corpus, Expansion(typos=True, prefix=True), synonyms)
    assert (dict(terms.weights), dict(terms.expanded)) == ({}, {})


@pytest.mark.parametrize(
    ("language", "query", "word"),
    [
        ("russian", "вулкно", "вулкан"),
        ("greek", "ηφαστειο", "ηφαίστειο"),
        ("hindi", "ज्वालामखी", "ज्वालामुखी"),
        ("arabic", "البركن", "البركان"),
        ("russian", "volcno", "volcano"),  # a word of another script
    ],
)
def test_letters_of_the_language_are_enough(language: str, query: str, word: str) -> None:
    spec = LexicalSpec(analyser=4, language=language)  # type: ignore[arg-type]
    analyser, corpus = Analyser(spec), partial(corpus_statistics, [postings_of([word], spec)])
    [terms] = weighted_terms([[QueryText(query, 1.0)]], analyser, corpus, TYPOS)
    [stem, *_] = analyser.terms(word)
    assert stem in terms.weights
    [letter, *_] = {ord(letter) >> 7 for letter in query}
    assert len(word_variants._letters_of(analyser, letter)) < 64


BLOCKS = [0x1200, 0x1280, 0x1300, 0x1400, 0x1480, 0x1500, 0x1580, 0xA000, 0xA080, 0xA100, 0x12000, 0x13000]


@pytest.mark.parametrize("text", ["q" + "".join(map(chr, BLOCKS)), "".join(map(chr, range(0x1200, 0x1220)))])
def test_letters_of_many_scripts_make_few_words(text: str) -> None:
    asked: set[str] = set()

    def corpus(terms: Sequence[str]) -> CorpusStatistics:
        asked.update(terms)
        return corpus_statistics([POSTINGS], terms)

    weighted_terms([[QueryText(text, 1.0)]], Analyser(SPEC), corpus, Expansion(typos=True, prefix=True))
    assert len(asked) < 9_000


@pytest.mark.parametrize("text", ["q\u0332", "q\u0332\u0332\u0332", "q" + 8 * "\u0332"])
@pytest.mark.parametrize("expansion", [TYPOS, PREFIX])
def test_accents_are_no_letters(text: str, expansion: Expansion) -> None:
    texts = ["quick quack quality quantum question qi"]
    analyser = Analyser(SPEC)
    corpus = partial(corpus_statistics, [postings_of(texts)])
    [terms] = weighted_terms([[QueryText(text, 1.0)]], analyser, corpus, expansion)
    assert (dict(terms.weights), dict(terms.expanded)) == ({}, {})


@pytest.mark.parametrize(
    ("language", "text", "query"),
    [
        ("serbian", "вулканска ерупција", "вул"),
        ("irish", "theastaigh uaim", "theast"),
        ("irish", "mhúinteoir", "mhú"),
        ("german", "Überlegungen", "über"),
        ("turkish", "volkanların", "volk"),
    ],
)
def test_beginnings_in_languages_whose_stems_have_other_letters(language: str, text: str, query: str) -> None:
    for version in (1, 2, 3, 4):
        spec = LexicalSpec(analyser=version, language=language)  # type: ignore[arg-type]
        analyser, corpus = Analyser(spec), partial(corpus_statistics, [postings_of([text, "other"], spec)])
        [terms] = weighted_terms([[QueryText(query, 1.0)]], analyser, corpus, PREFIX)
        assert len(terms.weights) == 1, version
        assert len(terms.expanded[query]) < 60, version


def test_a_long_text_is_not_expanded() -> None:
    assert expanded("volcnao " * 250) == {"volcnao": "volcano"}
    assert expanded("volcnao " * 251) == {}


def test_words_are_looked_up_in_batches_that_may_end_the_request() -> None:
    analyser, sizes = Analyser(SPEC), []

    def corpus(terms: Sequence[str]) -> CorpusStatistics:
        sizes.append(len(terms))
        if len(sizes) == 4:
            raise TimeoutError
        return corpus_statistics([POSTINGS], terms)

    queries = [
        [QueryText(f"{chr(97 + number % 26)}xq{chr(97 + number // 26)}zw", 1.0)] for number in range(500)
    ]
    with pytest.raises(TimeoutError):
        weighted_terms(queries, analyser, corpus, TYPOS)
    assert sizes[0] == 500 and max(sizes[1:]) < 64 * 500


def test_the_beginning_is_the_last_word_of_the_text_that_has_it() -> None:
    analyser, corpus = Analyser(SPEC), partial(corpus_statistics, [POSTINGS])
    texts = [QueryText("Node.js volc", 1.0), QueryText("a text of the index", 1.0, is_typed=False)]
    [terms] = weighted_terms([texts], analyser, corpus, PREFIX)
    assert dict(terms.expanded) == {"volc": "volc*"}


def test_a_query_without_words_is_not_looked_up() -> None:
    def corpus(terms: object) -> None:
        raise AssertionError("nothing is to be counted")

    [terms] = weighted_terms([[QueryText("…", 1.0)]], Analyser(SPEC), corpus, TYPOS)  # type: ignore[arg-type]
    assert not terms.weights


LETTERS = st.text("abcé日", min_size=1, max_size=7)


def edits(word: str, other: str) -> int:
    """Return the optimal string alignment, by its definition."""
    if not word or not other:
        return len(word) + len(other)
    least = min(
        edits(word[:-1], other) + 1,
        edits(word, other[:-1]) + 1,
        edits(word[:-1], other[:-1]) + (word[-1] != other[-1]),
    )
    if len(word) > 1 and len(other) > 1 and word[-2:] == other[-1] + other[-2]:
        least = min(least, edits(word[:-2], other[:-2]) + 1)
    return least


@settings(max_examples=60, deadline=None)
@example(words={"qa", "qabcdefg", "qabcd"}, word="q", limit=2)
@given(words=st.sets(LETTERS, min_size=1, max_size=30), word=LETTERS, limit=st.integers(0, 2))
def test_patterns_match_what_they_say(words: set[str], word: str, limit: int) -> None:
    terms = sorted(words, key=str.encode)
    table = pa.table({"_terms": [terms], "_term_counts": pa.array([[1] * len(terms)], pa.list_(pa.int32()))})
    postings = Postings(invert(table))
    by_pattern = {
        word: {word} & words,
        term_patterns.prefix(word): {term for term in words if term.startswith(word)},
        term_patterns.similar(word, limit): {
            term for term in words if term[0] == word[0] and edits(word, term) <= limit
        },
    }
    by_pattern[term_patterns.any_of(by_pattern)] = set().union(*by_pattern.values())
    for pattern, matching in by_pattern.items():
        assert {terms[number] for number in postings.matching(pattern)} == matching, pattern
        assert {term for term in words if term_patterns.matches(pattern, term)} == matching, pattern
    numbers = postings.numbers_of([*terms, word + "z"])
    assert numbers[:-1].tolist() == [*range(len(terms))]
    assert numbers[-1] < 0


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from(["aa", "ab", "abc", "b", "bcd"]), max_size=6), min_size=1, max_size=12
    ),
    alive=st.integers(0, 2**12 - 1),
    pattern=st.sampled_from(["aa", "a*", "ab*", "abd~2", "aa|b*", "zz"]),
)
def test_a_pattern_is_scored_and_counted_as_one_term(rows: list[list[str]], alive: int, pattern: str) -> None:
    spec = LexicalSpec(analyser=4, language="none")
    postings = postings_of([" ".join(row) for row in rows], spec)
    counts_N = [sum(term_patterns.matches(pattern, word) for word in row) for row in rows]
    rows_M, scores_M = score_rows(postings, {pattern: 1.0}, 3.0)
    assert sorted(rows_M.tolist()) == [row for row, count in enumerate(counts_N) if count]
    for row, score in zip(rows_M.tolist(), scores_M.tolist(), strict=True):
        norm = 1.2 * (1 - 0.75 + 0.75 * len(rows[row]) / 3.0)
        assert score == pytest.approx(counts_N[row] / (counts_N[row] + norm), rel=1e-6)
    mask_N = np.array([bool(alive >> row & 1) for row in range(len(rows))])
    distinct = [{word for word in row if term_patterns.matches(pattern, word)} for row in rows]
    counted = corpus_counts(
        [postings], term_patterns.alternatives_of(pattern), [AllowedRows(mask_N, None, len(rows))]
    )
    in_live_rows = [len(words) for words, is_live in zip(distinct, mask_N, strict=True) if is_live]
    assert sum(counted.frequencies.values()) == sum(in_live_rows)


def test_a_pattern_of_a_word_that_is_too_long_matches_nothing() -> None:
    assert not len(POSTINGS.matching(term_patterns.similar("v" * 100_000, 2)))


def test_no_term_has_the_sign_of_a_pattern() -> None:
    analyser = Analyser(LexicalSpec(analyser=4, language="none"))
    for first in ("a", "C", "1", "ä", "日"):
        for sign in string.punctuation:
            for text in (f"{first}{sign}", f"{first}{sign}b", f"x {sign}{first}{sign}2", f"{first}{sign}9"):
                terms = analyser.terms(text)
                assert term_patterns.patterns_among(terms) == [], text
