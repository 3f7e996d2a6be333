"""Dense search: the best rows of a snapshot by one of its vectors, or by several.

Each of several vectors gives a ranking of its own. A row that one of them finds is also scored by the others, exactly,
so that it loses nothing where it is just behind the best rows of these. hybrid.py makes one ranking of them.

Shapes: Q queries, S vectors of the search, U rows in any ranking of a query, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scannery.indexer.tuning.score_fusion import FUSED_ROWS
from scannery.runtime.errors import VectorsUnavailableError
from scannery.serving.engine.hybrid import DenseRankings, fuse, fusion_depth, keys_in, places_of
from scannery.serving.engine.prepared_search import QueryBatch
from scannery.serving.engine.query_vectors import dense_part, query_for, query_vectors
from scannery.serving.engine.segment_search import SearchedSegments, searched_segments, settings_of
from scannery.serving.engine.top_k import Ranking, merge
from scannery.serving.request.options import Options
from scannery.serving.request.query import Blend, Single, Vectors
from scannery.serving.request.vector_choice import check_has_vectors

__all__ = ["DenseSearch"]

NOT_ASKED = -1


class DenseSearch:
    """Some queries, as vectors, over one snapshot."""

    def __init__(self, batch: QueryBatch, options: Options) -> None:
        """Encode the queries.

        Args:
            batch: the queries.
            options: of the search, in mode dense or hybrid.

        Raises:
            EncoderUnavailableError: a text, and the vectors have no encoder.
            VectorsUnavailableError: the index has no vectors, or a query names a datapoint without one.
            InvalidRequestError: a query has no vector in this mode.
            UnknownDatapointError: a query names a datapoint that is not there.

        """
        check_has_vectors(batch.snapshot.manifest, "mode")
        self._batch, self._options, self._chosen = batch, options, options.vectors
        self._ranges: dict[tuple[int, int], float] = {}
        self._numbers_QS: np.ndarray | None = None
        """For each query and vector, its row in `_vectors`, or NOT_ASKED; None: there is one vector, which all have."""
        if isinstance(batch.queries, Vectors):
            self._vectors = [batch.queries.vectors_QD]
            return
        pairs = zip(batch.queries, batch.paths, strict=True)
        asked = [dense_part(query, options.mode, path) for query, path in pairs]
        if len(self._chosen) == 1:
            [choice] = self._chosen
            self._vectors = [query_vectors(batch.snapshot, choice, asked, batch.deadline, paths=batch.paths)]
        else:
            self._vectors, self._numbers_QS = self._of_several(asked)

    def search(self, searched: SearchedSegments) -> None:
        """Set the segments that are searched."""
        self._searched = searched.by_vector

    def best(self, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best `wanted` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            wanted: rows for each; of a query by several vectors there may be more.

        """
        if self._numbers_QS is None:
            return [self._with_scores(ranking, 0) for ranking in self._found(0, queries, wanted)]
        found: dict[int, Ranking] = {}
        counts_Q = np.count_nonzero(self._numbers_QS[queries] != NOT_ASKED, axis=1)
        for place in range(len(self._chosen)):
            alone = queries[(counts_Q == 1) & (self._numbers_QS[queries, place] != NOT_ASKED)]
            rankings = self._found(place, alone, wanted)
            found |= {
                query: self._with_scores(ranking, place)
                for query, ranking in zip(alone.tolist(), rankings, strict=True)
            }
        several = queries[counts_Q > 1]
        fusion, segments = self._options.fusion, self._batch.snapshot.segments
        for query, each in zip(several.tolist(), self.rankings(several, fusion_depth(wanted)), strict=True):
            found[query] = fuse(each, None, fusion, segments)
        return [found[query] for query in queries.tolist()]

    def rankings(self, queries: np.ndarray, depth: int) -> list[DenseRankings]:
        """Return for each query its best `depth` rows by each of its vectors, to be fused."""
        found: dict[int, list[tuple[int, Ranking]]] = {query: [] for query in queries.tolist()}
        for place in range(len(self._chosen)):
            asking = queries
            if self._numbers_QS is not None:
                asking = queries[self._numbers_QS[queries, place] != NOT_ASKED]
            for query, ranking in zip(asking.tolist(), self._found(place, asking, depth), strict=True):
                found[query].append((place, ranking))
        self._measure_ranges([(query, place) for query, own in found.items() for place, _ in own])
        return [self._fusible(query, own) for query, own in found.items()]

    def _fusible(self, query: int, found: Sequence[tuple[int, Ranking]]) -> DenseRankings:
        places = [place for place, _ in found]
        rankings = [ranking for _, ranking in found]
        keys_U, scores_US = np.empty(0, np.int64), np.empty((0, len(places)), np.float32)
        if len(places) > 1:
            keys_U = keys_in(rankings)
            scores_US = np.stack([self._scores(query, place, keys_U) for place in places], axis=1)
        weights = np.array([self._chosen.choices[place].weight for place in places])
        return DenseRankings(
            rankings=rankings,
            weights=(weights / weights.sum()).tolist()
            if len(places) < len(self._chosen)
            else weights.tolist(),
            ranges=[self._ranges.get((query, place), 0.0) for place in places],
            keys_U=keys_U,
            scores_US=scores_US,
            columns=places if self._chosen.names else [],
            width=len(self._chosen.names),
        )

    def _of_several(self, asked: Sequence[Single | Blend]) -> tuple[list[np.ndarray], np.ndarray]:
        """Return the vectors of queries for each of several vectors, and `_numbers_QS`."""
        batch, vectors = self._batch, []
        numbers_QS = np.full((len(asked), len(self._chosen)), NOT_ASKED, np.int64)
        for place, choice in enumerate(self._chosen):
            parts = [
                query_for(batch.snapshot, query, self._chosen, place, path=path)
                for query, path in zip(asked, batch.paths, strict=True)
            ]
            kept = [(number, part) for number, part in enumerate(parts) if part is not None]
            numbers = [number for number, _ in kept]
            numbers_QS[numbers, place] = np.arange(len(kept))
            paths = [batch.paths[number] for number in numbers]
            own = [part for _, part in kept]
            vectors.append(query_vectors(batch.snapshot, choice, own, batch.deadline, paths=paths))
        for path, numbers_S in zip(batch.paths, numbers_QS, strict=True):
            if (numbers_S == NOT_ASKED).all():
                names = ", ".join(repr(name) for name in self._chosen.names)
                raise VectorsUnavailableError(
                    f"{path}: none of the vectors {names} can be searched by this query: a text needs an encoder, an "
                    "id a datapoint with the vector, and a group a vector that all of its queries have",
                    field=path,
                )
        return vectors, numbers_QS

    def _asked(self, place: int, queries: np.ndarray) -> np.ndarray:
        """Return the vectors of queries for one of the vectors of the search, float32 (Q, D)."""
        vectors_QD = self._vectors[place]
        if self._numbers_QS is not None:
            asked_QD: np.ndarray = vectors_QD[self._numbers_QS[queries, place]]
            return asked_QD
        return vectors_QD if len(queries) == len(vectors_QD) else vectors_QD[queries]

    def _found(self, place: int, queries: np.ndarray, wanted: int) -> list[Ranking]:
        """Return the best rows of queries by one of the vectors."""
        if not len(queries):
            return []
        batch = self._batch
        vectors_QD, paths = self._asked(place, queries), batch.paths
        if len(queries) < len(paths):
            paths = [paths[number] for number in queries.tolist()]
        found = []
        for each in self._searched[place]:
            batch.deadline.check()
            found.append((each.number, *each.search(vectors_QD, wanted, batch.stats, paths)))
        batch.deadline.check()
        return merge(found, len(vectors_QD), wanted, batch.snapshot.segments)

    def _with_scores(self, ranking: Ranking, place: int) -> Ranking:
        """Return a ranking by one of the vectors with its scores by name, if these are returned."""
        width = len(self._chosen.names)
        if not width:
            return ranking
        by_vector_HS = np.full((len(ranking), width), np.nan, np.float32)
        by_vector_HS[:, place] = ranking.scores
        return replace(ranking, by_vector=by_vector_HS)

    def _scores(self, query: int, place: int, keys_U: np.ndarray) -> np.ndarray:
        """Return the scores of rows by one of the vectors, float32 (U,); NaN where a row does not have it."""
        self._batch.deadline.check()
        space = self._batch.snapshot.space(self._chosen.choices[place].name)
        [query_D] = self._asked(place, np.array([query]))
        numbers_U, rows_U = places_of(keys_U)
        scores_U = np.empty(len(keys_U), np.float32)
        for number in np.unique(numbers_U).tolist():
            own = numbers_U == number
            scores_U[own] = space.scores(number, rows_U[own], query_D)
        return scores_U

    def _measure_ranges(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Measure what the scales of queries with a filter take from the same queries without it, once.

        That is how far the score at place 200 is below the first one in the whole index, if few rows are allowed.
        """
        if self._options.where is None or self._options.fusion.method != "weighted_score":
            return
        for place in sorted({place for _, place in pairs}):
            new = [query for query, other in pairs if other == place and (query, place) not in self._ranges]
            if not new or sum(each.rows for each in self._searched[place]) >= FUSED_ROWS:
                continue
            ranges = self._unfiltered_ranges(place, np.array(new))
            self._ranges |= {(query, place): found for query, found in zip(new, ranges, strict=True)}

    def _unfiltered_ranges(self, place: int, queries: np.ndarray) -> list[float]:
        snapshot, choice = self._batch.snapshot, self._chosen.choices[place]
        one = replace(self._chosen, choices=(choice,))
        options = replace(self._options, where=None, mode="dense", vectors=one)
        space = snapshot.space(choice.name)
        [searches] = searched_segments(snapshot, options, [space], [settings_of(space, options)]).by_vector
        asked_QD = self._asked(place, queries)
        found = [each.find(asked_QD, FUSED_ROWS).scores_QK for each in searches]
        self._batch.deadline.check()
        if not found:
            return [0.0] * len(queries)
        scores_QK = -np.sort(-np.concatenate(found, axis=1), axis=1)[:, :FUSED_ROWS]
        finite_QK = np.where(np.isfinite(scores_QK), scores_QK, np.inf)
        ranges: list[float] = (scores_QK[:, 0] - finite_QK.min(axis=1)).tolist()
        return ranges
