"""Feeds become a record per episode, with the transcripts that they name; nothing is fetched that is not allowed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import InvalidSpecError, parse_spec
from scannery.pipelines import InputChangedError, UnknownFormatError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.feeds import fetching
from scannery.pipelines.sources.feeds.fetching import FetchError, fetch

PODCAST = """<?xml version="1.0" encoding="UTF-8"?>
<rss version="2.0" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd" xmlns:content="http://purl.org/rss/1.0/modules/content/"
 xmlns:podcast="https://podcastindex.org/namespace/1.0"><channel><title>Earth &amp; Fire</title><language>en</language>
<itunes:author>Ann</itunes:author>
<item><guid>ep-1</guid><title>Volcanoes</title><link>https://example.com/1</link>
<pubDate>Fri, 01 Mar 2024 06:00:00 +0100</pubDate><itunes:duration>01:02:03</itunes:duration>
<itunes:season>2</itunes:season><itunes:episode>7</itunes:episode><category>science</category>
<description>Short.</description><content:encoded><![CDATA[<h2>Links</h2><ul><li><a href="x">Magma</a></li></ul><p>Long &amp; good</p>]]></content:encoded>
<enclosure url="https://example.com/1.mp3" type="audio/mpeg" length="1"/>%s</item>
<item><guid>ep-2</guid><title>Glaciers</title><description>Ice.</description></item>
</channel></rss>"""  # noqa: E501

ATOM = """<feed xmlns="http://www.w3.org/2005/Atom" xml:lang="de"><title>Notes</title><author><name>Bo</name></author>
<entry><id>urn:1</id><title>One</title><link rel="alternate" href="https://example.com/one"/><updated>2024-03-01T05:00:00Z</updated>
<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>Text <b>here</b>.</p></div></content></entry>
<entry><id>urn:2</id><title>Two</title><summary type="text">a &lt; b</summary></entry></feed>"""

RELATIVE = """<feed xmlns="http://www.w3.org/2005/Atom" xml:base="https://example.org/blog/"><title>Blog</title>
<entry><id>1</id><title type="html">Tea &amp;amp; &lt;b&gt;Cakes&lt;/b&gt;</title><link href="tea.html"/></entry>
<entry xml:base="archive/"><id>2</id><title>a &lt; b</title><link rel="self" href="x"/><link href="snow.html"/></entry>
<entry><id>3</id><title>Zones</title><link href="/3"/><published>Fri, 01 Mar 2024 06:00:00 CET</published></entry></feed>"""  # noqa: E501

VTT = "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Ann>Lava is hot.\n"


def parts_of(path: Path, *, limit: int = 1 << 20, **source: Any) -> list[Any]:
    spec = parse_spec({"index": "i", "source": {"text": "text", **source}, "encoder": {"model": "m"}})
    return [
        part for file in arrange(find_files([str(path)]), spec.source) for part in split_file(file, limit)
    ]


def read(path: Path, **options: Any) -> tuple[list[Record], list[DeadLetter]]:
    fields = Fields.of(parse_spec({"index": "i", "source": {"text": "text"}, "encoder": {"model": "m"}}))
    items = [item for part in parts_of(path, **options) for item in read_part(part, fields)]
    records = [item for item in items if isinstance(item, Record)]
    return records, [item for item in items if isinstance(item, DeadLetter)]


def transcript(url: str, kind: str = "text/vtt") -> str:
    return f'<podcast:transcript url="{url}" type="{kind}"/>'


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("name", ["a.rss", "a.xml"])
def test_rss(tmp_path, name, limit):
    (tmp_path / name).write_text(PODCAST % "")
    records, letters = read(tmp_path, limit=limit)
    assert not letters
    assert dict(records[0].fields) == {
        "podcast": "Earth & Fire", "language": "en", "podcast_author": "Ann", "id": "ep-1", "title": "Volcanoes",
        "text": "## Links\n\n- Magma\n\nLong & good", "description": "## Links\n\n- Magma\n\nLong & good",
        "link": "https://example.com/1", "published": "2024-03-01T06:00:00+01:00", "author": "Ann",
        "duration_s": 3723, "season": 2, "episode": 7, "categories": ["science"],
        "enclosure_url": "https://example.com/1.mp3", "enclosure_type": "audio/mpeg",
    }  # fmt: skip
    assert [(one.fields["id"], one.row) for one in records] == [("ep-1", 1), ("ep-2", 2)]


def test_atom_by_format_whatever_the_ending(tmp_path):
    (tmp_path / "notes.bin").write_text(ATOM)
    records, letters = read(tmp_path / "notes.bin", format="feed")
    assert not letters
    assert [one.fields["text"] for one in records] == ["Text here.", "a < b"]
    first = records[0].fields
    assert (first["id"], first["link"], first["published"]) == (
        "urn:1", "https://example.com/one", "2024-03-01T05:00:00+00:00",
    )  # fmt: skip
    assert (first["language"], first["author"], first["podcast"]) == ("de", "Bo", "Notes")


def test_relative_links_marked_titles_and_zones_are_resolved(tmp_path):
    (tmp_path / "blog.atom").write_text(RELATIVE)
    records, letters = read(tmp_path / "blog.atom")
    fields = [one.fields for one in records]
    assert not letters
    assert [one["title"] for one in fields] == ["Tea & Cakes", "a < b", "Zones"]
    assert [one["link"] for one in fields] == [
        "https://example.org/blog/tea.html", "https://example.org/blog/archive/snow.html", "https://example.org/3",
    ]  # fmt: skip
    assert fields[2]["published"] == "2024-03-01T06:00:00+01:00"


@pytest.mark.parametrize(
    "time", ["Someday", "Fri, 32 Mar 2024 06:00:00 +0100", "0001-01-01T00:00:00Z", "9999-12-31"]
)
@pytest.mark.parametrize("other", ["", "<dc:date>2024-03-02T06:00:00Z</dc:date>"])
def test_a_wrong_time_costs_no_episode(tmp_path, time, other):
    (tmp_path / "a.rss").write_text(
        '<rss xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:itunes="http://www.itunes.com/dtds/podcast-1.0.dtd">'
        f"<channel><title>A</title><item><guid>1</guid><title>B</title><pubDate>{time}</pubDate>{other}"
        "<itunes:duration>soon</itunes:duration></item><item><guid>2</guid><title>C</title></item></channel></rss>"
    )
    records, letters = read(tmp_path)
    assert not letters and [one.fields["id"] for one in records] == ["1", "2"]
    assert records[0].fields.get("published") == ("2024-03-02T06:00:00+00:00" if other else None)
    assert records[0].ignored == (() if other else ("pubDate: not a time",))
    assert "duration_s" not in records[0].fields


def test_entities_of_html_and_bare_ampersands_are_read(tmp_path):
    (tmp_path / "a.rss").write_text(
        "<rss><channel><item><guid>1</guid><title>R&D caf&eacute;</title></item></channel></rss>"
    )
    [record], letters = read(tmp_path)
    assert (record.fields["title"], letters) == ("R&D café", [])


def test_a_damaged_feed_keeps_its_entries_and_says_so(tmp_path):
    (tmp_path / "a.rss").write_text((PODCAST % "")[:-40])
    records, [letter] = read(tmp_path)
    assert [one.fields["id"] for one in records] == ["ep-1", "ep-2"]
    assert letter.reason == "damaged_file"


def test_entities_of_the_feed_are_not_expanded(tmp_path):
    (tmp_path / "x").write_text("secret")
    doctype = f'<!DOCTYPE rss [<!ENTITY a SYSTEM "file://{tmp_path}/x"><!ENTITY b "bbb">]>'
    (tmp_path / "a.rss").write_text(
        f"{doctype}<rss><channel><item><guid>1</guid><title>t&a;&b;</title></item></channel></rss>"
    )
    [record], _ = read(tmp_path / "a.rss")
    assert record.fields["title"] in ("t", "t&a;&b;")


def test_other_xml_is_refused_before_the_start(tmp_path):
    (tmp_path / "a.xml").write_text("<?xml version='1.0'?><topics/>")
    with pytest.raises(UnknownFormatError, match=r"a\.xml"):
        read(tmp_path)
    _, [letter] = read(tmp_path, format="feed")
    assert (letter.reason, "not an RSS or Atom feed" in letter.message) == ("malformed", True)


@pytest.mark.parametrize(
    ("name", "kind", "content", "text"),
    [
        ("t/1.vtt", "text/vtt", VTT, VTT), ("t/1.srt", "application/srt", "1\n00:00:01,000 --> 00:00:02,000\nHi", None),
        ("t/1.html", "text/html", "<p>Lava</p>", "Lava"), ("t/1.txt", "text/plain", "Lava", "Lava"),
        ("t/1.json", "application/json",
         json.dumps({"segments": [{"speaker": "Ann", "startTime": 1, "endTime": 2.5, "body": "Hi --> you"}]}),
         "WEBVTT\n\n00:00:01.000 --> 00:00:02.500\n<v Ann>Hi → you"),
    ],
)  # fmt: skip
def test_a_local_transcript_is_the_text_and_no_document_of_its_own(tmp_path, name, kind, content, text):
    (tmp_path / "t").mkdir()
    (tmp_path / name).write_text(content)
    (tmp_path / "feed.xml").write_text(PODCAST % transcript(name, kind))
    records, letters = read(tmp_path)
    assert not letters
    assert [one.fields["id"] for one in records] == ["ep-1", "ep-2"]
    assert records[0].fields["text"] == (text or content)
    assert records[0].fields["description"].startswith("## Links")


def test_the_transcript_with_times_is_preferred(tmp_path):
    (tmp_path / "1.txt").write_text("plain")
    (tmp_path / "1.vtt").write_text(VTT)
    (tmp_path / "feed.xml").write_text(PODCAST % (transcript("1.txt", "text/plain") + transcript("1.vtt")))
    assert read(tmp_path)[0][0].fields["text"] == VTT


def test_a_changed_transcript_is_another_part_and_is_noticed_while_building(tmp_path):
    (tmp_path / "1.vtt").write_text(VTT)
    (tmp_path / "feed.xml").write_text(PODCAST % transcript("1.vtt"))
    [before] = parts_of(tmp_path)
    (tmp_path / "1.vtt").write_text(VTT + "\n00:03.000 --> 00:04.000\nMore.")
    [after] = parts_of(tmp_path)
    assert before.identity != after.identity
    with pytest.raises(InputChangedError):
        [
            *read_part(
                before,
                Fields.of(parse_spec({"index": "i", "source": {"text": "t"}, "encoder": {"model": "m"}})),
            )
        ]


@pytest.mark.parametrize(
    "url", ["../outside.vtt", "/etc/passwd", "file:///etc/passwd", "t/../../outside.vtt", "gone.vtt",
            ".ssh/key.vtt", ".%68idden.vtt", "t/../.hidden.vtt", "id_rsa", "a%00.vtt", "//[x/1.vtt", "http://[::1/1.vtt",
            "pipe.vtt"],
)  # fmt: skip
def test_a_transcript_elsewhere_is_not_opened(tmp_path, url):
    (tmp_path / "outside.vtt").write_text(VTT)
    folder = tmp_path / "in"
    (folder / ".ssh").mkdir(parents=True)
    for name in (".ssh/key.vtt", ".hidden.vtt", "id_rsa"):
        (folder / name).write_text("secret")
    os.mkfifo(folder / "pipe.vtt")  # to open it would wait for a writer
    (tmp_path / "in" / "feed.xml").write_text(PODCAST % transcript(url))
    records, letters = read(tmp_path / "in" / "feed.xml")
    assert not letters
    assert records[0].fields["text"].startswith("## Links")
    assert records[0].ignored[0].startswith("transcript: ")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server: Any = self.server
        server.asked.append(self.path)
        status, headers, body = server.answers[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def web() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.asked = []
    server.answers = {"/1.vtt": (200, {}, VTT.encode())}
    server.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    fetching._CACHE.clear()
    fetching._FAILED.forget()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_transcript_is_fetched_only_from_a_host_that_is_allowed(tmp_path, web):
    (tmp_path / "feed.xml").write_text(PODCAST % transcript(f"http://{web.host}/1.vtt"))
    records, _ = read(tmp_path)
    assert records[0].ignored == (f"transcript: {web.host} is not in source.fetch",)
    assert not web.asked
    [without] = parts_of(tmp_path)
    records, _ = read(tmp_path, fetch=[web.host])
    assert (records[0].fields["text"], records[0].ignored) == (VTT, ())
    assert web.asked == ["/1.vtt"]  # once, for planning and reading
    [allowed] = parts_of(tmp_path, fetch=[web.host])
    assert without.identity != allowed.identity


def test_fetching_is_bounded(web, monkeypatch):
    url = f"http://{web.host}"
    web.answers |= {
        "/big": (200, {}, b"x" * 5000), "/loop": (302, {"Location": "/loop"}, b""), "/gone": (404, {}, b""),
        "/moved": (302, {"Location": "/1.vtt"}, b""), "/away": (302, {"Location": "http://localhost/x"}, b""),
        "/file": (302, {"Location": "file:///etc/passwd"}, b""),
    }  # fmt: skip
    assert fetch(f"{url}/moved", [web.host], 1000) == VTT.encode()
    for path, message in [
        ("/big", "sends more"), ("/loop", "redirects more than"), ("/gone", "answers 404"),
        ("/away", "redirects to localhost"), ("/file", "redirects to"),
    ]:  # fmt: skip
        with pytest.raises(FetchError, match=message):
            fetch(f"{url}{path}", [web.host], 1000)
    monkeypatch.setattr(fetching, "FETCH_S", 0.0)
    with pytest.raises(FetchError):
        fetch(f"{url}/1.vtt?again", [web.host], 1000)


def test_what_failed_is_not_tried_again_by_each_unit(web):
    web.answers["/gone.vtt"] = (404, {}, b"")
    for _ in range(3):
        with pytest.raises(FetchError, match="answers 404"):
            fetch(f"http://{web.host}/gone.vtt", [web.host], 1000)
    assert web.asked == ["/gone.vtt"]
    assert fetch(f"http://{web.host}/1.vtt", [web.host], 1000) == VTT.encode()


def test_a_host_that_cannot_be_reached_is_left_alone_after_three_attempts(monkeypatch):
    tried: list[str] = []
    real = fetching._get

    def counted(parts: Any, *args: Any) -> Any:
        tried.append(parts.path)
        return real(parts, *args)

    monkeypatch.setattr(fetching, "_get", counted)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = f"127.0.0.1:{listener.getsockname()[1]}"
    messages = set()
    for number in range(20):
        with pytest.raises(FetchError) as caught:
            fetch(f"http://{host}/{number}.vtt", [host], 1000)
        messages.add(str(caught.value))
    assert len(tried) == fetching.MOST_FAILURES
    assert len(messages) == 1  # one line in the report


def test_a_failure_is_forgotten_in_time():
    now = 0.0
    failures = fetching._Failures(lambda: now)
    failures.add("http://a/1", "a", FetchError("a answers 503"))
    with pytest.raises(FetchError, match="a answers 503"):
        failures.check("http://a/1", "a")
    failures.check("http://a/2", "a")
    now = fetching.FAILED_FOR_S
    failures.check("http://a/1", "a")


def test_a_head_that_comes_byte_by_byte_does_not_hold_on(monkeypatch):
    monkeypatch.setattr(fetching, "FETCH_S", 0.3)
    listener = socket.create_server(("127.0.0.1", 0))
    host = f"127.0.0.1:{listener.getsockname()[1]}"

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            for _ in range(1500):
                connection.sendall(b"a")
                time.sleep(0.02)

    thread = threading.Thread(target=answer)
    thread.start()
    started = time.monotonic()
    with pytest.raises(FetchError, match="takes more than"):
        fetch(f"http://{host}/slow", [host], 1000)
    assert time.monotonic() - started < 15  # the answer takes 30 s
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    "address", ["64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1", "::1", "::ffff:10.0.0.1", "fe80::1", "fec0::1",
                "169.254.169.254", "224.0.0.1", "100.64.0.1"],
)  # fmt: skip
def test_addresses_that_lead_inside_are_private(address):
    assert not fetching._is_public(address)
    assert fetching._is_public("64:ff9b::808:808")
    assert fetching._is_public("2606:4700::1111")


def test_names_with_private_addresses_are_not_reached(web, monkeypatch):
    port = web.server_port
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", port))])
    with pytest.raises(FetchError, match="private address"):
        fetch(f"http://inside.example:{port}/1.vtt", [f"inside.example:{port}"], 1000)
    assert not web.asked


@pytest.mark.parametrize("host", ["https://example.com", "", "a/b", "*"])
def test_hosts_are_names(host):
    with pytest.raises(InvalidSpecError, match=r"source\.fetch"):
        parse_spec({"index": "i", "source": {"text": "text", "fetch": [host]}, "encoder": {"model": "m"}})


def test_a_feed_needs_no_names_and_other_specs_are_stored_as_before():
    spec = parse_spec({"index": "i", "source": {"format": "feed"}, "encoder": {"model": "m"}})
    assert (spec.source.text, spec.source.title) == ("text", "title")
    assert "fetch" not in spec.source.model_dump()
    assert dataclasses.is_dataclass(Record)
