"""The console in a real browser: from a key to painted hits, the first paint, the hop, and what typing costs others.

    python -m benchmarks.console [--folder FOLDER] [--episodes 730] [--questions 20] [--typists 20] [--seconds 10]

Hacker Public Radio, the given number of transcripts with their titles, in passages of 128 tokens, searched by both
vectors and words. Server, console and chromium (without a window) share the processors. A key is answered when the hits
of its text are painted: from the time stamp of the event to the frame after the page has changed. Typists send what the
page sends: a longer text, six times a second. The other caller asks the server one new question after the other; turns
without and with typists change.

Shapes: all times in milliseconds.
"""

from __future__ import annotations

import itertools
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
from playwright.sync_api import Browser, Playwright, sync_playwright

import scannery
from benchmarks.harness import environment, folder_of, free_port, options, served, table
from benchmarks.learned import titled_speech
from benchmarks.quality import PASSAGES, indexed, records_of

SEARCH = "/scannery.v1.SearchService/Search"
KEYS_PER_S = 6.0
KEY_PAUSE_MS = 60
LOADS = 15
ROUNDS = 6
SEARCHES = 300
MEASURE = """() => {
  performance.setResourceTimingBufferSize(100000);
  window.keys = [];
  let at = null;
  const box = document.querySelector(".box");
  box.addEventListener("input", (event) => (at = event.timeStamp), { capture: true });
  new MutationObserver(() => {
    const shown = [...document.querySelectorAll(".column")].map((column) => column.dataset.question);
    if (at === null || shown.some((question) => question !== box.value)) return;
    const began = at;
    at = null;
    requestAnimationFrame(() => requestAnimationFrame((now) => window.keys.push(now - began)));
  }).observe(document.querySelector(".columns"),
    { subtree: true, childList: true, characterData: true, attributes: true });
}"""
"""Notes the time from each key to the frame in which all columns show its hits, until that is painted."""


CALLS = """() => performance.getEntriesByType("resource").filter((entry) => entry.name.endsWith("/Search"))
  .map((entry) => entry.duration)"""


def main() -> None:
    given = options(__doc__, folder=Path, episodes=730, questions=20, typists=20, seconds=20.0)
    print(environment("playwright", "starlette", "uvicorn"))
    with folder_of(given.folder) as folder, ExitStack() as stack:
        collection = titled_speech()
        if not (folder / "store").exists():
            records = list(itertools.islice(records_of(collection), given.episodes))
            indexed(folder, records, {"source": {**PASSAGES, "id": "id"}, "lexical": True})
        questions = list(collection.queries.values())
        http = f"127.0.0.1:{free_port()}"
        _, address, _ = stack.enter_context(served(folder / "store", "--http", http))
        page = stack.enter_context(console(address))
        client = stack.enter_context(scannery.connect(address, timeout_s=300))
        for text in questions[:20]:  # kernels and encoder
            client.index("quality").search(text, 10, highlight=True)
        print(f"{client.indexes()[0].rows:,} passages\n")
        with sync_playwright() as playwright, chromium(playwright) as browser:
            rows = [*keys_of(browser, page, questions[: given.questions]), *paints(browser, page)]
        print(table(("", "p50, ms", "p95, ms", "number"), rows))
        print(
            table(
                ("one search", "p50, ms", "p95, ms", "number"), list(hop(f"http://{http}", page, questions))
            )
        )
        rows = list(beside(address, page, questions, given.typists, given.seconds))
        print(
            table(
                ("beside", "searches", "p50, ms", "p99, ms", "p99 / alone", "typed answers", "typed p50, ms"),
                rows,
            )
        )


@contextmanager
def console(address: str, *flags: str) -> Iterator[str]:
    """Yield the address of a console on a server."""
    command = [
        sys.executable,
        "-m",
        "scannery.cli.main",
        "console",
        "--target",
        address,
        "--listen",
        "127.0.0.1:0",
        "--no-open",
    ]
    with subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[2].rstrip(";").rstrip("/")
        finally:
            process.terminate()


@contextmanager
def chromium(playwright: Playwright) -> Iterator[Browser]:
    """Start the browser."""
    browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
    try:
        yield browser
    finally:
        browser.close()


def keys_of(browser: Browser, address: str, questions: Sequence[str]) -> Iterator[Sequence[object]]:
    """Yield rows of one column and of three."""
    for name, columns in (
        ("key to paint, one column", ""),
        ("the same, three columns", "&c=auto~dense~lexical"),
    ):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}/i/quality/search?q=radio{columns}")
        page.locator(".hit").first.wait_for()
        page.evaluate(MEASURE)
        for text in questions:
            page.locator(".box").fill("")
            for letter in text[:30]:
                before = page.evaluate("keys.length")
                page.keyboard.type(letter)
                page.wait_for_function("n => keys.length > n", arg=before, timeout=5000)
                page.wait_for_timeout(KEY_PAUSE_MS)
        times = np.array(page.evaluate("keys"))
        calls = np.array(page.evaluate(CALLS))
        page.close()
        yield summary(name, times)
        yield summary("of it, the call", calls)


