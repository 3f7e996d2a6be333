"""Dead letters: a record of every input record that did not become a datapoint, with the reason.

They are JSON lines, one per record or file. `source` and `line` (JSONL, CSV) or `row` (Parquet, Avro) give its
position, both counted from 1; `excerpt` is the start of the record as it was read.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = ["EXCERPT_CHARACTERS", "REASONS", "DeadLetter", "count_categories", "count_reasons", "excerpt_of",
           "first_of_each_reason", "json_lines"]  # fmt: skip

REASONS: Mapping[str, str] = MappingProxyType({
    "unreadable_file": "the file cannot be opened: permission, or removed since it was listed",
    "damaged_file": "the file is damaged or cut off; records before the damage are kept, the rest is lost",
    "malformed": "it cannot be parsed: not a JSON object, a row that does not fit the header, an array without rows",
    "encrypted": "the document needs a password, or is protected (DRM)",
    "no_text": "the document has no text: it is empty, or scanned",
    "too_slow": "the document takes too long to read",
    "encoding": "the record is not valid UTF-8",
    "too_large": "the record is larger than 64 MiB, or the document than its reader takes",
    "missing_id": "the id field is absent or null",
    "id": "the id is not a string or integer of 1 to 512 bytes without control characters",
    "duplicate_id": "an earlier record of the same build has this id",
    "deleted_id": "a file in `delete/` names the id too (managed layout)",
    "missing_text": "the text field is absent, null or blank, and the record has no vector. A blank text beside a "
    "vector is kept as it is; one that would be embedded, where vectors are optional, is no text",
    "text": "the text or title is not a string, or the encoder refuses it",
    "missing_vector": "the vector field is absent or null",
    "vector": "the vector is not a flat list of numbers",
    "vector_size": "the vector has another number of dimensions than the index",
    "vector_value": "the vector has NaN, infinite or huge values, or is all zeros under cosine",
    "sparse_vector": "its sparse vector is malformed, or the spec takes none (managed layout)",
    "deny": "the record denies tokens of a namespace, and the spec has no attribute for them (managed layout)",
    "attribute": "an attribute does not fit its type in the spec",
    "payload": "the payload is not JSON (a CSV cell), or holds NaN or infinity",
})  # fmt: skip
"""All reasons, each with its meaning."""

EXCERPT_CHARACTERS = 400
SUMMARY_CHARACTERS = 300


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """One record, or one file, that did not become a datapoint."""

    reason: str
    """A key of `REASONS`."""

    message: str
    """The problem, as one sentence."""

    source: str
    """URI or path of the input file."""

    line: int | None = None
    """Line of the record, from 1; None in formats with rows."""

    row: int | None = None
    """Row of the record, from 1; None in formats with lines."""

    field: str | None = None
    """The wrong input field; None if the whole record is wrong."""

    id: str | None = None
    """Id of the record, if it could be read."""

    excerpt: str = ""
    """Start of the record, at most 400 characters."""

    category: str | None = None
    """The managed service's name for the error; None for other layouts and for errors without such a name."""

    def __post_init__(self) -> None:
        if self.reason not in REASONS:
            raise ValueError(f"reason must be one of {sorted(REASONS)}, got {self.reason!r}")

    def to_json(self) -> str:
        """Return one line of JSON, without the newline; fields that are None are left out."""
        fields = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        # ASCII, because an excerpt of a broken record may hold lone surrogates, which UTF-8 cannot.
        return json.dumps(fields)

    def summary(self) -> str:
        """Return file, position and problem on one line of at most 300 characters."""
        location = (
            f", line {self.line}"
            if self.line is not None
            else f", row {self.row}"
            if self.row is not None
            else ""
        )
        what = " ".join(f"{self.source}{location}: {self.message}".split())
        return what if len(what) <= SUMMARY_CHARACTERS else what[: SUMMARY_CHARACTERS - 1] + "…"

    @classmethod
    def from_json(cls, line: str) -> DeadLetter:
        """Return the dead letter that `to_json` wrote."""
        return cls(**json.loads(line))


def json_lines(letters: Iterable[DeadLetter]) -> bytes:
    """Return dead letters as the content of a file."""
    return "".join(f"{letter.to_json()}\n" for letter in letters).encode()


def first_of_each_reason(lines: bytes) -> dict[str, str]:
    """Return the summary of the first dead letter of each reason in the content of a file."""
    examples: dict[str, str] = {}
    for line in lines.splitlines():
        letter = DeadLetter.from_json(line.decode())
        if letter.reason not in examples:
            examples[letter.reason] = letter.summary()
    return examples


def excerpt_of(record: object) -> str:
    """Return the start of a record as text: at most 400 characters, for any type of record."""
    if isinstance(record, bytes):
        # A character is at most four bytes, so this never cuts less than the excerpt needs.
        text = record[: 4 * EXCERPT_CHARACTERS].decode("utf-8", "backslashreplace")
    elif isinstance(record, str):
        text = record
    else:
        text = json.dumps(record, default=_shortened, ensure_ascii=False)
    return text if len(text) <= EXCERPT_CHARACTERS else text[: EXCERPT_CHARACTERS - 1] + "…"


def count_reasons(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """Return the number of dead letters by reason; reasons without any are left out."""
    counts: dict[str, int] = {}
    for letter in letters:
        counts[letter.reason] = counts.get(letter.reason, 0) + 1
    return counts


def count_categories(letters: Iterable[DeadLetter]) -> dict[str, int]:
    """Return the number of dead letters by the managed service's category; those without a category are left out."""
    return dict(Counter(letter.category for letter in letters if letter.category is not None))


def _shortened(value: Any) -> str:
    return repr(value)[:EXCERPT_CHARACTERS]
