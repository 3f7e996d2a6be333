"""Transcripts in the JSON of speech recognition and in TTML: a file is a record with times and speakers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from scannery.embed.text.transcripts import find_marks
from scannery.indexer import parse_spec
from scannery.indexer.spec.spec import SourceSpec
from scannery.pipelines.sources import arrange, find_files, one_by_one, read_batches, split_file
from scannery.pipelines.sources.parts import Fields, Record
from scannery.pipelines.sources.transcripts import text_of_json, text_of_ttml
from scannery.pipelines.sources.transcripts.segments import Segment, of_words

TALK = [
    (0.0, 4.0, "Welcome to the garden show."),
    (120.0, 124.5, "Our beehive is old."),
    (245.0, 249.0, "Goodbye, bees."),
]


def words(text: str, start_s: float, end_s: float) -> list[tuple[str, float, float]]:
    """Return the words of a sentence, with times that divide it."""
    own = text.split()
    step = (end_s - start_s) / len(own)
    return [
        (word, round(start_s + n * step, 3), round(start_s + (n + 1) * step, 3)) for n, word in enumerate(own)
    ]


def all_words() -> list[tuple[str, float, float, int]]:
    return [(*word, n) for n, (start, end, text) in enumerate(TALK) for word in words(text, start, end)]


def clock(seconds: float, mark: str = ",") -> str:
    whole, rest = divmod(seconds, 1)
    return f"{int(whole) // 3600:02}:{int(whole) // 60 % 60:02}:{int(whole) % 60:02}{mark}{round(rest * 1000):03}"


def with_marks(make: Any) -> list[Any]:
    """Return words and marks apart, as services have them; `make` gets word, times and the speaker's number."""
    items = []
    for word, start, end, n in all_words():
        bare = word.rstrip(".,")
        items.append(make(bare, start, end, n))
        if bare != word:
            items.append(make(word[len(bare) :], None, None, n))
    return items


def aws_item(word: str, start: float | None, end: float | None, n: int) -> dict[str, Any]:
    kind = (
        {"type": "punctuation"}
        if start is None
        else {"type": "pronunciation", "start_time": f"{start}", "end_time": f"{end}"}
    )
    return {**kind, "alternatives": [{"confidence": "0.9", "content": word}], "speaker_label": f"spk_{n}"}


def speechmatics_item(word: str, start: float | None, end: float | None, n: int) -> dict[str, Any]:
    kind = "punctuation" if start is None else "word"
    times = {} if start is None else {"start_time": start, "end_time": end}
    return {"type": kind, **times, "alternatives": [{"content": word, "speaker": f"S{n}"}]}


def rev_turn(n: int, start: float, end: float, text: str) -> dict[str, Any]:
    elements: list[dict[str, Any]] = []
    for word, first, last in words(text, start, end):
        elements += [
            {"type": "text", "value": word.rstrip(".,"), "ts": first, "end_ts": last, "confidence": 0.9}
        ]
        elements += [{"type": "punct", "value": word[len(word.rstrip(".,")) :] + " "}]
    return {"speaker": n, "elements": elements}


