"""Cut files by row number, for Parquet, Avro and files of vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import blake2b

from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import Part
from scannery.pipelines.sources.streams import read_blocks

__all__ = ["content_tag", "file_digest", "row_ranges"]


def row_ranges(
    file: InputFile, format: str, rows: int, size: int, limit: int, digest: str, begin: int = 0
) -> Iterator[Part]:
    """Yield parts with equal numbers of rows, from row `begin` on.

    Args:
        file: to cut.
        format: of the parts.
        rows: number of rows.
        size: of all rows, in bytes.
        limit: about the size of a part, in bytes.
        digest: of the content, for every part.
        begin: first row, counted from 0.

    """
    # Not ranges of `limit` and a short last one: that would be a unit with full overhead and little work.
    count = max(1, min(rows, math.ceil(size / limit)))
    for i in range(count if rows else 0):
        start, end = begin + rows * i // count, begin + rows * (i + 1) // count
        yield Part(base=file.base, path=file.path, format=format, start=start, end=end, first=start + 1,
                   records=end - start, size_bytes=size // count, digest=digest)  # fmt: skip


def content_tag(file: InputFile) -> str:
    """Return an identifier of a file's content: the object store's tag, or a hash of all bytes."""
    return file.tag or file_digest(file.base, file.path)


def file_digest(base: str, path: str) -> str:
    """Return a hash of all bytes of a file."""
    digest = blake2b(digest_size=16)
    for block in read_blocks(base, path, ""):
        digest.update(block)
    return digest.hexdigest()
