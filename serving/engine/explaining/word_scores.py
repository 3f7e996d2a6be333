"""What each word of a query adds to the score of a datapoint by words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scannery.indexer import WeightedTerms, analyser_of
from scannery.indexer.lexical.term_patterns import alternatives_of, matches
from scannery.serving.engine.explaining.ranks import Ranks
from scannery.serving.engine.lexical import spec_of
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Options
from scannery.v1.search_pb2 import WordScore

__all__ = ["word_scores"]


def word_scores(ranks: Ranks, options: Options, words: WeightedTerms, row: Ranking) -> list[WordScore]:
    """Return the words of a query, those that add most to the score first.

    Args:
        ranks: of the datapoint.
        options: in mode lexical.
        words: of the query.
        row: the datapoint.

    """
    terms = [*words.weights]
    corpus = ranks.rows.corpus(
        list(dict.fromkeys([*terms, *(each for term in terms for each in alternatives_of(term))]))
    )
    if corpus is None:
        return []
    analyser = analyser_of(spec_of(ranks.snapshot.manifest, options.mode))
    [text] = ranks.rows.searched_texts(row)
    counts, _ = analyser.counts(text or "")
    scores = [
        WordScore(
            term=term,
            expands=_expanded(term, words.expanded),
            idf=corpus.idf(term),
            datapoints=corpus.frequency(term),
            frequency=_frequency(term, counts),
            contribution=contribution,
        )
        for term, contribution in ranks.contributions(options, words).items()
    ]
    return sorted(scores, key=lambda each: -each.contribution)


def _expanded(term: str, expanded: Mapping[str, str]) -> str:
    """Return the word of the query that a term or pattern stands for; empty: it is its own."""
    parts = {*alternatives_of(term)}
    words = (word for word, label in expanded.items() if parts.issubset(alternatives_of(label)))
    return next(words, "")


def _frequency(term: str, counts: Counter[str]) -> int:
    """Return how often a text has a term, or terms of a pattern."""
    return sum(count for each, count in counts.items() if matches(term, each))
