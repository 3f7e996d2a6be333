"""Questions made from passages: parts of them, and what is left."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import open_index
from scannery.live.maintenance.seal import seal
from scannery.pipelines.tuning.passage_searches import Question, passage_searches, questions_about
from scannery.pipelines.tuning.tuning_queries import MOST_WORDS, PassageQuestion, question_of
from tests.pipelines.conftest import run

ENGLISH = (
    "Volcanoes form where plates meet. The magma below them is lighter than rock, so it rises slowly through cracks. "
    "Some of them sleep for centuries before they erupt again."
)
JAPANESE = "火山はプレートの境界で形成される。マグマは岩石より軽いので、割れ目を通ってゆっくりと上昇する。"


def made_of(passage: str, seed: int) -> PassageQuestion:
    made = question_of(passage, np.random.default_rng(seed))
    assert made is not None
    return made


@pytest.mark.parametrize("seed", range(20))
def test_a_question_is_a_part_of_its_passage_and_the_rest_lacks_it(seed):
    made = made_of(ENGLISH, seed)
    assert made.text in ENGLISH
    assert 3 <= len(made.text.split()) <= MOST_WORDS
    without, with_half = made.rests
    assert made.text not in without
    assert len(without) < len(with_half) <= len(ENGLISH)
    # All words of the rest are the passage's, in their order.
    words = iter(ENGLISH.split())
    assert all(word in words for word in with_half.split())


def test_a_whole_sentence_is_left_out():
    sentences = {made_of(ENGLISH, seed).rests[0] for seed in range(40)}
    assert len(sentences) == 3
    assert all(rest.count(".") == 2 for rest in sentences)


def test_a_passage_of_one_sentence_is_asked_for_a_third_of_its_words():
    passage = " ".join(f"w{number}" for number in range(30))
    made = made_of(passage, 0)
    assert len(made.text.split()) == 10
    assert len(made.rests[0].split()) == 20


def test_scripts_without_spaces_are_divided_into_pieces():
    made = made_of(JAPANESE, 1)
    assert " " not in made.text
    assert made.text in JAPANESE
    assert made.text not in made.rests[0]


@pytest.mark.parametrize("passage", ["", "too short", "日本語"])
def test_short_passages_have_no_question(passage):
    assert question_of(passage, np.random.default_rng(0)) is None


def test_the_same_seed_makes_the_same_question():
    assert question_of(ENGLISH, np.random.default_rng(3)) == question_of(ENGLISH, np.random.default_rng(3))


@pytest.mark.system
def test_rows_without_a_text_use_up_no_question(store, write):
    spec: dict[str, Any] = {
        "index": "talks",
        "source": {"id": "id", "text": "text"},
        "lexical": True,
        "vectors": "optional",
    }
    texts = {f"d{number}": ENGLISH if number % 3 == 0 else "" for number in range(300)}
    run(store, write("a.jsonl", [{"id": key, "text": text} for key, text in texts.items()]), spec=spec)
    index = open_index(store, "talks")
    places = [(each.segment, each.row) for each in questions_about(index)]
    assert len(places) == len(set(places)) == 60
    ids = [index.segments[segment].take([row], ["id"]).column(0)[0].as_py() for segment, row in places]
    assert all(texts[key] for key in ids)


@pytest.mark.system
def test_a_passage_that_nothing_is_taken_from_scores_as_in_a_search(store, write):
    spec: dict[str, Any] = {
        "index": "talks",
        "source": {"text": "text", "document_id": "talk"},
        "lexical": True,
        "vectors": "optional",
    }
    texts = [f"{'magma ' * (row % 4)}of volcano {row} and rock" for row in range(30)]
    rows = [{"id": f"p{row}", "talk": f"t{row // 6}", "text": text} for row, text in enumerate(texts)]
    run(store, write("a.jsonl", rows), spec=spec)
    with scannery.connect(store.local_root) as client:
        talks = client.index("talks")
        talks.upsert(
            [{"id": f"n{row}", "document_id": f"t{row}", "text": "magma below rock"} for row in (0, 4)]
        )
        talks.delete(["p2", "p3", "p29"])
        hits = talks.search("magma rock", 100, mode="lexical")
    seal(store, "talks")
    index = open_index(store, "talks")
    assert len(index.segments) == 2
    shares: dict[str, float] = {}
    for number, (segment, rows_R) in enumerate(index.live_rows()):
        names = segment.ids_of(rows_R)
        whole = [PassageQuestion("magma rock", (text, text)) for text in segment.searched_texts(rows_R)]
        about = [
            Question(question, number, row) for question, row in zip(whole, rows_R.tolist(), strict=True)
        ]
        searches = passage_searches(index, about, None)
        shares |= {name: each.remainders[0].lexical for name, each in zip(names, searches, strict=True)}
    assert len(shares) == 29
    highest = hits[0].score / shares[hits[0].id]
    assert {hit.id: hit.score for hit in hits} == pytest.approx({k: v * highest for k, v in shares.items()})


def test_a_long_document_leaves_the_other_rows_in_the_rankings(store, write):
    spec: dict[str, Any] = {
        "index": "talks",
        "source": {"text": "text", "document_id": "talk"},
        "lexical": True,
        "vectors": "optional",
    }
    rows = [{"id": f"p{row}", "talk": "long", "text": f"magma of volcano {row}"} for row in range(500)]
    rows += [{"id": f"o{row}", "talk": f"t{row}", "text": f"a lamp of magma {row}"} for row in range(30)]
    run(store, write("a.jsonl", rows), spec=spec)
    index = open_index(store, "talks")
    [segment] = index.segments
    row = segment.row_of("p7")
    assert row is not None
    about = Question(PassageQuestion("magma of volcano", ("magma", "magma")), 0, row)
    [search] = passage_searches(index, [about], None)
    assert search.lexical is not None
    assert sorted(segment.ids_of(search.lexical.keys_H)) == sorted(f"o{other}" for other in range(30))
