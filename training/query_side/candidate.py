"""An index with a model for queries that is not published: what its searches would return.

The index is asked as it is, with vectors by the model; weight and scales of hybrid search, the relevance of hits and
the order of them are measured and learned anew, since all of them are of other scores.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scannery.client import Index, Words
from scannery.client.request.queries import QueryLike
from scannery.embed import Encoder
from scannery.embed.sided_encoder import SidedEncoder
from scannery.indexer import Store
from scannery.indexer.manifest import Manifest, Ranker, SearchState
from scannery.indexer.models.manifest import Difference
from scannery.indexer.spec.model_reference import STORE_PREFIX
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, encoder_sources
from scannery.pipelines.tuning.search_measurement import with_measured_search
from scannery.training.gate.decision import difference_of
from scannery.training.judged import Judged, searched_gains
from scannery.training.ranking.training import compared, fitted_ranker

__all__ = ["Candidate", "dense_difference"]


@dataclass(eq=False)
class Candidate:
    """An index with a trained model."""

    index: Index
    """The index as it is."""
    manifest: Manifest
    """Version with what was measured of searches with the model."""
    encoder: Encoder
    """The model."""
    fingerprint: dict[str, Any]
    """Its fingerprint without options."""
    ranker: Ranker | None = None
    """The order of hybrid hits that was learned with it; None: none was."""

    @classmethod
    def measured(
        cls, index: Index, store: Store, manifest: Manifest, folder: Path, base: EncoderSpec
    ) -> Candidate:
        """Measure what searches with the model in a folder need: weight and scales of hybrid search, relevance.

        Args:
            index: of the store.
            store: with the index.
            manifest: of its version.
            folder: of the model, which stays until this has returned.
            base: what it was trained from, with its options.

        """
        spec = manifest.spec
        assert spec.encoder is not None
        encoder = Encoder.load(folder, label=_LABEL, device=base.device, **base.options)
        version = manifest.model_copy(update={"query_encoder": encoder.fingerprint.to_dict(), "ranker": None})
        sources = encoder_sources(spec, store.uri)
        documents = PlannedEncoder(spec.encoder.documents, store.uri)
        sources[""] = lambda: SidedEncoder(queries=encoder, documents=documents.load())
        fingerprint = Encoder.load(folder, label=_LABEL, device="cpu").fingerprint
        return cls(index, with_measured_search(version, None, store, sources), encoder, fingerprint.to_dict())

    @classmethod
    def registered(cls, index: Index, store: Store, manifest: Manifest) -> Candidate:
        """Return the candidate of a version with the state of searches of a registered model."""
        assert manifest.spec.encoder is not None
        encoder = PlannedEncoder(manifest.spec.encoder.queries, store.uri).load()
        return cls(index, manifest, encoder, encoder.fingerprint.to_dict(), manifest.ranker)

    def state(self, model: str) -> SearchState:
        """Return the state of searches with the model, under its name in the registry."""
        name = f"{STORE_PREFIX}{model}"
        fingerprint: dict[str, Any] = self.manifest.query_encoder or {}
        return self.manifest.search_state.model_copy(
            update={
                "model": model,
                "query_model": name,
                "query_encoder": {**fingerprint, "model": name},
                "ranker": self.ranker and self.ranker.model_copy(update={"model": model}),
            }
        )

    def learn_order(self, judged: Judged, held_out: Mapping[str, np.ndarray], *, seed: int) -> np.ndarray:
        """Learn an order of hits, if the index has hybrid search by default, and return nDCG@10 of judged queries.

        Args:
            judged: queries that the model was fitted to.
            held_out: vectors of their texts by models that they were held out of, float32 (D,).
            seed: of the folds of the order.

        Returns:
            What models and orders are worth that each query was held out of, float64 (Q,).

        """
        fusion = self.manifest.fusion
        if fusion is None or fusion.scales is None:
            return searched_gains(
                self.index,
                judged.texts,
                judged.judgements,
                lambda text: self._query(text, held_out[text]),
                passages=judged.passages,
            )
        fitted = fitted_ranker(
            self.index,
            self.manifest,
            fusion,
            judged,
            seed=seed,
            held_out=lambda text: self._query(text, held_out[text]),
            as_query=self._encoded,
        )
        self.ranker = fitted.ranker
        return fitted.gains_Q

    def difference(self, judged: Judged) -> Difference:
        """Return what the candidate is better by than the index of today, for queries that it was not fitted to."""
        if self.ranker is not None:
            return compared(self.index, judged, self.ranker, self._encoded)
        gains_Q = searched_gains(
            self.index, judged.texts, judged.judgements, self._encoded, passages=judged.passages
        )
        return difference_of(judged.current_Q, gains_Q)

    def _encoded(self, text: str) -> QueryLike:
        return self._query(text, self.encoder.encode_queries([text])[0])

    def _query(self, text: str, vector_D: np.ndarray) -> QueryLike:
        """Return the query that is sent for a text with a vector: with its words where these are searched."""
        return vector_D if self.manifest.spec.lexical is None else Words(text, vector_D)


_LABEL = "trained"
"""Name of the model until it is registered."""


def dense_difference(index: Index, judged: Judged, held_out: Mapping[str, np.ndarray]) -> Difference:
    """Return what search by vector alone gains over that of today; arguments as of `Candidate.learn_order`."""
    current_Q, trained_Q = (
        searched_gains(
            index, judged.texts, judged.judgements, as_query, passages=judged.passages, mode="dense"
        )
        for as_query in (lambda text: text, lambda text: held_out[text])
    )
    return difference_of(current_Q, trained_Q)