def paints(browser: Browser, address: str) -> Iterator[Sequence[object]]:
    """Yield the first paint of pages in new contexts."""
    first, hits = [], []
    for _ in range(LOADS):
        context = browser.new_context(viewport={"width": 1440, "height": 900})
        page = context.new_page()
        page.goto(f"{address}/i/quality/search?q=how+to+solder")
        page.locator(".hit").first.wait_for()
        hits.append(page.evaluate("performance.now()"))
        first.append(page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime"))
        context.close()
    yield summary("first paint", np.array([each for each in first if each is not None]))
    yield summary("hits of a link that was opened", np.array(hits))


def hop(server: str, page: str, questions: Sequence[str]) -> Iterator[Sequence[object]]:
    """Yield the times of a search by text at the server and through the console, which take turns."""
    times: dict[str, list[float]] = {server: [], page: []}
    with httpx2.Client(timeout=60) as http:
        for number in range(SEARCHES):
            request = request_of(f"{questions[number % len(questions)][:60]} {number}")
            for url, each in times.items():
                began_s = time.perf_counter()
                headers = headers_of(url) if url == page else {}
                http.post(f"{url}{SEARCH}", json=request, headers=headers).raise_for_status()
                each.append((time.perf_counter() - began_s) * 1e3)
    yield summary("at the server", np.array(times[server]))
    yield summary("through the console", np.array(times[page]))


def beside(
    address: str, page: str, questions: Sequence[str], people: int, seconds: float
) -> Iterator[Sequence[object]]:
    """Yield how another caller fares alone, beside typists, and beside typists without a budget."""
    with console(address, "--typing", "64") as free, scannery.connect(address) as client:
        index, numbers = client.index("quality"), itertools.count()
        ways = {"nobody": ("", 0), "typists": (page, people), "typists, no budget": (free, people)}
        latencies: dict[str, list[float]] = {name: [] for name in ways}
        typed: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, (url, typists) in ways.items():
                with typing(url, questions, typists) as answered:
                    until_s = time.perf_counter() + seconds / ROUNDS
                    while (began_s := time.perf_counter()) < until_s:
                        index.search(f"{questions[next(numbers) % len(questions)][:60]} {next(numbers)}", 10)
                        latencies[name].append((time.perf_counter() - began_s) * 1e3)
                typed[name] += answered
    alone = np.percentile(latencies["nobody"], 99)
    for name, each in latencies.items():
        p50, p99 = np.percentile(each, (50, 99))
        middle = f"{np.median(typed[name]):.0f}" if typed[name] else "–"
        yield name, len(each), f"{p50:.1f}", f"{p99:.1f}", f"{p99 / alone:.2f}", len(typed[name]), middle


@contextmanager
def typing(url: str, questions: Sequence[str], people: int) -> Iterator[list[float]]:
    """Let people type in a process of their own; gives the times of their answers when the context has ended."""
    answered: list[float] = []
    if not people:
        yield answered
        return
    spawn = multiprocessing.get_context("spawn")
    stop, results = spawn.Event(), spawn.Queue()
    process = spawn.Process(target=_people, args=(url, questions, people, stop, results), daemon=True)
    process.start()
    time.sleep(2)  # it imports
    try:
        yield answered
    finally:
        stop.set()
        answered += results.get(timeout=60)
        process.join(60)


def _people(url: str, questions: Sequence[str], people: int, stop: Any, results: Any) -> None:
    times: list[float] = []

    def person(number: int) -> None:
        texts = (
            text[:size]
            for text in itertools.cycle(questions[number::people])
            for size in range(1, min(40, len(text)))
        )
        with httpx2.Client(timeout=60) as http:
            while not stop.is_set():
                began_s = time.perf_counter()
                answer = http.post(
                    f"{url}{SEARCH}",
                    json=request_of(next(texts), highlight={"byEncoder": False}),
                    headers={**headers_of(url), "scannery-typed": f"{number}.0"},
                )
                took_s = time.perf_counter() - began_s
                if answer.status_code == 200:
                    times.append(took_s * 1e3)
                stop.wait(max(0.0, 1 / KEYS_PER_S - took_s))

    with ThreadPoolExecutor(people) as pool:
        list(pool.map(person, range(people)))
    results.put(times)


def request_of(text: str, **options_of: Any) -> dict[str, Any]:
    """Return a search as the page sends it."""
    return {"index": "quality", "query": {"text": text}, "options": {"k": 10, **options_of}}


def headers_of(url: str) -> dict[str, str]:
    """Return what a browser sends with it."""
    return {"content-type": "application/json", "origin": url, "sec-fetch-site": "same-origin"}


def summary(name: str, times: np.ndarray) -> Sequence[object]:
    """Return a row of a table."""
    return name, *(f"{each:.1f}" for each in np.percentile(times, (50, 95))), len(times)


if __name__ == "__main__":
    main()
