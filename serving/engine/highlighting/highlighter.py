"""The best sentence of each hit, and where it has words of the query.

The text of a hit is cut into sentences (embed/text/sentences.py). The sentence is chosen by its cosine to the query, to
which the words of the query that it has are added, unless the request wants the encoder alone. The sentences of all
hits are encoded together, as documents, those of the best hits first, up to a bound and until half of the request's
time is spent. For the other hits, and where there is no encoder,
the sentence is chosen that has the most weight of words of the query; a word weighs its inverse document frequency, and
counts once.

Shapes: D dimensions, Q queries, S sentences of a hit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scannery.embed.text.sentences import Sentence, sentences_of
from scannery.indexer import unit_length
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import EncoderUnavailableError, EncoderUnreachableError
from scannery.serving.engine.highlighting.query_words import QueryWords, texts_of_query, words_of_query
from scannery.serving.engine.prepared_search import QueryBatch
from scannery.serving.engine.query_vectors import query_for, query_vectors
from scannery.serving.engine.rows.row_source import RowSource
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import Highlight
from scannery.serving.request.query import WithSparse, WithWords
from scannery.serving.request.vector_choice import ChosenVectors, VectorChoice
from scannery.v1.search_pb2 import Snippet, TextSpan

__all__ = ["Highlighter"]

MAX_CHARACTERS = 100_000
"""Of the text of a hit; the rest is not looked at."""
MAX_REQUEST_CHARACTERS = 8_000_000
"""Of the texts of all hits: about ten seconds of work."""
MAX_SENTENCES = 32
"""Of a hit that are encoded: those with the most weight of words, and the first ones."""
MAX_ENCODED = 512
"""Sentences of a request that are encoded."""
SHARE_OF_TIME = 0.5
"""Of the request's time that is left, for encoding sentences."""
WORDS_SHARE = 0.5
"""What the sentence with the most weight of words gains in cosine, others less in proportion: chosen on XQuAD-R
(docs/benchmarks/collections.md)."""
SAMPLED_TEXTS = 4
"""By which the language of an index without words is told."""


class Highlighter:
    """Makes the snippets of the hits of some queries.

    Raises:
        InvalidRequestError: a query has no text.

    """

    def __init__(
        self, batch: QueryBatch, rows: RowSource, highlight: Highlight, chosen: ChosenVectors
    ) -> None:
        """Read the texts of the queries; `chosen` are the vectors of the search."""
        self._batch, self._rows, self._highlight, self._chosen = batch, rows, highlight, chosen
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
                place = hit.best_by_words if best is None else best
                snippets[hit.query][hit.rank] = _snippet(hit, place, score)
            if number % 64 == 0:
                self._batch.deadline.check()
        return snippets

    def _hits(self, rankings: Sequence[Ranking]) -> list[_Hit]:
        """Return the hits with their sentences and words, the first ones of all queries first."""
        total = sum(map(len, rankings))
        most = min(MAX_CHARACTERS, MAX_REQUEST_CHARACTERS // max(total, 1))
        found = []
        for query, ranking in enumerate(rankings):
            texts = self._rows.texts(ranking, most)
            samples = [text for text in texts if text][:SAMPLED_TEXTS]
            words = words_of_query(
                self._texts[query], self._batch.snapshot.manifest, samples, self._rows.corpus
            )
            found += [_Hit(query, rank, text, words) for rank, text in enumerate(texts)]
        found.sort(key=lambda hit: (hit.rank, hit.query))
        for hit in found:
            self._batch.deadline.check()
            hit.read()
        return found

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
        wanted = _within_bound(hits)
        sentences = [hit.sentences[place].spoken for hit, places in wanted for place in places]
        deadline = batch.deadline
        half = Deadline(deadline.clock() + SHARE_OF_TIME * deadline.remaining_s, deadline.clock)
        known = snapshot.encoder(choice.name).sentences.find(sentences, half)
        deadline.check()
        chosen = {}
        for hit, places in wanted:
            vectors = [known.get(hit.sentences[place].spoken) for place in places]
            if hit.query in targets and all(vector is not None for vector in vectors):
                cosines_S = unit_length(np.stack(vectors)) @ targets[hit.query]  # type: ignore[arg-type]  # none is None
                best = int(np.argmax(cosines_S + self._gained(hit, places)))
                chosen[id(hit)] = places[best], float(cosines_S[best])
        return chosen

    def _targets(self, choice: VectorChoice) -> dict[int, np.ndarray]:
        """Return the vector of each query for an encoder, of length 1, by number; of those that have such a vector."""
        batch, place = self._batch, self._chosen.choices.index(choice)
        found = []
        for number, (query, path) in enumerate(zip(batch.queries, batch.paths, strict=True)):
            asked = query.query if isinstance(query, (WithSparse, WithWords)) else query
            part = asked and query_for(self._rows.lookup, asked, self._chosen, place, path=path)
            if part is not None:
                found.append((number, part, path))
        if not found:
            return {}
        numbers, parts, paths = zip(*found, strict=True)
        vectors_QD = query_vectors(self._rows.lookup, choice, parts, batch.deadline, paths=paths)
        return dict(zip(numbers, unit_length(vectors_QD), strict=True))

    def _gained(self, hit: _Hit, places: Sequence[int]) -> np.ndarray | float:
        """Return what the words of the query add to the cosines of some sentences, (S,)."""
        most = max(hit.gains.values(), default=0.0)
        if self._highlight.by_encoder or not most:
            return 0.0
        return WORDS_SHARE / most * np.array([hit.gains.get(place, 0.0) for place in places])


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
        places = self.words.places(self.text)
        self.spans = places.spans
        starts = [sentence.start for sentence in self.sentences]
        terms: dict[int, set[str]] = {}
        for start, term in places.found:
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
    wanted, total = [], 0
    for hit in hits:
        places = sorted(hit.likely[:MAX_SENTENCES])
        total += len(places)
        if total > MAX_ENCODED:
            break
        wanted.append((hit, places))
    return wanted


def _snippet(hit: _Hit, place: int, score: float | None) -> bytes:
    sentence = hit.sentences[place]
    words = [TextSpan(start=start, end=end) for start, end in hit.spans]
    return Snippet(start=sentence.start, end=sentence.end, score=score, words=words).SerializeToString()
