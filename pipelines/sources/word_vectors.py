"""Vectors of words as text (`.vec` of word2vec and fastText): a word and its numbers on each line.

The first line may have the numbers of words and of dimensions instead. A record has `word`, and the fields that the
spec names for id and vector.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources import lines
from scannery.pipelines.sources.locations import InputFile
from scannery.pipelines.sources.parts import Fields, Part, Record

__all__ = ["read", "split"]

FORMAT = "vec"


def split(file: InputFile, compression: str, limit: int) -> Iterator[Part]:
    """Yield parts of about `limit` bytes each, cut after a newline."""
    for part in lines.split(file, compression, limit):
        yield dataclasses.replace(part, format=FORMAT)


def read(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the words of a part in order; a line without numbers is a dead letter."""

    def record(line: bytes, source: str, number: int) -> Record | DeadLetter:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n \t")
        except UnicodeDecodeError as error:
            message = f"not UTF-8: {error.reason} at byte {error.start} of the line"
            return DeadLetter(
                reason="encoding", source=source, line=number, message=message, excerpt=excerpt_of(line)
            )
        word, *numbers = text.split(" ")
        if number == 1 and len(numbers) == 1 and word.isdecimal():
            return Record({}, source, line=number)
        vector = _vector(numbers)
        if vector is None:
            message = "must be a word and its numbers, with spaces between them"
            return DeadLetter(
                reason="malformed", source=source, line=number, message=message, excerpt=excerpt_of(line)
            )
        record = {"word": word, fields.id: word}
        return Record(
            record if fields.vector is None else {**record, fields.vector: vector}, source, line=number
        )

    for item in lines.read_lines(part, record):
        if not isinstance(item, Record) or item.fields:
            yield item


def _vector(numbers: list[str]) -> np.ndarray | None:
    try:
        return np.array([float(number) for number in numbers], np.float32) if numbers else None
    except ValueError:
        return None
