"""The best sentence of each hit, and where it has words of the query.

The text of a hit is cut into sentences (embed/text/sentences.py). The sentence is chosen by its cosine to the query, to
which the words of the query that it has are added, unless the request wants the encoder alone. The sentences of all
hits are encoded together, as documents, those of the best hits first, up to a bound and until half of the request's
time is spent. For the other hits, and where there is no encoder,
the sentence is chosen that has the most weight of words of the query; a word weighs its inverse document frequency, and
counts once.

Shapes: D dimensions, Q queries, S sentences of a hit.

The words of a query that are marked in the texts of its hits, and where they are.

A word of a text matches if the analyser of the index gives it a term of the query: other forms of a word, other
accents, and compounds with it match, too. An index without words is taken as if it had those of its hits' language.

Function words ("the", "of") are marked only if the query has no others. Of Chinese and Japanese, pairs of characters
are marked, not single ones that are part of a longer run: nearly every text has some of them.

Snippets, added to hits that are on the wire already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import Final, get_args

import numpy as np
import regex

from scannery.embed.text.language import MOST_CHARS, UNKNOWN, function_words, language_of
from scannery.embed.text.sentences import Sentence, sentences_of
from scannery.indexer import (
    Analyser,
    CorpusStatistics,
    Expansion,
    Language,
    LexicalSpec,
    Manifest,
    QueryText,
    analyser_of,
    unit_length,
    weighted_terms,
)
from scannery.indexer.lexical.term_patterns import matches, patterns_among
from scannery.runtime.errors import EncoderUnavailableError, EncoderUnreachableError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.engine.lexical import synonyms_of
from scannery.serving.engine.query_vectors import members_of, query_for, query_vectors
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.segment_search import QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Highlight, Options
from scannery.serving.request.query import ByText, Query, VectorChoice, WithSparse, WithWords
from scannery.v1.search_pb2 import Snippet, TextSpan

__all__ = ["Highlighter", "WordPositions"]


MAX_WORDS: Final = 1_000
"""Words of one hit."""
NEWEST: Final = 4
"""The analyser of indexes without words."""
_HAN = regex.compile(r"[\p{Han}]")
_STEMMED = frozenset(get_args(Language))


@dataclass(frozen=True, slots=True)
class WordPositions:
    """Where a text has words of a query."""

    spans: list[tuple[int, int]]
    """First character and one past the last, in order and apart; at most MAX_WORDS."""
    terms: list[tuple[int, str]]
    """Where each term of the query begins, in order, with repetitions."""


@dataclass(frozen=True, slots=True)
class QueryWords:
    """The terms of a query that are marked, with their weights."""

    analyser: Analyser
    weights: Mapping[str, float]
    """Weights by term or pattern."""
    language: str | None
    """Language of the query and its hits, where the spec names it or it was told by them."""

    def positions(self, text: str) -> WordPositions:
        """Return where a text has these terms."""
        weights, patterns = self.weights, self._patterns
        terms_at: list[tuple[int, str]] = []
        spans: list[tuple[int, int]] = []
        if weights:
            for terms, start, end in self.analyser.spans(text):
                for term in terms:
                    marked = [term] if term in weights else []
                    if patterns:
                        marked += [pattern for pattern in patterns if _is_match(pattern, term)]
                    if marked:
                        terms_at += [(start, each) for each in marked]
                        spans.append((start, end))
        return WordPositions(list(islice(_merged(sorted(spans)), MAX_WORDS)), sorted(terms_at))

    @property
    def _patterns(self) -> list[str]:
        """The patterns among the terms."""
        terms = list(self.weights)
        return [terms[position] for position in patterns_among(terms)]

    def gain(self, terms: Iterable[str]) -> float:
        """Return the sum of the weights of distinct terms."""
        return sum(self.weights[term] for term in set(terms))


def texts_of_query(query: Query, path: str) -> list[tuple[str, float]]:
    """Return the texts of a query with their weights, above 0; InvalidRequestError if it has none."""
    if isinstance(query, WithWords):
        return [(query.text, 1.0)]
    texts = [
        (member.text, weight)
        for member, weight, _ in members_of(query, path)
        if isinstance(member, ByText) and weight > 0
    ]
    if not texts:
        raise InvalidRequestError.at("highlight", f"{path} must be a text, or a group that has one")
    return texts


def words_of_query(
    texts: Sequence[tuple[str, float]],
    manifest: Manifest,
    samples: Iterable[str],
    corpus: Callable[[Sequence[str]], CorpusStatistics | None],
    expansion: Expansion,
) -> QueryWords:
    """Return the words of a query.

    Args:
        texts: of the query, with their weights.
        manifest: of the index.
        samples: texts of the hits, by which a language is told that no spec names.
        corpus: returns the statistics of terms; None: the index has no words.
        expansion: which words stand for others, too.

    """
    spec = manifest.spec.lexical
    language = spec.language if spec else "none"
    if language == "none":
        sample = "\n".join([*samples, *(text for text, _ in texts)])
        language = language_of(sample[:MOST_CHARS])  # type: ignore[assignment]  # those that Snowball lacks are told below
    analyser = analyser_of(spec or _default_spec(language))
    stems = "english" if language == "porter" else language
    weights = _weighted(texts, analyser, _function_terms(analyser, stems))
    weights = _with_idf(weights, corpus(list(weights)))
    if spec is not None:
        # A search by words has just expanded them, and one by vector has not. To do so again takes 3 to 5 % of a search
        # with snippets, too little for a way of the words from each group of queries to here.
        typed = [QueryText(*text) for text in texts]
        synonyms = synonyms_of(manifest.spec.search, analyser)
        [expanded] = weighted_terms([typed], analyser, partial(_statistics, corpus), expansion, synonyms)
        typed_terms = {term for text, _ in texts for term in analyser.terms(text)}
        weights |= {term: weight for term, weight in expanded.weights.items() if term not in typed_terms}
    return QueryWords(analyser, weights, None if stems == UNKNOWN else stems)


def _weighted(
    texts: Sequence[tuple[str, float]], analyser: Analyser, ignored: frozenset[str]
) -> dict[str, float]:
    """Return the terms of some texts, each with the weight of its text, or of its part of a word."""
    kept: dict[str, float] = {}
    ignored_terms: dict[str, float] = {}
    for text, weight in texts:
        located, term_weights = list(analyser.spans(text)), analyser.query_terms(text)
        paired = {position for _, start, end in located if end - start == 2 for position in (start, end - 1)}
        for terms, start, end in located:
            is_part = end - start == 1 and start in paired and _HAN.match(text[start])
            for term in () if is_part else terms:
                into = ignored_terms if term in ignored else kept
                into[term] = max(into.get(term, 0.0), weight * min(term_weights[term], 1.0))
    return kept or ignored_terms


def _with_idf(weights: dict[str, float], corpus: CorpusStatistics | None) -> dict[str, float]:
    if corpus is None:
        return weights
    # Terms that no row has match nothing, but a passage may have changed while the query ran.
    return {
        term: weight * (corpus.idf(term) if term in corpus.frequencies else 1.0)
        for term, weight in weights.items()
    }


def _statistics(
    corpus: Callable[[Sequence[str]], CorpusStatistics | None], terms: Sequence[str]
) -> CorpusStatistics:
    statistics = corpus(terms)
    return CorpusStatistics(0, 1.0, {}) if statistics is None else statistics


_is_match = lru_cache(maxsize=1 << 14)(matches)


@lru_cache(maxsize=64)
def _default_spec(language: str) -> LexicalSpec:
    stems = language if language in _STEMMED and language != UNKNOWN else "none"
    return LexicalSpec.model_validate({"language": stems, "analyser": NEWEST, "compounds": False})


@lru_cache(maxsize=64)
def _function_terms(analyser: Analyser, language: str) -> frozenset[str]:
    words = function_words(language)
    return frozenset(term for word in words for term in analyser.terms(word))


def _merged(spans: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """Yield sorted spans, those that overlap as one: pairs of characters do."""
    latest: tuple[int, int] | None = None
    for start, end in spans:
        if latest is not None and start < latest[1]:
            latest = latest[0], max(latest[1], end)
            continue
        if latest is not None:
            yield latest
        latest = start, end
    if latest is not None:
        yield latest


MAX_CHARACTERS = 100_000
"""Characters of the text of a hit; the rest is not looked at."""
MAX_REQUEST_CHARACTERS = 8_000_000
"""Characters of the texts of all hits: about ten seconds of work."""
MAX_SENTENCES = 32
"""Sentences of a hit that are encoded: those with the most weight of words, and the first ones."""
MAX_ENCODED = 512
"""Sentences of a request that are encoded."""
SHARE_OF_TIME = 0.5
"""Share of the request's time that is left, for encoding sentences."""
WORDS_SHARE = 0.5
"""What the sentence with the most weight of words gains in cosine, others less in proportion: chosen on XQuAD-R
(docs/benchmarks/collections.md)."""
SAMPLED_TEXTS = 4
"""Texts by which the language of an index without words is told."""


