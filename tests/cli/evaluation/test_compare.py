"""`scannery compare`: answers of another system against those of an index."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main

VECTORS = [[1.0] * 16, [1.0, -1.0] * 8, [1.0, 0.0] * 8]


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def compared(capsys: pytest.CaptureFixture[str], library: Path, answers: Path, *options: str) -> Any:
    status = main(
        ["compare", "-i", "library", "-s", str(library), "--with", str(answers), "--json", *options]
    )
    output = capsys.readouterr()
    assert (status, output.err) == (0, "")
    return json.loads(output.out)


def exact_ids(library: Path, vector: list[float], k: int, where: Any = None) -> list[str]:
    with scannery.connect(str(library)) as client:
        found = client.index("library").search(vector, k=k, where=where, exact=True, fields=[])
        return [hit.id for hit in found]


@pytest.mark.system
def test_equal_answers_are_the_same_in_every_measure(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path
) -> None:
    where = {"live": True}
    lines = [{"vector": vector, "hits": exact_ids(library, vector, 5)} for vector in VECTORS]
    filtered = [{"id": hit} for hit in exact_ids(library, VECTORS[0], 5, where)]
    lines.append({"id": "f", "vector": VECTORS[0], "where": where, "hits": filtered})
    told = compared(capsys, library, written(tmp_path, lines), "-k", "5", "--target-recall", "0.999")
    assert (told["queries"], told["k"], told["missing"], told["different"]) == (4, 5, [], [])
    assert {told[name]["mean"] for name in ("same", "their_recall", "our_recall")} == {1.0}
    assert told["same_first"] == 1.0


@pytest.mark.system
def test_a_filter_that_is_left_out_shows(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path
) -> None:
    ids = exact_ids(library, VECTORS[0], 5, {"live": True})
    assert ids != exact_ids(library, VECTORS[0], 5)
    told = compared(capsys, library, written(tmp_path, [{"vector": VECTORS[0], "hits": ids}]), "-k", "5")
    assert told["same"]["mean"] < 1


@pytest.mark.system
def test_differences_and_ids_that_the_index_lacks_are_counted(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path
) -> None:
    first, second, *_ = true = exact_ids(library, VECTORS[1], 4)
    answers = written(
        tmp_path,
        [
            {"id": "half", "vector": VECTORS[1], "hits": [second, first, "nowhere", "absent"]},
            {"id": "all", "vector": VECTORS[1], "hits": true},
            {"id": "one", "vector": VECTORS[1], "hits": [first]},
            {"id": "none", "vector": VECTORS[1], "hits": []},
        ],
    )
    told = compared(capsys, library, answers, "-k", "4", "--target-recall", "0.999")
    assert told["different"] == [["none", 0.0], ["half", 0.5]]
    assert told["same"]["mean"] == pytest.approx((0.5 + 1 + 1 + 0) / 4)
    assert told["same_first"] == 0.5
    assert told["their_recall"]["mean"] == pytest.approx((0.5 + 1 + 0.25 + 0) / 4)
    assert told["our_recall"]["mean"] == 1.0
    assert (told["missing"], told["ids"]) == (["absent", "nowhere"], 6)
    status = main(["compare", "-i", "library", "-s", str(library), "--with", str(answers), "-k", "4"])
    output = capsys.readouterr()
    assert status == 0
    assert "the index lacks 2 of the 6 ids in their answers: absent, nowhere" in output.err
    assert "query none (0.00), query half (0.50)" in output.out


def test_texts_are_encoded_by_the_model_of_the_index(
    capsys: pytest.CaptureFixture[str], texts: Path, tmp_path: Path
) -> None:
    answers = written(tmp_path, [{"text": "how do eruptions happen", "hits": ["volcano"]}])
    assert main(["compare", "-i", "texts", "-s", str(texts), "--with", str(answers), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["same_first"] == 1.0


@pytest.mark.system
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"vector": [1.0]}, "line 1: `hits` must be a list of ids, or of objects with `id`, got None"),
        ({"vector": [1.0], "hits": "a"}, "line 1: `hits` must be a list of ids, or of objects with `id`"),
        ({"vector": [1.0], "hits": [{"name": "a"}]}, "line 1: `hits` must be a list of ids"),
        ({"vector": [1.0], "hits": [True]}, "line 1: `hits` must be a list of ids"),
        ({"vector": [1.0], "hits": [], "where": [1]}, r"line 1: `where` must be an object, got [1]"),
        ({"hits": []}, "line 1: needs `text`, a string that is not empty, or `vector`"),
    ],
)
def test_malformed_answers_are_refused(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path, line: dict[str, Any], says: str
) -> None:
    answers = written(tmp_path, [line])
    assert main(["compare", "-i", "library", "-s", str(library), "--with", str(answers)]) != 0
    assert says in capsys.readouterr().err


def test_an_empty_file_is_refused(capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path) -> None:
    assert main(["compare", "-i", "library", "-s", str(library), "--with", str(written(tmp_path, []))]) != 0
    assert "is empty" in capsys.readouterr().err
