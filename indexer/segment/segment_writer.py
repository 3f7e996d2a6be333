"""Write the rows of a segment, or the vectors of one name, as one self-contained Parquet file (docs/format.md).

Its metadata says where the vectors of each leaf are, so that servers need not read them to open it (cold/).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from scannery.indexer.datapoints.named_vectors import ROW_COLUMN, is_vectorless
from scannery.indexer.datapoints.schema import REVISION_COLUMN, SPOKEN_COLUMN, datapoint_schema, vectors_of
from scannery.indexer.errors import BuildError, CorruptError, NotFoundError
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.lexical.bm25 import with_terms
from scannery.indexer.local.files import file_sha256
from scannery.indexer.manifest import FORMAT_VERSION, ConfigTrial, SegmentEntry
from scannery.indexer.planning.leaves import measure_leaves, pack_leaves
from scannery.indexer.scann.assets import LEAF_COLUMN, NATIVE_COLUMNS, pack_columns, pack_sidecar, row_order
from scannery.indexer.scann.build import QUERIES_FILE, VECTORS_FILE, ScannBuild, Tuning, config_by_trial
from scannery.indexer.scann.config import Effort, ScannConfig, choose_config, config_changes, config_like
from scannery.indexer.segment.pages import tail_of
from scannery.indexer.spec.spec import Distance, IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.arrays import mapped, taken
from scannery.indexer.vectors.vector_files import (
    blocks_of,
    is_unit,
    unit_blocks,
    write_search_vectors,
    write_vectors,
)

__all__ = ["FORMAT_KEY", "SEGMENT_KEY", "WrittenSegment", "is_sound", "write_segment"]


_VECTORS_FILE = "vectors.npy"


def are_searched_as_given(table: pa.Table, distance: Distance) -> bool:
    """Return whether vectors are searched without being scaled: for cosine, whether all have length 1."""
    return distance != "cosine" or all(map(is_unit, blocks_of(table)))


def leaf_metadata(table: pa.Table, distance: Distance, directory: Path, *, unit: bool) -> dict[str, str]:
    """Return the packed statistics of the leaves.

    Args:
        table: in leaf order, with the column of leaves.
        distance: of the index.
        directory: for a temporary file.
        unit: of `are_searched_as_given`.

    """
    leaf_N = table.column(LEAF_COLUMN).to_numpy()
    given_ND = vectors_of(table)
    if unit:
        with COMPILING:
            return pack_leaves(measure_leaves(given_ND, leaf_N, distance, seed=0))
    with tempfile.TemporaryDirectory(prefix="leaves-", dir=directory) as parent:  # not a copy in memory
        path = Path(parent) / _VECTORS_FILE
        write_vectors(path, unit_blocks(given_ND), *given_ND.shape)
        with COMPILING:
            return pack_leaves(measure_leaves(mapped(path), leaf_N, distance, seed=0))


FORMAT_KEY = b"scannery.format"
SEGMENT_KEY = b"scannery.segment"
ROW_GROUP_ROWS = 1 << 16
ROW_GROUP_NUMBERS = 1 << 23
"""Most vector components in a row group: Arrow needs four bytes for each while it writes the group."""
PAGE_BYTES = 1 << 18
"""Size of a page before compression. A server that reads single leaves reads whole pages: with Arrow's 1 MiB more than
twice the bytes of a leaf of 500 rows × 384, with these 1.34 times. Files are 1 to 5 % larger than with 1 MiB."""


@dataclass(frozen=True, kw_only=True)
class WrittenSegment:
    """A finished segment file, not in a store yet."""

    path: Path
    entry: SegmentEntry
    statistics: dict[str, Any]
    """Seconds by stage and the ScaNN configuration, for the build report."""
    order_N: np.ndarray | None = None
    """Numbers: for each row of the file its number in the table that it was written from, int64; None: the same."""


def write_segment(
    table: pa.Table,
    *,
    spec: IndexSpec,
    shard: int,
    directory: Path,
    threads: int | None = None,
    queries: np.ndarray | None = None,
    measured: bool = False,
    effort: Effort = "full",
    earlier: ConfigTrial | None = None,
) -> WrittenSegment:
    """Write datapoints of one shard as a segment file: all of them with a vector, or all without one.

    Rows are in leaf order if ScaNN is used, else in input order. The input is not changed.

    Args:
        table: the columns of `datapoint_schema`, without named vectors, and optionally `_spoken`, `_revision` and
            `_row`; others are dropped. Rows without a vector as in named_vectors.py.
        spec: of the index.
        shard: number of the shard.
        directory: where the file is written.
        threads: for ScaNN; None: all cores.
        queries: real queries to tune for, float32 (any number, dimensions); None: made from the vectors.
        measured: whether the statistics have the recall of the default setting for FRESH_QUERIES queries near rows that
            were not used in tuning.
        effort: of training; less than `full` for segments that will soon be merged.
        earlier: trial of another segment of the index, whose choice is used in place of a trial if its rows were
            similarly many.

    Raises:
        BuildError: only some rows have a vector, a vector is not finite, two rows have one id, ScaNN failed, or the
            file cannot be written; the message names the shard.

    """
    name = f"shard {shard} of index {spec.index!r}"
    table = _conformed(table, spec, name)
    dimensions = _dimensions(table)
    config = (
        choose_config(table.num_rows, dimensions, spec.distance, spec.scann, effort) if dimensions else None
    )
    with _disk_errors(name, directory):
        if config is None:
            return _exact_segment(table, spec, shard, directory)
        changes = config_changes(config, table.num_rows, dimensions, spec.distance, spec.scann, effort)
        config_kept = config_like(config, changes, table.num_rows, earlier) if changes else None
        if config_kept is None:
            earlier = None
        else:
            config, changes = config_kept, []
        return _scann_segment(
            table, spec, config, changes, shard, directory, name, threads, queries, measured, earlier
        )


@contextmanager
def _disk_errors(name: str, directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # such as a full disk, which Arrow raises as OSError
        raise BuildError(f"{name}: a file in {directory} cannot be written: {error}") from error


def _scann_segment(
    table: pa.Table,
    spec: IndexSpec,
    config: ScannConfig,
    changes: Sequence[Mapping[str, Any]],
    shard: int,
    directory: Path,
    name: str,
    threads: int | None,
    queries: np.ndarray | None,
    measured: bool,
    trial: ConfigTrial | None,
) -> WrittenSegment:
    with tempfile.TemporaryDirectory(prefix="scann-", dir=directory) as parent:
        folder = Path(parent)
        started = time.perf_counter()
        # The child process reads them from the file, so that this process need not hold a scaled copy.
        middle_D = write_search_vectors(folder / VECTORS_FILE, table, spec.distance)
        if queries is not None:
            np.save(folder / QUERIES_FILE, queries if middle_D is None else queries - middle_D)
        trying = time.perf_counter()
        if changes:
            config, trial = config_by_trial(
                config, changes, spec.distance, folder=folder, target=spec.target_recall, threads=threads
            )
        trial_s = time.perf_counter() - trying
        with ScannBuild(
            config,
            spec.distance,
            folder=folder,
            name=name,
            threads=threads,
            rescore=spec.scann.rescore,
            measured_for=spec.target_recall if measured else None,
        ) as build:
            trained_s = build.train()
            seconds = {"train": time.perf_counter() - started, "scann": trained_s, "trial": trial_s}
            build.tune()
            order_N = row_order(build.folder)
            path, leaves_used = _write_scann(
                table, order_N, spec, config, build.folder, middle_D, directory, seconds
            )
            written_s = time.perf_counter()
            tuning = build.tuned()
    seconds |= {"tune": tuning.seconds, "tune_wait": time.perf_counter() - written_s}
    statistics = {"seconds": seconds, "scann": config.to_dict(), "leaves_used": leaves_used}
    if measured:
        statistics["fresh"] = {"target": spec.target_recall, "recall": tuning.fresh_recall}
    if trial:
        statistics["trial"] = trial.model_dump(mode="json")
    entry = _entry(path, table, shard, tuning, trial)
    return WrittenSegment(path=path, entry=entry, statistics=statistics, order_N=order_N)


def _exact_segment(table: pa.Table, spec: IndexSpec, shard: int, directory: Path) -> WrittenSegment:
    seconds: dict[str, float] = {}
    # In one chunk: the pages of the file, and so its hash, must not depend on the chunks of the input.
    whole = _with_words(table, spec, seconds).combine_chunks()
    vectors = _dimensions(table) > 0
    unit = not vectors or are_searched_as_given(table, spec.distance)
    metadata = _metadata(spec, None, {}, unit=unit, vectors=vectors)
    path = _write(whole, metadata, directory, seconds)
    return WrittenSegment(path=path, entry=_entry(path, table, shard, None), statistics={"seconds": seconds})


def _write_scann(
    table: pa.Table,
    order_N: np.ndarray,
    spec: IndexSpec,
    config: ScannConfig,
    trained: Path,
    middle_D: np.ndarray | None,
    directory: Path,
    seconds: dict[str, float],
) -> tuple[Path, int]:
    """Write the rows in leaf order with ScaNN's data; return the path, and the number of leaves that have rows."""
    columns = pack_columns(trained, order_N)
    table = _reordered(_with_words(table, spec, seconds), order_N)
    for column, values in columns.items():
        table = table.append_column(column, values)
    unit = are_searched_as_given(table, spec.distance)
    leaves = leaf_metadata(table, spec.distance, directory, unit=unit)
    metadata = _metadata(spec, config, pack_sidecar(trained, middle_D), unit=unit, leaves=leaves)
    path = _write(table, metadata, directory, seconds)
    return path, pc.count_distinct(columns[LEAF_COLUMN]).as_py()


