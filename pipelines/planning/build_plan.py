"""Plan a build before any worker starts: cut the input, choose dimensions and number of shards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from scannery.indexer.manifest import Manifest, NamedVectorsInfo
from scannery.indexer.spec.spec import MAX_SHARDS, IndexSpec
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.planning.input_parts import CutMemory, cut_files
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.planning.worker_resources import SEGMENT_BYTES, UNEVEN, row_size, rows_within
from scannery.pipelines.records.source_columns import vector_size
from scannery.pipelines.sources import Fields, InputFile, Part, Record, read_part
from scannery.pipelines.state.progress import Progress, ProgressCallback
from scannery.pipelines.state.work_units import expected_rows, unit_bytes

__all__ = ["ROWS_PER_SHARD", "cut_input", "dimensions_of", "shards_of"]

ROWS_PER_SHARD = 1_000_000
"""Most rows of a shard that `shards: auto` plans. With 384 dimensions and texts of 600 bytes, building it takes 10 GB;
with more of either it has fewer rows (worker_resources.SEGMENT_BYTES)."""

SAMPLED_VECTORS = 1000


def cut_input(
    files: Sequence[InputFile],
    spec: IndexSpec,
    progress: ProgressCallback | None,
    memory: CutMemory | None = None,
) -> tuple[list[Part], int]:
    """Return the parts of the input, and the size limit of a work unit in bytes."""
    limit, total, done = unit_bytes(files, spec), sum(file.size_bytes for file in files), 0

    def told(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(Progress(stage="plan", done=done, total=total))

    return cut_files(files, limit, memory=memory, told=told), limit


def dimensions_of(
    spec: IndexSpec, parts: Sequence[Part], encoder: PlannedEncoder | None, parent: Manifest | None
) -> int:
    """Return the number of dimensions: of the encoder or of the input's vectors, else of `parent`; 0 without vectors.

    Raises:
        SpecConflictError: the encoder does not fit the vectors of the source.

    """
    before = parent.dimensions if parent is not None else 0
    if spec.source.vector is None:
        return before if encoder is None else encoder.dimensions
    found = _sampled_dimensions(spec, parts) or before or (encoder.dimensions if encoder else 0)
    # Without a valid vector, all records become dead letters if they must have one, so that the size does not matter.
    found = found if spec.vectors == "optional" else max(1, found)
    if encoder is not None and encoder.dimensions != found:
        raise SpecConflictError(
            f"encoder: {spec.encoder and spec.encoder.model} has {encoder.dimensions} dimensions, "
            f"the vectors of the source have {found}",
            field="encoder.dimensions",
        )
    return found


def _sampled_dimensions(spec: IndexSpec, parts: Sequence[Part]) -> int | None:
    """Return the most common size of the first 1,000 vectors, since the first record may be a bad one."""
    sizes: Counter[int] = Counter()
    fields = Fields.of(spec)
    for part in parts:
        for item in read_part(part, fields):
            size = vector_size(item, spec) if isinstance(item, Record) else None
            if size is not None:
                sizes[size] += 1
            if sum(sizes.values()) >= SAMPLED_VECTORS:
                return sizes.most_common(1)[0][0]
    return sizes.most_common(1)[0][0] if sizes else None


def shards_of(
    spec: IndexSpec,
    parts: Sequence[Part],
    parent: Manifest | None,
    dimensions: int,
    named: Mapping[str, NamedVectorsInfo] | None = None,
) -> int:
    """Return the number of shards: of the spec, else of the index, else from the rows of the input and their size.

    Building the largest shard stays within `SEGMENT_BYTES` of memory, and shards have at most `ROWS_PER_SHARD` rows.
    """
    if spec.shards != "auto":
        return spec.shards
    if parent is not None:
        return parent.shards
    rows = expected_rows(parts, spec)
    # The mean may be a little less than what fits, as shards differ in size.
    row = row_size(parts, rows, spec, dimensions).with_named(
        info.dimensions for info in (named or {}).values()
    )
    fits = rows_within(SEGMENT_BYTES, row) / UNEVEN
    return min(MAX_SHARDS, max(1, math.ceil(rows / min(ROWS_PER_SHARD, fits))))