class Highlighter:
    """Makes the snippets of the hits of some queries.

    Raises:
        InvalidRequestError: a query has no text.

    """

    def __init__(self, batch: QueryBatch, rows: RowSource, highlight: Highlight, options: Options) -> None:
        """Read the texts of the queries; `options` are those of the search."""
        self._batch, self._rows, self._highlight = batch, rows, highlight
        self._chosen, self._expansion = options.vectors, options.expansion
        self._texts = [
            texts_of_query(query, path) for query, path in zip(batch.queries, batch.paths, strict=True)
        ]

    def snippets(self, rankings: Sequence[Ranking]) -> list[list[bytes]]:
        """Return a serialised Snippet of each hit of each query, empty where a hit has no sentence.

        Raises:
            EncoderUnavailableError: the encoder was asked for, and cannot be used.
            DeadlineError: the deadline passed.

        """
        hits = self._hits(rankings)
        chosen = self._by_encoder([hit for hit in hits if hit.sentences])
        snippets = [[b""] * len(ranking) for ranking in rankings]
        for number, hit in enumerate(hits):
            if hit.sentences:
                best, score = chosen.get(id(hit), (None, None))
                sentence = hit.best_by_words if best is None else best
                snippets[hit.query][hit.rank] = _snippet(hit, sentence, score)
            if number % 64 == 0:
                self._batch.deadline.check()
        return snippets

    def _hits(self, rankings: Sequence[Ranking]) -> list[_Hit]:
        """Return the hits with their sentences and words, the first ones of all queries first."""
        total = sum(map(len, rankings))
        max_characters = min(MAX_CHARACTERS, MAX_REQUEST_CHARACTERS // max(total, 1))
        hits = []
        for query, ranking in enumerate(rankings):
            texts = self._rows.texts(ranking, max_characters)
            samples = [text for text in texts if text][:SAMPLED_TEXTS]
            words = words_of_query(
                self._texts[query],
                self._batch.snapshot.manifest,
                samples,
                self._corpus,
                self._expansion,
            )
            hits += [_Hit(query, rank, text, words) for rank, text in enumerate(texts)]
        hits.sort(key=lambda hit: (hit.rank, hit.query))
        for hit in hits:
            self._batch.deadline.check()
            hit.read()
        return hits

    def _corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        self._batch.deadline.check()
        return self._rows.corpus(terms)

    def _by_encoder(self, hits: Sequence[_Hit]) -> dict[int, tuple[int, float]]:
        """Return the best sentence and its cosine by `id` of a hit; hits that it does not have are chosen by words."""
        if self._highlight.by_encoder is False or not hits:
            return {}
        try:
            return self._nearest(hits)
        except (EncoderUnavailableError, EncoderUnreachableError):
            if self._highlight.by_encoder:
                raise
            return {}

    def _nearest(self, hits: Sequence[_Hit]) -> dict[int, tuple[int, float]]:
        batch, snapshot = self._batch, self._batch.snapshot
        choice = self._highlight.vectors
        assert choice is not None  # else the sentences are chosen by words
        targets = self._targets(choice)
        bounded = _within_bound(hits)
        sentences = [hit.sentences[number].spoken for hit, numbers in bounded for number in numbers]
        deadline = batch.deadline
        half = Deadline(deadline.clock() + SHARE_OF_TIME * deadline.remaining_s, deadline.clock)
        vector_of = snapshot.encoder(choice.name).sentences.find(sentences, half)
        deadline.check()
        chosen = {}
        for hit, numbers in bounded:
            vectors = [vector_of.get(hit.sentences[number].spoken) for number in numbers]
            if hit.query in targets and all(vector is not None for vector in vectors):
                cosines_S = unit_length(np.stack(vectors)) @ targets[hit.query]  # type: ignore[arg-type]  # none is None
                best = int(np.argmax(cosines_S + self._gained(hit, numbers)))
                chosen[id(hit)] = numbers[best], float(cosines_S[best])
        return chosen

    def _targets(self, choice: VectorChoice) -> dict[int, np.ndarray]:
        """Return the vector of each query for an encoder, of length 1, by number; of those that have such a vector."""
        batch, column = self._batch, self._chosen.choices.index(choice)
        targets = []
        for number, (query, path) in enumerate(zip(batch.queries, batch.paths, strict=True)):
            dense = query.query if isinstance(query, (WithSparse, WithWords)) else query
            part = dense and query_for(self._rows.lookup, dense, self._chosen, column, path=path)
            if part is not None:
                targets.append((number, part, path))
        if not targets:
            return {}
        numbers, parts, paths = zip(*targets, strict=True)
        vectors_QD = query_vectors(self._rows.lookup, choice, parts, batch.deadline, paths=paths)
        return dict(zip(numbers, unit_length(vectors_QD), strict=True))

    def _gained(self, hit: _Hit, numbers: Sequence[int]) -> np.ndarray | float:
        """Return what the words of the query add to the cosines of some sentences, (S,)."""
        highest = max(hit.gains.values(), default=0.0)
        if self._highlight.by_encoder or not highest:
            return 0.0
        return WORDS_SHARE / highest * np.array([hit.gains.get(number, 0.0) for number in numbers])


@dataclass(eq=False)
class _Hit:
    """A hit of one query, which `read` looks into."""

    query: int
    rank: int
    text: str
    words: QueryWords

    def read(self) -> None:
        """Find the sentences, and the words of the query."""
        self.sentences: list[Sentence] = sentences_of(self.text, self.words.language) if self.text else []
        if not self.sentences:
            return
        positions = self.words.positions(self.text)
        self.spans = positions.spans
        starts = [sentence.start for sentence in self.sentences]
        terms: dict[int, set[str]] = {}
        for start, term in positions.terms:
            number = bisect_right(starts, start) - 1
            if number >= 0 and start < self.sentences[number].end:
                terms.setdefault(number, set()).add(term)
        self.gains = {number: self.words.gain(each) for number, each in terms.items()}
        """Weight of the words of sentences that have any, by number."""

    @cached_property
    def best_by_words(self) -> int:
        """The sentence with the most weight of words, the first one of equals."""
        return self.likely[0]

    @property
    def likely(self) -> list[int]:
        """The sentences by weight of words, then in order."""
        ordered = sorted(self.gains, key=lambda number: (-self.gains[number], number))
        return [*ordered, *(number for number in range(len(self.sentences)) if number not in self.gains)]


def _within_bound(hits: Sequence[_Hit]) -> list[tuple[_Hit, list[int]]]:
    """Return the hits whose sentences are encoded, the first ones up to the bound, with the numbers of these."""
    bounded, total = [], 0
    for hit in hits:
        numbers = sorted(hit.likely[:MAX_SENTENCES])
        total += len(numbers)
        if total > MAX_ENCODED:
            break
        bounded.append((hit, numbers))
    return bounded


def _snippet(hit: _Hit, number: int, score: float | None) -> bytes:
    sentence = hit.sentences[number]
    words = [TextSpan(start=start, end=end) for start, end in hit.spans]
    return Snippet(start=sentence.start, end=sentence.end, score=score, words=words).SerializeToString()
