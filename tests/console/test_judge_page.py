"""A walk through Judge in a real browser: questions, marks by keys, figures, two people, and a console that ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from scannery.cli.commands.servers.console import judgement_sets
from scannery.evaluation.judgements import read_judgements
from tests.console.browser import PHONE, barriers, chromium, needs_chromium, page_of
from tests.console.consoles import console_on

pytestmark = [pytest.mark.system, needs_chromium]

QUESTIONS = ["how do volcanoes form", "how is cheese made", "<img src=x onerror=alert(1)> whale"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("judge-page")


@pytest.fixture(scope="module")
def address(podcasts: Path, folder: Path) -> Iterator[str]:
    with console_on(podcasts, takes_keys=False, judgements=judgement_sets(folder)) as address:
        yield address.rstrip("/")


def mark(page: Page, key: str) -> None:
    """Mark the chosen hit, and wait until it is saved."""
    page.keyboard.press(key)
    expect(page.get_by_text("saving …")).to_have_count(0)


def enter(page: Page, name: str) -> None:
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Your name").fill(name)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)


def test_a_new_person_judges_a_set_by_keys_and_sees_figures(browser: Browser, address: str, folder: Path):
    with page_of(browser, f"{address}/i/podcasts/judge") as page:
        page.get_by_label("name of the set").fill("first")
        page.get_by_label("questions, one on each line").fill("\n".join(QUESTIONS))
        page.get_by_role("button", name="Add").click()
        expect(page.get_by_role("heading", name=QUESTIONS[0])).to_be_visible()
        hits = page.locator(".asked .hit")
        expect(hits.first).to_have_class("hit chosen")
        documents = hits.evaluate_all("hits => hits.map(hit => hit.dataset.id)")
        assert "score" not in hits.first.inner_text()
        page.keyboard.press("3")
        enter(page, "Ana")
        for key in "0s2":
            mark(page, key)
        page.keyboard.press("u")
        expect(hits.nth(3)).to_have_class("hit chosen")
        expect(hits.nth(3).locator("[aria-pressed=true]")).to_have_count(0)
        mark(page, "1")
        (levels,) = read_judgements(folder / "podcasts" / "first" / "qrels.tsv").values()
        assert levels == {documents[0]: 3, documents[1]: 0, documents[3]: 1}
        table = page.locator("table.measures")
        expect(table.get_by_role("columnheader")).to_contain_text(["hybrid", "dense", "lexical"])
        expect(table.get_by_role("rowheader")).to_contain_text(
            ["nDCG@10", "MRR@10", "recall@100", "judged@10"]
        )
        page.keyboard.press("n")
        page.keyboard.press("n")
        expect(page.get_by_role("heading", name=QUESTIONS[2])).to_be_visible()
        assert "at=" in page.url
        assert barriers(page) == []
        page.go_back()
        expect(page.get_by_role("heading", name=QUESTIONS[1])).to_be_visible()


def test_a_second_person_disagrees_on_a_phone(browser: Browser, address: str, folder: Path):
    sets = judgement_sets(folder)
    (question,) = sets.add("podcasts", "second", "a.txt", QUESTIONS[0]).ids
    url = f"{address}/i/podcasts/judge/second?c=dense&depth=3&blind=1"
    with page_of(browser, url, viewport=PHONE, scheme="dark") as page:
        hits = page.locator(".asked .hit")
        expect(hits).to_have_count(3)
        first, second = hits.evaluate_all("hits => hits.map(hit => hit.dataset.id)")[:2]
        sets.mark("podcasts", "second", question, first, 3, "Ana")
        page.reload()
        expect(hits.first).to_have_class("hit chosen")
        expect(page.get_by_text("Ana 3")).to_have_count(0)
        hits.first.get_by_role("button", name="0 not relevant").click()
        enter(page, "Ben")
        hits.nth(1).get_by_role("button", name="2 relevant").click()
        expect(hits.nth(1).locator("[aria-pressed=true]")).to_have_text("2")
        page.get_by_label("second opinion").uncheck()
        expect(page.get_by_text("Ana 3, Ben 0")).to_be_visible()
        page.reload()
        page.get_by_text("1 of 1 hits with several people's marks differ").click()
        assert barriers(page) == []
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert read_judgements(folder / "podcasts" / "second" / "qrels.tsv") == {question: {first: 0, second: 2}}


def test_a_question_of_a_search_is_judged(browser: Browser, address: str, folder: Path):
    with page_of(browser, f"{address}/i/podcasts/search?q=overnight+trains") as page:
        expect(page.locator(".hit").first).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        page.keyboard.press("3")
        enter(page, "Ana")
        pressed = page.locator(".hit.chosen [aria-pressed=true]")
        expect(pressed).to_have_text("3")
        document = page.locator(".hit.chosen").get_attribute("data-id")
        page.reload()
        expect(page.locator(".hit [aria-pressed=true]")).to_have_text("3")
        ((levels),) = read_judgements(folder / "podcasts" / "questions" / "qrels.tsv").values()
        assert levels == {document: 3}
        page.get_by_role("button", name="judge this question").click()
        expect(page.get_by_role("heading", name="overnight trains")).to_be_visible()
        expect(page.locator(f'.asked .hit[data-id="{document}"] [aria-pressed=true]')).to_have_text("3")


def test_marks_that_are_not_saved_are_told_and_saved_again(browser: Browser, address: str, folder: Path):
    question, _ = judgement_sets(folder).add("podcasts", "third", "a.txt", "\n".join(QUESTIONS[:2])).ids
    with page_of(browser, f"{address}/i/podcasts/judge/third?depth=2&c=dense") as page:
        hits = page.locator(".asked .hit")
        expect(hits).to_have_count(2)
        page.keyboard.press("1")
        enter(page, "Ana")
        expect(hits.first.locator("[aria-pressed=true]")).to_have_text("1")
        page.route("**/judgements/mark", lambda route: route.abort())
        # Beside others a server may seem away for a moment; the page then begins again at the first hit without a mark.
        hits.nth(1).locator(".title").click()
        page.keyboard.press("2")
        expect(page.get_by_role("heading", name=QUESTIONS[1])).to_be_visible()
        expect(page.get_by_text("1 marks are not saved")).to_be_visible()
        page.unroute("**/judgements/mark")
        # The page asks anew when the console is back, and stays at the question.
        expect(page.get_by_text("The server has been away")).to_have_count(0)
        page.get_by_role("button", name="Try again").click()
        page.keyboard.press("p")
        expect(hits.nth(1).locator("[aria-pressed=true]")).to_have_text("2")
    assert sorted(read_judgements(folder / "podcasts" / "third" / "qrels.tsv")[question].values()) == [1, 2]
