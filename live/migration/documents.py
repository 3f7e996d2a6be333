"""Documents put together again from their passages, so that their texts can be cut anew.

Shapes: P passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import pyarrow as pa

from scannery.embed.text.markdown import SEPARATOR
from scannery.indexer import IndexSpec, written_schema
from scannery.indexer.datapoints.named_vectors import is_vector_column
from scannery.indexer.datapoints.passages import PASSAGE_ATTRIBUTES
from scannery.indexer.datapoints.schema import SPOKEN_COLUMN
from scannery.live.migration.errors import MigrationError

__all__ = ["documents_of"]

_OF_PASSAGES = frozenset({
    "time_start_s", "time_end_s", *PASSAGE_ATTRIBUTES,
})  # fmt: skip
"""Columns in which passages have values of their own: what differs among them is not the document's."""


def documents_of(rows: pa.Table, spec: IndexSpec) -> pa.Table:
    """Return whole documents as rows without unnamed vectors, as `prepare` takes them, in the order of their ids.

    The text of a document is that of its passages at their places, with spaces where no passage has text, and marks of
    time before passages that have one. Attributes and payload are those of its first passage.

    Args:
        rows: all passages of the documents, in any order; the columns of `written_schema`.
        spec: of the index that they are of.

    Raises:
        MigrationError: a datapoint is of a document that was not cut from one text.

    """
    schema = written_schema(spec, 1).remove(written_schema(spec, 1).get_field_index("embedding"))
    schema = schema.remove(schema.get_field_index(SPOKEN_COLUMN))
    columns = {name: rows.column(name).to_pylist() for name in schema.names if not is_vector_column(name)}
    documents: dict[str, list[int]] = {}
    for row, document in enumerate(columns["document_id"]):
        documents.setdefault(document, []).append(row)
    made: dict[str, list[Any]] = {name: [] for name in columns}
    firsts = []
    for document in sorted(documents):
        passages = sorted(documents[document], key=lambda row: columns["text_start"][row] or 0)
        if len(passages) > 1 and spec.source.chunk is None:
            raise MigrationError(
                f"document {document!r:.200} has several datapoints that were not cut from one text: texts of such an "
                "index cannot be cut anew",
                field="chunk",
            )
        firsts.append(passages[0])
        for name, values in columns.items():
            made[name].append(_value(name, [values[row] for row in passages]))
        made["id"][-1] = columns["id"][passages[0]] if spec.source.chunk is None else document
        made["document_id"][-1] = made["id"][-1]
        made["text"][-1] = _text(
            *([columns[name][row] for row in passages] for name in ("text", "text_start", "time_start_s"))
        )
    for name in ("text_start", "text_end"):
        made[name] = [None] * len(firsts)
    taken = rows.take(pa.array(firsts, pa.int64()))
    arrays = [
        taken.column(field.name) if is_vector_column(field.name) else pa.array(made[field.name], field.type)
        for field in schema
    ]
    return pa.table(arrays, schema=schema)


def _value(name: str, values: Sequence[Any]) -> Any:
    """Return the value of a document in a column, of those of its passages."""
    if name == "title":
        return _title(values)
    if name in _OF_PASSAGES and any(value != values[0] for value in values):
        return None
    return values[0]


def _title(titles: Sequence[str | None]) -> str | None:
    """Return the title of a document: what those of its passages begin with, which have the headings of sections."""
    parts = zip(*((title or "").split(SEPARATOR) for title in titles), strict=False)
    common = takewhile(lambda same: len({*same}) == 1, parts)
    return SEPARATOR.join(same[0] for same in common) or titles[0]


def _text(
    texts: Sequence[str | None], starts: Sequence[int | None], times_s: Sequence[float | None]
) -> str | None:
    """Return the text of a document, of its passages in order."""
    if len(texts) == 1:
        return texts[0] if not starts[0] else " " * starts[0] + (texts[0] or "")
    has_marks = len({*times_s}) > 1  # otherwise the time is the document's
    whole: list[str] = []
    end = 0
    for text, start, time_s in zip(texts, starts, times_s, strict=True):
        if not text:
            continue
        if start is None:
            whole.append(f"\n\n{text}" if whole else text)
            continue
        gap = start - end
        mark = _mark(time_s, gap - bool(whole)) if has_marks else ""
        # Space between passages is mostly the end of a paragraph.
        whole.append(" " if gap == 1 else "\n" * max(0, gap - len(mark)) + mark)
        whole.append(text[max(0, -gap) :])
        end = max(end, start + len(text))
    return "".join(whole) or None


def _mark(time_s: float | None, room: int) -> str:
    """Return the mark of a time that begins a line of a transcript, which no passage has; "" if it has no room."""
    if time_s is None:
        return ""
    minutes, seconds = divmod(int(time_s), 60)
    whole = f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    exact = f"{whole}.{int(time_s * 1000) % 1000:03}" if time_s % 1 else whole
    marks = [f"[{clock}] " for clock in (exact, whole, f"{minutes:02}:{seconds:02}")]
    return next((mark for mark in marks if len(mark) <= room), "")
