"""Plan a build before any worker starts: cut the input, choose dimensions and number of shards."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.planning.input_parts import CutMemory, cut_files
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.records.source_columns import vector_size
from scannery.pipelines.sources import Fields, InputFile, Part, Record, read_part
from scannery.pipelines.state.progress import Progress, ProgressCallback
from scannery.pipelines.state.work_units import expected_rows, unit_bytes

__all__ = ["ROWS_PER_SHARD", "cut_input", "dimensions_of", "shards_of"]

ROWS_PER_SHARD = 1_000_000
"""With 384 dimensions 1.5 GB of vectors; building a shard, which is not divided, takes about six times that memory."""

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
    """Return the number of dimensions: of the encoder or of the input's vectors, else of `parent`.

    Raises:
        SpecConflictError: the encoder does not fit the vectors of the source.

    """
    if spec.source.vector is None:
        if encoder is None:
            raise SpecConflictError("encoder: is required unless source.vector is set", field="encoder")
        return encoder.dimensions
    found = _sampled_dimensions(spec, parts) or (parent.dimensions if parent is not None else 1)
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
    # Without a valid vector all records become dead letters, so the size does not matter.
    return sizes.most_common(1)[0][0] if sizes else None


def shards_of(spec: IndexSpec, parts: Sequence[Part], parent: Manifest | None) -> int:
    """Return the number of shards: of the spec, else of the index, else from the size of the input."""
    if spec.shards != "auto":
        return spec.shards
    if parent is not None:
        return parent.shards
    return max(1, math.ceil(expected_rows(parts, spec) / ROWS_PER_SHARD))