def _reordered(table: pa.Table, order_N: np.ndarray) -> pa.Table:
    """Return the rows in another order. Arrow's `take` needs twice the memory of the vectors, for component indices."""
    column_number, field = table.schema.get_field_index("embedding"), table.schema.field("embedding")
    vectors_ND = np.empty((len(order_N), field.type.list_size), np.float32)
    place_N = np.argsort(order_N)
    start = 0
    for block_BD in blocks_of(table):
        vectors_ND[place_N[start : start + len(block_BD)]] = block_BD
        start += len(block_BD)
    embedding = pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), type=field.type)
    return taken(table.drop_columns(["embedding"]), order_N).add_column(column_number, field, embedding)


def _with_words(table: pa.Table, spec: IndexSpec, seconds: dict[str, float]) -> pa.Table:
    if not spec.lexical:
        return table
    started = time.perf_counter()
    table = with_terms(table, spec.lexical)
    seconds["words"] = time.perf_counter() - started
    return table


def is_sound(store: Store, key: str, size_bytes: int, sha256: str) -> bool:
    """Return whether an object exists with this size and SHA-256; reads all of it."""
    try:
        with store.open_checked(key, size_bytes=size_bytes, sha256=sha256):
            return True
    except (NotFoundError, CorruptError):
        return False


