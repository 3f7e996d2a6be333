"""`scannery evaluate` and `scannery recall`, on a store and on a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands import in_json, run
from tests.served import copied, make_text_store, serving

QUERIES = {"1": "molten rock", "2": "baking at home", "3": "nobody judged this"}
QRELS = "query-id\tcorpus-id\tscore\n1\tvolcano\t1\n2\tbread\t1\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_store(tmp_path_factory.mktemp("evaluate"), lexical=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("collection")
    queries, qrels = folder / "queries.jsonl", folder / "qrels.tsv"
    queries.write_text("".join(json.dumps({"_id": n, "text": t}) + "\n" for n, t in QUERIES.items()))
    qrels.write_text(QRELS)
    return str(queries), str(qrels)


@pytest.fixture(scope="module", params=["store", "target"])
def place(request: pytest.FixtureRequest, store: Path) -> Iterator[tuple[str, str]]:
    if request.param == "store":
        yield "--store", str(store)
        return
    with serving(store, device="cpu") as server:
        yield "--target", server.address


def test_every_mode_is_evaluated_and_compared(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", files[1], "-k", "3")
    answer = in_json(capsys, *arguments)
    assert (answer["queries"], answer["left_out"]) == (2, 1)
    assert list(answer["modes"]) == ["dense", "lexical", "hybrid"]
    for name, mode in answer["modes"].items():
        assert list(mode["metrics"]) == ["nDCG@10", "MRR@10", "recall@3"]
        # No sentence has the word "baking"; one has "bake", which has the same stem.
        assert mode["metrics"]["MRR@10"]["mean"] == 1, name
    status, output, _ = run(capsys, *arguments)
    assert status == 0
    assert "2 queries; 95 % intervals" in output
    assert "Left out, without a relevant document: 1" in output


def test_filters_and_modes_reach_the_index(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", *place, "--queries", files[0], "--qrels", files[1])
    answer = in_json(capsys, *arguments, "-m", "lexical,dense", "--where", '{"letters": 0}')
    assert list(answer["modes"]) == ["dense", "lexical"]
    assert {mode["metrics"]["nDCG@10"]["mean"] for mode in answer["modes"].values()} == {0}


def test_recall_is_measured_with_a_filter(
    capsys: pytest.CaptureFixture[str], place: tuple[str, str], files: tuple[str, str]
) -> None:
    answer = in_json(
        capsys, "recall", "-i", "texts", *place, "--queries", files[0], "--where", '{"letters": {"$gt": 60}}'
    )
    assert (answer["recall"]["mean"], answer["short"], answer["queries"]) == (1, 0, 3)
    assert answer["sampled"] is False


def test_recall_needs_no_queries(capsys: pytest.CaptureFixture[str], place: tuple[str, str]) -> None:
    status, output, _ = run(capsys, "recall", "-i", "texts", *place, "-k", "2")
    assert status == 0
    assert output.startswith("recall@2  1.0000 (1.000–1.000), worst 1.00, of 6 vectors near stored ones")


def test_wrong_use_is_one_line(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str]
) -> None:
    arguments = ("evaluate", "-i", "texts", "-s", str(store), "--qrels", files[1], "--queries")
    status, _, errors = run(capsys, *arguments, files[0], "-m", "fuzzy")
    assert (status, "--mode must be one or more of dense, lexical, hybrid" in errors) == (2, True)
    status, _, errors = run(capsys, *arguments, "/no/such/file")
    assert (status, errors.startswith("error: queries: cannot read /no/such/file")) == (3, True)
    status, _, errors = run(capsys, *arguments, files[1])
    assert (status, "line 1: is not JSON" in errors) == (2, True)


def test_live_updates_are_evaluated_before_they_are_sealed(
    capsys: pytest.CaptureFixture[str], store: Path, files: tuple[str, str], tmp_path: Path
) -> None:
    where = ("-i", "texts", "--store", str(copied(store, tmp_path)))
    assert run(capsys, "delete", *where, "--document", "volcano")[0] == 0
    answer = in_json(
        capsys, "evaluate", *where, "--queries", files[0], "--qrels", files[1], "--mode", "lexical"
    )
    assert answer["modes"]["lexical"]["metrics"]["MRR@10"]["mean"] == 0.5