SEGMENTS = [{"id": n, "start": s, "end": e, "text": f" {t}"} for n, (s, e, t) in enumerate(TALK)]
WHOLE = " ".join(text for _, _, text in TALK)
LAYOUTS: dict[str, tuple[Any, str | None]] = {
    "openai-whisper": ({"text": WHOLE, "segments": SEGMENTS, "language": "en"}, None),
    "openai, verbose": ({"task": "transcribe", "duration": 249.0, "text": WHOLE, "segments": SEGMENTS}, None),
    "openai, words": ({"text": WHOLE, "words": [{"word": w, "start": s, "end": e} for w, s, e, _ in all_words()]},
     None),
    "whisperx": ({"segments": [{**one, "speaker": f"SPEAKER_0{n}", "words": []} for n, one in enumerate(SEGMENTS)],
     "word_segments": [], "language": "en"}, "SPEAKER_0{n}"),
    "whisper.cpp": ({"systeminfo": "", "model": {}, "result": {"language": "en"},
     "transcription": [{"timestamps": {"from": clock(s), "to": clock(e)},
     "offsets": {"from": int(s * 1000), "to": int(e * 1000)}, "text": f" {t}"} for s, e, t in TALK]}, None),
    "transformers": ({"text": WHOLE, "chunks": [{"timestamp": [s, None if s > 200 else e],
     "text": t} for s, e, t in TALK]}, None),
    "insanely fast": ({"speakers": [{"speaker": f"SPEAKER_0{n}", "text": t,
     "timestamp": [s, e]} for n, (s, e, t) in enumerate(TALK)], "chunks": [{"timestamp": [s, e],
     "text": t} for s, e, t in TALK], "text": WHOLE}, "SPEAKER_0{n}"),
    "amazon": ({"jobName": "a", "status": "COMPLETED", "results": {"transcripts": [{"transcript": WHOLE}],
     "items": with_marks(aws_item)}}, "spk_{n}"),
    "amazon, segments": ({"jobName": "a", "results": {"transcripts": [{"transcript": WHOLE}],
     "items": with_marks(aws_item), "audio_segments": [{"id": n, "transcript": t, "start_time": f"{s}",
     "end_time": f"{e}", "speaker_label": f"spk_{n}"} for n, (s, e, t) in enumerate(TALK)]}}, "spk_{n}"),
    "google": ({"results": [{"alternatives": [{"transcript": t, "words": [{"startTime": f"{a}s", "endTime": f"{b}s",
     "word": w} for w, a, b in words(t, s, e)]}]} for s, e, t in TALK]}, None),
    "google, speakers": ({"results": [{"alternatives": [{"transcript": WHOLE,
     "words": [{"startTime": f"{s}s", "endTime": f"{e}s", "word": w,
     "speakerTag": n + 1} for w, s, e, n in all_words()]}]}]}, "Speaker {m}"),
    "azure": ({"source": "a", "combinedRecognizedPhrases": [], "recognizedPhrases": [{"offset": f"PT{s}S",
     "duration": f"PT{e - s}S", "offsetInTicks": s * 1e7, "durationInTicks": (e - s) * 1e7, "speaker": n + 1,
     "nBest": [{"confidence": 0.9, "display": t}]} for n, (s, e, t) in enumerate(TALK)]}, "Speaker {m}"),
    "azure, fast": ({"durationMilliseconds": 249000, "combinedPhrases": [{"text": WHOLE}],
     "phrases": [{"offsetMilliseconds": int(s * 1000), "durationMilliseconds": int((e - s) * 1000),
     "text": t} for s, e, t in TALK]}, None),
    "deepgram": ({"metadata": {}, "results": {"channels": [{"alternatives": [{"transcript": WHOLE,
     "words": [{"word": w.lower(), "punctuated_word": w, "start": s, "end": e,
     "speaker": n} for w, s, e, n in all_words()]}]}]}}, "Speaker {n}"),
    "deepgram, utterances": ({"results": {"channels": [], "utterances": [{"start": s, "end": e, "confidence": 0.9,
     "transcript": t, "speaker": n} for n, (s, e, t) in enumerate(TALK)]}}, "Speaker {n}"),
    "assemblyai": ({"id": "x", "status": "completed", "text": WHOLE, "audio_duration": 249,
     "utterances": [{"speaker": "ABC"[n], "text": t, "start": int(s * 1000), "end": int(e * 1000),
     "confidence": 0.9} for n, (s, e, t) in enumerate(TALK)]}, "Speaker {letter}"),
    "assemblyai, words": ({"id": "x", "text": WHOLE, "words": [{"text": w, "start": int(s * 1000),
     "end": int(e * 1000), "confidence": 0.9, "speaker": None} for w, s, e, _ in all_words()]}, None),
    "rev": ({"speakers": [{"id": n, "name": f"Jane {n}"} for n in range(3)],
     "monologues": [rev_turn(n, *one) for n, one in enumerate(TALK)]}, "Jane {n}"),
    "podcasting 2.0": ({"version": "1.0.0", "segments": [{"speaker": f"Jane {n}", "startTime": s, "endTime": e,
     "body": t} for n, (s, e, t) in enumerate(TALK)]}, "Jane {n}"),
    "podlove": ({"version": "1", "transcripts": [{"start": clock(s, "."), "start_ms": int(s * 1000),
     "end": clock(e, "."), "end_ms": int(e * 1000), "speaker": str(n), "voice": "",
     "text": t} for n, (s, e, t) in enumerate(TALK)]}, "Speaker {n}"),
    "youtube": ({"wireMagic": "pb3", "events": [{"tStartMs": 0, "dDurationMs": 249000, "id": 1},
     *({"tStartMs": int(s * 1000), "dDurationMs": int((e - s) * 1000),
     "segs": [{"utf8": w + " "} for w in t.split()]} for s, e, t in TALK),
     {"tStartMs": 250000, "aAppend": 1, "segs": [{"utf8": "\n"}]}]}, None),
    "youtube-transcript-api": ([{"text": t, "start": s, "duration": e - s} for s, e, t in TALK], None),
    "vosk": ([{"result": [{"conf": 1.0, "word": w, "start": a, "end": b} for w, a, b in words(t, s, e)],
     "text": t} for s, e, t in TALK], None),
    "speechmatics": ({"format": "2.9", "metadata": {}, "results": with_marks(speechmatics_item)}, "S{n}"),
    "gladia": ({"id": "x", "status": "done", "result": {"transcription": {"full_transcript": WHOLE,
     "utterances": [{"text": t, "start": s, "end": e, "speaker": n,
     "words": []} for n, (s, e, t) in enumerate(TALK)]}}}, "Speaker {n}"),
    "elevenlabs": ({"language_code": "en", "text": WHOLE,
     "words": [item for w, s, e, n in all_words() for item in ({"text": w, "start": s, "end": e, "type": "word",
     "speaker_id": f"speaker_{n}"}, {"text": " ", "start": e, "end": e, "type": "spacing",
     "speaker_id": f"speaker_{n}"})]}, "speaker_{n}"),
}  # fmt: skip
"""Tool: its JSON, and how the speaker of turn n is called."""


