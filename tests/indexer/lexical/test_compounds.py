"""Compounds: how words are split, the words learned from texts, and indexes that keep them."""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import scannery
from scannery.indexer import Analyser, InvalidSpecError, LexicalSpec, Store, open_index, parse_spec
from scannery.indexer.lexical import analyser
from scannery.indexer.lexical.analyser import (
    MAX_LETTERS,
    MIN_LETTERS,
    CompoundSplitter,
    chosen_parts,
    costs_of,
    stem_of,
)
from scannery.pipelines import build
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.planning.build_plan import SAMPLE_CHARACTERS, learned_compounds
from tests.data import clustered, datapoints, publish

GERMAN = LexicalSpec(language="german", analyser=3)
SPEC = {"index": "words", "source": {"vector": "v", "text": "text"}, "lexical": {"language": "german"}}
TEXTS = [
    "Das Schiff fährt mit Dampf über das Meer.",
    "Der Arbeitsmarkt erholt sich: Arbeit gibt es auf dem Markt.",
    "Ein Dampfschiff legte ab.",
    "Häuser am Meer.",
]


def splitter(*parts: str) -> CompoundSplitter:
    stem = stem_of("german")
    return CompoundSplitter(costs_of(parts, stem), stem)


def terms(text: str, *parts: str) -> list[str]:
    return Analyser(GERMAN.model_copy(update={"compounds": list(parts)})).terms(text)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("dampfschiff", ("dampf", "schiff")),
        ("arbeitsmarkt", ("arbeits", "markt")),  # linking elements stay with the part
        ("dampfschiffe", ("dampf", "schiffe")),
        ("dampfschiffmarkt", ("dampf", "schiff", "markt")),
        ("dampf", ()),
        ("dampfer", ()),
        ("dampfross", ()),
        ("dampfschiff7", ()),
    ],
)
def test_words_are_split_into_known_words(word: str, parts: tuple[str, ...]) -> None:
    assert splitter("dampf", "schiff", "markt", "arbeit").split(word) == parts


def test_a_word_more_frequent_than_its_parts_is_whole() -> None:
    assert splitter("unterschied", "unter", "schied").split("unterschied") == ()
    assert splitter("unter", "schied", "unterschied").split("unterschied") == ("unter", "schied")


def test_the_split_with_the_most_frequent_parts_wins() -> None:
    """ "Staubecken": corners of dust, or a basin behind a dam."""
    words = ["stau", "becken", "staub", "ecken"]
    assert splitter(*words).split("staubecken") == ("stau", "becken")
    assert splitter(*words[2:], *words[:2]).split("staubecken") == ("staub", "ecken")


@pytest.mark.system
@given(
    st.text("abc", min_size=8, max_size=18),
    st.lists(st.text("abc", min_size=4, max_size=6), min_size=1, max_size=60, unique=True),
)
@settings(max_examples=60, deadline=None)
def test_the_best_split_is_that_of_all_splits(word: str, parts: list[str]) -> None:
    costs = costs_of(parts, str)
    least = costs.get(word, float("inf"))
    for count in (1, 2, 3):
        for cuts in combinations(range(MIN_LETTERS, len(word) - MIN_LETTERS + 1), count):
            pieces = [word[a:b] for a, b in zip((0, *cuts), (*cuts, len(word)), strict=True)]
            if all(piece in costs for piece in pieces):
                least = min(least, sum(costs[piece] for piece in pieces) / len(pieces))
    found = CompoundSplitter(costs, str).split(word) or (word,)
    assert "".join(found) == word
    assert sum(costs.get(piece, float("inf")) for piece in found) / len(found) == pytest.approx(least)


def test_long_words_are_not_split() -> None:
    known = splitter("dampf", "schiff")
    assert known.split("dampfschiff" * 3 + "x" * (MAX_LETTERS - 32)) == ()
    assert known.split("dampfschiff" * 2) == ("dampf", "schiff") * 2


def test_parts_are_terms_besides_the_whole_word() -> None:
    assert terms("Dampfschiffe", "dampf", "schiff") == ["dampfschiff", "dampf", "schiff"]
    assert terms("Häuserblöcke", "haus", "block") == ["hauserblock", "haus", "block"]
    assert terms("Schiff", "dampf", "schiff") == ["schiff"]
    assert terms("Dampfschiff") == ["dampfschiff"]
    spec = GERMAN.model_copy(update={"compounds": ["dampf schiff"], "stop_words": ["dampfschiff"]})
    assert Analyser(spec).terms("Dampfschiff Schiff") == ["schiff"]


def test_parts_are_learned_from_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = " ".join(learned_compounds(TEXTS, GERMAN)).split()
    assert learned_compounds(TEXTS, GERMAN)[0] == "meer"  # the most frequent word of four letters
    assert {"schiff", "dampf", "arbeit", "markt"} <= {*learned}
    assert len(learned) == len({stem_of("german")(word) for word in learned})
    monkeypatch.setattr(analyser, "MAX_PARTS", 4)
    # Those that occur in compounds stay.
    assert {*" ".join(learned_compounds(TEXTS, GERMAN)).split()} == {"schiff", "dampf", "arbeit", "markt"}


def test_inflected_forms_count_together() -> None:
    words = Counter({"schiff": 2, "schiffe": 3, "schiffes": 1, "dampf": 4})
    assert chosen_parts(words, stem_of("german")) == ["schiffe", "dampf"]
    assert chosen_parts({"schiff": 2, "dampf": 1, "haus": 2}, stem_of("german")) == ["haus schiff", "dampf"]


