"""Calls of the page with a key that opens a part of an index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scannery.serving import Server
from tests.console.consoles import browser_on, console_on
from tests.console.test_map import placed

pytestmark = pytest.mark.system

SERVICE = "/scannery.v1.SearchService"
INDEX = {"index": "podcasts"}
TEXT = {"query": {"text": "why do whales sing"}}


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with console_on(server.address) as address:
        yield address


@pytest.fixture
def browsers(address: str, keys: tuple[Path, dict[str, str]]) -> Iterator[dict[str, httpx2.Client]]:
    """Browsers by the name of their key."""
    browsers = {name: browser_on(address) for name in ("part", "fields", "reader")}
    for name, browser in browsers.items():
        assert browser.post("/session", json={"secret": keys[1][name]}).status_code == 200
    yield browsers
    for browser in browsers.values():
        browser.close()


def topics(browser: httpx2.Client, *topics: str) -> list[str]:
    """Return the ids of datapoints of some topics."""
    where = browser.post("/filter", json={"topic": {"$in": [*topics]}}).json()
    answer = browser.post(f"{SERVICE}/Scan", json={**INDEX, "where": where, "returnFields": ["topic"]})
    return [each["id"] for each in answer.json()["datapoints"]]


def test_answers_are_those_of_the_filter_of_the_key(browsers: dict[str, httpx2.Client]) -> None:
    part, reader = browsers["part"], browsers["reader"]
    where = reader.post("/filter", json={"topic": "science"}).json()
    visible = topics(reader, "science")
    order = {"orderBy": {"field": "id"}}
    dense = {"k": 20, "mode": "MODE_DENSE"}
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("Search", {**TEXT, "options": dense}, "options"),
        ("Search", {"query": {"id": visible[0]}, "options": dense}, "options"),
        ("Scan", order, ""),
        ("Count", {}, ""),
        ("Facets", {"attribute": "show"}, ""),
        ("Facets", {"attribute": "topic"}, ""),
        ("AttributeStats", {"attribute": "minutes"}, ""),
    ]
    for name, fields, at in calls:
        filtered = {**fields, at: {**fields[at], "where": where}} if at else {**fields, "where": where}
        answers = [
            browser.post(f"{SERVICE}/{name}", json={**INDEX, **body})
            for browser, body in ((part, fields), (reader, filtered))
        ]
        assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
        assert len({str(comparable(answer.json())) for answer in answers}) == 1, name
    lines = [
        browser.post("/files/export", json={**INDEX, **order, **fields}).text
        for browser, fields in ((part, {}), (reader, {"where": where}))
    ]
    assert lines[0] == lines[1]
    assert len(lines[0].splitlines()) == len(visible)


def comparable(value: Any) -> Any:
    """Return an answer without times, tokens and plans."""
    if isinstance(value, dict):
        left_out = ("stages", "pageToken", "nextPageToken", "segments", "stagesUs", "search")
        return {name: comparable(each) for name, each in value.items() if name not in left_out}
    return [comparable(each) for each in value] if isinstance(value, list) else value


def test_what_it_does_not_open_is_as_absent(browsers: dict[str, httpx2.Client]) -> None:
    part = browsers["part"]
    hidden = topics(browsers["reader"], "history")
    for name, body in (
        ("Get", {"ids": ["NAME"]}),
        ("Search", {"query": {"id": "NAME"}, "options": {"k": 5}}),
        ("Explain", {**TEXT, "options": {"k": 5}, "id": "NAME"}),
        (
            "Facets",
            {
                "attribute": "show",
                "where": {"condition": {"field": "id", "values": [{"stringValue": "NAME"}]}},
            },
        ),
    ):
        answers = []
        for identifier in (hidden[0], "absent"):
            fields = with_name(body, identifier)
            answer = part.post(f"{SERVICE}/{name}", json={**INDEX, **fields})
            told = str(comparable(answer.json())).replace(identifier, "NAME")
            answers.append((answer.status_code, told))
        assert answers[0] == answers[1], name


def with_name(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: with_name(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [with_name(each, name) for each in value]
    return name if value == "NAME" else value


def test_what_the_page_asks_for_may_be_closed(browsers: dict[str, httpx2.Client]) -> None:
    # Its pages name titles and texts, whatever the key opens.
    options = {"k": 5, "mode": "MODE_DENSE", "returnFields": ["title", "text"]}
    answer = browsers["fields"].post(f"{SERVICE}/Search", json={**INDEX, **TEXT, "options": options})
    assert answer.status_code == 200, answer.text
    for hit in answer.json()["hits"]:
        has = {name for name, value in hit["datapoint"].items() if value}
        assert has == {"id", "documentId", "revision"}


@pytest.mark.parametrize("key", ["part", "fields"])
def test_judgements_are_for_those_who_see_all(browsers: dict[str, httpx2.Client], key: str) -> None:
    judged = {**INDEX, "set": "first"}
    assert (
        browsers["reader"].post("/judgements/add", json={**judged, "file": "q.txt", "text": "why"}).is_success
    )
    for call in ("sets", "contents", "marks", "add", "mark", "measure"):
        answer = browsers[key].post(f"/judgements/{call}", json={**judged, "text": "why", "question": "why"})
        assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert browsers[key].post("/history", json={}).status_code == 403


@pytest.mark.long  # UMAP compiles for 15 s
def test_a_map_has_what_the_key_opens(browsers: dict[str, httpx2.Client]) -> None:
    answer = placed(browsers["part"], {**INDEX, "limit": 60})
    assert answer["state"] == "done", answer
    assert {*answer["ids"]} <= {*topics(browsers["reader"], "science")}
