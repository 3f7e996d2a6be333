"""Transcripts in the JSON of speech recognition: where each tool has its segments or words, and in which fields.

Read are Whisper's (openai-whisper, faster-whisper, WhisperX, whisper.cpp, the pipelines of transformers, the API of
OpenAI), Amazon, Google and Azure, Deepgram, AssemblyAI, Rev, Gladia, Speechmatics, ElevenLabs, Vosk, the captions of
YouTube, and podcasts (Podcasting 2.0, Podlove).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from scannery.pipelines.sources.transcripts.segments import Segment, of_words, seconds_in

__all__ = ["may_be_transcript", "segments_of"]

_HINT = re.compile(
    rb'"(?:start|startTime|start_time|startOffset|start_ms|timestamp|timestamps|tStartMs|ts|time_begin|offset\w{0,20})"\s{0,9}:'
)
_SEGMENTS = (
    "speakers", "utterances", "results.utterances", "result.transcription.utterances", "transcription.utterances",
    "results.audio_segments", "segments", "transcription", "chunks", "phrases", "recognizedPhrases", "transcripts",
    "transcript", "prediction", "results.channels.0.alternatives.0.paragraphs.paragraphs", "sentences", "",
)  # fmt: skip
"""Paths to lists of segments; those with speakers first. The empty path is the file itself."""
_WORDS = ("words", "result", "results.items", "results", "results.channels.0.alternatives.0.words")
"""Paths to lists of words."""

_TEXT = (
    "text",
    "body",
    "transcript",
    "transcription",
    "display",
    "punctuated_word",
    "word",
    "content",
    "value",
    "sentence",
)
_START = {"start": 1.0, "startTime": 1.0, "start_time": 1.0, "startOffset": 1.0, "time_begin": 1.0, "begin": 1.0,
          "ts": 1.0, "start_ms": 0.001, "tStartMs": 0.001, "offsetMilliseconds": 0.001,
          "offsetInTicks": 1e-7, "offset": 1.0}  # fmt: skip
_END = {
    "end": 1.0,
    "endTime": 1.0,
    "end_time": 1.0,
    "endOffset": 1.0,
    "time_end": 1.0,
    "end_ts": 1.0,
    "end_ms": 0.001,
}
_DURATION = {"duration": 1.0, "dDurationMs": 0.001, "durationMilliseconds": 0.001, "durationInTicks": 1e-7}
_PAIRS = {"timestamp": 1.0, "offsets": 0.001, "timestamps": 1.0}
_SPEAKER = ("speaker", "speaker_label", "speaker_id", "speakerTag", "speakerLabel", "voice")
_LEAST_SHARE = 0.8
"""Share of the elements of a list that must be segments."""


def may_be_transcript(data: bytes) -> bool:
    """Return whether a file of JSON has a field of times: others need not be parsed."""
    return _HINT.search(data) is not None


def segments_of(document: Any) -> list[Segment] | None:
    """Return the segments of a transcript in one of the known layouts; None if it has none."""
    for layout in (_monologues, _captions, _google, _whole, _words):
        if segments := layout(document):
            return segments
    return None


def _whole(document: Any) -> list[Segment]:
    """Return the segments of the first list of objects with a text and times."""
    for path in _SEGMENTS:
        elements = _at(document, path)
        if path == "" and any(isinstance(element, Mapping) and "id" in element for element in elements):
            continue  # records
        scale = _scale(path, elements)
        segments = [segment for element in elements if (segment := _segment(element, scale)) is not None]
        if segments and len(segments) >= _LEAST_SHARE * len(elements):
            return segments
    return []


def _words(document: Any) -> list[Segment]:
    """Return the segments of lists of words: one list, or a list of results with one each (Vosk)."""
    if isinstance(document, list):
        return [segment for item in document if isinstance(item, Mapping) for segment in _words(item)]
    for path in _WORDS:
        elements = _at(document, path)
        words = list(_word_segments(elements, _scale(path, elements)))
        if words and len(words) >= _LEAST_SHARE * len(elements):
            return of_words(words)
    return []


def _word_segments(elements: Sequence[Any], scale: float) -> Iterator[Segment]:
    """Yield words with the space in front of them; punctuation has none, and the time of the word before."""
    at_s, is_spaced = (
        0.0,
        any(isinstance(element, Mapping) and element.get("type") == "spacing" for element in elements),
    )
    for element in elements:
        if not isinstance(element, Mapping):
            return
        best = next(iter(_at(element, "alternatives")), element)
        text = _text(best) or _text(element)
        if text is None:
            return
        speaker = _speaker(element) or (_speaker(best) if isinstance(best, Mapping) else None)
        start_s = _time(element, _START, scale)
        end_s = _time(element, _END, scale)
        is_mark = (
            element.get("type") in ("punctuation", "punct", "spacing")
            or element.get("is_punctuation") is True
        )
        if start_s is None and not is_mark:
            return
        at_s = at_s if is_mark or start_s is None else start_s
        # Words of Whisper have the space themselves.
        gap = "" if is_mark or is_spaced or text.startswith(" ") else " "
        yield Segment(at_s, at_s if is_mark or end_s is None else end_s, gap + text, speaker)


def _monologues(document: Any) -> list[Segment]:
    """Return the segments of Rev's layout: turns of elements that have the spaces between them."""
    names = {
        element.get("id"): element.get("name")
        for element in _at(document, "speakers")
        if isinstance(element, Mapping)
    }
    segments = []
    for turn in _at(document, "monologues"):
        if not isinstance(turn, Mapping):
            return []
        speaker = names.get(turn.get("speaker")) or _speaker(turn)
        elements = [
            {**element, "type": "spacing" if element.get("type") == "punct" else "text"}
            for element in _at(turn, "elements")
            if isinstance(element, Mapping)
        ]
        words = _word_segments([*elements, {"type": "spacing", "value": ""}], 1.0)
        segments += of_words(word._replace(speaker=speaker) for word in words)
    return segments


