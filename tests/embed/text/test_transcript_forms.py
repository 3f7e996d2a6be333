"""Transcripts in the forms that tools write them: times, speakers, and captions that roll up are said once."""

from __future__ import annotations

import pytest

from scannery.embed.text.transcripts import find_marks, spoken_text

TALK = (
    "Welcome to the garden show.",
    "Our old beehive needs a dry place.",
    "Next week we will talk about trains.",
    "Goodbye.",
)
FORMS = {
    "whisper": ("[00:0{m}:00.000 --> 00:0{m}:09.000]   {t}\n", None),
    "whisper, short": ("[0{m}:00.000 --> 0{m}:09.000] {t}\n", None),
    "whisper, speakers": ("[00:0{m}:00.000 --> 00:0{m}:09.000] [SPEAKER_0{n}] {t}\n", "SPEAKER_0{n}"),
    "rev": ("Speaker {n} (0{m}:00):\n{t}\n\n", "Speaker {n}"),
    "rev, inline": ("Jane Doe {n} (0{m}:00): {t}\n\n", "Jane Doe {n}"),
    "rev, colon": ("Speaker {n}: (0{m}:00)\n{t}\n\n", "Speaker {n}"),
    "otter": ("Jane Doe {n}  {m}:00  \n{t}\n\n", "Jane Doe {n}"),
    "crlf": ("Jane Doe {n}  {m}:00\r\n{t}\r\n\r\n", "Jane Doe {n}"),
    "bar": ("Speaker {n} | 0{m}:00\n{t}\n\n", "Speaker {n}"),
    "comma": ("Speaker {n}, 0{m}:00\n{t}\n\n", "Speaker {n}"),
    "brackets": ("[Jane Doe {n}] 00:0{m}:00\n{t}\n\n", "Jane Doe {n}"),
    "bold": ("**[00:0{m}:00] Jane Doe {n}:** {t}\n\n", "Jane Doe {n}"),
    "bold, round": ("**Jane Doe {n}** (0{m}:00): {t}\n\n", "Jane Doe {n}"),
    "bold, square": ("**Jane Doe {n}:** [0{m}:00] {t}\n\n", "Jane Doe {n}"),
    "bold, inside": ("**Jane Doe {n} [0{m}:00]:** {t}\n\n", "Jane Doe {n}"),
    "heading": ("## Jane Doe {n} (0{m}:00)\n\n{t}\n\n", "Jane Doe {n}"),
    "leading": ("00:0{m}:00 Jane{n}: {t}\n", "Jane{n}"),
    "leading, role": ("00:0{m}:00 Jane {n} (Host): {t}\n", "Jane {n}"),
    "leading, no name": ("0{m}:00 - {t}\n", None),
    "round": ("(00:0{m}:00) Jane{n}: {t}\n", "Jane{n}"),
    "round, no name": ("(0{m}:00) {t}\n", None),
    "square": ("[00:0{m}:00] JANE {n}: {t}\n", "JANE {n}"),
    "square, no name": ("[00:0{m}:00] {t}\n", None),
    "angles": ("<00:0{m}:00> Jane {n}: {t}\n", "Jane {n}"),
    "lyrics": ("[0{m}:00.00]{t}\n", None),
    "video site": ("{m}:00\n{t}\n", None),
    "range": ("00:0{m}:00:12 - 00:0{m}:09:00\n{t}\n\n", None),
    "sbv": ("0:0{m}:00.000,0:0{m}:09.000\n{t}\n\n", None),
    "zoom": ("{n}\n00:0{m}:00.000 --> 00:0{m}:09.000\nJane Doe {n}: {t}\n\n", "Jane Doe {n}"),
    "teams": ("00:0{m}:00.000 --> 00:0{m}:09.000\n<v Jane Doe {n}>{t}</v>\n\n", "Jane Doe {n}"),
    "teams, text": ("0:{m}:0.0 --> 0:{m}:9.230\n{t}\n", None),
    "sonix": ("Jane Doe {n}: [00:0{m}:00] {t}\n\n", "Jane Doe {n}"),
    "cyrillic": ("Спикер {n} (0{m}:00):\n{t}\n\n", "Спикер {n}"),
}
"""Name: how a line is written (n: number of the turn, m: minute, t: words), and the speaker in it."""


@pytest.mark.parametrize(("line", "speaker"), FORMS.values(), ids=FORMS)
def test_forms_of_transcripts(line: str, speaker: str | None) -> None:
    text = "".join(line.format(n=n, m=2 * n, t=words) for n, words in enumerate(TALK, 1))
    marks = find_marks(text)
    assert [int(time_s) for time_s in marks.times_s] == [120, 240, 360, 480]
    assert marks.speakers == ([] if speaker is None else [speaker.format(n=n) for n in range(1, 5)])
    spoken = marks.spoken(text, 0, len(text))
    assert all(words in spoken for words in TALK)
    assert not any(f"{2 * n}:00" in spoken for n in range(1, 5))
    for number, words in enumerate(TALK, 1):
        start = text.index(words)
        assert int(marks.time_range(start, start + len(words))[0] or 0) == 120 * number
        if speaker is not None:
            assert marks.speakers_of(start, start + 1) == (speaker.format(n=number),)


