"""Calls of the page about judgement sets: who may call, who judged, and the figures of `scannery evaluate`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scannery.cli.commands.servers.console import judgement_sets
from scannery.cli.sample import QUESTIONS_PATH
from scannery.evaluation.judgements import read_judgements
from scannery.serving import Server
from tests.cli.test_commands import in_json
from tests.console.consoles import browser_on, console_on

pytestmark = pytest.mark.system

SET = {"index": "podcasts", "set": "first"}
QUESTIONS = [
    line.split("question: ")[1].split(", expect")[0]
    for line in QUESTIONS_PATH.read_text().splitlines()
    if line.startswith("- {question: ")
][:12]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judging") / "judgements"


@pytest.fixture(scope="module")
def address(server: Server, folder: Path) -> Iterator[str]:
    with console_on(server.address, judgements=judgement_sets(folder)) as address:
        yield address


@pytest.fixture
def browser(address: str, keys: tuple[Path, dict[str, str]]) -> Iterator[httpx2.Client]:
    with browser_on(address) as browser:
        assert browser.post("/session", json={"secret": keys[1]["reader"]}).status_code == 200
        yield browser


def asked(browser: httpx2.Client, call: str, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = browser.post(f"/judgements/{call}", json={**SET, **fields})
    assert answer.status_code == status, answer.text
    return answer.json()


def rankings(browser: httpx2.Client, texts: dict[str, str], mode: str) -> dict[str, list[str]]:
    """Return what the page measures: the documents of the hits, by question."""
    options = {
        "k": 100,
        "mode": f"MODE_{mode.upper()}",
        "crowding": {"maxPerGroup": 1},
        "returnFields": ["title"],
    }
    request = {
        "index": "podcasts",
        "queries": [{"text": text} for text in texts.values()],
        "options": options,
    }
    answer = browser.post("/scannery.v1.SearchService/SearchMany", json=request).json()
    return {
        name: [hit["datapoint"]["documentId"] for hit in hits["hits"]]
        for name, hits in zip(texts, answer["results"], strict=True)
    }


def test_figures_are_those_of_evaluate(
    browser: httpx2.Client, podcasts: Path, folder: Path, capsys: pytest.CaptureFixture[str]
):
    added = asked(browser, "add", file="questions.txt", text="\n".join(dict.fromkeys(QUESTIONS)))
    texts = {each["id"]: each["text"] for each in asked(browser, "contents")["questions"]}
    assert list(texts) == added["ids"]
    columns = {mode: rankings(browser, texts, mode) for mode in ("dense", "lexical", "hybrid")}
    for place, name in enumerate(list(texts)[:-1]):
        for mode, ranks in ((mode, columns[mode]) for mode in columns):
            for document in ranks[name][place % 3 : 4]:
                asked(browser, "mark", question=name, document=document, level=(place + len(mode)) % 4, by="")
    asked(browser, "mark", question=next(iter(texts)), document="none-such", level=2, by="")
    measured = asked(browser, "measure", rankings=columns)
    files = folder / "podcasts" / "first"
    report = in_json(
        capsys, "evaluate", "-i", "podcasts", "--store", str(podcasts), "--baseline", "dense",
        "--queries", str(files / "queries.jsonl"), "--qrels", str(files / "qrels.tsv"),
    )  # fmt: skip
    assert measured["questions"] == report["queries"] == len(texts) - 1
    for column in measured["columns"]:
        metrics = report["modes"][column["name"]]["metrics"]
        assert column["means"] == {name: metrics[name] for name in column["means"]}
        assert list(column["means"]) == ["nDCG@10", "MRR@10", "recall@100", "judged@10"]
    pairs = {tuple(each["modes"]): each["metrics"] for each in report["comparisons"]}
    for column in measured["columns"][1:]:
        for measure, difference in column["differences"].items():
            reported = pairs["dense", column["name"]][measure]
            assert difference["mean"] == pytest.approx(-reported["mean"])
            assert (difference["low"] > 0, difference["high"] < 0) == (
                reported["high"] < 0,
                reported["low"] > 0,
            )
    assert [value for each in measured["worst"] for value in each["values"][:1]] == sorted(
        each["values"][0] for each in measured["worst"]
    )
    lost = {each["id"]: each["missing"] for each in measured["worst"]}
    assert "none-such" in lost.get(next(iter(texts)), ["none-such"])


def test_a_key_says_who_judges(browser: httpx2.Client, address: str, keys: tuple[Path, dict[str, str]]):
    assert asked(browser, "sets")["who"].startswith("reader/")
    (question,) = asked(browser, "add", set="shared", file="q.txt", text="who judges")["ids"]
    asked(browser, "mark", set="shared", question=question, document="hedgerow-007", level=3, by="Mallory")
    with browser_on(address) as second:
        second.post("/session", json={"secret": keys[1]["admin"]})
        asked(second, "mark", set="shared", question=question, document="hedgerow-007", level=0, by="Mallory")
    pair = asked(browser, "marks", set="shared", question=question)["documents"]["hedgerow-007"]
    assert [(each["by"].split("/")[0], each["level"]) for each in pair["marks"]] == [
        ("reader", 3),
        ("admin", 0),
    ]
    assert pair["level"] == 0
    contents = asked(browser, "contents", set="shared")
    assert [each["document"] for each in contents["disputes"]] == ["hedgerow-007"]


def test_without_a_key_for_the_index_nobody_reads_or_writes(address: str, folder: Path):
    with browser_on(address) as stranger:
        for call in ("sets", "contents", "marks", "add", "mark", "measure"):
            asked(stranger, call, status=401, set="stranger", file="q.txt", text="q")
    assert not (folder / "podcasts" / "stranger").exists()


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"index": "nope"}, 404, None),
        ({"index": "../podcasts"}, 404, None),
        ({"set": "../first"}, 400, "set"),
        ({"set": ".."}, 400, "set"),
        ({"set": 1}, 400, "set"),
        ({"index": None}, 400, "index"),
        ({"file": "q.exe"}, 400, "file"),
        ({"text": ""}, 400, "queries"),
        ({"text": "\ud800"}, 400, "text"),
    ],
)
def test_wrong_fields_are_refused(
    browser: httpx2.Client, fields: dict[str, Any], status: int, field: str | None
):
    body = json.dumps({**SET, "file": "q.txt", "text": "question", **fields})
    answer = browser.post("/judgements/add", content=body)
    assert answer.status_code in ({status, 400} if status == 404 else {status}), answer.text
    details = answer.json().get("details", [{"debug": {"field": None}}])
    if field:
        assert details[0]["debug"]["field"] in (field, "questions")


@pytest.mark.parametrize("rankings", [None, [], {}, {"a": 1}, {"a": {"q": "x"}}, {"a": {"q": [1]}}])
def test_wrong_rankings_are_refused(browser: httpx2.Client, rankings: Any):
    answer = asked(browser, "measure", status=400, rankings=rankings)
    assert answer["details"][0]["debug"]["field"] == "rankings"


def test_texts_of_strangers_stay_texts(browser: httpx2.Client, folder: Path):
    text = "<img src=x onerror=alert(1)> \u202e\u200b \u2028 {} \"' \\ \x7f"
    (question,) = asked(browser, "add", set="odd", file="q.txt", text=text)["ids"]
    asked(browser, "mark", set="odd", question=question, document="<b>", level=1, by="")
    assert asked(browser, "contents", set="odd")["questions"][0]["text"] == text
    assert list(asked(browser, "marks", set="odd", question=question)["documents"]) == ["<b>"]
    assert read_judgements(folder / "podcasts" / "odd" / "qrels.tsv") == {question: {"<b>": 1}}
    asked(browser, "mark", set="odd", question=question, document="a\tb", level=1, by="", status=400)


def test_on_a_store_a_person_types_a_name(podcasts: Path, tmp_path: Path):
    options = {"needs_session": True, "takes_keys": False, "judgements": judgement_sets(tmp_path / "j")}
    with console_on(podcasts, **options) as address, browser_on(address) as browser:
        browser.post("/session", json={"code": address.partition("#code=")[2]})
        assert asked(browser, "sets") == {"sets": [], "who": ""}
        (question,) = asked(browser, "add", file="q.txt", text="q")["ids"]
        asked(browser, "mark", question=question, document="a", level=2, by=" ", status=400)
        pair = asked(browser, "mark", question=question, document="a", level=2, by="Ana")
        assert [(each["by"], each["level"]) for each in pair["marks"]] == [("Ana", 2)]
        assert asked(browser, "mark", question=question, document="a", level=None, by="Ana")["level"] is None


def test_a_folder_that_cannot_be_written_is_told(podcasts: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    options = {"needs_session": True, "takes_keys": False, "judgements": judgement_sets(tmp_path / "file")}
    with console_on(podcasts, **options) as address, browser_on(address) as browser:
        browser.post("/session", json={"code": address.partition("#code=")[2]})
        assert asked(browser, "sets")["sets"] == []
        refusal = asked(browser, "add", file="q.txt", text="q", status=400)
        assert "the folder of judgements cannot be used: Not a directory" in refusal["message"]
