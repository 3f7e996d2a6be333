"""Promote a model to the order of an index's hits, and roll back to the one before.

Both publish a version of the index with other numbers in its manifest, by one conditional put: no vector is touched,
and servers, roots and leaves take it over like any version.
"""

from __future__ import annotations

import contextlib

from scannery.indexer import Store
from scannery.indexer.errors import InvalidSpecError, NotFoundError
from scannery.indexer.manifest import Manifest, Ranker
from scannery.indexer.models.manifest import RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.versions.creation import rank_index
from scannery.training.errors import PromotionRefusedError

__all__ = ["check_fits", "promote", "rollback"]

MAX_FORMER = 20
"""Models that an index can be rolled back to, one after the other."""


def promote(store: Store, reference: str, index: str) -> Manifest:
    """Publish a version of an index with a model, and return its manifest; the current one if it has it already.

    Args:
        store: of the index, and of the registry.
        reference: `NAME@N`, or `NAME`: its newest version.
        index: name of the index.

    Raises:
        PromotionRefusedError: the gate refused the model, it was compared with another order of hits than today's, or
            was made for another index, encoder or analyser.
        NotFoundError: there is no such model or index.

    """
    model = ModelRegistry(store).read_ranking(reference)
    if model.evaluation.refused:
        reasons = "; ".join(model.evaluation.refused)
        raise PromotionRefusedError(f"model {model.reference} may not be promoted: {reasons}", field="model")

    def promoted(parent: Manifest) -> Ranker:
        check_fits(model, parent)
        current = parent.ranker
        if current is not None and current.model == model.reference:
            return current
        _check_compared(model, None if current is None else current.model)
        former = () if current is None else (*current.former, current.model)[-MAX_FORMER:]
        return model.ranker.model_copy(update={"former": former})

    return rank_index(store, index, promoted)


def _check_compared(model: RankingVersion, current: str | None) -> None:
    """Raise PromotionRefusedError if hits are not in the order any more that a model was found to be better than."""
    compared_with = model.evaluation.compared_with
    if compared_with != current:
        raise PromotionRefusedError(
            f"model {model.reference} is better than {compared_with or 'the measured weight'}, but "
            f"{current or 'the measured weight'} orders the hits today: train it again, or roll back first",
            field="model",
        )


def check_fits(model: RankingVersion, manifest: Manifest) -> None:
    """Raise PromotionRefusedError if the scores of an index are others than those that a model was fitted to."""
    fusion = manifest.fusion
    # Versions of earlier releases have no identity but the name.
    if (model.index_id or model.index) != (manifest.index_id or manifest.index):
        raise PromotionRefusedError(
            f"model {model.reference} was trained on another index than {manifest.index!r}: train one on this",
            field="index",
        )
    if fusion is None or (fusion.encoder, fusion.lexical_rules) != (
        model.ranker.encoder,
        model.ranker.lexical_rules,
    ):
        raise PromotionRefusedError(
            f"model {model.reference} was trained on version {model.index_version} of index {manifest.index!r}, whose "
            f"encoder or analyser version {manifest.version} does not have: train it again",
            field="model",
        )


def rollback(store: Store, index: str) -> Manifest:
    """Publish a version of an index with the model before the current one, or without one; return its manifest.

    Models that the store does not have, as after a restore elsewhere, are passed over: there is always a way back.

    Raises:
        NotFoundError: there is no such index, or it has no model.

    """
    registry = ModelRegistry(store)

    def previous(parent: Manifest) -> Ranker | None:
        current = parent.ranker
        if current is None:
            raise NotFoundError(
                f"version {parent.version} of index {index!r} has no model to roll back", field="index"
            )
        for number, reference in reversed([*enumerate(current.former)]):
            with contextlib.suppress(NotFoundError, InvalidSpecError, PromotionRefusedError):
                model = registry.read_ranking(reference)
                check_fits(model, parent)
                return model.ranker.model_copy(update={"former": current.former[:number]})
        return None

    return rank_index(store, index, previous)
