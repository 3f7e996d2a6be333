"""Words of code and of networks are terms, whole with their signs and by their parts; others are as before."""

from __future__ import annotations

import string
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.indexer import Analyser, LexicalSpec
from scannery.indexer.lexical.bm25 import Postings, invert, term_columns

WORDS = {
    "C++": ["c++"], "C#": ["c#"], "F#": ["f#"], "g++": ["g++"], "C++20": ["c++"], "Ｃ＋＋": ["c++"], ".NET": [".net"],
    "ASP.NET": ["asp.net", "asp", "net"], "Node.js": ["node.js", "node", "js"], "AT&T": ["at&t"], "r&d": ["r&d"],
    "S&P500": ["s&p"], "@handle": ["@handle", "handle"], "#tag": ["#tag", "tag"], "#été_2024": ["#ete_2024", "ete"],
    "👍": ["👍"], "👍🏽": ["👍🏽", "👍"], "❤️": ["❤"], "👩‍🚀": ["👩🚀", "👩", "🚀"], "🇫🇷": ["🇫🇷"],
    "getUserById": ["getuserbyid", "get", "user", "by", "id"], ".getUserById(1)": ["get", "user"],
    "HTTPServer2": ["httpserver2", "http", "server2", "server"], "parseHTTPRequest": ["parse", "http", "request"],
    "snake_case": ["snake_case", "snake", "case"], "__init__": ["init"], "kebab-case": ["kebab", "case"],
    "MAX_URLs": ["max", "urls"], "v1.2.3": ["v1.2.3"], "self.my_value": ["self", "my", "value"],
    "std::myVector": ["my", "vector"], "YouTube:": ["youtube", "you", "tube"],
    "ÄpfelUndBirnen": ["apfelundbirnen", "apfel", "und", "birnen"], "A\u0308pfelUnd": ["apfelund", "apfel", "und"],
}  # fmt: skip
PROSE = [
    "The quick brown fox can't jump, e.g. over 3.14 dogs; U.S. #1 item. A & B? No: a + b = c, and PDFs, URLs.",
    "Well-known words, a@b, don't! It costs £20 & more... (see p. 5); tea&amp;milk © 2020™",
    "See https://docs.example.org/getUserById?my_key=1&yourKey=2, ann.lee@myHost.example.org, src/myApp/read_me.txt",
    "東京タワー 한국어 กิน Crème brûlée",
]


def analysers(language: str = "none") -> tuple[Analyser, Analyser]:
    old, new = (
        Analyser(LexicalSpec.model_validate({"language": language, "analyser": version}))
        for version in (3, 4)
    )
    return old, new


@pytest.mark.parametrize(("text", "terms"), WORDS.items(), ids=WORDS)
def test_words_of_code_are_found_whole_and_by_parts(text: str, terms: list[str]) -> None:
    old, analyser = analysers()
    for written in (text, f"I use {text}, too."):
        assert {*terms} <= {*analyser.terms(written)}
        assert analyser.terms(written)[: len(old.terms(written))] == old.terms(written)
    places = [(term, start, end) for terms, start, end in analyser.spans(f"é {text}") for term in terms]
    assert [term for term, _, _ in places] == analyser.terms(f"é {text}")
    assert all(2 <= start < end <= 2 + len(text) for term, start, end in places if term != "e")


@pytest.mark.parametrize("text", PROSE)
def test_other_words_are_those_of_the_version_before(text: str) -> None:
    old, new = analysers("english")
    assert new.terms(text) == old.terms(text)
    assert new.query_terms(text) == old.query_terms(text)


WORD = st.builds(
    str.__add__, st.sampled_from(string.ascii_letters + "éßжΣ東กא"), st.text("aeioulmnst", max_size=8)
)


@pytest.mark.system
@given(st.lists(WORD | st.sampled_from(["3.14", "don't", "-", "U.S.", "…", "1,000"]), max_size=30))
@settings(max_examples=60)
def test_texts_without_signs_have_the_terms_of_the_version_before(words: list[str]) -> None:
    old, new = analysers("english")
    for text in (" ".join(words), ". ".join(words), ", ".join(words).upper()):
        assert new.terms(text) == old.terms(text)


@pytest.mark.system
@given(st.text("aBc1_.+#@&/-\\: é\u0308👍🏽\u200d\ufe0f東ßA🇫", max_size=40))
@settings(max_examples=150)
def test_terms_places_counts_and_weights_agree(text: str) -> None:
    old, new = analysers("english")
    terms = new.terms(text)
    assert [term for terms, _, _ in new.spans(text) for term in terms] == terms
    assert terms[: len(old.terms(text))] == old.terms(text)
    counts, length = new.counts(text)
    assert (sorted(counts.elements()), length) == (sorted(terms), len(old.terms(text)))
    weights = new.query_terms(text)
    assert weights.keys() == counts.keys()
    assert all(0 < weight <= counts[term] for term, weight in weights.items())
    ascii_text = text.encode("ascii", "ignore").decode()
    expected = Counter(new.terms(ascii_text)) + Counter(new.terms("é"))
    assert Counter(new.terms(f"{ascii_text} é")) == expected, "texts of ASCII are read in a way of their own"


def test_parts_weigh_half_of_their_word_in_a_query() -> None:
    _, new = analysers()
    assert new.query_terms("use getUserById in C++") == {
        "use": 1, "getuserbyid": 1, "in": 1, "c": 0.5, "c++": 1, "get": 0.125, "user": 0.125, "by": 0.125, "id": 0.125,
    }  # fmt: skip
    assert new.query_terms("東京 C#") == {"東": 1, "京": 1, "東京": 1, "c": 0.5, "c#": 1}


def test_additional_terms_make_a_row_no_longer() -> None:
    texts = ["getUserById of C++", "plain words", "👍", "", "C#"]
    table = pa.table({"title": [None, "Node.js", None, None, "C#"], "text": texts})
    spec = LexicalSpec(language="none", analyser=4, stop_words=["c"])
    postings = Postings(invert(pa.table(term_columns(table, spec))))
    assert postings.lengths_N.tolist() == [2, 3, 1, 0, 1]
    assert (postings.rows_with_words, postings.total_length) == (4, 7)
