"""Where the rows of a search are: in the segments of a snapshot of this process, or on the leaves of a cluster.

The steps that follow the search of segments (fusion, crowding, reranking, highlighting) ask a source for what they need
of rows, so that they are the same on one server and on a root.

Shapes: H hits.

The rows of a snapshot of this process.

Shapes: H hits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow.compute as pc

from scannery.indexer import CorpusStatistics, Segment
from scannery.indexer.models.features import RowFeatures
from scannery.serving.engine.dense import Candidates
from scannery.serving.engine.hydrator import WrittenHits
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.local_signals import LocalSignalRows, SignalBounds, search_time_s
from scannery.serving.engine.passages import Passages, passages_of
from scannery.serving.engine.query_vectors import Lookup
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking, Rows
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["FusedCandidates", "LocalRows", "RankedCandidates", "RowSource"]


class RankedCandidates(Protocol):
    """The candidates of some queries with equal options."""

    @property
    def total(self) -> int:
        """Rows that the filter allows; in mode `dense` those with a vector. Known after the first call of `best`."""

    def best(self, queries: np.ndarray, depth: int) -> list[Ranking]:
        """Return the best `depth` rows of queries, by score and then by id; fewer only if there are no more.

        Args:
            queries: their numbers, int64.
            depth: rows for each.

        """

    def words_of(self, query: int) -> Words:
        """Return what a query, by its number, is searched by in modes lexical and hybrid."""


class FusedCandidates(RankedCandidates, Protocol):
    """The same, for a learned ranker where they are those of hybrid search by one vector and by words."""

    def row_features(self, query: int, keys_R: np.ndarray) -> RowFeatures | None:
        """Return what some of the rows that `best` returned, as `keys_in` returns them, have for a ranker.

        None: it is not known, so the fused order stays.
        """


class SignalRows(Protocol):
    """The signals of a ranking expression for the rows of a search, and the rows by these."""

    def signals(self, ranking: Ranking) -> np.ndarray:
        """Return the signals of some rows, float32 (C, H)."""

    def above(self, query: int, bounds: SignalBounds) -> tuple[Ranking, float]:
        """Return rows of a query, by its number, by their signals, and a bound of others that the filter allows.

        The rows have their scores as `RankedCandidates.best` returns them, and are in no order. There are none where a
        single row cannot be scored. The bound is the value that no row which was left out, though it may be a hit, is
        above; minus infinity: none was.
        """


class RowSource(ABC):
    """The rows of one state of an index, for the queries of one batch."""

    lookup: Lookup
    """Finds datapoints by id."""
    segments: Sequence[Rows]
    """Where rows lie, by the numbers in `Ranking.segments`."""

    @abstractmethod
    def candidates(
        self, prepared: PreparedSearch, batch: QueryBatch, *, words: Sequence[Words] | None = None
    ) -> FusedCandidates:
        """Return the candidates of the queries of a batch; raises what `search` does.

        Args:
            prepared: the options.
            batch: the queries.
            words: what these are searched by in modes lexical and hybrid; None: their words are looked up.

        """

    @abstractmethod
    def signal_rows(self, prepared: PreparedSearch, batch: QueryBatch, candidates: Any) -> SignalRows:
        """Return the signals of the ranking expression of a search; `candidates` are those of `candidates`."""

    @abstractmethod
    def readable(self, rankings: list[Ranking]) -> list[Ranking]:
        """Return the hits that can be written: without those of a group that stopped to answer, if that is allowed.

        All that a hit is given later, such as its context, is found by its position among these.
        """

    @abstractmethod
    def hits(self, prepared: PreparedSearch, rankings: Sequence[Ranking]) -> WrittenHits:
        """Return the hits of each query, which are `readable`, as an answer has them."""

    @abstractmethod
    def searched_texts(self, ranking: Ranking) -> list[str | None]:
        """Return the title and text of each hit, of transcripts only the spoken text; None where there is neither."""

    @abstractmethod
    def texts(self, ranking: Ranking, max_characters: int) -> list[str]:
        """Return at most `max_characters` of the text of each hit as it is returned; empty where there is none."""

    @abstractmethod
    def vectors(self, ranking: Ranking, name: str) -> np.ndarray:
        """Return the vector of a name of each hit as it is searched, float32 (H, D); zeros where a hit has none."""

    @abstractmethod
    def groups(self, ranking: Ranking, column: str) -> list[Hashable]:
        """Return the group of each hit: the value of a column. A row without a value is a group of its own."""

    @abstractmethod
    def passages(self, ranking: Ranking, document_ids: Sequence[Hashable]) -> Passages:
        """Return all passages of the documents of some hits, which are the groups of these by `document_id`."""

    @abstractmethod
    def corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        """Return the statistics of all live rows for some terms; None: the index has no words."""


class LocalRows(RowSource):
    """The rows of the segments of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.lookup = self._snapshot = snapshot
        self.segments: Sequence[Segment] = snapshot.segments

    def candidates(
        self, prepared: PreparedSearch, batch: QueryBatch, *, words: Sequence[Words] | None = None
    ) -> Candidates:
        """As `RowSource.candidates`."""
        return Candidates(prepared, batch, words=words)

    def signal_rows(
        self, prepared: PreparedSearch, batch: QueryBatch, candidates: Candidates
    ) -> LocalSignalRows:
        """As `RowSource.signal_rows`."""
        assert prepared.options.ranking is not None
        return LocalSignalRows(prepared, batch, candidates, search_time_s(prepared.options.ranking))

    def readable(self, rankings: list[Ranking]) -> list[Ranking]:
        """As `RowSource.readable`: all of them."""
        return rankings

    def hits(self, prepared: PreparedSearch, rankings: Sequence[Ranking]) -> WrittenHits:
        """As `RowSource.hits`."""
        return prepared.hydrator.hits(rankings)

    def searched_texts(self, ranking: Ranking) -> list[str | None]:
        """As `RowSource.searched_texts`."""
        texts: list[str | None] = [None] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            for position, text in zip(positions, segment.searched_texts(rows), strict=True):
                texts[position] = text or None
        return texts

    def texts(self, ranking: Ranking, max_characters: int) -> list[str]:
        """As `RowSource.texts`."""
        texts = [""] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            # Cut before they become strings of Python, which the interpreter waits for.
            prefixes = pc.utf8_slice_codeunits(
                segment.take(rows, ["text"]).column(0), 0, max_characters
            ).to_pylist()
            for position, text in zip(positions, prefixes, strict=True):
                texts[position] = text or ""
        return texts

    def vectors(self, ranking: Ranking, name: str) -> np.ndarray:
        """As `RowSource.vectors`."""
        space = self._snapshot.space(name)
        vectors_HD = np.zeros((len(ranking), space.index.manifest.dimensions), np.float32)
        for number in np.unique(ranking.segments).tolist():
            positions = np.flatnonzero(ranking.segments == number)
            vectors_KD, known_P = space.vectors_of(number, ranking.rows[positions])
            vectors_HD[positions[known_P]] = vectors_KD
        return vectors_HD

    def groups(self, ranking: Ranking, column: str) -> list[Hashable]:
        """As `RowSource.groups`."""
        groups: list[Hashable] = [None] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            values = segment.take(rows, [column]).column(0).to_pylist()
            for position, value in zip(positions, values, strict=True):
                # A tuple equals no value of a column, so such a row is alone in its group.
                groups[position] = (position,) if value is None else value
        return groups

    def passages(self, ranking: Ranking, document_ids: Sequence[Hashable]) -> Passages:
        """As `RowSource.passages`."""
        return passages_of(self._snapshot, [each for each in document_ids if isinstance(each, str)])

    def corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        """As `RowSource.corpus`."""
        words = self._snapshot.words
        return words.statistics(terms) if words is not None and self.segments else None

    def _parts(self, ranking: Ranking) -> Iterator[tuple[Segment, list[int], np.ndarray]]:
        """Yield each segment with the positions of its hits in the ranking, and their rows."""
        for number in np.unique(ranking.segments).tolist():
            positions = np.flatnonzero(ranking.segments == number)
            yield self.segments[number], positions.tolist(), ranking.rows[positions]
