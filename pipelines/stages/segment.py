"""Second stage: build the segment of a shard from its row groups, without duplicates.

Rows with and without vectors are in different segments, so a shard may have two.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.columns.plain import conformed
from scannery.indexer.datapoints.named_vectors import has_vector, parts_by_vector, unfilled, vector_column
from scannery.indexer.errors import AlreadyExistsError
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.manifest import FORMAT_VERSION, SegmentEntry
from scannery.indexer.segment.build import BuiltSegment, build_segment, store_segment
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import segment_key
from scannery.pipelines.dead_letters import DeadLetter, count_reasons, json_lines
from scannery.pipelines.records.embeddings_files import embeddings_schema
from scannery.pipelines.state.job import (
    Counts,
    Job,
    ShardOutcome,
    has_hash,
    has_size,
    read_stage,
    sealed,
    stage_key,
)
from scannery.pipelines.state.row_groups import RowGroup, read_row_group
from scannery.pipelines.state.work_units import key_of
from scannery.pipelines.tuning.tuning_queries import (
    NO_ENCODERS,
    EncoderSources,
    load_queries,
    questions_of,
    tuning_half,
)

__all__ = [
    "build_shard",
    "finished_shard",
    "new_rows",
    "record_shard",
    "shard_key",
    "update_key",
    "write_segments",
]


_PARALLEL_READS = 4
_SMALL_BYTES = 2**21
_PARALLEL_SMALL_READS = 16
"""Row groups read at once: more of them if they are small, since a request to a bucket takes about 30 ms."""


def shard_key(job: Job, shard: int, rows: Sequence[RowGroup]) -> str:
    """Return the hash of everything that a shard's segment is made from."""
    spec = job.spec
    units = [(item.unit, item.group, item.lost) for item in sorted(rows)]
    # Later fields are left out while unset, so that segments of earlier releases are found.
    scann = {k: v for k, v in spec.scann.model_dump().items() if k != "rescore" or v is not None}
    words = spec.lexical and spec.lexical.rules
    return key_of(
        "segments", FORMAT_VERSION, spec.distance, words, scann, job.shards, shard, units, job.queries
    )


def update_key(
    job: Job,
    shard: int,
    rows: Sequence[RowGroup],
    base: Sequence[SegmentEntry],
    changes: Sequence[object] = (),
) -> str:
    """Return the hash of everything that a shard's segments are made from in an update, its old segments included."""
    keys = [entry.labelled_keys for entry in base]
    # Left out while unset, so that segments of earlier releases are found.
    dynamic = ["dynamic"] if job.spec.dynamic else []
    return key_of("update", shard_key(job, shard, rows), job.spec.attributes, keys, changes, *dynamic)


def finished_shard(key: str, job: Job, store: Store) -> ShardOutcome | None:
    """Return the outcome of a shard that an earlier run built from the same rows, or None.

    A full build reads the segments and compares their hashes, because it repairs a damaged index.
    """
    text = read_stage(store, job.index, "segments", key)
    if text is None:
        return None
    # The files may be old and in no version. Writing the record again marks them as in use (garbage_collection.py). It
    # is written before the files are looked up: otherwise gc could remove them after they were found.
    store.write(stage_key(job.index, "segments", f"{key}.json"), sealed(text))
    outcome = ShardOutcome.from_json(text)
    files = [file for entry in outcome.entries for file in entry.files]
    for file in files:
        stored = segment_key(job.index, file.key)
        if not has_size(store, stored, file.size_bytes):
            return None
        if job.mode == "full" and not has_hash(store, stored, file.sha256):
            return None
    return dataclasses.replace(outcome, counts=outcome.counts.without_work())


