"""Oddities of test collections, pools, derived queries, and files of results."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import ir_measures
import pytest

from scannery.evaluation.collection_check import check_collection
from scannery.evaluation.comparison import pool
from scannery.evaluation.evaluate import compare, evaluate, run_paths, write_per_query, write_run
from scannery.evaluation.judgements import Judgement, Query, derive_queries
from scannery.pipelines.errors import CollectionError

QUERIES = {"1": Query("one"), "2": Query("two"), "3": Query("one"), "4": Query("four")}


class Row(NamedTuple):
    id: str
    document_id: str
    title: str | None
    text: str | None


def test_oddities_are_counted_and_told() -> None:
    lines = [
        Judgement("1", "a", 1), Judgement("1", "a", 1), Judgement("1", "a", 2), Judgement("2", "gone", 1),
        Judgement("2", "gone too", 0), Judgement("3", "a", 0), Judgement("9", "a", 1),
    ]  # fmt: skip
    check = check_collection(QUERIES, lines, lambda ids: {name for name in ids if name == "a"})
    assert (check.judgements, check.relevant, check.repeated, check.contradicting) == (5, 2, 2, 1)
    assert (check.unknown_queries, check.unknown_documents) == (("9",), ("gone", "gone too"))
    assert (check.unknown_relevant, check.queries_without_relevant, check.same_texts) == (1, 2, 1)
    assert list(check.warnings()) == [
        "2 judged documents are not in the index (gone, gone too); 1 of 2 relevant pairs can therefore not be found",
        "1 judged queries are not in the file of queries (9)",
        "2 judgements repeat a pair of query and document, 1 with another level; the last one counts",
        "1 queries have the text of an earlier one; each counts",
    ]


def test_a_sound_collection_has_no_warnings() -> None:
    check = check_collection({"1": Query("one")}, [Judgement("1", "a", 1)], set)
    assert list(check.warnings()) == []


def test_pools_tell_neither_rank_nor_search() -> None:
    rankings = [list("abcdefgh"), list("hgfedcba"), list("xyz")]
    found = pool(rankings, str, seed="q1")
    assert sorted(found) == sorted("abcdefghxyz")
    assert found == pool(rankings[::-1], str, seed="q1")
    assert found != sorted(found)
    assert found != pool(rankings, str, seed="q2")


def row_of(number: int) -> Row:
    text = f"Sentence {number} is long enough. And this is {number}."
    return Row(f"p{number}", f"d{number // 2}", f"Title {number // 2}", text)


ROWS = [row_of(number) for number in range(60)]


def test_derived_queries_are_titles_of_distinct_documents() -> None:
    found = derive_queries(ROWS, count=20)
    assert len(found) == 20 == len({one.document_id for one in found})
    assert all(one.source == "title" and one.text == f"Title {one.document_id[1:]}" for one in found)
    assert found == derive_queries(ROWS, count=20)


def test_without_titles_of_their_own_documents_give_sentences() -> None:
    rows = [row._replace(title="The show") for row in ROWS]
    found = derive_queries(rows, count=20)
    texts = {row.id: row.text for row in rows}
    assert {one.source for one in found} == {"sentence"}
    assert all(one.text in str(texts[one.passage_id]) and one.text != texts[one.passage_id] for one in found)


def test_fewer_documents_give_fewer_queries() -> None:
    assert len(derive_queries([*ROWS[:4], Row("a", "a", "Title a", " ")], count=50)) == 2
    with pytest.raises(CollectionError, match="no texts"):
        derive_queries([Row("a", "a", None, None)], count=5)


def test_every_document_is_drawn_about_as_often() -> None:
    drawn = Counter(
        one.document_id for seed in range(100) for one in derive_queries(ROWS, count=6, seed=seed)
    )
    assert len(drawn) == 30
    assert max(drawn.values()) <= 40


JUDGED = {"q1": {"a b": 2, "c": 1}, "q2": {"d": 1}}
TEXTS = {"q1": 'one, "quoted"\n=1', "q2": "two"}


def results():
    return evaluate(
        {
            "dense": lambda _: [["x", "a b", "c"], []],
            "hybrid alpha=0.5": lambda _: [["a b", "c"], ["z", "d"]],
        },
        TEXTS,
        JUDGED,
    )


@pytest.mark.system
def test_a_run_gives_the_same_measures_to_other_programs(tmp_path: Path) -> None:
    for result in results():
        path = run_paths(tmp_path / "run.trec", ["dense", "hybrid alpha=0.5"])[result.name]
        assert path.name in ("run.dense.trec", "run.hybrid_alpha=0.5.trec")
        assert write_run(path, result) == 1  # the id with a blank
        run = list(ir_measures.read_trec_run(str(path)))
        judged = {"q1": {"a%20b": 2, "c": 1}, "q2": {"d": 1}}
        for name, measure in {"nDCG@10": "nDCG@10", "MAP": "AP", "recall@100": "R@100"}.items():
            theirs = ir_measures.calc_aggregate([ir_measures.parse_measure(measure)], judged, run)
            assert result.means[name].mean == pytest.approx(next(iter(theirs.values())), abs=1e-6)
    assert run_paths(tmp_path / "run", ["dense"]) == {"dense": tmp_path / "run"}


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_values_of_each_query_are_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"queries.{ending}"
    write_per_query(path, results(), TEXTS)
    if ending == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    assert [(row["configuration"], row["query_id"], int(row["hits"])) for row in rows] == [
        ("dense", "q1", 3),
        ("dense", "q2", 0),
        ("hybrid alpha=0.5", "q1", 2),
        ("hybrid alpha=0.5", "q2", 2),
    ]
    assert rows[0]["text"] == TEXTS["q1"]
    assert [float(row["MRR@10"]) for row in rows] == [0.5, 0, 1, 0.5]


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CollectionError, match=r"must end with .jsonl or .csv"):
        write_per_query(tmp_path / "queries.txt", results(), TEXTS)


def test_configurations_are_compared_query_by_query() -> None:
    dense, hybrid = results()
    found = {one.measure: one for one in compare(hybrid, dense)}
    mrr = found["MRR@10"]
    assert (mrr.difference.mean, mrr.better, mrr.worse, mrr.equal) == (0.5, 2, 0, 0)
    assert found["success@10"].equal == 1
    assert (dense.empty, hybrid.empty) == (1, 0)
