"""Promote a model to the searches of an index, and roll back to the state before.

Both publish a version of the index with another state of searches (`SearchState`) by one conditional put: no stored
vector is touched, and servers, roots and leaves take it over like any version. A version keeps the states before its
promotions, so that a rollback needs nothing that is not in it, but the files of a model for queries.
"""

from __future__ import annotations

from typing import Any

from scannery.indexer import Store
from scannery.indexer.errors import NotFoundError
from scannery.indexer.manifest import FusionWeight, Manifest, Ranker, Relevance, SearchState, VectorsInfo
from scannery.indexer.models.manifest import EncoderVersion, ModelVersion, RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.versions.creation import promote_index
from scannery.training.errors import PromotionRefusedError

__all__ = ["check_fits", "promote", "promoted_state", "rollback"]

MAX_FORMER = 20
"""States that an index can be rolled back to, one after the other."""


def promote(store: Store, reference: str, index: str) -> Manifest:
    """Publish a version of an index with a model, and return its manifest; the current one if it has it already.

    Args:
        store: of the index, and of the registry.
        reference: `NAME@N`, or `NAME`: its newest version.
        index: name of the index.

    Raises:
        PromotionRefusedError: the gate refused the model, it was compared with another state than today's, was made for
            another index, encoder or analyser, or encodes documents, too.
        NotFoundError: there is no such model or index.

    """
    model = ModelRegistry(store).read(reference)
    if isinstance(model, EncoderVersion) and model.search is None:
        raise PromotionRefusedError(
            f"model {model.reference} encodes documents, too: all of them must be encoded again, by "
            f"`scannery index migrate {index} --encoder {model.spec_reference}`"
            if model.kind == "encoder"
            else f"model {model.reference} was not trained on the queries of an index: `scannery index alter {index} "
            f'--encoder \'{{"query_model": "{model.spec_reference}"}}\'` has it encode queries',
            field="model",
        )
    evaluation = model.evaluation
    if evaluation is not None and evaluation.refused:
        reasons = "; ".join(evaluation.refused)
        raise PromotionRefusedError(f"model {model.reference} may not be promoted: {reasons}", field="model")

    def promoted(parent: Manifest) -> Manifest:
        state = promoted_state(model, parent)
        if parent.model == model.reference:
            return parent
        _check_compared(model, parent.search_state.name)
        former = (*parent.former, parent.search_state)[-MAX_FORMER:]
        return parent.with_search_state(state).model_copy(update={"former": former})

    return promote_index(store, index, promoted)


def promoted_state(model: ModelVersion, manifest: Manifest) -> SearchState:
    """Return the state of searches of a version of an index with a model; raises as `check_fits`."""
    if isinstance(model, RankingVersion):
        check_fits(model, manifest)
        return manifest.search_state.model_copy(update={"model": model.reference, "ranker": model.ranker})
    check_fits(model, manifest)
    assert model.search is not None
    return model.search


def _check_compared(model: ModelVersion, current: str | None) -> None:
    """Raise PromotionRefusedError if a model was found to be better than another state of searches than today's."""
    compared_with = None if model.evaluation is None else model.evaluation.compared_with
    if compared_with != current:
        raise PromotionRefusedError(
            f"model {model.reference} is better than {compared_with or 'the measured weight'}, but "
            f"{current or 'the measured weight'} orders the hits today: train it again, or roll back first",
            field="model",
        )


def check_fits(model: RankingVersion | EncoderVersion, manifest: Manifest) -> None:
    """Raise PromotionRefusedError if the scores of an index are others than those that a model was fitted to."""
    # Versions of earlier releases have no identity but the name.
    if (model.index_id or model.index) != (manifest.index_id or manifest.index):
        raise PromotionRefusedError(
            f"model {model.reference} was trained on another index than {manifest.index!r}: train one on this",
            field="index",
        )
    if isinstance(model, RankingVersion):
        fusion = manifest.fusion
        fits = fusion is not None and _measured_with(fusion) == _measured_with(model.ranker)
    else:
        fits = model.search is not None and _holds(model.search, manifest)
    if not fits:
        raise PromotionRefusedError(
            f"model {model.reference} was trained on version {model.index_version} of index {manifest.index!r}, whose "
            f"encoder or analyser version {manifest.version} does not have: train it again",
            field="model",
        )


def rollback(store: Store, index: str) -> Manifest:
    """Publish a version of an index with the state of searches before the current one, and return its manifest.

    States with a model for queries that the store does not have any more, as after a restore elsewhere, and those of
    another encoder or analyser are passed over: there is always a way back, to what nothing was learned for.

    Raises:
        NotFoundError: there is no such index, or it has no model.

    """
    registry = ModelRegistry(store)

    def previous(parent: Manifest) -> Manifest:
        if parent.model is None:
            raise NotFoundError(
                f"version {parent.version} of index {index!r} has no model to roll back", field="index"
            )
        for number, state in reversed([*enumerate(parent.former)]):
            if _holds(state, parent) and _is_stored(state, registry):
                return parent.with_search_state(state).model_copy(update={"former": parent.former[:number]})
        return parent.with_search_state(_unlearned(parent)).model_copy(update={"former": ()})

    return promote_index(store, index, previous)


def _unlearned(manifest: Manifest) -> SearchState:
    """Return the state of searches of a version without what was learned."""
    state = manifest.search_state
    if state.query_model is None:
        return state.model_copy(update={"model": None, "ranker": None})
    return SearchState()


def _holds(state: SearchState, manifest: Manifest) -> bool:
    """Return whether a state is of the encoder of a version, and measured with its analyser."""
    if state.documents not in (None, (manifest.encoder or {}).get("digest")):
        return False
    sides = VectorsInfo(
        dimensions=manifest.dimensions, encoder=manifest.encoder, query_encoder=state.query_encoder
    )
    identity = sides.sides_digest, manifest.measured_with[1]
    return all(_measured_with(each) == identity for each in state.measured)


def _measured_with(each: FusionWeight | Relevance | Ranker) -> tuple[str | None, dict[str, Any]]:
    return each.encoder, each.lexical_rules


def _is_stored(state: SearchState, registry: ModelRegistry) -> bool:
    """Return whether the model for queries of a state can be read, where it lies in the store."""
    if state.query_version is None:
        return True
    try:
        registry.read_encoder(state.query_version)
    except NotFoundError:
        return False
    return True
