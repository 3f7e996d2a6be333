"""Metrics against values worked out by hand, intervals, and files of queries and judgements."""

from __future__ import annotations

import builtins
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.evaluation.evaluate import evaluate, largest_differences
from scannery.evaluation.judgements import read_judgements, read_queries, read_recall_queries
from scannery.evaluation.recall import Truth, measure_served_recall, near_vectors, recall_of
from scannery.pipelines.errors import CollectionError, InputNotFoundError, MissingPackageError

QUERIES = {"q1": "one", "q2": "two", "q3": "three", "unjudged": "four", "hopeless": "five"}
JUDGEMENTS = {"q1": {"a": 2, "b": 1}, "q2": {"c": 1}, "q3": {"d": 1, "e": 1}, "hopeless": {"x": 0}}


def answering(found: Mapping[str, list[str]]) -> Any:
    def search(texts: Sequence[str]) -> list[list[str]]:
        return [found[text] for text in texts]

    return search


def test_metrics_are_those_worked_out_by_hand() -> None:
    search = answering({"one": ["x", "b", "a"], "two": ["x"] * 0 + ["y", "z"], "three": ["d", "e", "x"]})
    [result] = evaluate({"mine": search}, QUERIES, JUDGEMENTS, k=2)
    assert result.query_ids == ("q1", "q2", "q3")
    gained = 1 / math.log2(3) + 2 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    np.testing.assert_allclose(result.values["nDCG@10"], [gained / ideal, 0, 1], rtol=1e-6)
    np.testing.assert_allclose(result.values["MRR@10"], [1 / 2, 0, 1])
    np.testing.assert_allclose(result.values["recall@2"], [1 / 2, 0, 1])
    assert result.means["MRR@10"].mean == pytest.approx(0.5)


def test_ties_stay_in_the_order_they_were_found() -> None:
    # trec_eval would put z before a at equal scores.
    search = answering({"one": ["a", "z"], "two": [], "three": []})
    [result] = evaluate({"mine": search}, QUERIES, JUDGEMENTS)
    assert result.values["MRR@10"][0] == 1


def test_what_lies_below_the_cut_does_not_count() -> None:
    search = answering({"one": [f"n{i}" for i in range(10)] + ["a"], "two": [], "three": []})
    [result] = evaluate({"mine": search}, QUERIES, JUDGEMENTS, k=11)
    assert (result.values["nDCG@10"][0], result.values["MRR@10"][0]) == (0, 0)
    assert result.values["recall@11"][0] == 0.5


def test_the_largest_differences_come_first() -> None:
    good = answering({"one": ["a", "b"], "two": ["c"], "three": ["d", "e"]})
    bad = answering({"one": ["b", "a"], "two": [], "three": ["d", "e"]})
    one, other = evaluate({"good": good, "bad": bad}, QUERIES, JUDGEMENTS)
    assert [item.query_id for item in largest_differences(one, other, 5)] == ["q2", "q1"]
    assert largest_differences(one, other, 1)[0].first == 1


def test_a_missing_package_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *rest: Any, **named: Any) -> Any:
        if name == "ir_measures":
            raise ImportError(name)
        return load(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackageError, match=r"pip install 'scannery\[eval\]'"):
        evaluate({}, QUERIES, JUDGEMENTS)


def test_judgements_that_fit_no_query_are_an_error() -> None:
    with pytest.raises(CollectionError, match="do the ids of both files match"):
        evaluate({}, {"other": "text"}, JUDGEMENTS)


@pytest.mark.parametrize(
    "text",
    [
        "query-id\tcorpus-id\tscore\n1\ta b\t2\n1\tc\t0\n",
        "1\t0\ta b\t2\n1\t0\tc\t0\n",
        "\ufeff1\ta b\t2\r\n\r\n1\tc\t0\r\n",
        '{"query-id": "1", "corpus-id": "a b", "score": 2}\n{"query_id": 1, "document_id": "c", "relevance": 0.0}\n',
    ],
)
def test_judgements_come_as_beir_and_trec_have_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "qrels"
    path.write_bytes(text.encode())
    assert read_judgements(path) == {"1": {"a b": 2, "c": 0}}


def test_trec_judgements_may_have_blanks(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text("q1 0   d1 1\nq1 0 d2   -1\n")
    assert read_judgements(path) == {"q1": {"d1": 1, "d2": -1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q1 d1\n", "line 1: must have 3 or 4 columns, got 2"),
        ("q1 0 d1 1\n\nq1 0 d2 high\n", "line 3: the score must be an integer, got 'high'"),
        ("q1 d1 high\n", "line 1: the score must be an integer, got 'high'"),
        ("q1 d1 1.5\n", "line 1: the score must be an integer, got '1.5'"),
        ('{"query-id": "q1", "score": 1}\n', "line 1: needs one of corpus-id, corpus_id"),
        ("{\n", "line 1: is not JSON"),
        ("", "has no judgements"),
        ("query-id\tcorpus-id\tscore\n", "has no judgements"),
    ],
)
def test_wrong_judgements_are_clear_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "qrels"
    path.write_text(text)
    with pytest.raises(CollectionError, match=message) as caught:
        read_judgements(path)
    assert caught.value.field == "qrels"


def test_queries_are_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "a", "text": "x\\u2028y", "metadata": {}}\n\n{"id": 7, "text": "z"}\n')
    found = read_queries(path)
    assert {name: query.text for name, query in found.items()} == {"a": "x\u2028y", "7": "z"}


