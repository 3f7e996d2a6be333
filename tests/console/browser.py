"""A real browser on a console: chromium without a window, and what a page must never do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

CHROMIUM = shutil.which("chromium")
WAIT_MS = 60_000
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs chromium (Debian: apt-get install chromium)"
)
expect.set_options(timeout=WAIT_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(
    browser: Browser, url: str, *, viewport: dict[str, int] = WIDE, scheme: str = "light"
) -> Iterator[Page]:
    """Open a page; at the end nothing may have gone wrong in it, nor anything been asked from elsewhere."""
    host = urlsplit(url).netloc
    wrong: list[str] = []
    context = browser.new_context(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))

    def refuse(dialog: Dialog) -> None:
        wrong.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def note_request(request: Request) -> None:
        if urlsplit(request.url).netloc not in ("", host):
            wrong.append(request.url)

    def note_message(message: ConsoleMessage) -> None:
        # Answers with an error are told as errors of loading; those of the policy and of scripts must not be.
        if message.type == "error" and "Failed to load resource" not in message.text:
            wrong.append(message.text)

    page.on("dialog", refuse)
    page.on("request", note_request)
    page.on("console", note_message)
    try:
        page.goto(url)
        yield page
        assert wrong == []
    finally:
        context.close()


def barriers(page: Page) -> list[str]:
    """Return what axe-core calls serious or worse on the page, by WCAG 2.2 A and AA."""
    report = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]})
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in report.response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]
