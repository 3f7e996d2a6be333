"""Texts of datapoints → their named vectors, where a name has an encoder and the datapoint has no vector of it.

Which text of which row that is, searched_text.py says, for builds and live updates alike. Equal texts of a unit are
encoded once.

Shapes: N rows of a unit, D dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.embed import Encoder
from scannery.embed.errors import InvalidTextError
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.named_vectors import with_missing_vectors
from scannery.indexer.datapoints.searched_text import named_texts
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import EXCERPT_CHARACTERS, DeadLetter
from scannery.pipelines.records.passages import Work
from scannery.pipelines.state.named_cache import EncodedTexts, NamedCatalogue

__all__ = ["NamedTexts", "embed_named"]


class NamedTexts(NamedTuple):
    """What became of the texts of a unit."""

    table: pa.Table
    """The rows with their named vectors, without those of refused records."""
    refused: list[DeadLetter]
    """Of records with a text that an encoder refuses."""
    texts: Sequence[EncodedTexts]
    """What is encoded, by name: texts of this build and of earlier ones."""
    embedded: Counter[str]
    """Texts that went through an encoder, by name of the vectors."""
    work: Work


def embed_named(
    table: pa.Table,
    spec: IndexSpec,
    encoders: Mapping[str, Encoder],
    catalogue: NamedCatalogue | None = None,
) -> NamedTexts:
    """Return the rows of a unit with the vectors of each name that has an encoder.

    Args:
        table: of `embeddings_schema`; a vector that a row has stays.
        spec: of the index.
        encoders: by name.
        catalogue: where vectors of earlier builds are, if there are any.

    """
    refused: dict[int, tuple[str, str]] = {}
    embedded, work = Counter[str](), Work()
    encoded: list[EncodedTexts] = []
    for name, encoder in encoders.items():
        given = named_texts(table, spec, name)
        rows_by_text = _rows_by_text(given)
        known = {} if catalogue is None else catalogue.find(name, encoder.fingerprint.digest, [*rows_by_text])
        new = [text for text in rows_by_text if text not in known]
        found, problems = _encoded(new, encoder, work)
        known |= found
        embedded[name] += len(new)
        places = {text: rows[0] for text, rows in rows_by_text.items() if text in known}
        encoded.append(EncodedTexts(name, encoder.fingerprint.digest, spec.text_field(name), places))
        table = with_missing_vectors(table, name, [known.get(text) if text else None for text in given])
        refused |= {
            row: (spec.text_field(name), why) for text, why in problems.items() for row in rows_by_text[text]
        }
    if refused:
        kept_N, letters = _refused(table, refused, spec)
        return NamedTexts(table.filter(pa.array(kept_N)), letters, _moved(encoded, kept_N), embedded, work)
    return NamedTexts(table, [], encoded, embedded, work)


def _rows_by_text(texts: Sequence[str | None]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, text in enumerate(texts):
        if text is not None:
            rows.setdefault(text, []).append(row)
    return rows


def _moved(encoded: Sequence[EncodedTexts], kept_N: np.ndarray) -> list[EncodedTexts]:
    """Return texts with their rows among those that are kept."""
    rows_N = np.cumsum(kept_N) - 1
    return [
        replace(own, rows={text: int(rows_N[row]) for text, row in own.rows.items() if kept_N[row]})
        for own in encoded
    ]


def _encoded(
    texts: Sequence[str], encoder: Encoder, work: Work
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the vectors of texts, float32 (D,), and why the encoder refuses the others."""
    vectors: dict[str, np.ndarray] = {}
    problems: dict[str, str] = {}
    done = 0
    for window in encoder.encode_windows(iter(texts)):
        work.times.encode(window)
        work.tokens += window.tokens
        work.padding_tokens += window.padding_tokens
        own = texts[done : done + len(window.vectors_ND)]
        for row, text in enumerate(own):
            if row in window.problems:
                problems[text] = InvalidTextError(window.problems[row], index=0).message
            else:
                vectors[text] = window.vectors_ND[row]
        done += len(own)
    return vectors, problems


def _refused(
    table: pa.Table, refused: Mapping[int, tuple[str, str]], spec: IndexSpec
) -> tuple[np.ndarray, list[DeadLetter]]:
    """Return which rows are of records none of whose texts was refused, bool (N,), and dead letters for the others."""
    rows = sorted(refused)
    records_N, mapping = table.column("_record").to_numpy(), FieldMapping.of(spec)
    columns = ["id", "document_id", "text", "_record", "_source", "_line", "_row"]
    letters: dict[int, DeadLetter] = {}
    for row, values in zip(rows, table.select(columns).take(pa.array(rows)).to_pylist(), strict=True):
        field, problem = refused[row]
        letters.setdefault(
            values["_record"],
            DeadLetter(
                reason="text",
                message=f"{mapping.name(field)}: {problem}",
                source=values["_source"],
                line=values["_line"],
                row=values["_row"],
                field=mapping.name(field),
                id=values["id"] if spec.source.chunk is None else values["document_id"],
                excerpt=(values["text"] or "")[:EXCERPT_CHARACTERS],
            ),
        )
    return ~np.isin(records_N, [*letters]), [*letters.values()]
