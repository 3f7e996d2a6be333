"""Walks through the pages of versions and operations in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import scannery
from tests.console.browser import PHONE, WIDE, barriers, chromium, needs_chromium, page_of
from tests.console.consoles import console_on
from tests.served import copied, serving

pytestmark = [pytest.mark.system, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def target(podcasts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that asks nobody for a key, and the index with two versions or more."""
    with serving(
        copied(podcasts, tmp_path_factory.mktemp("operating") / "store"), device="cpu", recall_share=1.0
    ) as server:
        with scannery.connect(server.address) as client:
            client.index("podcasts").alter(target_recall=0.9)
        yield server.address


@pytest.fixture(scope="module")
def address(target: str) -> Iterator[str]:
    with console_on(target) as address:
        yield address.rstrip("/")


def test_two_versions_are_compared_and_one_is_gone_back_to(browser: Browser, address: str, target: str):
    with (
        scannery.connect(target) as client,
        page_of(browser, f"{address}/i/podcasts/versions") as page,
    ):
        index = client.index("podcasts")
        altered = index.versions(1)[0].version
        page.get_by_label(f"compare version {altered - 1}").check()
        spec = page.get_by_role("row").filter(has_text="target_recall")
        expect(spec).to_contain_text("0.95")
        expect(spec).to_contain_text("0.9")
        page.get_by_role("button", name="Compare them in Judge").click()
        expect(page).to_have_url(re.compile(rf"/judge\?c=.*podcasts-v{altered - 1}.*podcasts-v{altered}"))
        page.goto(f"{address}/i/podcasts/search?q=whales&c=auto~auto,index:podcasts-v{altered - 1}")
        expect(page.locator(".column")).to_have_count(2)
        # All datapoints were live updates then, which that version does not have.
        expect(page.locator(".column").nth(1)).to_contain_text("0 of 10 shared")
        page.go_back()
        page.go_back()
        page.get_by_label(f"compare version {altered - 1}").check()
        page.get_by_role("button", name=f"go back to version {altered - 1}").click()
        confirm = page.get_by_role("dialog").get_by_role("button", name="Go back to version")
        page.get_by_label("Type podcasts to confirm").fill("podcast")
        expect(confirm).to_be_disabled()
        page.get_by_label("Type podcasts to confirm").fill("podcasts")
        index.alter(target_recall=0.8)
        confirm.click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text(f"not {altered}")
        page.keyboard.press("Escape")
        expect(page.get_by_role("status")).to_contain_text(f"took the place of version {altered}")
        page.get_by_role("button", name=f"go back to version {altered - 1}").click()
        page.get_by_label("Type podcasts to confirm").fill("podcasts")
        page.keyboard.press("Enter")
        expect(page.get_by_role("status")).to_contain_text(f"has the content of version {altered - 1}")
        assert index.versions(1)[0].content_of == altered - 1


def test_operations_show_what_is_asked_of_the_server(browser: Browser, address: str, target: str):
    with scannery.connect(target) as client, page_of(browser, f"{address}/ops") as page:
        expect(page.get_by_role("img", name="Requests a second")).to_be_visible()
        for _ in range(20):
            client.index("podcasts").search("why do whales sing")
        expect(page.get_by_role("row").filter(has_text="Search").first).to_contain_text("OK")
        expect(page.get_by_role("img", name="Time of searches")).to_have_attribute(
            "aria-label", re.compile(r"p99 \d")
        )
        page.get_by_role("combobox", name="index").select_option("podcasts")
        expect(page.get_by_role("img", name="Datapoints in memory")).to_be_visible()
        assert page.url.endswith("/ops?index=podcasts")
        expect(page.get_by_role("row").filter(has_text="admin").last).to_contain_text("yes")


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["wide", "phone"])
def test_these_pages_have_no_barriers(browser: Browser, address: str, viewport: dict[str, int], scheme: str):
    for path, ready in (
        ("/i/podcasts/versions", "text=as JSON"),
        ("/ops", "svg"),
    ):
        with page_of(browser, f"{address}{path}", viewport=viewport, scheme=scheme) as page:
            page.locator(ready).first.wait_for()
            page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
            assert barriers(page) == []
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
