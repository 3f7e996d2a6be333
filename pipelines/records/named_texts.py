"""Texts of datapoints → their named vectors, where a name has an encoder and the datapoint has no vector of it.

Where documents are cut into passages, a title or an attribute is encoded for the first passage only: it is the same for
all of them, and a search should find the document once.

Shapes: N rows of a unit, T distinct texts, D dimensions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.embed import Encoder
from scannery.embed.errors import InvalidTextError
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.named_vectors import vector_column, vectors_array
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import EXCERPT_CHARACTERS, DeadLetter
from scannery.pipelines.records.passages import Work
from scannery.pipelines.state.named_cache import EncodedTexts, NamedCatalogue, texts_of_name

__all__ = ["NamedTexts", "embed_named", "encoded_rows"]

_NUMBER = re.compile(r"#(\d+)")


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
        rows_N, texts = encoded_rows(table, name, spec)
        known = {} if catalogue is None else catalogue.find(name, encoder.fingerprint.digest, texts)
        new = [text for text in dict.fromkeys(texts) if text not in known]
        found, problems = _encoded(new, encoder, work)
        known |= found
        embedded[name] += len(new)
        places = {text: row for text, row in zip(texts, rows_N.tolist(), strict=True) if text in known}
        encoded.append(EncodedTexts(name, encoder.fingerprint.digest, spec.text_field(name), places))
        table = _with_vectors(table, name, rows_N, [known.get(text) for text in texts])
        refused |= {
            row: (spec.text_field(name), problems[text])
            for row, text in zip(rows_N.tolist(), texts, strict=True)
            if text in problems
        }
    if refused:
        kept_N, letters = _refused(table, refused, spec)
        return NamedTexts(table.filter(pa.array(kept_N)), letters, _moved(encoded, kept_N), embedded, work)
    return NamedTexts(table, [], encoded, embedded, work)


def _moved(encoded: Sequence[EncodedTexts], kept_N: np.ndarray) -> list[EncodedTexts]:
    """Return texts with their rows among those that are kept."""
    rows_N = np.cumsum(kept_N) - 1
    return [
        replace(own, rows={text: int(rows_N[row]) for text, row in own.rows.items() if kept_N[row]})
        for own in encoded
    ]


def encoded_rows(table: pa.Table, name: str, spec: IndexSpec) -> tuple[np.ndarray, list[str]]:
    """Return the rows that the encoder of a name has a text of, int64, and these texts.

    Rows with a given vector are left out, and so are the other passages of their documents.
    """
    texts = texts_of_name(table, spec.text_field(name))
    wanted_N = pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False).to_numpy()
    given_N = table.column(vector_column(name)).is_valid().to_numpy()
    if spec.source.chunk is not None:
        records_N = table.column("_record").to_numpy()
        given_N = np.isin(records_N, records_N[given_N])
        if spec.text_field(name) != "text":
            wanted_N = wanted_N & _first_passages(table, spec)
    rows_N = np.flatnonzero(wanted_N & ~given_N)
    return rows_N, texts.take(pa.array(rows_N)).to_pylist()


def _first_passages(table: pa.Table, spec: IndexSpec) -> np.ndarray:
    """Return which rows are the first passage of their document, bool (N,)."""
    if spec.source.format != "datapoints":
        first_N: np.ndarray = np.diff(table.column("_record").to_numpy(), prepend=-1) != 0
        return first_N
    # Each row of an export is a passage; the number is at the end of its id.
    ids, documents = (table.column(name).to_pylist() for name in ("id", "document_id"))
    return np.array([_number(id, document) == 0 for id, document in zip(ids, documents, strict=True)], bool)


def _number(id: str, document: str) -> int:
    found = _NUMBER.fullmatch(id.removeprefix(document)) if id.startswith(document) else None
    return int(found[1]) if found else 0


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


def _with_vectors(
    table: pa.Table, name: str, rows_N: np.ndarray, vectors: Sequence[np.ndarray | None]
) -> pa.Table:
    made: list[np.ndarray | None] = [None] * table.num_rows
    for row, vector in zip(rows_N.tolist(), vectors, strict=True):
        made[row] = vector
    place = table.schema.get_field_index(vector_column(name))
    column = table.column(place)
    fresh = vectors_array(made)
    whole = fresh if column.null_count == len(column) else pc.coalesce(column, fresh)
    return table.set_column(place, table.schema.field(place), whole)


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
