"""Searches by words that forgive: typing errors, beginnings of words and synonyms, over every wire."""

from __future__ import annotations

import string
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery import Blend, InvalidArgumentError, Like, Words
from tests.data import clustered
from tests.served import WIRES, connected

ROWS = 60
VECTORS_ND = clustered(ROWS, 4, seed=9)
TEXTS = {
    "volcano": "Volcanoes erupt where plates meet",
    "island": "An eruption made the island",
    "tv": "The television was invented late",
    "york": "Artificial light in New York",
    "getUserById": "getUserById fails with E1234",
}


@pytest.fixture(scope="module", params=WIRES)
def index(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[scannery.Index]:
    with connected(tmp_path_factory.mktemp("words") / "store", request.param) as client:
        made = client.create_index("notes", dimensions=4, lexical=True, attributes={"even": "bool"})
        texts = {**TEXTS, **{f"other{row}": f"word{row} and more" for row in range(ROWS - len(TEXTS))}}
        made.upsert(
            [
                {"id": name, "vector": VECTORS_ND[row], "text": text, "attributes": {"even": row % 2 == 0}}
                for row, (name, text) in enumerate(texts.items())
            ]
        )
        yield made


def ids(hits: scannery.Hits) -> list[str]:
    return [hit.id for hit in hits]


@pytest.mark.parametrize(
    ("query", "options", "clean"),
    [
        ("volcnao", {}, "volcano"),
        ("an eruptoin", {}, "an eruption"),
        ("telivesion late", {}, "television late"),
        ("artifcial", {"max_per_group": 1}, "artificial"),
        ("volc", {"prefix": True}, "volcano"),
        ("island televi", {"prefix": True}, "island television"),
        (
            Words("volcnao", VECTORS_ND[5].tolist()),
            {"mode": "hybrid"},
            Words("volcano", VECTORS_ND[5].tolist()),
        ),
        (Blend(["volcnao", "island"]), {}, Blend(["volcano", "island"])),
    ],
)
def test_an_answer_is_that_of_the_right_words(
    index: scannery.Index, query: Any, options: dict[str, Any], clean: Any
) -> None:
    asked: dict[str, Any] = {"mode": "lexical", **options}
    answer = index.search(query, 5, **asked)
    assert answer
    plain = {**asked, "prefix": False, "typos": False}
    assert answer == index.search(clean, 5, **plain)
    assert index.search_many([query, query], 5, **asked) == [answer, answer]
    where = {"even": True}
    assert index.search(query, 5, **asked, where=where) == index.search(clean, 5, **plain, where=where)
    assert answer[1:] == index.search(query, 4, **asked, offset=1)


@pytest.mark.parametrize("query", ["volcnao", "volc"])
def test_nothing_is_expanded_where_it_is_not_asked_for(index: scannery.Index, query: str) -> None:
    assert not index.search(query, 5, mode="lexical", typos=False)


@pytest.mark.parametrize("query", ["E1243", "getUserByIb", "vlcn", "xolcano"])
def test_numbers_ids_and_other_first_letters_are_no_errors(index: scannery.Index, query: str) -> None:
    explanation = index.search(query, 5, mode="lexical", explain=True).explanation
    assert explanation is not None and not explanation.expanded_words


def test_a_datapoint_that_is_named_is_not_expanded(index: scannery.Index) -> None:
    answers = [index.search(Like("volcano"), 50, mode="lexical", prefix=prefix) for prefix in (True, False)]
    assert answers[0] == answers[1]


def test_an_explanation_names_the_words(index: scannery.Index) -> None:
    explanation = index.search("an eruptoin volc", 5, mode="lexical", prefix=True, explain=True).explanation
    assert explanation is not None
    assert explanation.expanded_words == {"eruptoin": "erupt", "volc": "volc*"}
    [_, second] = index.search_many(["volcano", "volcnao"], 5, mode="lexical", explain=True)
    assert second.explanation is not None
    assert second.explanation.expanded_words == {"volcnao": "volcano"}


@pytest.mark.parametrize(
    ("query", "words"),
    [("volcnao", ["Volcanoes"]), ("where plates volcan", ["Volcanoes", "where", "plates"])],
)
def test_expanded_words_are_highlighted(index: scannery.Index, query: str, words: list[str]) -> None:
    [hit] = index.search(query, 1, mode="lexical", prefix=True, highlight="words")
    assert hit.snippet is not None and hit.text is not None
    marked = {hit.text[start:end] for start, end in hit.snippet.words}
    assert "Volcanoes" in marked and marked <= set(words)


def test_a_new_row_makes_a_word_known(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("live", dimensions=2, lexical=True)
        index.upsert([{"id": "a", "vector": [1, 0], "text": "volcano"}])
        assert ids(index.search("volcanp", 5, mode="lexical")) == ["a"]
        index.upsert([{"id": "b", "vector": [0, 1], "text": "volcanp is a name"}])
        assert ids(index.search("volcanp", 5, mode="lexical")) == ["b"]
        index.delete(["b"])
        assert ids(index.search("volcanp", 5, mode="lexical")) == ["a"]


def test_synonyms_change_without_a_build(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("live", dimensions=2, lexical=True)
        index.upsert(
            [
                {"id": "a", "vector": [1, 0], "text": "a television set"},
                {"id": "b", "vector": [0, 1], "text": "a flat in New York"},
            ]
        )
        assert not index.search("tv", 5, mode="lexical")
        index.alter(search={"synonyms": ["tv, television", "nyc => new york"]})
        assert ids(index.search("tv", 5, mode="lexical")) == ["a"]
        assert ids(index.search("nyc", 5, mode="lexical")) == ["b"]
        explanation = index.search("tv nyc", 5, mode="lexical", explain=True).explanation
        assert explanation is not None
        assert explanation.expanded_words == {"tv": "tv|televis", "nyc": "new york"}
        [hit] = index.search("nyc", 1, mode="lexical", highlight="words")
        assert hit.snippet is not None and hit.text is not None
        assert [hit.text[start:end] for start, end in hit.snippet.words] == ["New", "York"]
        index.alter(search={"synonyms": [], "typos": False})
        assert not index.search("tv", 5, mode="lexical")
        assert not index.search("televison", 5, mode="lexical")
        assert ids(index.search("televison", 5, mode="lexical", typos=True)) == ["a"]
        with pytest.raises(InvalidArgumentError, match="synonyms") as caught:
            index.alter(search={"synonyms": ["tv"]})
        assert "tv, television" in str(caught.value)


def test_highlighting_keeps_the_deadline(index: scannery.Index) -> None:
    text = " ".join(
        f"{first}xq{second}zw" for first in string.ascii_lowercase for second in string.ascii_lowercase
    )
    queries = [Words(text[:1990], VECTORS_ND[number % ROWS].tolist()) for number in range(200)]
    started = time.process_time()
    with pytest.raises(scannery.DeadlineExceededError):
        index.search_many(queries, 3, mode="dense", highlight="words", timeout_s=0.5)
    index.search("volcano", 1)  # waits for what is still running
    assert time.process_time() - started < 20
