"""No text within the limits takes more than linear time, whatever it is made of: the limit allows a MiB of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import pytest

from scannery.embed import Chunker, Encoder
from scannery.embed.text.documents import cut
from scannery.embed.text.transcripts import spoken_text
from scannery.indexer import (
    Analyser,
    ChunkSpec,
    IndexSpec,
    LexicalSpec,
    Manifest,
    Phrase,
    PhraseFinder,
    analyser_of,
    parse_spec,
)
from scannery.live.prepare import prepare
from scannery.pipelines.sources.managed.managed_csv import java_float
from scannery.runtime.retry import Deadline
from scannery.serving.request.options import parse_options
from scannery.serving.request.phrases import with_phrases
from scannery.serving.request.write import parse_upsert
from scannery.v1 import index_pb2
from scannery.v1.search_pb2 import Mode, Query, SearchOptions, SearchRequest
from scannery.v1.types_pb2 import Datapoint
from tests.embed.conftest import MINILM

pytestmark = pytest.mark.system

SMALL_BYTES, LARGE_BYTES = 1 << 13, 1 << 15
MOST_S = 6.0
"""For a MiB; the aim is 1 s on a machine that does nothing else."""

CUE = "00:00:01.000 --> 00:00:02.000\n"
PIECES = {
    "prose": "Magma rises through the crust, until the pressure breaks the mountain open. ",
    "dots": ".", "dots and quotes": '."', "quotes": '."""""""" ', "ellipses": "…", "ideographic stops": "。",
    "spaces": " ", "tabs": "\t", "lines": "\n", "blank lines": "\n \r\n", "zero width": "\u200b", "joiners": "\u200d",
    "soft hyphens": "a\u00ad", "word joiners": "\u2060", "marks": "\u0301\u0316",
    "letters with marks": "e\u0301\u0316\u0327",
    "voiced marks": "\uff9e\u0301", "hebrew": "\u05d1\u05b8\u05bc", "arabic": "\u0628\u064e\u0651 ",
    "ligature": "\ufdfa",
    "thai": "\u0e01\u0e34\u0e19", "burmese marks": "\u1000\u103c\u103d", "han": "漢", "hangul": "\u1100\u1161\u11a8",
    "families": "\U0001f468\u200d\U0001f469\u200d", "flags": "\U0001f1e9", "flags and letters": "\U0001f1e9a",
    "one word": "a", "apostrophes": "a'", "numbers": "1.", "underscores": "_", "right to left": "\u05d0\u05d1 ",
    "open voices": "<v.", "voices": "<v a", "voices and spaces": f"<v{' ' * 60}", "tags": "<b>", "open tags": "<b ",
    "times in tags": "<1:", "braces": "{\\", "brackets": "\\[", "marks of time": "[00:01] ", "open marks": "[00:",
    "stars": "**", "turns": "**Ann:** a\n", "open turns": "**a\n", "notes": "NOTE\n", "notes apart": "\n\nNOTE a",
    "arrows": "-->\n", "timings": CUE, "cues": f"1\n{CUE}<v Ann>some words &amp; more\n\n", "headers": "WEBVTT\n",
    "headings": "# a\n", "headings and text": "###### a b\nc\n", "underlined": "a\n===\n\n", "open fences": "```\n",
    "rows": "| a | b |\n", "headers of tables": "|a|\n|-|\n", "delimiters": "|-", "links": "# [a](b", "pages": "\f",
    "clocks": "00:12 a b\n", "round clocks": "(0:12) Ann Lee: a\n", "headers with clocks": "Ann Lee  0:12\na\n",
    "open clocks": "0:0", "digits": "0:00", "names": "Ann Lee Bo ", "lines of names": "Ann Lee:\n",
    "bullets": "- 0:12 - ",
    "rolling": f"{CUE}a b\nc d\n\n{CUE}c d\ne f\n\n", "names in cues": f"{CUE}Ann Lee: a\n",
    "numbered": f"1\n{CUE}", "identifiers": f"\n{'x' * 50}\n{CUE}", "entities": "&amp;", "open entities": "&amp",
    "camel case": "aB", "capitals": "ABc", "parts": "ab_C.", "signs": "C++#@&.", "shades": "\U0001f44d\U0001f3fd",
    "paths": "a/b", "schemes": "a://", "mails": "a@b.", "slashes": "/\\", "dots and dashes": ".-~",
    "capitals with marks": "A\u0301", "handles": "@_",
}  # fmt: skip


def manifest_of(spec: IndexSpec, dimensions: int) -> Manifest:
    created_at = datetime.now(timezone.utc)
    return Manifest(
        index="a", version=1, created_at=created_at, spec=spec, dimensions=dimensions, shards=1, segments=()
    )


def made(piece: str, size_bytes: int) -> str:
    return piece * (size_bytes // len(piece.encode()))


def seconds(work: Callable[[str], object], text: str) -> float:
    started = time.thread_time()
    work(text)
    return time.thread_time() - started


def check_linear(work: Callable[[str], object], make: Callable[[int], str]) -> None:
    """Check the growth, and what a MiB would take; another process may spoil a measurement, but not three."""
    for _ in range(3):
        small_s, large_s = seconds(work, make(SMALL_BYTES)), seconds(work, make(LARGE_BYTES))
        growth = large_s / max(small_s, 0.005)
        per_mib_s = large_s * (1 << 20) / LARGE_BYTES
        if growth < 8 and per_mib_s < MOST_S:  # four times the text; quadratic would be 16
            return
    raise AssertionError(f"four times the text takes {growth:.1f} times as long, a MiB {per_mib_s:.1f} s")


@pytest.fixture(scope="module")
def chunker(minilm: Encoder) -> Chunker:
    return minilm.chunker(max_tokens=128, overlap_tokens=16)


@pytest.fixture(scope="module")
def headings(minilm: Encoder) -> Chunker:
    return minilm.chunker(max_tokens=128, overlap_tokens=16, headings=True)


@pytest.fixture(scope="module")
def minilm() -> Encoder:
    return Encoder.load(MINILM, device="cpu")


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("in_cues", [False, True], ids=["text", "cues"])
def test_transcripts(piece: str, in_cues: bool) -> None:
    front = CUE if in_cues else ""
    check_linear(spoken_text, lambda size: front + made(piece, size))
    check_linear(spoken_text, lambda size: front + made(piece, size) + "x")


def test_cues_of_many_lines() -> None:
    def cues(size: int) -> str:
        lines = made("a\n", size // 2)
        return f"{CUE}{lines}b\n\n{CUE}{lines}"

    check_linear(spoken_text, cues)


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_chunking(piece: str, chunker: Chunker) -> None:
    check_linear(chunker.split, lambda size: made(piece, size) + "x")


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_analysis(piece: str, version: Any) -> None:
    check_linear(Analyser(LexicalSpec(analyser=version)).terms, lambda size: made(piece, size))


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_queries(piece: str) -> None:
    check_linear(Analyser(LexicalSpec(analyser=4)).query_terms, lambda size: made(piece, size))


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("slop", [0, 100])
def test_phrases(piece: str, slop: int) -> None:
    """The phrase is of words of the text, which ends before it does: the last one is always missing."""
    phrase = Phrase.of(analyser_of(LexicalSpec(analyser=4)), f"{made(piece, 20)} missing", slop)
    assert phrase is not None
    check_linear(
        PhraseFinder(phrase).is_in, lambda size: f"{made(piece, size)}. missing: missing {made(piece, 9)}"
    )


@pytest.mark.parametrize(
    "piece", ['"', '"a"-', '"a-', 'a"-', "“", "“a", "“a”", "„a“", '"a"~', '"a"~1', '"a-"']
)
def test_quotes(piece: str) -> None:
    spec = parse_spec({"index": "a", "source": {"vector": "v", "text": "text"}, "lexical": True})
    options = parse_options(SearchOptions(mode=Mode.MODE_LEXICAL), manifest_of(spec, 4))

    def unquoted(text: str) -> None:
        with_phrases(SearchRequest(query=Query(text=text)), spec, options, lambda *_: False)

    check_linear(unquoted, lambda size: made(piece, size))


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
@pytest.mark.parametrize("front", ["", "| a | b |\n| - | - |\n"])
def test_cutting_at_headings(piece: str, front: str, headings: Chunker) -> None:
    check_linear(headings.split, lambda size: front + made(piece, size) + "x")


def test_titles(chunker: Chunker) -> None:
    check_linear(chunker.fit, lambda size: made("unending ", size))
    check_linear(
        lambda title: cut("some words " * 2000, chunker, title), lambda size: made("unending ", size)
    )


@pytest.mark.parametrize(
    ("front", "piece"),
    [("", "1"), ("", "1_"), ("0x", "a"), ("0x", "a_"), ("1.", "1"), ("0x1.", "a"), ("1e", "1")],
)
def test_numbers_in_tables(front: str, piece: str) -> None:
    def read(text: str) -> None:
        for end in ("", "x", "p1"):
            with contextlib.suppress(ValueError, OverflowError):
                java_float(text + end)

    check_linear(read, lambda size: front + made(piece, size))


class Encoders:
    """A pool whose encoder cuts as the real one does, and gives vectors at once."""

    dimensions = 384

    def __init__(self, chunker: Chunker) -> None:
        self._chunker = chunker

    @property
    def documents(self) -> Encoders:
        return self

    def encoder_of(self, manifest: Manifest, *, field: str) -> Encoders:
        return self

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        return self._chunker

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.ones((len(texts), self.dimensions), np.float32)


@pytest.mark.parametrize("piece", PIECES.values(), ids=PIECES)
def test_preparing_a_write(piece: str, chunker: Chunker) -> None:
    spec = parse_spec(
        {
            "index": "a", "source": {"text": "text", "title": "title", "chunk": {"max_tokens": 128}},
            "encoder": {"model": MINILM}, "lexical": {"analyser": 2}, "attributes": {"tags": "string_list"},
        }
    )  # fmt: skip
    manifest = manifest_of(spec, 384)

    def upsert(text: str) -> None:
        point = Datapoint(id="a", title=text[:1000], text=f"{text}x")
        point.attributes["tags"].string_value = f"x{text}"
        request = index_pb2.UpsertRequest(upserts=[index_pb2.Upsert(datapoint=point)])
        prepare(
            parse_upsert(request, manifest, Deadline.after(None)),
            manifest,
            Encoders(chunker),
            Deadline.after(60),
        )

    check_linear(upsert, lambda size: made(piece, size))