def test_queries_may_have_vectors(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"_id": "a", "vector": [1, 2]}\n{"_id": "b", "text": "z", "vector": [3, 4]}\n')
    one, both = read_queries(path).values()
    assert (one.text, str(one), np.asarray(one.vector).tolist()) == (None, "(a vector)", [1, 2])
    assert (both.text, np.asarray(both.vector).tolist()) == ("z", [3, 4])


def test_queries_without_ids_have_those_of_a_file_of_texts(tmp_path: Path) -> None:
    records, lines = tmp_path / "queries.jsonl", tmp_path / "queries.txt"
    records.write_text('{"text": "chess"}\n{"query": "bread"}\n{"text": "chess"}\n')
    lines.write_text("bread\nchess\n")
    assert sorted(read_queries(records)) == sorted(read_queries(lines))


def test_queries_in_columns_and_lines(tmp_path: Path) -> None:
    table, lines = tmp_path / "queries.tsv", tmp_path / "queries.txt"
    table.write_text("a\tmolten rock\nb\tchess\n")
    assert {name: query.text for name, query in read_queries(table).items()} == {
        "a": "molten rock",
        "b": "chess",
    }
    lines.write_text("chess\n\nmolten rock\n chess \n")
    names = {query.text: name for name, query in read_queries(lines).items()}
    lines.write_text("first\nmolten rock\nchess\n")
    moved = {query.text: name for name, query in read_queries(lines).items()}
    assert names == {text: moved[text] for text in ("chess", "molten rock")}
    table.write_text("a\tb\tc\n")
    with pytest.raises(CollectionError, match="line 1: must have an id and a text"):
        read_queries(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"_id": "a"}', "line 1: needs `text`"),
        ('{"vector": [1]}', "line 1: needs `_id`"),
        ('{"_id": true, "text": "a"}', "line 1: `_id` must be a string, got True"),
        ('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}', "line 2: the id 'a' occurs twice"),
        ("{", "line 1: not JSON"),
        ('{"_id": "a", "text": "x", "vector": ["a"]}', "line 1: `vector` must be a list of numbers, got"),
        ("[]", "must be a JSON object, got list"),
        ("", "is empty"),
    ],
)
def test_wrong_queries_are_clear_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(text)
    with pytest.raises(CollectionError, match=message):
        read_queries(path)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFoundError, match=r"queries: cannot read .*nothing"):
        read_queries(tmp_path / "nothing")


def test_queries_for_recall_have_text_or_vector(tmp_path: Path) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text('{"vector": [1, 2.5]}\n{"text": "words"}\n')
    vector, text = read_recall_queries(path)
    assert (np.asarray(vector).tolist(), text) == ([1, 2.5], "words")
    path.write_text('{"vector": ["a"]}')
    with pytest.raises(CollectionError, match="`vector` must be a list of numbers"):
        read_recall_queries(path)


@pytest.mark.parametrize(
    ("found", "truth", "recall"),
    [
        ([3, 2, 1], [3, 2, 1], 1),
        ([3, 1, 0], [3, 2, 1], 2 / 3),
        ([3, 1], [3, 1, 1], 2 / 3),
        ([3, 2 - 1e-6], [3, 2], 1),
        ([3e-9, 1e-9], [3e-9, 2e-9], 0.5),
        ([], [3], 0),
        ([], [], 1),
        ([-1, -2], [-1, -1.5], 0.5),
    ],
)
def test_recall_goes_by_score(found: list[float], truth: list[float], recall: float) -> None:
    assert recall_of(found, Truth(truth)) == pytest.approx(recall)


def test_recall_of_a_served_index_counts_short_answers() -> None:
    report = measure_served_recall(
        lambda _: [[3.0, 2.0], [5.0]], lambda _: [Truth([3.0, 2.0]), Truth([5.0, 4.0])], ["a", "b"], 2
    )
    assert (report.recall.mean, report.worst, report.short, report.queries) == (0.75, 0.5, 1, 2)


def test_near_vectors_keep_their_distance() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8)).astype(np.float32)
    moved = near_vectors(vectors)
    distances = np.linalg.norm(moved - vectors, axis=1) / np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(distances, 0.3, rtol=1e-4)
    np.testing.assert_array_equal(moved, near_vectors(vectors))
