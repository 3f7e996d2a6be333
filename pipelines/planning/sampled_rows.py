"""Rows as a build would make them, of a sample of the input or of typical texts, with vectors that are not computed.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.embed.text.documents import cut, passage_columns
from scannery.indexer.datapoints.named_vectors import with_missing_vectors, with_vectors
from scannery.indexer.datapoints.passages import named_texts, passage_rows
from scannery.indexer.datapoints.schema import datapoint_schema
from scannery.indexer.datapoints.sparse import SPARSE_COLUMNS
from scannery.indexer.spec.spec import AttributeType, IndexSpec
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, recipe_of
from scannery.pipelines.records.source_columns import validate_records
from scannery.pipelines.records.unit_rows import own_rows
from scannery.pipelines.sources import Fields, Part, Record, read_part
from scannery.pipelines.state.work_units import BYTES_PER_TOKEN

__all__ = ["SAMPLED_ROWS", "TEXT_BYTES", "sampled_rows", "typical_rows"]

SAMPLED_ROWS = 4096
"""Rows of a sample, about: it takes a second or two, and half of it tells how files grow."""
SAMPLED_PARTS = 32
RECORDS_AT_ONCE = 8

TEXT_BYTES = 600
"""Bytes of a typical text that is not cut."""
_TITLE_BYTES, _PAYLOAD_BYTES = 40, 100
_WORD_BYTES, _VOCABULARY = 6.0, 50_000
_PASSAGES = 10
"""Passages of a typical document."""
_VALUES = 100
"""Distinct values of a typical attribute."""
_SPARSE_ENTRIES = 50


def sampled_rows(
    parts: Sequence[Part],
    spec: IndexSpec,
    dimensions: Mapping[str, int],
    encoders: Mapping[str, PlannedEncoder],
) -> pa.Table:
    """Return about SAMPLED_ROWS rows of parts spread over the input, with the columns that `build_segment` takes.

    Vectors that an encoder would make are random. Records that cannot be indexed have no rows.

    Args:
        parts: of the input.
        spec: of the index.
        dimensions: of the vectors of each name.
        encoders: of `planned_encoders`, for their tokenizers.

    Raises:
        EmbedError: the tokenizer of an encoder cannot be loaded.

    """
    numbers = np.unique(np.linspace(0, len(parts) - 1, min(len(parts), SAMPLED_PARTS), dtype=np.int64))
    share = -(-SAMPLED_ROWS // max(1, len(numbers)))
    records = [_records(parts[number], spec) for number in numbers.tolist()]
    if spec.embeds:
        tables = [_passages(each, spec, dimensions[""], encoders, share) for each in records]
    else:
        items = list(chain.from_iterable(islice(each, share) for each in records))
        tables = [own_rows(items, spec, dimensions).table]
    table = pa.concat_tables(tables, promote_options="default")
    _, firsts = np.unique(table.column("id").to_pylist(), return_index=True)
    return _with_made_vectors(table.take(pa.array(np.sort(firsts))), spec, dimensions)


def _records(part: Part, spec: IndexSpec) -> Iterator[Record]:
    return (item for item in read_part(part, Fields.of(spec)) if isinstance(item, Record))


def _passages(
    records: Iterator[Record],
    spec: IndexSpec,
    dimensions: int,
    encoders: Mapping[str, PlannedEncoder],
    limit: int,
) -> pa.Table:
    """Return about `limit` passages of records."""
    assert spec.encoder is not None
    chunk, chunker, tables, rows = spec.source.chunk, None, [], 0
    if chunk is not None:
        encoder = encoders[recipe_of(spec.encoder)].load_on_cpu()
        chunker = encoder.chunker(chunk.max_tokens, chunk.overlap_tokens, headings=bool(chunk.headings))
    while rows < limit and (some := list(islice(records, RECORDS_AT_ONCE))):
        documents = validate_records(some, spec, {"": dimensions}).table
        titles, texts = (documents.column(name).to_pylist() for name in ("title", "text"))
        passages = [cut(text, chunker, title) for title, text in zip(titles, texts, strict=True)]
        counts = [len(each) for each in passages]
        vectors_PD = _random_vectors(sum(counts), dimensions)
        tables.append(passage_rows(documents, counts, passage_columns(titles, passages), vectors_PD, spec))
        rows += sum(counts)
    return pa.concat_tables(tables) if tables else datapoint_schema(spec, dimensions).empty_table()


def _with_made_vectors(table: pa.Table, spec: IndexSpec, dimensions: Mapping[str, int]) -> pa.Table:
    """Return the rows with a random vector of each name that has an encoder, where they have a text for it."""
    for name in spec.named_encoders:
        texts = named_texts(table, spec, name)
        vectors_ND = _random_vectors(len(texts), dimensions[name])
        table = with_missing_vectors(
            table,
            name,
            [vector_D if text else None for vector_D, text in zip(vectors_ND, texts, strict=True)],
        )
    return table


def typical_rows(spec: IndexSpec, dimensions: Mapping[str, int]) -> pa.Table:
    """Return SAMPLED_ROWS rows such as a typical input would make: texts of TEXT_BYTES or of the size of a chunk.

    Args:
        spec: of the index.
        dimensions: of the vectors of each name; 0: no vectors.

    """
    rows, chunk, source = SAMPLED_ROWS, spec.source.chunk, spec.source
    text_bytes = TEXT_BYTES if chunk is None else int(BYTES_PER_TOKEN * chunk.max_tokens)
    random, has_passages = np.random.default_rng(0), chunk is not None or source.document_id is not None
    documents = [f"document-{row // (_PASSAGES if has_passages else 1):09}" for row in range(rows)]
    columns: dict[str, Sequence[Any]] = {
        "id": [f"{name}-{row % _PASSAGES}" for row, name in enumerate(documents)]
        if has_passages
        else documents,
        "document_id": documents,
    }
    has_text = source.text is not None or spec.lexical is not None
    if has_text:
        columns["text"] = _texts(random, rows, text_bytes)
    if source.title is not None:
        columns["title"] = _texts(random, rows, _TITLE_BYTES)
    if source.payload is not None:
        columns["payload"] = [f'{{"key": "{"x" * _PAYLOAD_BYTES}"}}'] * rows
    if source.sparse_vector is not None:
        columns |= _sparse(random, rows)
    columns |= {name: _attribute(random, kind, rows) for name, kind in spec.attributes.items()}
    schema = datapoint_schema(spec, dimensions[""])
    arrays = [pa.array(columns.get(field.name, [None] * rows), field.type) for field in schema]
    table = pa.table(arrays, schema=_nullable(schema))
    for name, size in dimensions.items():
        if size:
            table = _with_vectors(table, name, _random_vectors(rows, size), schema)
    return table


def _nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def _with_vectors(table: pa.Table, name: str, vectors_ND: np.ndarray, schema: pa.Schema) -> pa.Table:
    if name:
        return with_vectors(table, name, list(vectors_ND))
    kind = schema.field("embedding").type
    array = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), type=kind)
    return table.set_column(table.schema.get_field_index("embedding"), "embedding", array)


def _random_vectors(rows: int, dimensions: int) -> np.ndarray:
    """Return vectors of length 1, float32 (N, D)."""
    vectors_ND = np.random.default_rng(0).standard_normal((rows, dimensions))
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True) if dimensions else 1.0
    return vectors_ND.astype(np.float32)


def _texts(random: np.random.Generator, rows: int, size_bytes: int) -> list[str]:
    """Return texts of some bytes, whose words are as frequent as those of a language (Zipf)."""
    count = max(1, round(size_bytes / (_WORD_BYTES + 1)))
    ranks_NW = np.minimum(random.zipf(1.2, (rows, count)), _VOCABULARY)
    return [" ".join(f"word{rank:x}" for rank in ranks_W) for ranks_W in ranks_NW.tolist()]


def _sparse(random: np.random.Generator, rows: int) -> dict[str, Sequence[Any]]:
    indices_NE = np.sort(random.integers(0, 30_000, (rows, 2 * _SPARSE_ENTRIES)), axis=1)
    indices = [np.unique(indices_E)[:_SPARSE_ENTRIES] for indices_E in indices_NE]
    values = [np.ones(len(each), np.float32) for each in indices]
    return dict(zip(SPARSE_COLUMNS, (indices, values), strict=True))


def _attribute(random: np.random.Generator, kind: AttributeType, rows: int) -> list[Any]:
    numbers = random.integers(0, _VALUES, rows).tolist()
    start = datetime(2020, 1, 1, tzinfo=timezone.utc)
    values: dict[AttributeType, list[Any]] = {
        "string": [f"value {number:03}" for number in numbers],
        "string_list": [[f"value {number % 7}", f"value {number:03}"] for number in numbers],
        "int": numbers,
        "float": random.random(rows).tolist(),
        "bool": [number % 2 == 0 for number in numbers],
        "timestamp": [start + timedelta(minutes=7 * row) for row in range(rows)],
        "geo": [{"lat": number / 2, "lon": number / 3} for number in numbers],
    }
    return values[kind]
