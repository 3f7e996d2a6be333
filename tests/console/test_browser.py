"""Walks through the console in a real browser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, expect

import scannery
from scannery.serving import SecurityConfig, Server, ServerConfig
from scannery.serving.security import KeyFile
from tests.console.browser import PHONE, WIDE, barriers, chromium, needs_chromium, page_of
from tests.console.consoles import console_on
from tests.served import copied
from tests.tools.ports import free_port

pytestmark = [pytest.mark.system, needs_chromium]

QUESTION = "why do whales sing"
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "javascript:alert(3)",
    "{{alert(4)}} ${alert(5)}",
    "\u202egnp.exe \u200b\u2066x",
    "' onmouseover='alert(6)",
    "x" * 5000,
    "\U0001f40b whale \U0001f40b",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def address(podcasts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A console on a store that every caller may use, with a hostile index beside the podcasts."""
    store = copied(podcasts, tmp_path_factory.mktemp("browser") / "store")
    with scannery.connect(store) as client:
        index = client.create_index(
            {
                "index": "hostile",
                "source": {"id": "id", "title": "title", "text": "text"},
                "vectors": "optional",
                "attributes": {"show": "string", "tags": "string_list", "constructor": "string"},
                "dynamic": True,
                "lexical": True,
                "search": {"link": "{show}"},
            }
        )
        rows: Any = [
            {
                "id": f"{number} {text}"[:200],
                "title": text,
                "text": f"whale {text}. A second sentence of the whale.",
                "show": text[:200],
                "tags": [text[:200], "b"],
                text[:100]: text,
                "payload": {text: text},
            }
            for number, text in enumerate(HOSTILE)
        ]
        index.upsert_many(rows)
    with console_on(store, takes_keys=False) as address:
        yield address.rstrip("/")


def ids(page: Page, column: int = 0) -> list[str]:
    return (
        page.locator(".column")
        .nth(column)
        .locator(".hit")
        .evaluate_all("hits => hits.map(hit => hit.dataset.id)")
    )


def settled(page: Page) -> None:
    page.wait_for_timeout(500)
    expect(page.locator(".column.busy")).to_have_count(0)


def test_results_come_as_one_types_and_are_those_of_the_sdk(browser: Browser, address: str, podcasts: Path):
    with page_of(browser, f"{address}/i/podcasts/search") as page:
        expect(page.get_by_label("Question")).to_be_focused()
        page.keyboard.type(QUESTION[:9], delay=20)
        expect(page.locator(".hit")).to_have_count(10)
        page.keyboard.type(QUESTION[9:], delay=20)
        settled(page)
        expect(page.locator(".hit mark").first).to_be_visible()
        with scannery.connect(podcasts) as client:
            assert ids(page) == [hit.id for hit in client.index("podcasts").search(QUESTION)]
        assert f"q={QUESTION.replace(' ', '+')}" in page.url


def test_settings_stand_side_by_side_with_the_moves_between_them(
    browser: Browser, address: str, podcasts: Path
):
    with page_of(browser, f"{address}/i/podcasts/search?q={quote(QUESTION)}") as page:
        for preset in ("dense", "lexical"):
            page.get_by_label("Add a column").select_option(preset)
        expect(page.locator(".column")).to_have_count(3)
        settled(page)
        with scannery.connect(podcasts) as client:
            index = client.index("podcasts")
            wanted = [
                index.search(QUESTION),
                index.search(QUESTION, mode="dense"),
                index.search(QUESTION, mode="lexical"),
            ]
        for column, hits in enumerate(wanted):
            assert ids(page, column) == [hit.id for hit in hits]
        assert "c=auto%7Edense%7Elexical" in page.url
        first, second = ids(page), ids(page, 1)
        moved = next(each for each in second if each in first and first.index(each) > second.index(each))
        up = first.index(moved) - second.index(moved)
        expect(
            page.locator(".column").nth(1).locator(".hit", has=page.locator(".move.up")).first
        ).to_be_visible()
        assert (
            page.locator(".column").nth(1).locator(f'.hit[data-id="{moved}"] .move').inner_text() == f"▲{up}"
        )