def test_words_of_a_dictionary_are_parts_where_they_occur_in_compounds() -> None:
    assert terms("Seerettung", *learned_compounds(["Die Bergrettung"], GERMAN)) == ["seerett"]
    learned = learned_compounds(["Die Bergrettung"], GERMAN, ["Berg", "Rettung", "Wald"])
    assert terms("Bergrettung", *learned) == ["bergrett", "berg", "rettung"]


@pytest.mark.system
def test_the_sample_is_bounded() -> None:
    def endless() -> Any:
        yield "Dampf " * (SAMPLE_CHARACTERS // 6)
        yield "Schiff und Meer"
        raise AssertionError("more was read than the sample has")

    assert learned_compounds(endless(), GERMAN) == ["dampf", "schi"]


def lexical_of(store: str) -> LexicalSpec:
    found = open_index(Store.open(store), "words").manifest.spec.lexical
    assert found is not None
    return found


def write(path: Path, texts: list[str], prefix: str = "") -> list[str]:
    rows = [{"id": f"{prefix}{i}", "v": [1, i], "text": text} for i, text in enumerate(texts)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [str(path)]


def found(store: str, query: str) -> set[str]:
    with scannery.connect(store) as client:
        return {hit.id for hit in client.index("words").search(query, mode="lexical")}


@pytest.mark.system
def test_an_index_keeps_its_parts_until_a_full_build(tmp_path: Path) -> None:
    store, more = str(tmp_path / "store"), ["Ein Segelboot mit Segel und Boot", "Hausboot am Haus"]
    build(SPEC, write(tmp_path / "a.jsonl", TEXTS), store)
    learned = lexical_of(store)
    assert found(store, "Schiff") == {"0", "2"}
    assert found(store, "Dampfschiff") == {"0", "2"}  # the parts of a query count too
    with scannery.connect(store) as client:
        client.index("words").upsert([{"id": "live", "vector": [1, 9], "text": "Schiffsmarkt"}])
    assert found(store, "Schiff") == {"0", "2", "live"}
    build(SPEC, write(tmp_path / "b.jsonl", more, "b"), store)
    assert lexical_of(store) == learned
    assert found(store, "Boot") == {"b0"}
    assert found(store, "Markt") == {"1", "live"}
    both = [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    build(SPEC, both, store, mode="full")
    assert found(store, "Boot") == {"b0", "b1"}
    assert lexical_of(store) != learned


@pytest.mark.system
def test_an_older_index_stays_without_parts(tmp_path: Path) -> None:
    spec = parse_spec({**SPEC, "lexical": {"language": "german", "analyser": 3}})
    table = datapoints(spec, clustered(1, 2), ids=["z"], columns={"text": ["Dampfschiff Schiff Dampf"]})
    store = str(tmp_path / "store")
    publish(Store.open(store, create=True), spec, table, tmp_path)
    build(SPEC, write(tmp_path / "a.jsonl", TEXTS), store)
    assert lexical_of(store).compounds is None
    assert found(store, "Schiff") == {"z", "0"}
    build({**SPEC, "lexical": {"language": "german", "compounds": True}}, [str(tmp_path / "a.jsonl")], store)
    assert found(store, "Schiff") == {"z", "0", "2"}
    build({**SPEC, "lexical": {"language": "german", "compounds": False}}, [str(tmp_path / "a.jsonl")], store)
    assert found(store, "Schiff") == {"z", "0"}


@pytest.mark.system
@pytest.mark.parametrize(
    ("lexical", "splits"),
    [
        ({"language": "german"}, True),
        ({"language": "german", "compounds": False}, False),
        ({"language": "dutch"}, False),
        ({"language": "dutch", "compounds": True}, True),
        (True, False),
        ({"language": "german", "compounds": ["Dampf", "Schiff"]}, True),
    ],
)
def test_who_learns(tmp_path: Path, lexical: Any, splits: bool) -> None:
    store = str(tmp_path / "store")
    build({**SPEC, "lexical": lexical}, write(tmp_path / "a.jsonl", TEXTS), store)
    assert found(store, "Schiff") == ({"0", "2"} if splits else {"0"})
    assert ("compounds" in lexical_of(store).rules) is splits
    # Manifests without parts are those of earlier releases.
    written = Path(store, "words/versions").glob("*.json").__next__().read_text()
    assert ('"compounds"' in written) is (splits or lexical == {"language": "german", "compounds": False})


@pytest.mark.system
def test_a_dictionary_is_a_file(tmp_path: Path) -> None:
    words, store = tmp_path / "words.txt", str(tmp_path / "store")
    spec = {**SPEC, "lexical": {"language": "german", "compounds": str(words)}}
    inputs = write(tmp_path / "a.jsonl", ["Die Bergrettung kam.", "Ein Berg."])
    with pytest.raises(
        SpecConflictError, match=r"lexical\.compounds: cannot read the word list .*words\.txt"
    ):
        build(spec, inputs, store)
    words.write_text("Berg\nRettung\n")
    build(spec, inputs, store)
    assert found(store, "Berg") == {"0", "1"}
    words.unlink()  # an update needs it no more
    assert build(spec, inputs, store).up_to_date


@pytest.mark.parametrize("value", [3, "", [1], {"a": 1}, ["w " * 50_001]])
def test_wrong_compounds_are_refused(value: Any) -> None:
    with pytest.raises(
        InvalidSpecError, match=r"lexical\.compounds: must (be true|have at most 50000 words)"
    ):
        parse_spec({**SPEC, "lexical": {"compounds": value}})
