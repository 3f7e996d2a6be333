"""The sentences of a text: where they begin and end, in several languages and kinds of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.embed.text.sentences import MAX_SENTENCE_CHARACTERS, sentences_of


def cut(text: str, language: str | None = None) -> list[str]:
    return [text[start:end] for start, end, _ in sentences_of(text, language)]


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rains. It pours.", ["It rains.", "It pours."]),
        ("Dr. Who met J. R. R. Tolkien. They spoke.", ["Dr. Who met J. R. R. Tolkien.", "They spoke."]),
        ("He joined the U.S. Army. It cost $3.14. So did I. Then",
         ["He joined the U.S. Army.", "It cost $3.14.", "So did I.", "Then"]),
        ("Acme Inc. Tokyo fell. Acme Inc. The shares rose.",
         ["Acme Inc. Tokyo fell.", "Acme Inc.", "The shares rose."]),
        ("See No. 5 and fig. 3. He said no. Then he left.", ["See No. 5 and fig. 3.", "He said no.", "Then he left."]),
        ("Well... maybe. Well... Maybe…  Yes", ["Well... maybe.", "Well...", "Maybe…", "Yes"]),
        ('"Why?" he asked. "Because!" (No.) Yes.', ['"Why?" he asked.', '"Because!"', "(No.)", "Yes."]),
        ("Am 3. Oktober kam Prof. Ott. Das ist z. B. gut.", ["Am 3. Oktober kam Prof. Ott.", "Das ist z. B. gut."]),
        ("Он родился в 1990 г. в Москве. Т.е. давно.", ["Он родился в 1990 г. в Москве.", "Т.е. давно."]),
        ("東京です。人口は多い！本当？「はい。」次", ["東京です。", "人口は多い！", "本当？", "「はい。」", "次"]),
        ("值为３．１４。好", ["值为３．１４。", "好"]),
        ("क्या हुआ। ठीक है।", ["क्या हुआ।", "ठीक है।"]),
        ("ماذا؟ نعم.", ["ماذا؟", "نعم."]),
        ("the flow is steady . it is shown .", ["the flow is steady .", "it is shown ."]),
        ("1. First one\n2. Second one\n- third\n\nEnd", ["1. First one", "2. Second one", "- third", "End"]),
        ("# Heading\nA line that is certainly long enough to be wrapped by some\nEditor at some width. Next.",
         ["# Heading", "A line that is certainly long enough to be wrapped by some\nEditor at some width.", "Next."]),
        ("No end\nof line", ["No end\nof line"]),
        ("", []), (" \n ", []), ("...", []), ("[00:12] ", []),
    ],
)  # fmt: skip
def test_sentences(text: str, sentences: list[str]) -> None:
    assert cut(text) == sentences


def test_speakers_and_marks_of_time_are_no_part_of_sentences() -> None:
    text = "**Ann:** Hello there. [00:12] And now it [00:14] goes on.\n\n**Bob Lee:** Right? Yes.\n"
    assert cut(text) == ["Hello there.", "And now it [00:14] goes on.", "Right?", "Yes."]
    assert [spoken for *_, spoken in sentences_of(text)][1] == "And now it goes on."


def test_sentences_of_cues_go_on_over_timings() -> None:
    text = (
        "WEBVTT\n\n1\n00:00:01.000 --> 00:00:02.000\n<v Ann>We go to\n\n"
        "2\n00:00:02.000 --> 00:00:03.000\nthe Moon &amp; back. Next\n\n3\n00:00:04.000 --> 00:00:05.000\nwe land.\n"
    )
    assert [spoken for *_, spoken in sentences_of(text)] == ["We go to the Moon & back.", "Next we land."]
    assert cut(text)[0].startswith("We go to") and cut(text)[0].endswith("back.")


@pytest.mark.parametrize("piece", ["word ", "a", "語", "one, two; three ", "👩‍👩‍👧"])
def test_long_sentences_are_cut(piece: str) -> None:
    text = "x" + piece * 500
    found = sentences_of(text)
    assert all(end - start <= MAX_SENTENCE_CHARACTERS for start, end, _ in found)
    covered = {place for start, end, _ in found for place in range(start, end)}
    assert all(text[place] not in "wa語o" for place in set(range(len(text))) - covered)


def test_long_sentences_are_cut_at_a_comma_rather_than_a_space() -> None:
    text = "so many words " * 20 + "and then, " + "so many words " * 20
    assert cut(text)[0].endswith("and then,")


PARTS = st.sampled_from(["Word", "word", ". ", "! ", "...", "\n", "\n\n", "[00:01] ", "**A:** ", "。", "3.", "Dr. ",
                         " ", "00:00:01.000 --> 00:00:02.000\n", "<v B>", "\u00ad", "'", ") ", "1. "])  # fmt: skip


@given(st.lists(PARTS, max_size=30).map("".join))
def test_sentences_are_in_order_and_apart(text: str) -> None:
    edges = [place for start, end, _ in sentences_of(text) for place in (start, end)]
    assert edges == sorted(edges)
    assert all(0 <= place <= len(text) for place in edges)
    for start, end, spoken in sentences_of(text):
        assert start < end and spoken == " ".join(spoken.split()) != ""
        assert not text[start].isspace() and not text[end - 1].isspace()
