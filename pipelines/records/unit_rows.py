"""What a unit holds as a table: records with vectors, by columns where the source has columns, or embedded texts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.embed import Encoder
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.records.columnar import good_rows
from scannery.pipelines.records.documents import Document, to_document
from scannery.pipelines.records.embeddings_files import embeddings_schema, table_of
from scannery.pipelines.records.passages import Work, embed_documents, with_own_vector
from scannery.pipelines.sources import Batch, Record, one_by_one
from scannery.pipelines.sources.managed_records import with_category
from scannery.pipelines.state.embedding_cache import Catalogue

__all__ = ["Item", "UnitRows", "embedded_rows", "own_rows"]

Item = Batch | Record | DeadLetter


class UnitRows(NamedTuple):
    """What became of the records of a unit."""

    table: pa.Table
    """Of `embeddings_schema`, in input order."""

    documents: int
    letters: list[DeadLetter]
    ignored: Counter[str]
    """How many records have what under names that the spec leaves out."""

    work: Work
    read_s: float
    """Time until all records were validated."""


def own_rows(items: Iterable[Item], spec: IndexSpec, dimensions: int) -> UnitRows:
    """Return the rows of records that bring their vectors: one each."""
    started = time.perf_counter()
    found: list[_Found] = []
    for in_columns, run in itertools.groupby(items, lambda item: isinstance(item, Batch)):
        if in_columns:
            found += [_by_columns(batch, spec, dimensions) for batch in run if isinstance(batch, Batch)]
        else:
            found.append(_by_records(run, spec, dimensions))
    empty = embeddings_schema(spec, dimensions).empty_table()
    table = pa.concat_tables([empty, *(one.table for one in found)])
    place = table.schema.get_field_index("_record")
    table = table.set_column(place, table.schema.field(place), pa.array(np.arange(table.num_rows)))
    letters = [letter for one in found for letter in one.letters]
    ignored = sum((one.ignored for one in found), Counter[str]())
    return UnitRows(table, len(table), letters, ignored, Work(), time.perf_counter() - started)


def embedded_rows(
    items: Iterable[Item], spec: IndexSpec, dimensions: int, encoder: Encoder, catalogue: Catalogue | None
) -> UnitRows:
    """Return the rows of records whose texts are embedded: one for each passage."""
    started = time.perf_counter()
    documents, letters, ignored = _documents(items, spec, dimensions)
    read_s = time.perf_counter() - started
    embedded, refused, work = embed_documents(documents, spec, encoder, catalogue)
    table = table_of(embedded, spec, dimensions)
    return UnitRows(table, len(embedded), letters + refused, ignored, work, read_s)


class _Found(NamedTuple):
    table: pa.Table
    letters: list[DeadLetter]
    ignored: Counter[str]


def _by_columns(batch: Batch, spec: IndexSpec, dimensions: int) -> _Found:
    table, others_N = good_rows(batch, spec, dimensions)
    if not len(others_N):
        return _Found(table, [], Counter())
    rest = _by_records(batch.records(others_N.tolist()), spec, dimensions)
    table = pa.concat_tables([table, rest.table])
    return rest._replace(table=table.take(pa.array(np.argsort(table.column("_row").to_numpy()))))


def _by_records(items: Iterable[Item], spec: IndexSpec, dimensions: int) -> _Found:
    documents, letters, ignored = _documents(items, spec, dimensions)
    return _Found(table_of(map(with_own_vector, documents), spec, dimensions), letters, ignored)


def _documents(
    items: Iterable[Item], spec: IndexSpec, dimensions: int
) -> tuple[list[Document], list[DeadLetter], Counter[str]]:
    documents: list[Document] = []
    letters: list[DeadLetter] = []
    ignored: Counter[str] = Counter()
    has_categories = spec.source.format == "managed"
    for item in one_by_one(items):
        result = item if isinstance(item, DeadLetter) else to_document(item, spec, dimensions)
        if isinstance(result, DeadLetter):
            letters.append(with_category(result) if has_categories else result)
        else:
            documents.append(result)
            ignored.update(result.record.ignored)
    return documents, letters, ignored
