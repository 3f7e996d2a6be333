"""Maps between the vectors of an index and those of its mirror, fitted to datapoints that are converted first.

Units are of random documents, so the first of them are a sample of the index. Both indexes get the maps in both
directions, each file under the same name, so that an exchange of their contents changes nothing about them.

Shapes: N datapoints, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer import Manifest, Store
from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.manifest import VectorMap, VectorModel
from scannery.indexer.vectors.exact_search import search_ready
from scannery.indexer.vectors.vector_maps import fitted_maps, map_overlap, write_map
from scannery.indexer.versions.creation import promote_index
from scannery.indexer.versions.declared_models import models_of
from scannery.live.migration.conversion import Conversion

__all__ = ["LEAST_ROWS", "SAMPLE_ROWS", "publish_maps", "put_maps"]

SAMPLE_ROWS = 5120
"""Datapoints of a sample, if there are so many: more keep hardly more (docs/benchmarks/vector-maps.md)."""
HELD_OUT = 512
"""Datapoints at the end of a sample that maps are measured with; a fifth of a smaller one."""
LEAST_ROWS = 200
"""Datapoints below which there is no map: it would be useless, and its overlap could not tell."""


def publish_maps(store: Store, conversion: Conversion, before: pa.Table, after: pa.Table) -> None:
    """Fit maps to datapoints, and publish them with the index and with its mirror.

    Args:
        store: of both.
        conversion: of the index to its mirror.
        before: datapoints of the index, with its vectors.
        after: the same datapoints in the same order, with vectors of the mirror.

    Raises:
        StoreError: the store cannot be written.
        AlreadyExistsError: as `promote_index`.

    """
    maps = [each for name in conversion.remade for each in _maps_of(store, conversion, name, before, after)]
    put_maps(store, (conversion.source, conversion.target), maps)


def put_maps(store: Store, sides: Sequence[Manifest], maps: Sequence[VectorMap]) -> None:
    """Publish maps, whose files are stored, with an index and with its mirror; raises as `publish_maps`."""

    def with_maps(manifest: Manifest) -> Manifest:
        # Another index of that name, or another content, has vectors of another kind.
        expected = next(side for side in sides if side.index == manifest.index)
        stays = (manifest.index_id, manifest.switches) == (expected.index_id, expected.switches)
        return manifest.model_copy(update={"vector_maps": tuple(maps)}) if stays else manifest

    for side in sides:
        promote_index(store, side.index, with_maps, mode="map")


def _maps_of(
    store: Store, conversion: Conversion, name: str, before: pa.Table, after: pa.Table
) -> Iterator[VectorMap]:
    """Yield the maps of the vectors of a name, if they have any, and store their files."""
    indexes = (conversion.source.index, conversion.target.index)
    sides = [each.of_vectors(name) for each in (conversion.source, conversion.target) if name in each.vectors]
    if len(sides) < len(indexes) or not all(each.dimensions for each in sides):
        return
    distance = sides[0].spec.distance
    has_both_N = pc.and_(*(table.column(vector_column(name)).is_valid() for table in (before, after)))
    vectors = [
        search_ready(
            _vectors(table.column(vector_column(name)).filter(has_both_N), side.dimensions), distance
        )
        for table, side in zip((before, after), sides, strict=True)
    ]
    rows = len(vectors[0])
    if rows < LEAST_ROWS or sides[1].spec.distance != distance:
        return
    held_out = min(HELD_OUT, rows // 5)
    models = [_model_of(side) for side in sides]
    matrices = fitted_maps(vectors[0][:-held_out], vectors[1][:-held_out], distance)
    for matrix, (source, target) in zip(matrices, ((0, 1), (1, 0)), strict=True):
        if not models[source].models:
            continue  # nobody can name it
        for index in indexes:
            key, size_bytes, sha256 = write_map(store, index, matrix)
        yield VectorMap(
            key=key,
            size_bytes=size_bytes,
            sha256=sha256,
            vectors=name,
            source=models[source],
            target=models[target],
            rows=rows - held_out,
            held_out=held_out,
            overlap=map_overlap(matrix, vectors[source], vectors[target], held_out, distance),
        )


def _vectors(column: pa.ChunkedArray, dimensions: int) -> np.ndarray:
    """Return the vectors of a column without nulls, float32 (N, D)."""
    components = pc.list_flatten(column).to_numpy()
    return np.ascontiguousarray(components.reshape(-1, dimensions), np.float32)


def _model_of(manifest: Manifest) -> VectorModel:
    """Return the model of the unnamed vectors of an index."""
    info = manifest.vectors[""]
    return VectorModel(
        dimensions=info.dimensions,
        digest=(info.encoder or {}).get("digest"),
        models=models_of(manifest.spec, info, of_queries=True),
    )
