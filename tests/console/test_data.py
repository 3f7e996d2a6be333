"""Rows that the page changes and exports, and files that are dropped on an index."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import scannery
from scannery.console.files.uploads import MAX_UPLOAD_BYTES
from scannery.serving import Server
from tests.console.consoles import browser_on, console_on

pytestmark = pytest.mark.system

WAIT_S = 60.0
HOSTILE = "<img src=x onerror=alert(1)>\u202e\u200b"
FILES = {
    "whales.md": "# Whales\n\nWhales sing in the deep.\n\n## Why\n\nTo find each other.\n",
    "talk.vtt": "WEBVTT\n\n00:00:01.000 --> 00:00:04.000\nWe talk of whales.\n",
    "page.html": "<html><title>Tides</title><body><p>The moon &amp; the tides.</p></body></html>",
    "table.csv": "id,title,text,minutes\nc1,One,first text,12\nc2,Two,second text,many\n",
    "lines.jsonl": json.dumps({"id": "j1", "text": HOSTILE, "title": HOSTILE, "show": HOSTILE})
    + "\n{broken\n",
}


@pytest.fixture(scope="module")
def address(server: Server) -> Iterator[str]:
    with console_on(server.address) as address:
        yield address


@contextmanager
def browser_of(address: str, keys: tuple[Path, dict[str, str]], name: str) -> Iterator[httpx2.Client]:
    with browser_on(address) as browser:
        assert browser.post("/session", json={"secret": keys[1][name]}).status_code == 200
        yield browser


@pytest.fixture
def writer(address: str, keys: tuple[Path, dict[str, str]]) -> Iterator[httpx2.Client]:
    with browser_of(address, keys, "writer") as browser:
        yield browser


@pytest.fixture
def notes(server: Server, keys: tuple[Path, dict[str, str]]) -> Iterator[scannery.Index]:
    """An empty index of words."""
    with scannery.connect(server.address, api_key=keys[1]["admin"]) as client:
        spec = {
            "index": "notes",
            "source": {"id": "id", "title": "title", "text": "text"},
            "attributes": {"show": "string", "minutes": "int", "bigName": "int"},
            "dynamic": True,
            "lexical": True,
            "vectors": "optional",
        }
        index = client.create_index(spec)
        yield index
        client.drop_index("notes")


def upload(browser: httpx2.Client, files: dict[str, str]) -> str:
    name: str = browser.post("/files/begin", json={}).json()["upload"]
    for file, text in files.items():
        content = text.encode()
        half = len(content) // 2
        for offset, part in ((0, content[:half]), (half, content[half:])):
            answer = add(browser, name, file, offset, part)
            assert answer.status_code == 200, answer.text
    return name


def add(browser: httpx2.Client, name: str, file: str, offset: int, content: bytes) -> httpx2.Response:
    return browser.post(
        "/files/add",
        params={"upload": name, "name": file, "offset": str(offset)},
        content=content,
        headers={"content-type": "application/octet-stream"},
    )


def finished(browser: httpx2.Client, index: str) -> dict[str, Any]:
    until_s = time.monotonic() + WAIT_S
    while time.monotonic() < until_s:
        job: dict[str, Any] = browser.post("/files/jobs", json={"index": index}).json()["jobs"][0]
        if job["state"] not in ("running", "stopping"):
            return job
        time.sleep(0.05)
    raise AssertionError(job)


def test_files_become_rows_as_a_build_reads_them(writer: httpx2.Client, notes: scannery.Index):
    name = upload(writer, FILES)
    report = writer.post("/files/check", json={"upload": name, "index": "notes"}).json()["report"]
    assert (report["records"], report["refused"]) == (7, 2)
    assert {"title", "text"} <= {field["name"] for field in report["fields"]}
    writer.post("/files/write", json={"upload": name, "index": "notes"})
    job = finished(writer, "notes")
    assert (job["state"], job["records"], job["refused"]) == ("done", 7, 2)
    letters = writer.post("/files/letters", json={"job": job["job"]}).json()["letters"]
    assert {letter["place"] for letter in letters} == {"table.csv, line 3", "lines.jsonl, line 2"}
    rows = {point.id: point for point in notes.scan()}
    assert rows.keys() == {"whales.md", "talk.vtt", "page.html", "c1", "j1"}
    assert "The moon & the tides." in str(rows["page.html"].text)
    assert (rows["j1"].title, rows["j1"].attributes["show"]) == (HOSTILE, HOSTILE)
    # The files are gone, and the upload with them.
    assert writer.post("/files/check", json={"upload": name, "index": "notes"}).status_code == 404


def test_an_export_has_all_rows_and_can_be_dropped_again(writer: httpx2.Client, notes: scannery.Index):
    notes.upsert(
        [
            {"id": f"r{i}", "text": HOSTILE, "attributes": {"minutes": i, "bigName": 2**60 + i}}
            for i in range(9)
        ]
    )
    answer = writer.post("/files/export", json={"index": "notes"})
    assert (answer.headers["scannery-total"], answer.headers["scannery-next"]) == ("9", "")
    before = {point.id: (point.text, point.attributes) for point in notes.scan()}
    notes.delete(where={"minutes": {"$gte": 0}})
    writer.post("/files/write", json={"upload": upload(writer, {"all.jsonl": answer.text}), "index": "notes"})
    assert finished(writer, "notes")["refused"] == 0
    assert {point.id: (point.text, point.attributes) for point in notes.scan()} == before


def row_of(index: scannery.Index, name: str) -> scannery.Datapoint:
    point = index.get([name])[0]
    assert point is not None
    return point


def test_a_change_of_what_has_changed_meanwhile_is_refused(writer: httpx2.Client, notes: scannery.Index):
    notes.upsert([{"id": "a", "text": "one", "attributes": {"bigName": 1}}])
    revision = row_of(notes, "a").revision

    def change(number: str) -> httpx2.Response:
        point = {"id": "a", "title": HOSTILE, "attributes": {"bigName": {"intValue": number}}}
        upsert = {"datapoint": point, "condition": {"ifRevision": str(revision)}}
        paths = ["title", "attributes.bigName"]
        return writer.post("/update", json={"index": "notes", "upserts": [upsert], "paths": paths})

    assert change(str(2**60 + 1)).status_code == 200
    point = row_of(notes, "a")
    assert (point.title, point.text, point.attributes) == (HOSTILE, "one", {"bigName": 2**60 + 1})
    conflict = change("5")
    assert (conflict.status_code, conflict.json()["code"]) == (400, "failed_precondition")
    assert row_of(notes, "a").attributes == {"bigName": 2**60 + 1}


def test_a_key_without_the_scope_sends_no_files(address: str, keys: tuple[Path, dict[str, str]]):
    with browser_of(address, keys, "reader") as reader:
        refused = reader.post("/files/begin", json={})
        assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")


def test_uploads_and_jobs_are_of_their_caller(
    address: str, keys: tuple[Path, dict[str, str]], writer: httpx2.Client, notes: scannery.Index
):
    name = upload(writer, {"a.md": "text"})
    with browser_of(address, keys, "admin") as admin:
        for call in ("check", "draft", "write", "discard"):
            body = {"upload": name, "index": "notes"}
            assert admin.post(f"/files/{call}", json=body).status_code == 404
        writer.post("/files/write", json={"upload": name, "index": "notes"})
        job = finished(writer, "notes")
        assert admin.post("/files/jobs", json={"index": "notes"}).json() == {"jobs": []}
        assert admin.post("/files/letters", json={"job": job["job"]}).status_code == 404
    with browser_on(address) as nobody:
        assert nobody.post("/files/begin", json={}).status_code == 401


def test_names_of_files_lead_nowhere_else_and_sizes_are_bounded(writer: httpx2.Client):
    name = upload(writer, {"../../../etc/x.md": "a text", "..": "b"})
    draft = writer.post("/files/draft", json={"upload": name}).json()
    assert {letter["place"] for letter in draft["report"]["faults"]} <= {"file"}
    assert "/tmp" not in json.dumps(draft)
    assert add(writer, name, "x.md", MAX_UPLOAD_BYTES, b"a").status_code == 400
    assert add(writer, name, "new.md", 5, b"a").status_code == 400
    assert writer.post("/files/discard", json={"upload": name}).status_code == 200
    assert add(writer, name, "x.md", 0, b"a").status_code == 404
