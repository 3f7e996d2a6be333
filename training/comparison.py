"""Compare searches with a registered model with what an index returns today, for queries that it was not fitted to."""

from __future__ import annotations

from pathlib import Path

from scannery.client import Index
from scannery.indexer import Store, read_manifest
from scannery.indexer.models.manifest import Difference, ModelVersion, RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.training.gate.evaluation import held_out_values, with_held_out_values
from scannery.training.judged import Progress, judged_queries
from scannery.training.promotion import promoted_state
from scannery.training.query_side.candidate import Candidate
from scannery.training.ranking.training import compared
from scannery.training.spec import JudgedQueries

__all__ = ["compared_model"]


def compared_model(
    store: Store, index: Index, model: ModelVersion, files: JudgedQueries, progress: Progress | None = None
) -> Difference:
    """Return what a model is better by, for judged queries of which those are left out that it was fitted to.

    Args:
        store: of the index, and of the registry.
        index: that is searched.
        model: of the index.
        files: of the queries.
        progress: gets the number of answered queries and of all.

    Raises:
        PromotionRefusedError: the model does not fit the index.
        InputNotFoundError, CollectionError: as `judged_queries`.

    """
    manifest = read_manifest(store, index.name)
    state = promoted_state(model, manifest)
    registry = ModelRegistry(store)
    fitted = frozenset(held_out_values(registry, state.learned_by))
    judged = with_held_out_values(
        judged_queries(index, files, Path(), progress, fitted=fitted),
        held_out_values(registry, manifest.search_state.learned_by),
    )
    if isinstance(model, RankingVersion):
        return compared(index, judged, model.ranker)
    return Candidate.registered(index, store, manifest.with_search_state(state)).difference(judged)
