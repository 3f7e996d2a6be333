"""Calls of the page: who may call, with whose key, and that answers are those of the SDK."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx2
import pytest

import scannery
from scannery.cli.commands.servers.console import judgement_sets
from scannery.console.config import ConsoleConfig
from scannery.console.gateway import typed_searches
from scannery.console.gateway.typed_searches import MANY, OvertakenError, TypedSearches
from scannery.console.pages import HEADERS
from scannery.console.sessions import MAX_SESSIONS, Sessions
from scannery.serving import Server
from tests.console.consoles import browser_on, console_on

pytestmark = pytest.mark.system

SEARCH = "/scannery.v1.SearchService/Search"
QUESTION = {"index": "podcasts", "query": {"text": "why do whales sing"}, "options": {"k": 3}}


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with console_on(server.address) as address:
        yield address


@pytest.fixture
def browser(address: str) -> Iterator[httpx2.Client]:
    with browser_on(address) as browser:
        yield browser


def signed_in(
    browser: httpx2.Client, keys: tuple[Path, dict[str, str]], name: str = "reader"
) -> httpx2.Client:
    assert browser.post("/session", json={"secret": keys[1][name]}).status_code == 200
    return browser


def test_an_answer_is_that_of_the_sdk(
    browser: httpx2.Client, server: Server, keys: tuple[Path, dict[str, str]]
):
    answer = signed_in(browser, keys).post(SEARCH, json=QUESTION).json()
    with scannery.connect(server.address, api_key=keys[1]["reader"]) as client:
        hits = client.index("podcasts").search("why do whales sing", k=3)
    assert [hit["datapoint"]["id"] for hit in answer["hits"]] == [hit.id for hit in hits]
    assert [hit["score"] for hit in answer["hits"]] == pytest.approx([hit.score for hit in hits], rel=1e-6)


def test_a_filter_becomes_the_message_that_the_sdk_sends(
    browser: httpx2.Client, keys: tuple[Path, dict[str, str]]
):
    signed_in(browser, keys)
    where = browser.post("/filter", json={"topic": "science", "minutes": {"$gte": 30}}).json()
    answer = browser.post(
        "/scannery.v1.SearchService/Count", json={"index": "podcasts", "where": where}
    ).json()
    with_sdk = browser.post("/filter", json={"topic": {"$nope": 1}})
    assert 0 < int(answer["count"]) < 300
    assert with_sdk.status_code == 400
    assert with_sdk.json()["details"][0]["debug"]["field"] == "where.topic.$nope"


def test_errors_are_those_of_the_contract(browser: httpx2.Client, keys: tuple[Path, dict[str, str]]):
    signed_in(browser, keys)
    for request, status, code in (
        ({**QUESTION, "index": "nope"}, 404, "not_found"),
        ({**QUESTION, "options": {"k": 0}}, 400, "invalid_argument"),
        ({**QUESTION, "nope": 1}, 400, "invalid_argument"),
    ):
        answer = browser.post(SEARCH, json=request)
        assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert browser.post("/scannery.v1.LeafService/Search", json={}).status_code == 404


def test_a_call_has_the_key_of_its_session_and_no_more(
    browser: httpx2.Client, keys: tuple[Path, dict[str, str]]
):
    assert browser.post(SEARCH, json=QUESTION).status_code == 401
    assert browser.post("/session", json={"secret": "sk-wrong"}).status_code == 401
    assert not browser.cookies
    signed_in(browser, keys)
    dropped = browser.post("/scannery.v1.IndexService/DropIndex", json={"index": "podcasts"})
    assert (dropped.status_code, dropped.json()["code"]) == (403, "permission_denied")
    assert browser.request("DELETE", "/session", json={}).status_code == 200
    assert browser.post(SEARCH, json=QUESTION).status_code == 401


def test_the_cookie_says_nothing_and_scripts_cannot_read_it(
    browser: httpx2.Client, keys: tuple[Path, dict[str, str]]
):
    answer = browser.post("/session", json={"secret": keys[1]["reader"]})
    cookie = answer.headers["set-cookie"]
    assert keys[1]["reader"] not in cookie + answer.text
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert cookie.startswith(f"scannery_{browser.base_url.port}=")


def test_a_cookie_alone_is_no_session(browser: httpx2.Client, keys: tuple[Path, dict[str, str]]):
    # Browsers send it to all ports of this machine, so servers of others see it.
    signed_in(browser, keys)
    assert browser.get("/session").json()["session"]
    for proof in ("", "0" * 64, "\xe9"):
        headers = [(b"scannery-session", proof.encode("latin-1"))]
        assert browser.post(SEARCH, json=QUESTION, headers=headers).status_code == 401
        assert not browser.get("/session", headers=headers).json()["session"]
    assert browser.post(SEARCH, json=QUESTION).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": ""},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"host": "evil.example"},
        {"content-type": "text/plain"},
    ],
    ids=str,
)
def test_calls_of_other_pages_are_refused(
    browser: httpx2.Client, keys: tuple[Path, dict[str, str]], headers: dict[str, str]
):
    signed_in(browser, keys)
    assert browser.post(SEARCH, json=QUESTION).status_code == 200
    assert browser.post(SEARCH, json=QUESTION, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path", ["/session", "/filter", "/update", "/history", "/files/check", "/judgements/sets", SEARCH]
)
@pytest.mark.parametrize(
    "body", [b'{"a":' * 20_000, b"[]", b'{"after": 1' + b"0" * 400 + b', "code": "\\ud800"}']
)
def test_a_body_that_is_no_request_is_told(browser: httpx2.Client, path: str, body: bytes):
    answer = browser.post(path, content=body)
    assert answer.status_code in (400, 401, 200 if path == "/filter" else 400)
    assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("secret", ["a\r\nb: c", "ключ", "\ud800", "a\0"], ids=ascii)
def test_a_key_that_no_header_can_have_is_refused(browser: httpx2.Client, secret: str):
    answer = browser.post("/session", content=json.dumps({"secret": secret}))
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")


def test_a_large_request_stops_no_other_one(browser: httpx2.Client, address: str):
    body = b'{"options":{"where":{"allOf":{"filters":[' + b",".join([b"{}"] * 200_000) + b"]}}}}"
    with ThreadPoolExecutor(1) as pool:
        large = pool.submit(browser.post, SEARCH, content=body)
        answered = 0
        with browser_on(address) as second:
            while not large.done():
                answered += second.get("/session").status_code == 200
    assert large.result().status_code == 401
    assert answered > 5


def test_calls_of_callers_who_are_gone_wait_for_no_turn(
    browser: httpx2.Client, address: str, keys: tuple[Path, dict[str, str]]
):
    signed_in(browser, keys)
    [(name, value)] = browser.cookies.items()
    request = {**QUESTION, "options": {"k": 300}}
    browser.post(SEARCH, json=request)
    started_s = time.monotonic()
    browser.post(SEARCH, json=request)
    alone_s = time.monotonic() - started_s
    body = json.dumps(request).encode()
    host = f"{browser.base_url.host}:{browser.base_url.port}"
    for number in range(240):
        head = (
            f"POST {SEARCH} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\nCookie: {name}={value}\r\n"
            f"Content-Type: application/json\r\nScannery-Typed: {number}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((browser.base_url.host, browser.base_url.port)) as gone:
            gone.sendall(head.encode() + body)
    started_s = time.monotonic()
    assert browser.post(SEARCH, json=QUESTION, headers={"scannery-typed": "mine"}).status_code == 200
    assert time.monotonic() - started_s < 240 / 3 * alone_s


def test_nobody_is_signed_out_by_the_many_sessions_of_another_key(tmp_path: Path):
    sessions = Sessions(ConsoleConfig(judgements=judgement_sets(tmp_path)), 1)
    first = sessions.begin("one")
    for _ in range(MAX_SESSIONS + 1):
        last = sessions.begin("many")
    assert sessions.of(first, sessions.proof(first))
    assert sessions.of(last, sessions.proof(last))


def test_other_pages_cannot_show_the_page_inside_of_theirs(browser: httpx2.Client):
    framed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    linked = {**framed, "sec-fetch-dest": "document"}
    assert browser.get("/", headers=framed).status_code == 403
    assert browser.get("/", headers=linked).status_code == 200
    assert browser.get("/", headers={"host": "evil.example"}).status_code == 403


def test_every_answer_has_the_headers_that_bind_the_page(browser: httpx2.Client):
    for answer in (
        browser.get("/"),
        browser.get("/nope"),
        browser.post(SEARCH, json=QUESTION),
        browser.get("/web/app.js"),
    ):
        assert {name: answer.headers[name] for name in HEADERS} == dict(HEADERS)


def test_files_are_sent_once_and_none_from_outside_of_the_page(browser: httpx2.Client):
    answer = browser.get("/web/app.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    again = browser.get("/web/app.js", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    for path in ("/web/../application.py", "/web/%2e%2e/application.py", "/web//etc/passwd", "/web/nope.js"):
        assert browser.get(path).status_code == 404


def test_the_code_of_a_store_begins_one_session(podcasts: Path):
    with (
        console_on(podcasts, needs_session=True, takes_keys=False) as address,
        browser_on(address) as browser,
    ):
        code = address.partition("#code=")[2]
        assert browser.post(SEARCH, json=QUESTION).status_code == 401
        assert browser.post("/session", json={"secret": "anything"}).status_code == 401
        assert browser.post("/session", json={"code": code}).status_code == 200
        assert browser.post(SEARCH, json=QUESTION).json()["hits"]
        with browser_on(address) as second:
            assert second.post("/session", json={"code": code}).status_code == 401
            assert second.post(SEARCH, json=QUESTION).status_code == 401


def test_the_key_of_the_console_is_for_sessions_of_its_code_alone(
    server: Server, keys: tuple[Path, dict[str, str]]
):
    options = {"needs_session": True, "secret": keys[1]["writer"]}
    with console_on(server.address, **options) as address, browser_on(address) as browser:
        assert browser.post(SEARCH, json=QUESTION).status_code == 401
        assert browser.post("/session", json={"code": address.partition("#code=")[2]}).status_code == 200
        assert browser.post(SEARCH, json=QUESTION).status_code == 200
        with browser_on(address) as second:
            signed_in(second, keys)
            wrote = second.post(
                "/scannery.v1.IndexService/Delete", json={"index": "podcasts", "ids": ["none"]}
            )
            assert wrote.status_code == 403


async def test_a_later_text_takes_the_turn_of_an_earlier_one():
    searches, ran = TypedSearches(1), []
    gate = asyncio.Event()

    async def search(name: str) -> str:
        ran.append(name)
        await gate.wait()
        return name

    def typed(view: str, name: str) -> asyncio.Task[str]:
        return asyncio.create_task(searches.run(view, lambda: search(name)))

    first = typed("a", "a1")
    await asyncio.sleep(0)
    tasks = [typed("a", "a2"), typed("b", "b1"), typed("a", "a3")]
    await asyncio.sleep(0.01)
    assert ran == ["a1"]
    gate.set()
    results = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert isinstance(results[1], OvertakenError)
    # The view kept its place before the one that came after it.
    assert [results[0], *results[2:]] == ["a1", "b1", "a3"]
    assert ran == ["a1", "a3", "b1"]


async def test_where_many_type_a_rest_follows_each_search():
    searches, took_s = TypedSearches(1), 0.05
    started = time.monotonic()
    await asyncio.gather(
        *(searches.run(str(view), lambda: asyncio.sleep(took_s)) for view in range(MANY + 2))
    )
    # With one in flight, those before the last few are followed by a rest of the same length.
    assert time.monotonic() - started > (MANY + 2 + 2) * took_s


async def test_who_leaves_the_queue_gives_the_turn_on():
    searches = TypedSearches(1)
    gate = asyncio.Event()
    first = asyncio.create_task(searches.run("a", gate.wait))
    await asyncio.sleep(0)
    second = asyncio.create_task(searches.run("b", gate.wait))
    await asyncio.sleep(0)
    second.cancel()
    gate.set()
    await first
    assert await asyncio.wait_for(searches.run("c", gate.wait), 5) is True


async def test_callers_take_turns_and_a_slow_search_stops_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(typed_searches, "TURN_S", 0.05)
    searches, ran = TypedSearches(1), []
    slow = asyncio.create_task(searches.run("slow", asyncio.Event().wait, owner="many"))
    await asyncio.sleep(0)

    async def search(name: str) -> None:
        ran.append(name)

    views = [("many", str(view)) for view in range(20)] + [("one", "mine")]
    await asyncio.gather(
        *(searches.run(view, partial(search, f"{owner} {view}"), owner=owner) for owner, view in views)
    )
    slow.cancel()
    assert ran.index("one mine") <= 1
    assert len(ran) == 21
