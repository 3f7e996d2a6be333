"""The job of a build: what its workers need, from the spec, the input and the version that it begins from."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scannery.indexer.manifest import Manifest, VectorsInfo
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.creation import with_analyser
from scannery.indexer.versions.levels import check_keys, level_of
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.planning.build_plan import shards_of, vectors_of, with_compounds
from scannery.pipelines.planning.compatibility import check_compatible, needs_rewriting
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.sources import Part
from scannery.pipelines.stages.update import ShardChange
from scannery.pipelines.state.job import Job, Mode
from scannery.pipelines.state.work_units import WorkUnit, key_of
from scannery.pipelines.tuning.tuning_queries import queries_of, write_queries

__all__ = ["build_id", "new_job", "plan_job"]

TEXT_VERSION = 3
"""Part of the recipe of indexes with texts: raise it when some text would be embedded or searched differently.

Units are then made again; documents with an unchanged content hash (records/passages.py) are not embedded again."""


def plan_job(
    spec: IndexSpec,
    store: Store,
    parts: Sequence[Part],
    encoders: Mapping[str, PlannedEncoder],
    given_QD: np.ndarray | None,
    parent: Manifest | None,
    mode: Mode,
) -> Job:
    """Return the job without the caller's options and without the build id, which depends on the input.

    Raises:
        SpecConflictError: rows of the index do not fit the spec (compatibility.py).

    """
    updates = mode == "upsert" and parent is not None
    spec = with_compounds(spec, parent if updates else None, parts)
    if parent is not None and not parts and updates:  # only deletes: nothing is read, nothing encoded
        vectors = parent.vectors
    else:
        vectors = vectors_of(spec, parts, encoders, parent, updates=updates)
    if parent is not None and updates:
        check_compatible(spec, parent, vectors)
    job = new_job(
        spec,
        store,
        vectors=vectors,
        shards=shards_of(spec, parts, parent, vectors),
        parent=parent,
        mode="upsert" if updates else "full",
        queries=None
        if given_QD is None
        else write_queries(store, spec.index, given_QD, vectors[""].dimensions),
    )
    return dataclasses.replace(
        job, keep_rows=not updates and parent is not None and _can_keep_rows(job, parent)
    )


def new_job(
    spec: IndexSpec,
    store: Store,
    *,
    vectors: Mapping[str, VectorsInfo],
    shards: int,
    parent: Manifest | None,
    mode: Mode,
    queries: str | None = None,
) -> Job:
    """Return a job without the caller's options and without a build id.

    An index keeps its analyser version unless the spec names another. Without `queries`, the job keeps the parent's
    tuning queries if they were encoded by the same encoder.
    """
    level = level_of(store)
    check_keys(level, spec, parent)  # not after hours of work, when it is published
    spec = with_analyser(spec, parent.spec if parent is not None and mode == "upsert" else None, level=level)
    parent_queries = None if parent is None else queries_of(parent)
    if queries is None and parent is not None and _same_space(vectors[""], parent.vectors[""]):
        queries = parent_queries
    rewritten = parent is not None and (needs_rewriting(spec, parent) or queries != parent_queries)
    recipes = {name: _vectors_recipe(spec, name, info) for name, info in vectors.items()}
    recipe = {
        "source": spec.source.model_dump(exclude={"max_errors"}),
        "attributes": spec.model_dump(mode="json", include={"attributes", "attribute_specs"})["attributes"],
        **recipes.pop(""),
        "shards": shards,
    }
    if spec.dynamic:
        recipe["dynamic"] = True
    if recipes:
        recipe["named_vectors"] = recipes
    if spec.vectors == "optional":  # records without a vector become rows, not dead letters
        recipe["vectors"] = spec.vectors
    if spec.source.text is not None:
        recipe["text"] = TEXT_VERSION
    return Job(
        store_uri=str(store.local_root or store.uri),
        spec=spec,
        vectors=vectors,
        shards=shards,
        recipe=recipe,
        build_id="",
        parent=parent.version if parent else None,
        index_id=parent.index_id if parent else None,
        mode=mode,
        queries=queries,
        merge=mode == "upsert" and rewritten,
    )


def _vectors_recipe(spec: IndexSpec, name: str, info: VectorsInfo) -> dict[str, Any]:
    """Return what the vectors of a name depend on besides the input."""
    recipe = {
        "distance": spec.of_vectors(name).distance,
        "dimensions": info.dimensions,
        "encoder": info.encoder and info.encoder["digest"],
    }
    if not name:  # whose field and text the recipe has with the source
        return recipe if spec.embeds else recipe | {"encoder": None}
    text = spec.text_field(name) if info.encoder else None
    return recipe | {"vector": spec.named_vectors[name].vector, "text": text}


def build_id(job: Job, units: Sequence[WorkUnit], shard_changes: Mapping[int, ShardChange]) -> str:
    """Return the name of a build; builds that do the same work have the same name."""
    # Without the mode: a first build is `full` and its repetition `upsert`, and both must have one name.
    spec, keys = job.spec.model_dump(mode="json"), [unit.key for unit in units]
    changes = sorted((shard, change.key) for shard, change in shard_changes.items())
    return key_of("build", spec, job.recipe, keys, job.merge, job.queries, changes)[:16]


def _same_space(first: VectorsInfo, second: VectorsInfo) -> bool:
    """Return whether vectors of both kinds can be in one index."""
    digests = [(info.encoder or {}).get("digest") for info in (first, second)]
    return first.dimensions == second.dimensions and digests[0] == digests[1]


def _can_keep_rows(job: Job, parent: Manifest) -> bool:
    """Return whether this job would make the same segments from the same rows as the index has."""
    try:
        check_compatible(job.spec, parent, job.vectors)
    except SpecConflictError:
        return False
    same_queries = job.queries == queries_of(parent)
    return job.shards == parent.shards and same_queries and not needs_rewriting(job.spec, parent)