@pytest.mark.parametrize("line", ["Speaker {n}: {t}\n", "[SPEAKER_0{n}]: {t}\n"])
def test_speakers_without_times(line: str) -> None:
    marks = find_marks("".join(line.format(n=n % 2, t=words) for n, words in enumerate(TALK)))
    assert marks.times_s == [] and len(marks.speakers) == 4


@pytest.mark.parametrize("above", ["[00:0{n}:00.450] - {name}\n", "00:0{n}:00:01 - 00:0{n}:09:00\n{name}\n"])
def test_names_below_times_are_those_that_come_again(above: str) -> None:
    lines = [above.format(n=n, name=["Ann Lee", "Bo"][n % 2]) + words for n, words in enumerate(TALK)]
    assert find_marks("\n\n".join(lines)).speakers == ["Ann Lee", "Bo", "Ann Lee", "Bo"]


@pytest.mark.parametrize(
    "text",
    [
        "09:00 Breakfast\n10:00 Talk by Jane\n11:30 Lunch\n",
        "09:00 Jane Doe: Opening\n10:00 John Roe: Talk\n12:00 Jane Doe: Closing\n",
        "Monday 9:00 - 17:00\nWe are open.\n\nTuesday 10:00 - 18:00\nWe too.\n",
        "1:1 In the beginning\n1:2 And the earth\n1:10 And he said\n1:11 And then\n",
        "10:30:15 INFO: start\n10:30:16 INFO: go\n10:31:00 WARN: stop\n",
        "We met at 10:15 and\n10:20 passed\n" + "a long line of words in a story\n" * 30 + "11:00 was the end\n",
        "Kipchoge 2:01:39\nKipsang 2:03:23\nTergat 2:04:55\n",
        "Song one 3:45\nOther song 4:12\nThird 4:50\n",
        "The ratio is 3:20 to 4:10.\nNote: see this.\nNote: see that.\n",
        "12:10 is after\n8:30 and before\n9:45 it was\n7:15 early\n",
    ],
    ids=["day", "programme", "hours", "verses", "log", "story", "race", "songs", "ratios", "no order"],
)  # fmt: skip
def test_prose_with_times_is_no_transcript(text: str) -> None:
    assert find_marks(text).times_s == [] and spoken_text(text) is None


def test_names_of_cues_are_no_words_before_a_colon() -> None:
    cue = "00:00:0{n}.000 --> 00:00:0{n}.900\n{t}\n\n"
    lines = ["One thing: it rains.", "Well, yes.", "It does.", "Note: now", "the end."]
    text = "".join(cue.format(n=n, t=words) for n, words in enumerate(lines))
    assert find_marks(text).speakers == []


def srt(*cues: tuple[int, int, str]) -> str:
    """Return cues of begin and end in milliseconds, and lines."""
    times = ("00:00:{:02},{:03} --> 00:00:{:02},{:03}".format(*divmod(start, 1000), *divmod(end, 1000))
             for start, end, _ in cues)  # fmt: skip
    return "\n\n".join(f"{n}\n{time}\n{cues[n][2]}" for n, time in enumerate(times))


ROLLING = {
    "two lines": (srt((0, 2000, "a b"), (2000, 2010, "a b"), (2010, 4000, "a b\nc d"), (4000, 4010, "c d"),
                      (4010, 6000, "c d\ne f")), "a b c d e f"),
    "no flashes": (srt((0, 2000, "a b"), (2000, 4000, "a b\nc d"), (4000, 6000, "c d\ne f")), "a b c d e f"),
    "times overlap": (srt((0, 4000, "a b"), (2000, 6000, "a b\nc d"), (4000, 8000, "c d\ne f")), "a b c d e f"),
    "three lines": (srt((0, 1000, "a"), (1000, 2000, "a\nb"), (2000, 3000, "a\nb\nc"), (3000, 4000, "b\nc\nd")),
                    "a b c d"),
    "words grow": (srt((0, 1000, "a"), (1000, 2000, "a b"), (2000, 3000, "a b c"), (3000, 4000, "d")), "a b c d"),
    "underlined words": (srt((0, 1000, "<u>a</u> b"), (1000, 2000, "a <u>b</u>"), (2000, 3000, "<u>c</u> d"),
                             (3000, 4000, "c <u>d</u>")), "a b c d"),
    "spoken twice in rolling captions": (srt((0, 2000, "a b"), (2000, 2010, "a b"), (2010, 4000, "a b\na b"),
                                             (4000, 4010, "a b"), (4010, 6000, "a b\nc d")), "a b a b c d"),
    "refrain": (srt((0, 2000, "a b"), (9000, 11000, "a b")), "a b a b"),
    "spoken twice at once": (srt((0, 2000, "a b"), (2000, 4000, "a b"), (4000, 6000, "c d")), "a b a b c d"),
    "answer repeats": (srt((0, 2000, "is it\nso"), (2000, 4000, "so\nit is"), (4000, 5000, "c"), (5000, 6000, "d"),
                           (6000, 7000, "e")), "is it so so it is c d e"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "spoken"), ROLLING.values(), ids=ROLLING)
def test_captions_that_roll_up_are_said_once(text: str, spoken: str) -> None:
    assert (spoken_text(text) or "").split() == spoken.split()