def build_shard(
    key: str,
    shard: int,
    rows: Sequence[RowGroup],
    job: Job,
    store: Store,
    *,
    threads: int | None = None,
    encoders: EncoderSources = NO_ENCODERS,
) -> ShardOutcome:
    """Build the segments of a shard and write them to the store; of records with the same id the first one wins.

    Holds the shard's vectors and texts in memory.

    Raises:
        BuildError: ScaNN failed.
        StageDamagedError: an embeddings file is damaged; the next run makes it again.

    """
    started = time.perf_counter()
    table, letters, counts = new_rows(rows, job, store)
    merged = time.perf_counter()
    built = write_segments(table, shard, job, store, threads=threads, encoders=encoders)
    seconds = {"merge": round(merged - started, 6), "segment": round(time.perf_counter() - merged, 6)}
    outcome = ShardOutcome(
        key=key,
        shard=shard,
        entries=tuple(each.entry for each in built),
        counts=dataclasses.replace(counts, seconds=seconds),
        statistics=built[0].statistics if built else {},
    )
    outcome = record_shard(outcome, letters, job, store)
    # A second record, by which an update with the same input knows that nothing changes, without reading the shard.
    again = update_key(job, shard, rows, outcome.entries)
    same = {"unchanged": sum(entry.documents or 0 for entry in outcome.entries)}
    counts = dataclasses.replace(outcome.counts, changes=same)
    record_shard(dataclasses.replace(outcome, key=again, counts=counts), letters, job, store)
    return outcome


def record_shard(
    outcome: ShardOutcome, letters: Sequence[DeadLetter], job: Job, store: Store
) -> ShardOutcome:
    """Record the outcome and its dead letters, and return the recorded outcome.

    Training is not deterministic, so if two concurrent builds made the same segment, the first record wins; otherwise
    the next run would find another segment than the version has, and commit a version without a change.
    """
    if letters:
        store.write(stage_key(job.index, "segments", f"{outcome.key}.dead.jsonl"), json_lines(letters))
    # Last, since this record marks the segments as complete.
    marker = stage_key(job.index, "segments", f"{outcome.key}.json")
    try:
        store.create(marker, sealed(outcome.to_json()))
    except AlreadyExistsError:
        if (earlier := finished_shard(outcome.key, job, store)) is not None:
            return earlier
        store.write(marker, sealed(outcome.to_json()))  # the old record is damaged, or its segment is missing
    return outcome


def new_rows(rows: Sequence[RowGroup], job: Job, store: Store) -> tuple[pa.Table, list[DeadLetter], Counts]:
    """Return the rows of the first record with each id, dead letters for the others, and counts of what was dropped.

    Records with one id that was made from their content are equal: nothing is lost, so there are no dead letters.
    """
    table = _read(sorted(rows), job, store)
    by_document = job.spec.source.document_id is None
    keep_N = _first_of_each(table, by="document_id" if by_document else "id")
    keep_N &= ~table.column("_lost").to_numpy()
    if keep_N.all():
        return table, [], Counts()
    letters = list(_duplicates(table, keep_N, by_document=by_document))
    counts = Counts(documents=-len(letters), passages=-int((~keep_N).sum()))
    if job.spec.source.has_ids_of_content:
        letters = []
    counts = dataclasses.replace(counts, dead_letters=count_reasons(letters))
    return table.filter(pa.array(keep_N)), letters, counts


def write_segments(
    table: pa.Table,
    shard: int,
    job: Job,
    store: Store,
    *,
    threads: int | None = None,
    encoders: EncoderSources = NO_ENCODERS,
) -> list[BuiltSegment]:
    """Build and store the segment of the rows with vectors and that of the others, of which any may be missing.

    The first is tuned for the user's queries, or for questions if there is an encoder.
    """
    return [
        _write_segment(part, shard, job, store, threads=threads, encoders=encoders)
        for part in parts_by_vector(table)
    ]


