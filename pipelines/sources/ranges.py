"""Files cut by row number: what Parquet, Avro and files of vectors share."""

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
    """Yield parts of equal length, about `limit` of the `size` bytes each, for `rows` rows from `begin` on."""
    # A short last range would be a unit with all the overhead and little work.
    count = max(1, min(rows, math.ceil(size / limit)))
    for i in range(count if rows else 0):
        start, end = begin + rows * i // count, begin + rows * (i + 1) // count
        yield Part(base=file.base, path=file.path, format=format, start=start, end=end, first=start + 1,
                   records=end - start, size_bytes=size // count, digest=digest)  # fmt: skip


def content_tag(file: InputFile) -> str:
    """Return what identifies the content of a file: the object store's tag, or a hash of all bytes."""
    return file.tag or file_digest(file.base, file.path)


def file_digest(base: str, path: str) -> str:
    """Return a hash of all bytes of a file."""
    digest = blake2b(digest_size=16)
    for block in read_blocks(base, path, ""):
        digest.update(block)
    return digest.hexdigest()
