"""The steps of a search that a datapoint passes, up to the one that keeps it out of the hits.

The datapoint is looked for in the answer first. Then its scores and ranks are told step by step: by each vector, by
words, fused, in the order of the options, within its group, after reranking. Where the search is approximate, an exact
one tells whether it is why the datapoint is missing. A remedy is tried before it is told, so far as that costs no
reranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scannery.indexer import WeightedTerms
from scannery.serving import limits
from scannery.serving.engine.explaining.ranks import (
    MAX_RANK,
    Ranks,
    Standing,
    by_words,
    place_of,
    standing_of,
)
from scannery.serving.engine.explaining.word_scores import word_scores
from scannery.serving.engine.hybrid import fusion_depth, keys_of
from scannery.serving.engine.query_vectors import named_rows
from scannery.serving.engine.relevance import HitRelevance
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.search import Finish, before_rerank, hit_features, ranked_candidates
from scannery.serving.engine.top_k import EMPTY, Ranking
from scannery.serving.request.grouping import GroupLimit
from scannery.serving.request.options import Knobs, Options
from scannery.v1 import search_pb2 as pb

__all__ = ["Ladder"]

HIGH_RECALL = 0.99
"""Target recall that is tried before an exact search."""


class Ladder:
    """The steps of one search, for one datapoint that its filter allows."""

    def __init__(self, ranks: Ranks, options: Options, answer: pb.ExplainResponse) -> None:
        """Begin.

        Args:
            ranks: of the datapoint.
            options: of the search, in the mode of the query.
            answer: with the datapoint; what is told is put in there.

        """
        self._ranks, self._options, self._answer = ranks, options, answer
        self._row = EMPTY
        """The datapoint among the rows of the search."""

    def explain(self, hits: Ranking) -> None:
        """Put in what each step tells; `hits` are those of the search."""
        self._by_vector()
        self._by_words()
        if not len(self._row):
            no_words = self._options.mode != "dense"
            self._kept_out("NO_WORD" if no_words else "NO_VECTOR", _no_match(self._options))
            return
        self._fused()
        ranks = self._ranks
        [named] = named_rows(ranks.rows.lookup, [ranks.query], ["query"])
        if (int(self._row.segments[0]), int(self._row.rows[0])) in named:
            self._kept_out("QUERY", "a query that does not name it by id")
            return
        at = place_of(self._row, hits)
        if at is not None:
            self._answer.rank = self._options.offset + at + 1
            self._put_hit(self._options, hits.at(slice(at, at + 1)))
            self._kept_out("NOTHING", "")
            return
        self._in_order(named)

    def _kept_out(self, step: str, remedy: str) -> None:
        self._answer.kept_out_by = pb.KeptOutBy.Value(f"KEPT_OUT_BY_{step}")
        self._answer.remedy = remedy

    def _put_hit(self, options: Options, row: Ranking) -> None:
        """Put in the scores of the datapoint as they are in the answer to a search."""
        ranks = self._ranks
        output = ranks.rows.hits(ranks.prepared(options), [row]).lists()[0]
        response = pb.SearchResponse.FromString(output)
        if response.hits:
            self._answer.hit.CopyFrom(response.hits[0])
        if features := hit_features(row)[0]:
            self._answer.hit.features.MergeFromString(features)

    def _by_vector(self) -> None:
        if self._options.mode == "lexical":
            return
        ranks, options = self._ranks, self._options
        fused = options.mode == "hybrid" or len(options.vectors) > 1
        depth = fusion_depth(options.deepest) if fused else options.deepest
        for column, choice in enumerate(options.vectors):
            rank = self._answer.dense.add(vectors=choice.name, candidates=depth)
            search = ranks.by_vector(options, column)
            if search is None:
                continue
            single, query = search
            exact = replace(single, exact=True)
            row = ranks.by_itself(exact, query)
            if not len(row):
                continue
            self._row = row
            standing = standing_of(row, ranks.candidates(exact, query), depth)
            rank.exact.CopyFrom(_score_rank(row, standing))
            [taken] = ranks.candidates(single, query).best(np.zeros(1, np.int64), depth)
            at = place_of(row, taken.within(0, depth))
            if at is not None:
                rank.candidate_rank = at + 1

    def _by_words(self) -> None:
        if self._options.mode == "dense":
            return
        ranks, options = self._ranks, by_words(self._options)
        candidates, row = ranks.candidates(options), ranks.by_itself(options)
        lexical = self._answer.lexical
        lexical.SetInParent()
        if len(row):
            self._row = row
            lexical.by_words.CopyFrom(_score_rank(row, standing_of(row, candidates, self._options.deepest)))
        words = candidates.words_of(0)
        if isinstance(words, WeightedTerms) and len(self._row):
            lexical.words.extend(word_scores(ranks, options, words, self._row))

    def _fused(self) -> None:
        options = self._options
        if options.mode == "lexical" or (options.mode == "dense" and len(options.vectors) == 1):
            return
        standing = standing_of(self._row, self._ranks.candidates(options), options.deepest)
        if standing.at is not None:
            row = standing.ranking.at(slice(standing.at, standing.at + 1))
            self._answer.fused.CopyFrom(_score_rank(row, standing))

    def _in_order(self, named: Sequence[tuple[int, int]]) -> None:
        """Put in what keeps the datapoint out, which is no hit though it matches the query."""
        ranks, options = self._ranks, self._options
        first = replace(before_rerank(ranks.snapshot, options), diversity=0.0)
        # Least relevances are looked at afterwards: candidates by a ranking expression leave out what has less.
        order = replace(first, min_relevance=None)
        batch, prepared = ranks.batch(), ranks.prepared(order)
        relevance = HitRelevance(order, batch)
        candidates = ranked_candidates(prepared, batch, ranks.rows, relevance)
        depth = first.k + len(named)
        standing = standing_of(self._row, candidates, depth)
        if standing.at is None:
            self._beyond(first, None, depth)
            return
        row = standing.ranking.at(slice(standing.at, standing.at + 1))
        row = relevance.added(0, row, candidates)
        self._put_hit(order, row)
        if row.scores[0] < first.min_score:
            lower = replace(options, min_score=float(row.scores[0]))
            self._kept_out("MIN_SCORE", self._tried(f"min_score = {row.scores[0]:.9g}", lower))
            return
        if _is_irrelevant(row, first.min_relevance):
            self._kept_out("MIN_RELEVANCE", self._lower_relevance(row))
            return
        whole = replace(first, k=len(standing.ranking), offset=0)
        kept = Finish(ranks.rows, whole, [named], relevance, candidates)(0, standing.ranking, complete=True)
        assert kept is not None  # the candidates are said to be complete
        position = place_of(self._row, kept)
        if position is None:
            uncrowded = replace(whole, group_limits=())
            passing = Finish(ranks.rows, uncrowded, [named], relevance, candidates)(
                0, standing.ranking, complete=True
            )
            assert passing is not None
            self._crowded(kept, passing, first)
            return
        self._answer.rank = position + 1
        if position >= first.k:
            self._beyond(first, position, len(standing.ranking))
        elif options.rerank is not None:
            self._reranked(first)
        else:
            self._among_first(position, first)

    def _crowded(self, kept: Ranking, passing: Ranking, first: Options) -> None:
        """Put in the hits that fill the group of the datapoint; `passing` has those that crowding drops, too."""
        rows, at = self._ranks.rows, place_of(self._row, passing)
        assert at is not None  # it passes all but crowding
        is_kept_H = np.isin(keys_of(passing), keys_of(kept))
        for limit in first.group_limits:
            groups = rows.groups(passing.at(slice(0, at + 1)), limit.column)
            same = [position for position in range(at) if groups[position] == groups[at]]
            better = [position for position in same if is_kept_H[position]]
            if len(better) >= limit.max_hits:
                self._answer.crowded_by.extend(_ids(passing.at(np.array(better, np.int64)), rows))
                self._answer.crowding.max_per_group = limit.max_hits
                self._answer.crowding.group_by = limit.column
                self._kept_out("CROWDED", self._wider_group(limit, len(same) + 1))
                return

    def _wider_group(self, limit: GroupLimit, max_hits: int) -> str:
        options, wider = self._options, replace(limit, max_hits=max_hits)
        group_limits = tuple(wider if each is limit else each for each in options.group_limits)
        of_column = f" of {limit.column}" if len(group_limits) > 1 else ""
        return self._tried(
            f"max_per_group{of_column} = {max_hits}", replace(options, group_limits=group_limits)
        )

    def _lower_relevance(self, row: Ranking) -> str:
        least = None if row.relevance is None or np.isnan(row.relevance[0]) else float(row.relevance[0])
        text = "no min_relevance" if least is None else f"min_relevance = {least:.9g}"
        return self._tried(text, replace(self._options, min_relevance=least))

    def _tried(self, remedy: str, options: Options) -> str:
        """Return a remedy, which is about one limit of the search, with what it needs besides."""
        return remedy if self._finds(options) else f"{remedy}, and a larger k"

    def _beyond(self, first: Options, position: int | None, depth: int) -> None:
        """Tell whether the approximate search, or a limit of hits, keeps out what the search did not return.

        Args:
            first: as `before_rerank` returns the options.
            position: of the datapoint among what these options find, from 0; None: not among the best MAX_RANK.
            depth: candidates that were read for that.

        """
        is_approximate = first.mode != "lexical" and not first.exact
        if is_approximate and self._is_among(replace(first, exact=True)):
            self._kept_out("NOT_A_CANDIDATE", f"exact search finds it: {self._higher_recall(first)}")
        elif position is not None and position < first.k:
            self._kept_out(
                "NOT_A_CANDIDATE", f"a search for more hits finds it: {self._larger_k(position, depth)}"
            )
        else:
            self._kept_out("K", self._larger_k(position, depth))

    def _higher_recall(self, first: Options) -> str:
        target = first.target_recall or self._ranks.snapshot.manifest.spec.target_recall
        higher = replace(first, target_recall=HIGH_RECALL, knobs=Knobs())
        if target < HIGH_RECALL and self._is_among(higher):
            return f"target_recall = {HIGH_RECALL}"
        return "exact = true"

    def _larger_k(self, position: int | None, depth: int) -> str:
        if position is None:
            return f"it is not among the best {MAX_RANK:,}: a query, or a filter, that fewer datapoints match"
        offset, diversity = self._options.offset, self._options.diversity
        options = replace(self._options, diversity=0.0)
        also = "diversity = 0 and " if diversity else ""
        for k in sorted({position + 1 - offset, depth - offset}):
            if 0 < k <= limits.MAX_K and self._finds(replace(options, k=k)):
                return f"{also}k = {k}"
        return (
            f"{also}offset = {position}"
            if position <= limits.MAX_OFFSET
            else "a filter that fewer datapoints match"
        )

    def _finds(self, options: Options) -> bool:
        """Return whether a search finds the datapoint; one with reranking, which takes long, is not tried."""
        return options.rerank is not None or self._is_among(options)

    def _is_among(self, options: Options) -> bool:
        return place_of(self._row, self._ranks.hits(options)) is not None

    def _reranked(self, first: Options) -> None:
        """Put in where the cross-encoder ranks the datapoint, which is among the hits that it looks at."""
        ranks, options = self._ranks, self._options
        whole = replace(options, k=first.k, offset=0, diversity=0.0)
        hits = ranks.hits(whole)
        at = place_of(self._row, hits)
        if at is None:
            hits = ranks.hits(replace(whole, min_relevance=None))
            irrelevant = place_of(self._row, hits)
            assert irrelevant is not None  # only its new relevance drops it
            row = hits.at(slice(irrelevant, irrelevant + 1))
            self._put_hit(whole, row)
            self._answer.ClearField("rank")
            self._kept_out("MIN_RELEVANCE", self._lower_relevance(row))
            return
        self._put_hit(whole, hits.at(slice(at, at + 1)))
        self._answer.rank = at + 1
        self._among_first(at, first)

    def _among_first(self, position: int, first: Options) -> None:
        """Tell what keeps out a datapoint at a place that the candidates of the hits reach."""
        options = self._options
        if position >= options.offset + options.k:
            self._kept_out("K", self._larger_k(position, first.k))
        elif options.diversity:
            self._kept_out("DIVERSITY", "diversity = 0, or less of it")
        elif position < options.offset:
            self._kept_out("OFFSET", f"offset = {position // options.k * options.k}")
        else:
            self._beyond(first, position, first.k)


def _score_rank(row: Ranking, standing: Standing) -> pb.ScoreRank:
    return pb.ScoreRank(score=row.scores[0], rank=standing.rank)


def _ids(ranking: Ranking, rows: RowSource) -> list[str]:
    pairs = zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
    return [rows.segments[number].ids_of(np.array([row]))[0] for number, row in pairs]


def _no_match(options: Options) -> str:
    if options.mode == "dense":
        return "a vector in the datapoint, or a search by words"
    if options.mode == "lexical":
        return "a search by vector: mode dense or hybrid"
    return "a vector in the datapoint, or a word of the query in its text"


def _is_irrelevant(row: Ranking, least: float | None) -> bool:
    return least is not None and row.relevance is not None and not row.relevance[0] >= least