def test_a_value_narrows_the_search_and_no_hits_name_the_condition(browser: Browser, address: str):
    with page_of(browser, f"{address}/i/podcasts/search?q={quote(QUESTION)}") as page:
        page.locator(".hit").get_by_role("button", name="nature").first.click()
        expect(page.get_by_role("button", name="topic: nature")).to_be_visible()
        settled(page)
        expect(page.get_by_role("link", name="Data")).to_have_attribute("href", re.compile("where=.*nature"))
        assert all("nature" in text for text in page.locator(".hit").all_inner_texts())
        page.get_by_role("button", name="filter …").click()
        page.get_by_label("Filter as JSON").fill('{"topic": "nature", "minutes": {"$gt": 1000}}')
        page.get_by_role("button", name="Apply").click()
        page.get_by_role("button", name="drop minutes").click()
        expect(page.locator(".hit").first).to_be_visible()
        page.get_by_role("button", name="filter …").click()
        page.get_by_label("Filter as JSON").fill('{"topic": {"$nope": 1}}')
        page.get_by_role("button", name="Apply").click()
        expect(page.get_by_role("alert").first).to_contain_text("$nope")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/i/hostile/constructor", "There is no such page"),
        ("/i/%E0%A4%A/search", "is no index"),
        ("/i/hostile/search?q=whale&c=lexical,fusion:%25", "fusion"),
        ("/i/hostile/data", "alert(1)"),
    ],
)
def test_names_of_javascript_and_broken_addresses_are_but_texts(
    browser: Browser, address: str, path: str, text: str
):
    with page_of(browser, f"{address}{path}") as page:
        expect(page.locator("#main")).to_contain_text(text)
        settled(page)
        assert "native code" not in page.locator("#main").inner_text()


def test_why_a_hit_is_there_and_why_another_one_is_not(browser: Browser, address: str, podcasts: Path):
    with scannery.connect(podcasts) as client:
        hits = client.index("podcasts").search(QUESTION, 30)
    with page_of(browser, f"{address}/i/podcasts/search?q={quote(QUESTION)}") as page:
        page.locator(".hit").nth(1).get_by_role("button", name="why").click()
        drawer = page.locator(".drawer")
        expect(drawer).to_contain_text("Hit 2 of")
        expect(drawer.get_by_role("row").filter(has_text="sing").first).to_be_visible()
        drawer.get_by_label("Id, or words of the title").fill(hits[20].id)
        drawer.get_by_role("button", name="Find").click()
        expect(drawer).to_contain_text("k = 21")
        drawer.get_by_label("Id, or words of the title").fill(hits[24].title or "")
        drawer.get_by_role("button", name="Find").click()
        drawer.get_by_role("button", name=hits[24].title or "").first.click()
        expect(drawer).to_contain_text("k = 25")
        page.keyboard.press("Escape")
        expect(drawer).to_have_count(0)
        page.get_by_role("button", name="missing?").click()
        expect(drawer.get_by_label("Id, or words of the title")).to_be_focused()
        where = quote(json.dumps({"topic": "food"}))
        page.goto(f"{address}/i/podcasts/search?q={quote(QUESTION)}&why={hits[0].id}&where={where}")
        expect(drawer).to_contain_text("The filter does not allow it")


def test_a_search_is_copied_as_it_was_sent(browser: Browser, address: str):
    with page_of(browser, f"{address}/i/podcasts/search?q={quote(QUESTION)}&c=hybrid,alpha:0.7&k=3") as page:
        page.get_by_role("button", name="copy").first.click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text('index.search("why do whales sing", k=3, mode="hybrid", alpha=0.7)')
        expect(dialog).to_contain_text("--mode 'hybrid' --alpha '0.7' 'why do whales sing'")
        expect(dialog).to_contain_text('"fusion":{"alpha":0.7}')
        expect(dialog.locator("pre").first).to_have_attribute("tabindex", "0")


def test_all_of_a_search_is_done_by_keyboard(browser: Browser, address: str):
    with page_of(browser, f"{address}/") as page:
        page.get_by_role("link", name="podcasts").focus()
        page.keyboard.press("Enter")
        expect(page.get_by_label("Question")).to_be_focused()
        page.keyboard.type(QUESTION)
        page.keyboard.press("Enter")
        settled(page)
        second = ids(page)[1]
        page.keyboard.press("ArrowDown")
        page.keyboard.press("j")
        expect(page.locator(".hit.chosen")).to_have_attribute("data-id", second)
        page.keyboard.press("e")
        expect(page.locator(".drawer")).to_contain_text("Hit 2 of")
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_contain_text("next hit")
        page.keyboard.press("Escape")
        page.keyboard.press("m")
        expect(page).to_have_url(f"{address}/i/podcasts/search?like={second}")
        expect(page.locator(".hit").first).to_be_visible()
        for link, control in (("Data", "Export"), ("Search", "copy")):
            page.get_by_role("link", name=link).focus()
            page.keyboard.press("Enter")
            expect(page.get_by_role("button", name=control)).to_be_visible()
        expect(page.get_by_label("Question")).to_be_focused()


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_pages_have_no_barriers(browser: Browser, address: str, viewport: dict[str, int], scheme: str):
    search = f"/i/podcasts/search?q={quote(QUESTION)}&c=auto~dense&panel=1"
    row, drawn = "/i/podcasts/data?row=hedgerow-002", "/i/podcasts/map?colour=topic&id=hedgerow-002"
    for path in ("/", search, f"{search}&why=hedgerow-002", "/i/podcasts/data", row, drawn):
        with page_of(browser, f"{address}{path}", viewport=viewport, scheme=scheme) as page:
            page.wait_for_load_state("networkidle")
            assert barriers(page) == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, (
                f"{path} is too wide"
            )


