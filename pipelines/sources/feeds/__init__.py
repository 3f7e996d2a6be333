"""Feeds: RSS and Atom files, an episode or entry a record, with the transcripts that they name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Any

from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.documents.document import DocumentError
from scannery.pipelines.sources.feeds.feed_records import Entry, entries_of, is_feed
from scannery.pipelines.sources.feeds.transcripts import local_path, transcript_of
from scannery.pipelines.sources.locations import InputFile, leaves_folder, open_bytes
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Part, Record
from scannery.pipelines.sources.streams import read_whole

__all__ = ["begins_as_feed", "read", "split", "transcripts_beside"]

SNIFFED_BYTES = 4096


def begins_as_feed(file: InputFile) -> bool:
    """Return whether an XML file is a feed; a file that cannot be opened counts as one, and is refused later."""
    try:
        with open_bytes(file.base, file.path) as opened:
            return is_feed(bytes(opened.read(SNIFFED_BYTES)))
    except OSError:
        return True


def split(file: InputFile, compression: str, limit: int) -> Iterator[Part]:
    """Yield the entries as parts of about `limit` bytes; each is known by the content of its records.

    So a part is read again when an entry or a transcript changes, or when a transcript can be fetched at last.
    """
    part = Part(base=file.base, path=file.path, format="feed", compression=compression, fetch=file.fetch)
    try:
        entries, problem = _entries(part)
    except (DocumentError, DamagedError) as error:
        yield replace(part, digest=_digest(f"{error}"))
        return
    if not entries or problem:
        yield replace(part, digest=_digest(f"{problem}"), start=len(entries), records=0)
    start, size, digest, companions = 0, 0, blake2b(digest_size=16), dict[str, None]()
    for number, entry in enumerate(entries, 1):
        fields, problems = _fields(part, entry)
        data = json.dumps([fields, problems], sort_keys=True).encode()
        digest.update(data)
        size += len(data)
        companions |= dict.fromkeys(_local(part, entry))
        if size >= limit or number == len(entries):
            yield replace(
                part, start=start, end=number, first=start + 1, records=number - start, size_bytes=size,
                digest=digest.hexdigest(), companions=tuple(companions),
            )  # fmt: skip
            start, size, digest, companions = number, 0, blake2b(digest_size=16), {}


def read(part: Part) -> Iterator[Record | DeadLetter]:
    """Yield the entries of a part as records.

    `text` is the transcript of an episode where there is one, else its description.
    """
    try:
        entries, problem = _entries(part)
        for number, entry in enumerate(entries[part.start : part.end], part.start + 1):
            fields, problems = _fields(part, entry)
            yield Record(fields, part.source, row=number, ignored=problems)
        if part.end is None and problem is not None:
            yield DeadLetter(reason="damaged_file", source=part.source, message=problem)
    except DamagedError as error:
        yield DeadLetter(reason="damaged_file", source=part.source, message=str(error))
    except DocumentError as error:
        yield DeadLetter(reason=error.reason, source=part.source, message=str(error))


def transcripts_beside(file: InputFile, compression: str) -> set[str]:
    """Return the paths of the files below the input's folder that the entries of a feed name as transcripts."""
    try:
        entries, _ = _entries(Part(base=file.base, path=file.path, format="feed", compression=compression))
    except (DocumentError, DamagedError, OSError):
        return set()
    paths = (local_path(transcript.url, file.path) for entry in entries for transcript in entry.transcripts)
    return {path for path in paths if path is not None}


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def _entries(part: Part) -> tuple[list[Entry], str | None]:
    data = read_whole(part)
    if len(data) > MAX_RECORD_BYTES:
        raise DocumentError("too_large", f"the feed is larger than {MAX_RECORD_BYTES} bytes")
    return entries_of(data, part.path)


def _fields(part: Part, entry: Entry) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the fields of an entry, and what of it could not be read, such as a transcript that it names."""
    if not entry.transcripts:
        return entry.fields, entry.problems
    transcript = transcript_of(entry.transcripts, part.base, part.path, part.fetch)
    if transcript.text is None or not transcript.text.strip():
        return entry.fields, (*entry.problems, transcript.problem or "transcript: empty")
    return {**entry.fields, "text": transcript.text}, entry.problems


def _local(part: Part, entry: Entry) -> Iterator[str]:
    """Yield the local transcripts that exist: a change of one is a change of the part."""
    for transcript in entry.transcripts:
        path = local_path(transcript.url, part.path)
        if path is not None and not leaves_folder(part.base, path):
            try:
                open_bytes(part.base, path).close()
            except OSError:
                continue
            yield path
