"""What a unit holds as a table: records with vectors, by columns where the source has columns, or embedded texts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from scannery.embed import Encoder
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.passages import PASSAGE_ATTRIBUTES
from scannery.indexer.datapoints.validation import ValidatedBatch
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.vectors.arrays import taken
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.records.embeddings_files import embeddings_schema, embeddings_table, places_of
from scannery.pipelines.records.passages import NamedTexts, Work, embed_documents, embed_named
from scannery.pipelines.records.source_columns import dead_letter, validate_batch, validate_records
from scannery.pipelines.sources import Batch, Record, one_by_one
from scannery.pipelines.sources.managed.managed_records import with_category
from scannery.pipelines.state.embedding_cache import Catalogue, NamedCatalogue

__all__ = ["Item", "UnitRows", "embedded_rows", "own_rows", "with_named"]

Item = Batch | Record | DeadLetter

SAMPLED_RECORDS = 200
"""Records of a unit whose fields are looked at for names that a misspelt one of the spec could mean."""


class UnitRows(NamedTuple):
    """What became of the records of a unit."""

    table: pa.Table
    """Table of `embeddings_schema`, in input order."""

    documents: int
    letters: list[DeadLetter]
    ignored: Counter[str]
    """How many records have what under names that the spec leaves out."""

    work: Work
    read_s: float
    """Time until all records were validated."""

    field_counts: Counter[str]
    """Records with a value, by field that the spec names."""

    unused_fields: Counter[str]
    """Records of a sample by field that the spec does not name."""

    converted: Counter[str]
    """How many values were converted in a way that could be wrong: `column: what was done`."""

    named: NamedTexts | None = None
    """What became of texts that are embedded to named vectors; its table is `table`."""


def own_rows(items: Iterable[Item], spec: IndexSpec, dimensions: Mapping[str, int]) -> UnitRows:
    """Return the rows of records that bring their vectors: one each. `dimensions` as of `validate`."""
    started = time.perf_counter()
    parsed: list[_ParsedRows] = []
    for in_columns, run in itertools.groupby(items, lambda item: isinstance(item, Batch)):
        if in_columns:
            parsed += [_by_columns(batch, spec, dimensions) for batch in run if isinstance(batch, Batch)]
        else:
            parsed.append(_with_places(_by_records(run, spec, dimensions), spec, dimensions[""]))
    empty = embeddings_schema(spec, dimensions[""]).empty_table()
    table = pa.concat_tables([empty, *(block.table for block in parsed)])
    column_number = table.schema.get_field_index("_record")
    table = table.set_column(
        column_number, table.schema.field(column_number), pa.array(np.arange(table.num_rows))
    )
    letters = _named([letter for block in parsed for letter in block.letters], spec)
    ignored, field_counts, unused, converted = (
        _summed(getattr(block, name) for block in parsed)
        for name in ("ignored", "field_counts", "unused_fields", "converted")
    )
    read_s = time.perf_counter() - started
    return UnitRows(table, len(table), letters, ignored, Work(), read_s, field_counts, unused, converted)


def embedded_rows(
    items: Iterable[Item],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    encoder: Encoder,
    catalogue: Catalogue | None,
) -> UnitRows:
    """Return the rows of records whose texts are embedded: one for each passage, and one without a text."""
    started = time.perf_counter()
    unused = Counter[str]()
    parsed = _by_records(one_by_one(_noting_others(items, unused)), spec, dimensions)
    read_s = time.perf_counter() - started
    has_text_N = parsed.table.column("text").is_valid().to_numpy()
    embedded = embed_documents(*_rows_at(parsed, has_text_N), spec, encoder, catalogue)
    letters = _named(parsed.letters, spec) + embedded.refused
    table, documents = embedded.table, embedded.documents
    if not has_text_N.all():
        documents += int(np.count_nonzero(~has_text_N))
        table = _with_textless(table, parsed, has_text_N, spec, dimensions[""])
    return UnitRows(
        table, documents, letters, parsed.ignored, embedded.work, read_s,
        _without_passages(parsed.field_counts, spec), parsed.unused_fields + unused, parsed.converted,
    )  # fmt: skip


def with_named(
    rows: UnitRows, spec: IndexSpec, encoders: Mapping[str, Encoder], catalogue: NamedCatalogue | None
) -> UnitRows:
    """Return the rows with named vectors of each name that has an encoder, without records whose text it refuses."""
    encoders = {name: encoder for name, encoder in encoders.items() if name}
    if not encoders or not rows.table.num_rows:
        return rows
    named = embed_named(rows.table, spec, encoders, catalogue)
    return rows._replace(
        table=named.table,
        documents=rows.documents - len(named.refused),
        letters=rows.letters + _named(named.refused, spec),
        named=named,
    )


def _rows_at(parsed: _ParsedRows, wanted_N: np.ndarray) -> tuple[pa.Table, list[Record]]:
    if wanted_N.all():
        return parsed.table, parsed.records
    return parsed.table.filter(pa.array(wanted_N)), [parsed.records[row] for row in np.flatnonzero(wanted_N)]


def _with_textless(
    embedded: pa.Table, parsed: _ParsedRows, has_text_N: np.ndarray, spec: IndexSpec, dimensions: int
) -> pa.Table:
    """Return the rows of embedded texts, and those of records without a text, which have no vectors, in input order."""
    rows, records = _rows_at(parsed, ~has_text_N)
    columns = {"_record": np.flatnonzero(~has_text_N), **places_of(records)}
    # Passages have the number of their record among those with a text.
    numbers_P = np.flatnonzero(has_text_N)[embedded.column("_record").to_numpy()]
    column_number = embedded.schema.get_field_index("_record")
    numbered = embedded.set_column(column_number, embedded.schema.field(column_number), pa.array(numbers_P))
    table = pa.concat_tables([numbered, embeddings_table(rows, columns, spec, dimensions)])
    return taken(table, np.argsort(table.column("_record").to_numpy(), kind="stable"))


def _without_passages(field_counts: Counter[str], spec: IndexSpec) -> Counter[str]:
    """Return counts without attributes that no record has because passages do: headings, pages, speakers."""
    if spec.source.chunk is None:
        return field_counts
    of_passages = {name for name, kind in PASSAGE_ATTRIBUTES.items() if spec.attributes.get(name) == kind}
    return Counter({name: count for name, count in field_counts.items() if count or name not in of_passages})


def _noting_others(items: Iterable[Item], unused: Counter[str]) -> Iterator[Item]:
    """Yield the items, and count the columns of batches that the spec does not name."""
    for item in items:
        if isinstance(item, Batch):
            unused.update(dict.fromkeys(item.unread, len(item)))
        yield item


def _summed(counters: Iterable[Counter[str]]) -> Counter[str]:
    """Return the sum of counters; unlike `+`, it keeps names with a count of zero."""
    total = Counter[str]()
    for counter in counters:
        total.update(counter)
    return total


def _named(letters: list[DeadLetter], spec: IndexSpec) -> list[DeadLetter]:
    """Return dead letters with the categories of the managed service, where the source has its layout."""
    return [with_category(letter) for letter in letters] if spec.source.format == "managed" else letters


class _ParsedRows(NamedTuple):
    table: pa.Table
    records: list[Record]
    """Those that the rows come from; none where they were read by columns."""
    letters: list[DeadLetter]
    ignored: Counter[str]
    field_counts: Counter[str]
    unused_fields: Counter[str]
    converted: Counter[str]


def _by_columns(batch: Batch, spec: IndexSpec, dimensions: Mapping[str, int]) -> _ParsedRows:
    field_counts = Counter[str]()
    try:
        valid = validate_batch(batch, spec, dimensions, field_counts)
    except (ValueError, OverflowError, pa.ArrowException):  # such as text that is not UTF-8
        unused = Counter(dict.fromkeys(batch.unread, len(batch)))
        parsed = _by_records(batch.records(), spec, dimensions)._replace(unused_fields=unused)
        return _with_places(parsed, spec, dimensions[""])
    bad = {rejected.row: rejected for rejected in valid.rejected}
    letters = [
        record if isinstance(record, DeadLetter) else dead_letter(record, rejected)
        for record, rejected in zip(batch.records([*bad]), bad.values(), strict=True)
    ]
    rows = len(valid.rows_N)
    locations = {
        "_record": np.zeros(rows, np.int64),
        "_source": pa.repeat(pa.scalar(batch.source, pa.string()), rows),
        "_row": batch.row + valid.rows_N,
    }
    table = embeddings_table(valid.table, locations, spec, dimensions[""])
    unused = Counter(dict.fromkeys(batch.unread, len(batch)))
    return _ParsedRows(table, [], letters, Counter(), field_counts, unused, _converted(valid, spec))


def _by_records(items: Iterable[Item], spec: IndexSpec, dimensions: Mapping[str, int]) -> _ParsedRows:
    """Return the rows of records, without their places."""
    single = [item for item in items if not isinstance(item, Batch)]
    records = [item for item in single if isinstance(item, Record)]
    field_counts = Counter[str]()
    valid = validate_records(records, spec, dimensions, field_counts)
    made = {
        id(records[rejection.row]): dead_letter(records[rejection.row], rejection)
        for rejection in valid.rejected
    }
    problems = (item if isinstance(item, DeadLetter) else made.get(id(item)) for item in single)
    letters = [letter for letter in problems if letter is not None]
    good = [records[row] for row in valid.rows_N.tolist()]
    ignored = Counter(name for record in good for name in record.ignored)
    converted = _converted(valid, spec) + Counter(note for record in good for note in record.notes)
    return _ParsedRows(
        valid.table, good, letters, ignored, field_counts, _unused_fields(records, spec), converted
    )


def _unused_fields(records: Sequence[Record], spec: IndexSpec) -> Counter[str]:
    """Return how many of the first records have which fields that the spec does not name."""
    mapping = FieldMapping.of(spec)
    sample = records[:SAMPLED_RECORDS]
    names = (str(name) for record in sample for name in record.fields)
    return Counter(name for name in names if name not in mapping.names and not mapping.is_other(name))


def _converted(valid: ValidatedBatch, spec: IndexSpec) -> Counter[str]:
    """Return the conversions by the name of the attribute, or of the field in the input, and what was done."""
    mapping = FieldMapping.of(spec)
    return Counter({
        f"{column if column in spec.attributes else mapping.name(column)}: {note}": count
        for (column, note), count in valid.converted.items()
    })  # fmt: skip


def _with_places(parsed: _ParsedRows, spec: IndexSpec, dimensions: int) -> _ParsedRows:
    locations = {"_record": np.zeros(len(parsed.records), np.int64), **places_of(parsed.records)}
    return parsed._replace(table=embeddings_table(parsed.table, locations, spec, dimensions))
