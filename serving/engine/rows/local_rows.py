"""The rows of a snapshot of this process.

Shapes: H hits.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import pyarrow.compute as pc

from scannery.indexer import CorpusStatistics, Segment, corpus_statistics
from scannery.serving.engine.candidates import Candidates
from scannery.serving.engine.hydrator import Written
from scannery.serving.engine.prepared_search import PreparedSearch, QueryBatch
from scannery.serving.engine.rows.row_source import RowSource
from scannery.serving.engine.top_k import Ranking
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["LocalRows"]


class LocalRows(RowSource):
    """The rows of the segments of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.lookup = self._snapshot = snapshot
        self.segments: Sequence[Segment] = snapshot.segments

    def candidates(self, prepared: PreparedSearch, batch: QueryBatch) -> Candidates:
        """As `RowSource.candidates`."""
        return Candidates(prepared, batch)

    def hits(self, prepared: PreparedSearch, rankings: Sequence[Ranking]) -> Written:
        """As `RowSource.hits`."""
        return prepared.hydrator.hits(rankings)

    def searched_texts(self, ranking: Ranking) -> list[str | None]:
        """As `RowSource.searched_texts`."""
        texts: list[str | None] = [None] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            for position, text in zip(positions, segment.searched_texts(rows), strict=True):
                texts[position] = text or None
        return texts

    def texts(self, ranking: Ranking, most: int) -> list[str]:
        """As `RowSource.texts`."""
        texts = [""] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            # Cut before they become strings of Python, which the interpreter waits for.
            found = pc.utf8_slice_codeunits(segment.take(rows, ["text"]).column(0), 0, most).to_pylist()
            for position, text in zip(positions, found, strict=True):
                texts[position] = text or ""
        return texts

    def groups(self, ranking: Ranking, column: str) -> list[Hashable]:
        """As `RowSource.groups`."""
        groups: list[Hashable] = [None] * len(ranking)
        for segment, positions, rows in self._parts(ranking):
            values = segment.take(rows, [column]).column(0).to_pylist()
            for position, value in zip(positions, values, strict=True):
                # A tuple equals no value of a column, so such a row is alone in its group.
                groups[position] = (position,) if value is None else value
        return groups

    def corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        """As `RowSource.corpus`."""
        postings = [segment.postings for segment in self.segments if segment.postings is not None]
        if not postings or len(postings) < len(self.segments):
            return None
        return corpus_statistics(postings, terms, self._snapshot.alive)

    def _parts(self, ranking: Ranking) -> Iterator[tuple[Segment, list[int], np.ndarray]]:
        """Yield each segment with the positions of its hits in the ranking, and their rows."""
        for number in np.unique(ranking.segments).tolist():
            positions = np.flatnonzero(ranking.segments == number)
            yield self.segments[number], positions.tolist(), ranking.rows[positions]