def _conformed(table: pa.Table, spec: IndexSpec, name: str) -> pa.Table:
    if table.num_rows == 0:
        raise BuildError(f"{name}: there are no datapoints")
    schema = _stored_schema(table, spec, name)
    if _has_values(table, SPOKEN_COLUMN):
        schema = schema.append(pa.field(SPOKEN_COLUMN, pa.string()))
    for column in (REVISION_COLUMN, ROW_COLUMN):
        if column in table.column_names:
            schema = schema.append(pa.field(column, pa.int64()))
    table = _in_few_chunks(table.select(schema.names), schema)
    if _dimensions(table) and not all(np.isfinite(block_BD).all() for block_BD in blocks_of(table)):
        raise BuildError(f"{name}: a vector has a value that is not finite")
    if pc.count_distinct(table.column("id")).as_py() != table.num_rows:
        raise BuildError(f"{name}: two datapoints have the same id")
    return table


def _stored_schema(table: pa.Table, spec: IndexSpec, name: str) -> pa.Schema:
    """Return `datapoint_schema` as in a file: no row lacks a vector, or there is no column of vectors."""
    vectorless = is_vectorless(table)
    if not vectorless and table.column("embedding").null_count:
        raise BuildError(f"{name}: only some of the rows of a segment have a vector")
    plain = spec.model_copy(update={"named_vectors": {}})
    schema = datapoint_schema(plain, 0 if vectorless else _dimensions(table))
    column_number = schema.get_field_index("embedding")
    return (
        schema.remove(column_number)
        if vectorless
        else schema.set(column_number, schema.field(column_number).with_nullable(False))
    )