def check(text: str, speaker: str | None) -> None:
    marks = find_marks(text)
    spoken = " ".join(marks.spoken(text, 0, len(text)).split())
    assert spoken == WHOLE
    for n, (start_s, _, sentence) in enumerate(TALK):
        at = text.index(sentence[:6])
        assert marks.time_range(at, at + 1)[0] == pytest.approx(start_s, abs=0.01)
        if speaker is not None:
            assert marks.speakers_of(at, at + 1) == (speaker.format(n=n, m=n + 1, letter="ABC"[n]),)
    if speaker is None:
        assert marks.speakers == []


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_of_json(name: str, tmp_path: Path) -> None:
    document, speaker = LAYOUTS[name]
    check(text_of_json(json.dumps(document).encode()), speaker)
    (tmp_path / "show").mkdir()
    (tmp_path / "show" / "one.json").write_text(json.dumps(document))
    [record] = records(tmp_path, SourceSpec(id="path", text="text"))
    assert record.fields["id"] == record.fields["path"] == "show/one.json"
    check(record.fields["text"], speaker)


def records(folder: Path, source: SourceSpec, own: Fields | None = None) -> list[Record]:
    fields = own or Fields("id", None, frozenset({"id", "text"}), {})
    files = arrange(find_files([str(folder)]), source, own)
    parts = [part for file in files for part in split_file(file, 1 << 20)]
    return [
        record
        for part in parts
        for record in one_by_one(read_batches(part, fields))
        if isinstance(record, Record)
    ]


