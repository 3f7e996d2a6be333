"""What each word of a query adds to the score of a datapoint by words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scannery.indexer import WeightedTerms, analyser_of
from scannery.indexer.lexical.analyser import QueryWord
from scannery.indexer.lexical.term_patterns import alternatives_of, matches
from scannery.serving.engine.explaining.ranks import Ranks
from scannery.serving.engine.lexical import spec_of, texts_of
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
    analyser = analyser_of(spec_of(ranks.snapshot.manifest, options.mode))
    texts = texts_of(ranks.rows.lookup, ranks.query, options.mode, "query")
    typed = [word for each in texts if each.is_typed for word in analyser.query_words(each.text)]
    absent = _absent(typed, words)
    terms = [*words.weights, *absent]
    corpus = ranks.rows.corpus(
        list(dict.fromkeys([*terms, *(each for term in terms for each in alternatives_of(term))]))
    )
    if corpus is None:
        return []
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
        for term, contribution in {
            **ranks.contributions(options, words),
            **dict.fromkeys(absent, 0.0),
        }.items()
    ]
    return sorted(scores, key=lambda each: -each.contribution)


def _absent(query_words: Sequence[QueryWord], words: WeightedTerms) -> list[str]:
    """Return the terms of words that no datapoint has, and that stand for no other word."""
    terms = {each for term in words.weights for each in alternatives_of(term)}
    unmatched = (word for word in query_words if terms.isdisjoint(word.terms))
    return list(dict.fromkeys(word.terms[0] for word in unmatched if word.text not in words.expanded))


def _expanded(term: str, expanded: Mapping[str, str]) -> str:
    """Return the word of the query that a term or pattern stands for; empty: it is its own."""
    parts = {*alternatives_of(term)}
    words = (word for word, label in expanded.items() if parts.issubset(alternatives_of(label)))
    return next(words, "")


def _frequency(term: str, counts: Counter[str]) -> int:
    """Return how often a text has a term, or terms of a pattern."""
    return sum(count for each, count in counts.items() if matches(term, each))