def _dimensions(table: pa.Table) -> int:
    """Return the components of a vector; 0 without a column of vectors."""
    if "embedding" not in table.column_names:
        return 0
    return int(table.schema.field("embedding").type.list_size)


def _has_values(table: pa.Table, name: str) -> bool:
    return name in table.column_names and table.column(name).null_count < table.num_rows


def _in_few_chunks(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the table in this schema with one chunk per column, except for vectors, which are not copied."""
    if not table.schema.equals(schema):
        table = table.cast(schema)
    if not _dimensions(table):
        return table.combine_chunks()
    column_number, embedding = schema.get_field_index("embedding"), table.column("embedding")
    scalars = table.drop_columns(["embedding"]).combine_chunks()
    return scalars.add_column(column_number, schema.field("embedding"), embedding)


def _metadata(
    spec: IndexSpec,
    config: ScannConfig | None,
    sidecar: dict[str, str],
    *,
    unit: bool,
    vectors: bool = True,
    leaves: dict[str, str] | None = None,
) -> dict[bytes, bytes]:
    segment: dict[str, Any] = {
        "distance": spec.distance,
        "kind": "scann" if config else "exact",
        "attributes": spec.attributes,
        "lexical": spec.lexical and spec.lexical.rules,
        "scann": config and {"config": config.to_dict(), "files": sidecar},
        "unit": unit,
    }
    if leaves is not None:
        segment["leaves"] = leaves
    if not vectors:
        segment["vectors"] = False
    return {FORMAT_KEY: str(FORMAT_VERSION).encode(), SEGMENT_KEY: json.dumps(segment).encode()}


def _write(table: pa.Table, metadata: dict[bytes, bytes], directory: Path, seconds: dict[str, float]) -> Path:
    """Write the table to a file named by its SHA-256."""
    started = time.perf_counter()
    descriptor, name = tempfile.mkstemp(suffix=".parquet", dir=directory)
    os.close(descriptor)
    draft = Path(name)
    plain = [name for name in table.column_names if name not in ("embedding", *NATIVE_COLUMNS)]
    dimensions = _dimensions(table)
    pq.write_table(
        table.replace_schema_metadata(metadata),
        draft,
        row_group_size=max(1, min(ROW_GROUP_ROWS, ROW_GROUP_NUMBERS // max(1, dimensions))),
        compression="zstd",
        # Dictionaries help for attributes and ids, not for vectors and codes, which do not repeat.
        use_dictionary=[
            f"{name}.list.element" if _is_list(table, name) else name
            for name in plain
            if not _is_struct(table, name)
        ],
        # Smaller and faster to read for floats than any other encoding.
        column_encoding={"embedding.list.element": "BYTE_STREAM_SPLIT"} if dimensions else None,
        data_page_size=PAGE_BYTES,
        write_page_checksum=True,
        # With it pages begin with a row, and readers find the pages of rows (pages.py).
        write_page_index=True,
        write_statistics=[leaf for name in plain for leaf in _ordered_leaves(table, name)],
    )
    path = Path(shutil.move(draft, directory / f"{file_sha256(draft)}.parquet"))
    seconds["write"] = time.perf_counter() - started
    return path


def _is_list(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_list(table.schema.field(name).type))


def _is_struct(table: pa.Table, name: str) -> bool:
    return bool(pa.types.is_struct(table.schema.field(name).type))


def _ordered_leaves(table: pa.Table, name: str) -> list[str]:
    """Return the Parquet columns of a column whose least and greatest values mean something."""
    if _is_struct(table, name):
        return [f"{name}.{field.name}" for field in table.schema.field(name).type]
    return [] if _is_list(table, name) else [name]


def _entry(
    path: Path, table: pa.Table, shard: int, tuning: Tuning | None, trial: ConfigTrial | None = None
) -> SegmentEntry:
    return SegmentEntry(
        key=f"segments/{path.name}",
        shard=shard,
        rows=table.num_rows,
        documents=pc.count_distinct(table.column("document_id")).as_py(),
        size_bytes=path.stat().st_size,
        sha256=path.stem,
        tail=tail_of(path),
        kind="scann" if tuning else "exact",
        vectors=_dimensions(table) > 0,
        curve=tuning.curve if tuning else (),
        depth_curves=tuning.depth_curves if tuning else (),
        trial=trial,
    )