def _write_segment(
    table: pa.Table,
    shard: int,
    job: Job,
    store: Store,
    *,
    threads: int | None = None,
    encoders: EncoderSources = NO_ENCODERS,
) -> BuiltSegment:
    queries = _queries(table, job, store, encoders)
    with scratch_folder("segment") as folder:
        built = build_segment(
            table,
            spec=job.spec,
            shard=shard,
            directory=folder,
            threads=threads,
            queries=queries,
            # The measurement of tuning/index_tuning.py, made here while a core is idle.
            measured=job.shards == 1 and "" not in queries,
        )
        store_segment(store, job.index, built)
    return built


def _queries(table: pa.Table, job: Job, store: Store, encoders: EncoderSources) -> dict[str, np.ndarray]:
    """Return what the vectors of each name are tuned for: the user's queries, or questions if there is an encoder.

    Names are left out of which there are too few vectors to be tuned, so that they need no encoder.
    """
    queries: dict[str, np.ndarray] = {}
    for name in job.vectors:
        present_N, questions = has_vector(table, vector_column(name)), None
        if np.count_nonzero(present_N) < job.spec.scann.exact_below_rows:
            continue
        if not name and job.queries is not None:
            questions = tuning_half(load_queries(store, job.index, job.queries))
        elif name in encoders:
            texts = table.column(job.spec.text_field(name)).filter(pa.array(present_N))
            questions = questions_of(texts, encoders[name])
        queries |= {} if questions is None else {name: questions}
    return queries


def _read(rows: Sequence[RowGroup], job: Job, store: Store) -> pa.Table:
    fields = [pa.field("_unit", pa.int64()), pa.field("_lost", pa.bool_())]
    schema = pa.schema([*embeddings_schema(job.spec, job.dimensions), *fields])

    def read(numbered: tuple[int, RowGroup]) -> pa.Table:
        number, item = numbered
        table = unfilled(read_row_group(item, job, store))
        lost_N = np.zeros(table.num_rows, bool)
        lost_N[list(item.lost)] = True
        table = table.append_column("_unit", pa.array(np.full(table.num_rows, number, np.int64)))
        table = table.append_column("_lost", pa.array(lost_N))
        return conformed(table, schema)  # files of earlier releases lack columns

    largest = max((item.piece.length for item in rows if item.piece), default=_SMALL_BYTES)
    with ThreadPoolExecutor(_PARALLEL_READS if largest >= _SMALL_BYTES else _PARALLEL_SMALL_READS) as pool:
        return pa.concat_tables([schema.empty_table(), *pool.map(read, enumerate(rows))])


def _first_of_each(table: pa.Table, *, by: str) -> np.ndarray:
    """Return which rows stay, bool: all passages of the first record with each id."""
    codes_N = pc.dictionary_encode(table.column(by).combine_chunks()).indices.to_numpy()
    units_N, records_N = table.column("_unit").to_numpy(), table.column("_record").to_numpy()
    changes = np.flatnonzero(np.diff(units_N) | np.diff(records_N)) + 1
    starts = np.zeros(table.num_rows, np.int64)
    starts[changes] = 1
    number_N = np.cumsum(starts)
    # Rows are in input order, so the first row with a code belongs to the record that wins.
    _, first_C = np.unique(codes_N, return_index=True)
    kept: np.ndarray = number_N == number_N[first_C][codes_N]
    return kept


def _duplicates(table: pa.Table, keep: np.ndarray, *, by_document: bool) -> Iterator[DeadLetter]:
    columns = ["id", "document_id", "text", "_unit", "_record", "_source", "_line", "_row"]
    lost = table.select(columns).filter(pa.array(~keep)).to_pylist()
    previous = None
    for row in lost:
        record = (row["_unit"], row["_record"])
        if record != previous:
            yield _duplicate(row, by_document=by_document)
        previous = record


def _duplicate(row: dict[str, Any], *, by_document: bool) -> DeadLetter:
    return DeadLetter(
        reason="duplicate_id",
        message="an earlier record has this id and is kept",
        source=row["_source"],
        line=row["_line"],
        row=row["_row"],
        id=row["document_id"] if by_document else row["id"],
        excerpt=(row["text"] or "")[:200],
    )
