"""Text and Markdown files: one file is one record of `id`, `path`, `name`, `folder` and `text`.

A file that is not UTF-8 is read by its byte order mark, or in the encoding that its letters show, with a note.

Markdown also has the fields of its front matter, and a `title`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from hashlib import blake2b

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.documents import document_record, has_bad_front_matter, markdown_fields
from scannery.pipelines.sources.encodings import decoded_text
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Fields, Part, Record
from scannery.pipelines.sources.streams import read_blocks, read_whole

__all__ = ["read", "split"]

_ENCODED = frozenset({"text", "markdown", "html"})
"""Formats that do not say how their characters are written, or may say it wrongly."""
BAD_FRONT_MATTER = "front matter that is not valid YAML or TOML"


def split(file: InputFile, format: str, compression: str) -> Iterator[Part]:
    """Yield the file as one part."""
    digest, size = blake2b(digest_size=16), 0
    try:
        for block in read_blocks(file.base, file.path, compression):
            digest.update(block)
            size += len(block)
    except DamagedError:
        digest.update(b"damaged")
    yield Part(base=file.base, path=file.path, format=format, compression=compression, size_bytes=size,
               digest=digest.hexdigest(), dialect=file.encoding if format in _ENCODED else "")  # fmt: skip


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the file as one record; `id` and `path` are its path below the input's folder."""
    try:
        data = read_whole(part)
    except DamagedError as error:
        # A search result does not show that its text was cut off, so none of the text is indexed.
        yield DeadLetter(reason="damaged_file", source=part.source, message=str(error), id=part.path)
        return
    try:
        if len(data) > MAX_RECORD_BYTES:
            yield _reject(part, "too_large", f"the text is longer than {MAX_RECORD_BYTES} bytes", data)
            return
        text, note = decoded_text(data, part.dialect)
    except UnicodeDecodeError as error:
        shown = part.dialect or "UTF-8"
        yield _reject(part, "encoding", f"not {shown}: {error.reason} at byte {error.start}", data)
        return
    notes = (f"file: {note}",) if note else ()
    if part.format != "markdown":
        yield dataclasses.replace(document_record(part, {"text": text}), notes=notes)
        return
    ignored = (BAD_FRONT_MATTER,) if has_bad_front_matter(text) else ()
    yield dataclasses.replace(document_record(part, markdown_fields(text)), ignored=ignored, notes=notes)


def _reject(part: Part, reason: str, message: str, data: bytes) -> DeadLetter:
    return DeadLetter(
        reason=reason, source=part.source, message=message, id=part.path, excerpt=excerpt_of(data)
    )
