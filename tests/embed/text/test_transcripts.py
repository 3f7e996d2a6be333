"""Passages of transcripts say who speaks and when; what is notation is not embedded."""

from __future__ import annotations

import pytest

from scannery.embed import Chunker, Encoder
from scannery.embed.text.transcripts import find_marks, spoken_text

VTT = """\ufeffWEBVTT - An episode
Kind: captions

NOTE This is a note
on two lines

intro
00:00:01.000 --> 00:00:04.500 align:start
<v Ann Lee>Welcome to <b>the show</b> about volcanoes.

00:00:04.500 --> 00:00:09.000
Today we climb
a mountain.

3
00:01:05,250 --> 00:01:10,000
<v Bo>Lava is hot. <00:01:07.000>Very hot.</v>

01:02:03.004 --> 01:02:04.000
Goodbye.
"""

SRT = """1
00:00:01,000 --> 00:00:02,000
First words
of the film.

2
00:00:03,000 --> 00:00:05,500
42
is the answer.
"""

MARKED = """**Ann:** We start here. \\[00:31\\] And go on about many things that matter to us.

**Bo Ek:** Yes. [01:02:03] The end is near, and nobody knows how near it is, not even you.

**Ann:** I do."""


@pytest.fixture(scope="module")
def chunker(minilm: Encoder) -> Chunker:
    return minilm.chunker(max_tokens=12, overlap_tokens=0)


def test_webvtt(chunker: Chunker) -> None:
    passages = chunker.split(VTT)
    spoken = " ".join(" ".join(p.embedding_text.split()) for p in passages)
    assert spoken == (
        "Welcome to the show about volcanoes. Today we climb a mountain. Lava is hot. Very hot. Goodbye."
    )
    assert all(VTT[p.start : p.end] == p.text for p in passages)
    assert (passages[0].time_start_s, passages[0].time_end_s) == (1.0, 4.5)
    assert (passages[-1].time_start_s, passages[-1].time_end_s) == (65.25, 3724.0)
    assert [p.speakers for p in passages] == [("Ann Lee",), ("Ann Lee", "Bo"), ("Bo",)]


def test_srt(chunker: Chunker) -> None:
    passages = chunker.split(SRT)
    spoken = " ".join(" ".join(p.embedding_text.split()) for p in passages)
    assert spoken == "First words of the film. 42 is the answer."
    assert (passages[0].time_start_s, passages[-1].time_end_s) == (1.0, 5.5)
    assert [p.speakers for p in passages] == [()] * len(passages)


def test_marks_and_turns(chunker: Chunker) -> None:
    passages = chunker.split(MARKED)
    assert "[" not in "".join(p.embedding_text for p in passages)
    assert all(MARKED[p.start : p.end] == p.text for p in passages)
    assert passages[0].time_start_s is None
    assert [(p.time_start_s, p.time_end_s) for p in passages[:3]] == [(None, 31), (31, 3723), (31, 3723)]
    assert (passages[-1].time_start_s, passages[-1].time_end_s) == (3723, None)
    assert passages[-1].text == "**Ann:** I do."  # a name stays with what it introduces
    assert passages[0].speakers == ("Ann",)
    assert passages[-1].speakers == ("Ann",)
    assert {name for p in passages for name in p.speakers} == {"Ann", "Bo Ek"}


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("a [1:02] b [00:00:03.5] c", [3.5]),
        ("[0:05] a [0:10] b [9:59:59] c [0:20] d [0:30]", [5, 10, 20, 30]),  # a mistyped mark spoils nothing
        ("[12:75] [1:60:00] [a:b] [:] [123] [1:2]", []),
        ("[99:59] and \\[100:00:01\\]", [5999, 360001]),
    ],
)
def test_only_times_that_rise_are_believed(text: str, times: list[float]) -> None:
    assert find_marks(text).times_s == times


def test_text_without_marks_is_embedded_as_it_is(chunker: Chunker) -> None:
    text = "Ratio 3:2 --> and 2 ** 3 ** 4 is not a turn. <b>Nor is this.</b> See [1] and [a]."
    assert all(p.embedding_text is p.text and p.speakers == () for p in chunker.split(text))
    assert find_marks(text).hidden == []


def test_blocks_begin_after_a_blank_line_and_end_at_a_cue(chunker: Chunker) -> None:
    text = (
        "WEBVTT\nSTYLE of the header\n\n00:01.000 --> 00:02.000\nHear this.\nNOTE that it is spoken.\n\n"
        "NOTE\nnot spoken\n\nSTYLE\n::cue {}\n\nNOTE without an end\n00:02.000-->00:03.000\nAgain &amp; again.\n"
    )
    spoken = " ".join(" ".join(p.embedding_text.split()) for p in chunker.split(text))
    assert spoken == "Hear this. NOTE that it is spoken. Again & again."


def test_numbers_of_cues_and_tags_of_subrip(chunker: Chunker) -> None:
    text = (
        "1\n00:00:01,000 --> 00:00:02,000\n<font color=red>{\\an8}One</font>\n"
        "2\n00:00:03,000 --> 00:00:04,000\nand two.\n"
    )
    assert [" ".join(p.embedding_text.split()) for p in chunker.split(text)] == ["One and two."]


def test_the_spoken_text_of_a_whole_text() -> None:
    assert " ".join((spoken_text(SRT) or "").split()) == "First words of the film. 42 is the answer."
    assert spoken_text("1\n00:00:01,000 --> 00:00:02,000\n") == ""
    assert spoken_text("No transcript, [1] and 3:2.") is None
