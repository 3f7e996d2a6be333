"""Transcripts that are no text: the JSON of speech recognition, and TTML; a file is a record, as WebVTT."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from scannery.indexer.datapoints.field_mapping import FieldExpression
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources.documents import FILE_FIELDS, document_record
from scannery.pipelines.sources.documents.document import DocumentError
from scannery.pipelines.sources.encodings import decoded_text
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import read_blocks, read_whole
from scannery.pipelines.sources.transcripts.json_layouts import may_be_transcript, segments_of
from scannery.pipelines.sources.transcripts.segments import as_webvtt, segments_of_ttml

__all__ = ["FORMATS", "MAX_TRANSCRIPT_BYTES", "is_transcript", "read", "text_of_json", "text_of_ttml"]

FORMATS = frozenset({"transcript", "ttml"})
MAX_TRANSCRIPT_BYTES = 64 * 2**20
"""A larger file is no transcript: the words of a day with their times take 20 MB."""
HEAD_BYTES = 2 << 20
"""A file without times in its first bytes is no transcript, and is not read further."""


def is_transcript(file: InputFile, compression: str) -> bool:
    """Return whether a file of JSON is a transcript, and no file of records."""
    if file.size_bytes > MAX_TRANSCRIPT_BYTES:
        return False
    blocks, size = list[bytes](), 0
    try:
        for block in read_blocks(file.base, file.path, compression):
            blocks.append(block)
            size += len(block)
            if size > MAX_TRANSCRIPT_BYTES:
                return False
            if size - len(block) < HEAD_BYTES <= size and not may_be_transcript(b"".join(blocks)):
                return False
        data = b"".join(blocks)
        if not may_be_transcript(data):
            return False
        document = json.loads(decoded_text(data)[0])
        return not (file.fields and _has_records(document, file.fields)) and bool(segments_of(document))
    except (DamagedError, OSError, ValueError, RecursionError):
        return False


def _has_records(document: Any, fields: Fields) -> bool:
    """Return whether JSON has records of a spec: objects with its id and, if there is one alone, more than a text."""
    ids = FieldExpression(fields.id).names
    if isinstance(document, list):
        return fields.generated_id is not None or any(
            isinstance(item, Mapping) and not ids.isdisjoint(item) for item in document
        )
    if not isinstance(document, Mapping) or ids.isdisjoint(document):
        return False
    return any(fields.reads(name) for name in document if name not in (*FILE_FIELDS, "text"))


def read(part: Part) -> Iterator[Record | DeadLetter]:
    """Yield the file as one record: `id`, `path`, `name`, `folder` and `text`."""
    try:
        text_of = text_of_ttml if part.format == "ttml" else text_of_json
        yield document_record(part, {"text": text_of(read_whole(part))})
    except DamagedError as error:
        yield DeadLetter(reason="damaged_file", source=part.source, message=str(error), id=part.path)
    except DocumentError as error:
        yield DeadLetter(reason=error.reason, source=part.source, message=str(error), id=part.path)


def text_of_json(data: bytes) -> str:
    """Return a transcript in JSON as WebVTT.

    Raises:
        DocumentError: it has none of the known layouts.

    """
    try:
        segments = segments_of(json.loads(decoded_text(data)[0]))
    except (ValueError, RecursionError) as error:
        raise DocumentError("malformed", f"not a transcript: {error!r:.100}") from error
    if segments is None:
        raise DocumentError("malformed", "not a transcript: no list of texts with times")
    return as_webvtt(segments)


def text_of_ttml(data: bytes) -> str:
    """Return a transcript in TTML as WebVTT.

    Raises:
        DocumentError: it is no XML.

    """
    return as_webvtt(segments_of_ttml(data))