def test_every_field_of_a_corpus_may_be_hostile(browser: Browser, address: str):
    with page_of(browser, f"{address}/i/hostile/search?q=whale&c=lexical&panel=1") as page:
        expect(page.locator(".hit")).to_have_count(len(HOSTILE))
        for place in range(len(HOSTILE)):
            page.locator(".hit").nth(place).get_by_role("button", name="all", exact=True).click()
            expect(page.locator(".hit").nth(place).locator("pre")).to_be_visible()
        # The template of links takes an attribute whole: only https is a link.
        assert page.locator(".hit a").evaluate_all("links => links.map(link => link.protocol)") == []
        assert page.locator(".hit img, .hit script").count() == 0
        page.locator(".hit").first.get_by_role("button", name="why").click()
        expect(page.locator(".drawer")).to_contain_text("By words")
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="judge this question").click()
        hits = page.locator(".asked .hit")
        expect(hits).to_have_count(len(HOSTILE))
        page.keyboard.press("3")
        page.get_by_label("Your name").fill(HOSTILE[0])
        page.keyboard.press("Enter")
        for place in range(1, len(HOSTILE)):
            expect(page.get_by_text("saving …")).to_have_count(0)
            expect(hits.nth(place - 1).locator("[aria-pressed=true]")).to_have_text("3")
            page.keyboard.press("3")
        expect(page.locator("table.measures")).to_contain_text("nDCG@10")
        assert page.locator("main img, main script").count() == 0


def test_every_row_may_be_hostile(browser: Browser, address: str):
    with page_of(browser, f"{address}/i/hostile/data") as page:
        rows = page.locator(".grid tbody tr")
        expect(rows).to_have_count(len(HOSTILE))
        for number in range(len(HOSTILE)):
            rows.nth(number).get_by_role("button").first.click()
            expect(page.locator(".drawer pre")).to_be_visible()
            page.locator(".drawer").get_by_role("button", name="Edit").click()
            expect(page.locator(".drawer form")).to_be_visible()
            page.keyboard.press("Escape")
            expect(page.locator(".drawer")).to_have_count(0)
        assert page.locator(".grid img, .grid script").count() == 0
        page.goto(f"{address}/i/hostile/map")
        expect(page.locator("main")).to_contain_text("has no vectors")