@pytest.mark.parametrize(
    ("document", "source"),
    [
        ([{"id": n, "text": t, "start": s} for n, (s, _, t) in enumerate(TALK)], SourceSpec(text="text")),
        ({"data": [{"id": "a", "text": "x", "start": "Monday"}]}, SourceSpec(text="text")),
        ({"segments": SEGMENTS}, SourceSpec(text="text", records="segments")),
        ({"id": "a", "words": "x", "segments": SEGMENTS}, SourceSpec(text="words")),
    ],
    ids=["ids", "no times", "records", "other text"],
)  # fmt: skip
def test_records_are_no_transcript(document: Any, source: SourceSpec, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document))
    assert all(record.fields.get("path") is None for record in records(tmp_path, source))


PASSAGES = [{"guid": f"p{n}", "text": t, "start": s, "end": e} for n, (s, e, t) in enumerate(TALK)]
SHOW = {"show": {"type": "string", "from": "title"}}
EPISODE = {"id": "a", "title": "Bees", "text": WHOLE, "segments": SEGMENTS}


@pytest.mark.parametrize(
    ("document", "spec", "count"),
    [
        (PASSAGES, {"source": {"id": "guid", "text": "text"}}, 3),
        (PASSAGES, {"source": {"id": "{guid}-{start}", "text": "text"}}, 3),
        (PASSAGES, {"source": {"id": {"from": "row"}, "text": "text"}}, 3),
        (EPISODE, {"source": {"id": "id", "text": "text", "title": "title"}}, 1),
        (EPISODE, {"source": {"id": "id", "text": "text"}, "attributes": SHOW}, 1),
        (EPISODE, {"source": {"id": "id", "text": "text"}, "dynamic": True}, 1),
        ({**EPISODE, "guid": "a"}, {"source": {"id": "guid", "text": "text"}}, 1),
    ],
)  # fmt: skip
def test_records_with_times_are_no_transcript(
    document: Any, spec: dict[str, Any], count: int, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document))
    parsed = parse_spec({"index": "a", "encoder": {"model": "m"}, **spec})
    found = records(tmp_path, parsed.source, Fields.of(parsed))
    assert [record.fields.get("path") for record in found] == [None] * count


@pytest.mark.parametrize("start", [10**400, [[]], {"seconds": {"seconds": 10**400}}, -1, "9" * 5000, True])
def test_times_that_are_none(start: Any, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(
        json.dumps({"id": "a", "segments": [{"text": "a", "start": start}]}), "utf-8"
    )
    [record] = records(tmp_path, SourceSpec(text="text"))
    assert "path" not in record.fields


@pytest.mark.parametrize("begin", ["9" * 400 + "t", "9" * 400 + ":00:00:00", "9" * 5000 + "t"])
def test_times_of_ttml_that_are_none(begin: str) -> None:
    pytest.importorskip("lxml")
    assert text_of_ttml(f'<tt><body><p begin="{begin}">a</p></body></tt>'.encode()) == ""


@pytest.mark.system
def test_words_at_the_same_time_take_linear_time() -> None:
    started = time.thread_time()
    [segment] = of_words(Segment(0.0, 0.0, " word" * 40) for _ in range(40_000))
    assert len(segment.text) == 8_000_000
    assert time.thread_time() - started < 2


def test_ttml() -> None:
    pytest.importorskip("lxml")
    times = ("00:00:00.000", "00:02:00:00", "2450000000t")
    paragraphs = "".join(
        f'<p begin="{time}" dur="4s" ttm:agent="a{n}">{text.replace(" ", "<br/>", 1)}</p>'
        for n, (time, (_, _, text)) in enumerate(zip(times, TALK, strict=True))
    )
    agents = "".join(f'<ttm:agent xml:id="a{n}"><ttm:name>Jane {n}</ttm:name></ttm:agent>' for n in range(3))
    text = text_of_ttml(
        '<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttm="http://www.w3.org/ns/ttml#metadata" '
        'xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:tickRate="10000000">'
        f"<head><metadata>{agents}</metadata></head><body><div>{paragraphs}</div></body></tt>".encode()
    )
    check(text, "Jane {n}")