def _captions(document: Any) -> list[Segment]:
    """Return the segments of YouTube's layout: events of pieces of text; some only break a line."""
    segments = []
    for event in _at(document, "events"):
        start_s = _time(event, _START) if isinstance(event, Mapping) else None
        pieces = [piece.get("utf8") for piece in _at(event, "segs") if isinstance(piece, Mapping)]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        if start_s is not None and text.strip():
            segments.append(Segment(start_s, start_s + (_time(event, _DURATION) or 0.0), text))
    # An event is shown until after the next one has begun.
    ends = [*(segment.start_s for segment in segments[1:]), float("inf")]
    return [
        segment._replace(end_s=min(segment.end_s, end_s))
        for segment, end_s in zip(segments, ends, strict=False)
    ]


def _google(document: Any) -> list[Segment]:
    """Return the segments of Google's layout: results with alternatives, whose words have times."""
    results = _at(document, "results") or _at(document, "response.results")
    firsts = (next(iter(_at(result, "alternatives")), None) for result in results)
    bests: list[Mapping[str, Any]] = [
        best for best in firsts if isinstance(best, Mapping) and "transcript" in best
    ]
    tagged = [
        word for best in bests for word in _at(best, "words") if _speaker(word) not in (None, "Speaker 0")
    ]
    if tagged:  # all words once more, in the last result
        return of_words(_word_segments(tagged, 1.0))
    segments, end_s = [], 0.0
    for result, best in zip(results, bests, strict=False) if len(results) == len(bests) else ():
        words = list(_word_segments(_at(best, "words"), 1.0))
        start_s, end_s = end_s, _time(result, {"resultEndTime": 1.0, "resultEndOffset": 1.0}) or end_s
        if words:
            start_s, end_s = words[0].start_s, words[-1].end_s
        segments.append(Segment(start_s, end_s, str(best["transcript"])))
    return segments if any(segment.end_s for segment in segments) else []


def _segment(element: Any, scale: float) -> Segment | None:
    if not isinstance(element, Mapping):
        return None
    text = _text(element) or _text(next(iter(_at(element, "nBest")), None))
    if text is None:
        text = " ".join(filter(None, map(_text, _at(element, "sentences")))) or None
    start_s, end_s = _pair(element)
    start_s = _time(element, _START, scale) if start_s is None else start_s
    if text is None or start_s is None:
        return None
    end_s = _time(element, _END, scale) if end_s is None else end_s
    if end_s is None:
        end_s = start_s + (_time(element, _DURATION, scale) or 0.0)
    return Segment(start_s, end_s, text, _speaker(element))


def _pair(element: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return begin and end where one field has both: `[0.0, 1.5]` or `{"from": 0, "to": 1500}`."""
    for name, unit in _PAIRS.items():
        value = element.get(name)
        pair = [value.get("from"), value.get("to")] if isinstance(value, Mapping) else value
        if isinstance(pair, list) and len(pair) == 2 and (start_s := seconds_in(pair[0])) is not None:
            end_s = seconds_in(pair[1])
            return start_s * unit, None if end_s is None else end_s * unit
    return None, None


def _time(element: Mapping[str, Any], names: Mapping[str, float], scale: float = 1.0) -> float | None:
    for name, unit in names.items():
        if (time_s := seconds_in(element.get(name))) is not None:
            is_number = isinstance(element[name], (int, float))
            return time_s * unit * (scale if is_number and unit == 1.0 else 1.0)
    return None


def _scale(path: str, elements: Sequence[Any]) -> float:
    """Return the unit of times without one in their names: AssemblyAI counts milliseconds, in whole numbers."""
    if path not in ("utterances", "words", "sentences"):
        return 1.0
    times = [
        element.get(name) for element in elements if isinstance(element, Mapping) for name in ("start", "end")
    ]
    is_whole = bool(times) and all(isinstance(time, int) for time in times)
    return 0.001 if is_whole and all("confidence" in element for element in elements) else 1.0


def _text(element: Any) -> str | None:
    if not isinstance(element, Mapping):
        return None
    return next((element[name] for name in _TEXT if isinstance(element.get(name), str)), None)


def _speaker(element: Any) -> str | None:
    if not isinstance(element, Mapping):
        return None
    value = next((element[name] for name in _SPEAKER if element.get(name) not in (None, "")), None)
    if isinstance(value, Mapping):
        value = value.get("name") or value.get("id")
    if value is None:
        return None
    text = str(value).strip()
    return f"Speaker {text}" if text.isdigit() or (len(text) == 1 and text.isalpha()) else text


def _at(document: Any, path: str) -> list[Any]:
    """Return the list at a path, whose numbers are places in lists; an empty one if there is none."""
    value = document
    for name in path.split(".") if path else ():
        if name.isdigit() and isinstance(value, list):
            value = value[int(name)] if int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, list) else []