def test_rows_are_changed_and_nothing_that_was_typed_is_lost(browser: Browser, address: str, tmp_path: Path):
    (tmp_path / "note.md").write_text(f"# {HOSTILE[0]}\n\nA note.\n")
    (tmp_path / "rows.jsonl").write_text('{"id": "n1", "title": "One", "text": "a text"}\n{broken\n')
    with page_of(browser, address) as page:
        page.get_by_role("button", name="Create an index").click()
        page.locator("input[type=file]").set_input_files([tmp_path / "note.md", tmp_path / "rows.jsonl"])
        page.get_by_text("What the files have").click()
        expect(page.get_by_role("dialog")).to_contain_text("1 would be refused")
        page.get_by_label("name").first.fill("notes")
        page.get_by_label("encoder").select_option("")
        page.get_by_role("button", name="Create and write the files").click()
        expect(page.locator(".jobs")).to_contain_text("1 refused")
        expect(page.locator(".grid tbody tr")).to_have_count(2)
        page.reload()
        page.get_by_text("Refused records").click()
        expect(page.locator(".jobs")).to_contain_text("rows.jsonl, line 2")
        with page.expect_download() as download:
            page.get_by_role("button", name="Export").click()
        assert len(download.value.path().read_text().splitlines()) == 2
        expect(page.locator("main")).to_contain_text("2 of 2 rows, complete")
        page.locator(".grid tbody tr", has_text="n1").get_by_role("button").first.click()
        drawer = page.locator(".drawer")
        drawer.get_by_role("button", name="Edit").click()
        drawer.get_by_label("title").fill("mine")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Go on editing").click()
        name = page.url.partition("row=")[2].replace("%23", "#")
        theirs = {
            "index": "notes",
            "upserts": [{"datapoint": {"id": name, "title": "theirs"}}],
            "paths": ["title"],
        }
        assert page.request.post(
            f"{address}/update", data=theirs, headers={"origin": address, "sec-fetch-site": "same-origin"}
        ).ok
        drawer.get_by_role("button", name="Save").click()
        expect(drawer).to_contain_text("is now: theirs")
        expect(drawer.get_by_label("title")).to_have_value("mine")
        drawer.get_by_role("button", name="Save").click()
        expect(drawer.get_by_role("heading", name="mine")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Drop index").click()
        page.get_by_role("dialog").get_by_role("textbox").fill("notes")
        page.get_by_role("button", name="Drop notes").click()
        expect(page).to_have_url(f"{address}/")
        expect(page.get_by_role("link", name="notes")).to_have_count(0)


def test_a_part_of_the_map_becomes_a_filter(browser: Browser, address: str):
    with page_of(browser, f"{address}/i/podcasts/map?colour=topic") as page:
        expect(page.get_by_role("status").first).to_contain_text("300 of 300")
        drawing = page.get_by_role("application")
        drawing.focus()
        for key in ("ArrowLeft", *"+++++"):
            page.keyboard.press(key)
        page.wait_for_timeout(1500)
        page.get_by_role("button", name="select what is in view").click()
        heading = page.get_by_role("heading", name="selected")
        expect(heading).to_be_visible()
        number = int(heading.inner_text().split()[0])
        assert 0 < number < 200
        page.locator(".titles button").first.click()
        expect(page.locator(".picked")).to_contain_text("more like this")
        page.get_by_role("button", name="Filter to these").click()
        expect(page.get_by_role("status").first).to_contain_text(f"{number} of {number}")


def test_a_key_that_ends_a_server_that_leaves_and_a_version_that_comes(
    browser: Browser, podcasts: Path, tmp_path: Path
):
    store, port = copied(podcasts, tmp_path / "store"), free_port()
    file = KeyFile(tmp_path / "keys.json")
    secrets = {name: file.create(name)[1] for name in ("first", "second")}
    config = ServerConfig(
        store=str(store),
        listen=f"127.0.0.1:{port}",
        device="cpu",
        drain_s=1,
        security=SecurityConfig(keys_file=str(file.path)),
    )
    with console_on(f"127.0.0.1:{port}") as address:
        with (
            Server(config),
            page_of(browser, f"{address}i/podcasts/search?q={quote(QUESTION)}") as page,
        ):
            page.get_by_label("Key or token").fill("sk-wrong")
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("does not accept")
            page.get_by_label("Key or token").fill(secrets["first"])
            page.keyboard.press("Enter")
            expect(page.locator(".hit")).to_have_count(10)
            assert secrets["first"] not in page.content()
            file.revoke("first")
            # The server reads its keys again after some seconds.
            for turn in range(60):
                page.get_by_label("Question").fill(f"how do trees communicate {turn}")
                page.wait_for_timeout(500)
                if page.get_by_role("dialog").count():
                    break
            page.get_by_label("Key or token").fill(secrets["second"])
            page.keyboard.press("Enter")
            expect(page.get_by_role("dialog")).to_have_count(0)
            settled(page)
        with page_of(browser, f"{address}i/podcasts/search?q={quote(QUESTION)}") as page:
            expect(page.get_by_role("alert").first).to_contain_text("away since")
            with Server(config):
                expect(page.get_by_label("Key or token")).to_be_visible()
                page.get_by_label("Key or token").fill(secrets["second"])
                page.keyboard.press("Enter")
                expect(page.locator(".hit")).to_have_count(10)
                expect(page.locator(".banner")).to_have_count(0)


@pytest.mark.skipif(
    not os.environ.get("SCANNERY_SCREENSHOTS"),
    reason="SCANNERY_SCREENSHOTS=FOLDER writes those of the documents",
)
def test_the_screenshots_of_the_documents_are_taken(browser: Browser, address: str):
    folder = Path(os.environ["SCANNERY_SCREENSHOTS"])
    question = f"q={quote(QUESTION)}"
    for name, path in {
        "search": f"/i/podcasts/search?{question}&c=auto~dense~lexical",
        "why": f"/i/podcasts/search?{question}&why=hedgerow-002",
        "map": "/i/podcasts/map?colour=topic",
    }.items():
        with page_of(browser, f"{address}{path}") as page:
            page.wait_for_load_state("networkidle")
            page.wait_for_timeout(3000)
            page.screenshot(path=folder / f"console-{name}.png")


def test_nothing_stays_on_the_page_of_who_signs_out(
    browser: Browser, server: Server, keys: tuple[Path, dict[str, str]]
):
    with (
        console_on(server.address) as address,
        page_of(browser, f"{address}i/podcasts/search?q={quote(QUESTION)}") as page,
    ):
        page.get_by_label("Key or token").fill(keys[1]["reader"])
        page.keyboard.press("Enter")
        expect(page.locator(".hit")).to_have_count(10)
        page.get_by_role("button", name="sign out").click()
        expect(page.get_by_label("Key or token")).to_be_visible()
        expect(page.locator(".hit")).to_have_count(0)
        assert keys[1]["reader"] not in page.content()
