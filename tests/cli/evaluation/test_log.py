"""`scannery log`: from searches and clicks at a server to figures, judgements and exports, and forgetting them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store
from scannery.indexer.traffic.day_files import read_rows, write_rows
from scannery.indexer.traffic.keys import read_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from scannery.serving.config import TrafficConfig
from tests.indexer.traffic.test_day_files import query as logged
from tests.served import SENTENCES, copied, serving

pytestmark = pytest.mark.system

TEXT, OTHER = "a game of two sides", "mail bob@example.com about baking"
ASKERS = [f"user-{number}" for number in range(6)]


@pytest.fixture
def store(texts: Path, tmp_path: Path) -> Path:
    """A store whose log has two texts: one that six users asked and clicked, and one that one user asked."""
    path = copied(texts, tmp_path)
    config = TrafficConfig(share=1.0, text=True)
    with serving(path, traffic=config, device="cpu") as server, scannery.connect(server.address) as client:
        client.alias("sentences", "texts")
        index = client.index("sentences")
        for asker in ASKERS:
            hits = index.search(TEXT, client_id=asker)
            client.feedback(hits.query_id, clicked=["orchestra"], rejected=["tax"])
        hits = index.search(OTHER, client_id="user-0")
        client.feedback(hits.query_id, clicked=["bread"])
        index.search(TEXT, where={"letters": 1}, client_id="user-0")
    return path


def log(*arguments: str | Path, code: int = 0) -> None:
    assert main(["log", *map(str, arguments)]) == code


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_figures(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log("stats", "--index", "sentences", "--store", store, "--json")
    [day] = printed(capsys)
    assert (day["queries"], day["askers"], day["empty_share"], day["click_share"]) == (8, 6, 0.125, 0.875)
    assert len(day["scores"]["dense"]) == 3
    log("stats", "--index", "texts", "--store", store)
    shown = capsys.readouterr().out
    assert "12.5%" in shown
    assert "87.5%" in shown


def test_pairs_are_judgements_that_evaluate_reads(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    log("pairs", "--index", "sentences", "--store", store, "--output", out)
    assert "1 queries; 1 pairs are right, 0 of them by what was asked next, and" in capsys.readouterr().out
    [query] = [json.loads(line) for line in (out / "queries.jsonl").read_text().splitlines()]
    assert (query["text"], query["askers"]) == (TEXT, 6)
    rows = [line.split("\t") for line in (out / "qrels.tsv").read_text().splitlines()[1:]]
    assert [each[1] for each in rows if each[2] == "1"] == ["orchestra"]
    assert "tax" in {each[1] for each in rows if each[2] == "0"}
    corpus = {
        each["_id"]: each["text"] for each in map(json.loads, (out / "corpus.jsonl").read_text().splitlines())
    }
    assert corpus["orchestra"] == SENTENCES["orchestra"]
    arguments = ["--queries", str(out / "queries.jsonl"), "--qrels", str(out / "qrels.tsv")]
    assert main(["evaluate", "--index", "texts", "--store", str(store), *arguments, "--json"]) == 0
    assert printed(capsys)["queries"] == 1


def test_who_asks_again_and_clicks_judges_both_texts(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = copied(texts, tmp_path), tmp_path / "out"
    config = TrafficConfig(share=1.0, text=True)
    with serving(path, traffic=config, device="cpu") as server, scannery.connect(server.address) as client:
        index = client.index("texts")
        for asker in ASKERS:
            index.search("chess", client_id=asker)
            # Another user in between, who clicks at once.
            client.feedback(index.search("chess", client_id="somebody").query_id, clicked=["chess"])
            hits = index.search(TEXT, client_id=asker)
            client.feedback(hits.query_id, clicked=["orchestra"], rejected=["tax"])
    log("pairs", "--index", "texts", "--store", path, "--output", out, "--json")
    report = printed(capsys)
    assert (report["queries"], report["right"], report["reformulated"], report["rejected"]) == (2, 3, 1, 1)
    queries = [json.loads(line) for line in (out / "queries.jsonl").read_text().splitlines()]
    assert {each["text"]: each["askers"] for each in queries} == {"chess": 7, TEXT: 6}
    names = {each["_id"]: each["text"] for each in queries}
    rows = [line.split("\t") for line in (out / "qrels.tsv").read_text().splitlines()[1:]]
    right = {(names[query], document) for query, document, level in rows if level == "1"}
    assert right == {("chess", "chess"), ("chess", "orchestra"), (TEXT, "orchestra")}


def test_a_rare_text_stays_in_the_log(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    log("pairs", "--index", "texts", "--store", store, "--output", out, "--min-askers", "7")
    assert "becomes a query from 7 distinct users" in capsys.readouterr().err
    assert (out / "queries.jsonl").read_text() == ""
    log("pairs", "--index", "texts", "--store", store, "--output", out, "--min-askers", "1", "--json")
    assert printed(capsys)["queries"] == 2
    assert "mail # about baking" in (out / "queries.jsonl").read_text()


def test_the_export_has_the_form_of_user_behavior_insights(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "ubi"
    log("export", "--index", "texts", "--store", store, "--output", out, "--json")
    assert printed(capsys) == {"queries": 8, "events": 13}
    queries = [json.loads(line) for line in (out / "ubi_queries.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (out / "ubi_events.jsonl").read_text().splitlines()]
    for document in (*queries, *events):
        assert all(0 < len(document[name]) <= 100 for name in ("application", "query_id", "client_id"))
        assert document["timestamp"].endswith("Z")
        datetime.fromisoformat(document["timestamp"])
    for query in queries:
        assert isinstance(query["user_query"], str)
        assert isinstance(query["query_attributes"], dict)
        assert all(isinstance(each, str) for each in query["query_response_hit_ids"])
        assert len(query["object_id_field"]) <= 100
    for event in events:
        assert len(event["action_name"]) <= 100
        assert len(event["message_type"]) <= 100
        attributes = event["event_attributes"]
        assert len(attributes["object"]["object_id"]) <= 256
        assert isinstance(attributes["position"]["ordinal"], int)
        [answered] = [query for query in queries if query["query_id"] == event["query_id"]]
        position = attributes["position"]["ordinal"] - 1
        assert answered["query_response_hit_ids"][position] == attributes["object"]["object_id"]


def test_what_is_forgotten_is_gone(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def left() -> tuple[int, int]:
        opened = Store.open(store)
        return (
            len(list(read_rows(opened, "texts", LoggedQuery))),
            len(list(read_rows(opened, "texts", LoggedEvent))),
        )

    common = ("forget", "--index", "texts", "--store", store)
    log(*common, "--client", "127.0.0.1", "--client-id", "user-0", "--json")
    assert printed(capsys) == {"queries": 3, "events": 3, "files": 2}
    assert left() == (5, 10)
    log(*common, "--text", "A game of  two sides")
    assert "5 queries and 10 events" in capsys.readouterr().out
    assert left() == (0, 0)
    log(*common, "--document", "bread")
    assert "0 queries and 0 events in 0 files" in capsys.readouterr().out


def test_a_masked_text_is_forgotten_by_what_was_asked(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log("forget", "--index", "texts", "--store", store, "--text", OTHER, "--json")
    assert printed(capsys)["queries"] == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--client", "a", "--text", "b"], ["--client-id", "a"], ["--text", "a", "--client-id", "b"]],
)
def test_one_thing_is_forgotten_at_a_time(library: Path, arguments: list[str]) -> None:
    log("forget", "--index", "library", "--store", library, *arguments, code=2)


def test_a_new_key(library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copied(library, tmp_path)
    for number in (1, 2):
        log("new-key", "--store", store)
        assert f"key {number} signs" in capsys.readouterr().out
    assert list(read_keys(Store.open(store))) == [1, 2]


def test_an_index_without_a_log_and_one_that_is_not_there(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log("stats", "--index", "library", "--store", library)
    assert "--traffic-share keeps one" in capsys.readouterr().out
    log("stats", "--index", "nothing", "--store", library, code=3)
    assert "nothing" in capsys.readouterr().err


def test_drift_is_told_by_the_texts_of_two_times(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copied(texts, tmp_path)
    today = datetime.now(timezone.utc)
    subjects = ("bread", "chess", "a lighthouse", "tax")
    forms = ("who likes {}", "what is {} for", "the history of {}", "how much is {}", "more about {}, please")

    def write(days: int, names: Sequence[str], start: int) -> None:
        rows = [
            logged(
                start + number,
                today - timedelta(days=days),
                user_query=forms[number % 5].format(names[number % len(names)]),
            )
            for number in range(120)
        ]
        write_rows(Store.open(path), "texts", rows, f"{start}")

    write(9, subjects, 0)
    where = ("--index", "texts", "--store", path)
    log("drift", *where, code=2)
    assert "100 of each are needed" in capsys.readouterr().err
    write(1, subjects, 200)
    log("drift", *where)
    assert "ask for the same things as before" in capsys.readouterr().out
    write(0, ("quarks", "a supernova", "the Higgs boson"), 400)
    log("drift", *where, "--new-days", "1", "--json", code=1)
    told = printed(capsys)
    assert told["drifted"]
    assert (told["new"], told["former"]) == (120, 240)
    assert any("Higgs" in text for text in told["farthest"])
    log("drift", *where, "--new-days", "1", code=1)
    assert "ask for other things than before" in capsys.readouterr().out
