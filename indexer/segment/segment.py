"""An open segment: immutable, memory-mapped, safe to search from several threads. Made by opening.py.

Shapes: Q queries, N rows of the segment, D dimensions, K hits.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scannery.indexer.datapoints.passages import SEARCHED_COLUMNS, searched_text
from scannery.indexer.datapoints.row_records import Records
from scannery.indexer.datapoints.sparse import SparsePostings, score_sparse
from scannery.indexer.hashes import text_hash
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.lexical import word_index
from scannery.indexer.lexical.bm25 import Postings, map_document_postings, of_documents
from scannery.indexer.lexical.word_index import DocumentNumbers, DocumentWords
from scannery.indexer.manifest import SegmentEntry
from scannery.indexer.planning.allowed_rows import AllowedRows
from scannery.indexer.planning.leaves import Leaves
from scannery.indexer.planning.plan_book import PlanBook
from scannery.indexer.planning.plan_costs import CostFile, Costs
from scannery.indexer.planning.plan_timing import measure_costs
from scannery.indexer.planning.planner import Planner, SegmentHits, exact_found, nothing_found, replace
from scannery.indexer.planning.value_order import RowsBetween, ValueOrder
from scannery.indexer.scann.search import ScannSearcher, load_searcher
from scannery.indexer.segment import segment_files as files
from scannery.indexer.segment.value_postings import ValuePostings
from scannery.indexer.spec.spec import Distance
from scannery.indexer.tuning.settings_choice import TUNED_K, Depth, SearchSettings, pick_settings
from scannery.indexer.vectors.arrays import mapped, taken
from scannery.indexer.vectors.exact_search import (
    FEW_HITS,
    FEW_QUERIES,
    NO_ROW,
    Ties,
    exact_search,
    row_scores,
    search_ready,
)
from scannery.indexer.vectors.page_advice import mapped_vectors
from scannery.indexer.vectors.quantized_vectors import NOT_QUANTIZED, ScoredVectors
from scannery.indexer.vectors.vector_files import no_vectors

if TYPE_CHECKING:
    from scannery.indexer.segment.cache import Hold
    from scannery.indexer.segment.named_vectors import NamedVectors

__all__ = ["Segment"]

Search: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function from queries, float32 (Q, D), to their best rows, int64 (Q, K), and scores, float32 (Q, K)."""

_TIMED_TARGET = 0.95
MOST_ROWS = 0.8
"""Share of allowed rows from which on a search first searches all rows."""
SPARE_HITS = 4
"""Hits that it requests beyond the number that suffices if allowed rows are spread evenly."""


class Segment:
    """Datapoints of one shard, open for search. Made by `open_segment`."""

    _attributes: Mapping[str, Path] = MappingProxyType({})
    """Folders with the postings of attributes; segments in memory have none."""
    _quantized_NB = NOT_QUANTIZED
    """The searched vectors in 8 bits a number, memory-mapped; segments in memory have none."""

    def __init__(self, entry: SegmentEntry, folder: Path) -> None:
        """Map the files, and compile the kernels.

        Args:
            entry: of the segment in a manifest.
            folder: of the local cache, with checked files.

        Raises:
            CorruptError: a file cannot be read.

        """
        info = json.loads((folder / files.INFO).read_text())
        self.entry = entry.model_copy(update={"deleted": None})
        """Entry as in the manifest, without deleted rows, which differ between versions: see `OpenIndex.alive`."""
        self.distance: Distance = info["distance"]
        self._map_vectors(folder)
        self.records = Records.map(folder / files.COLUMNS)
        """All columns of the file but the vectors, memory-mapped, in row order."""
        self._table: pa.Table = self.records.table
        self._open_attributes(folder, info)
        self.ties = Ties.map(folder / files.TIES)
        """The order of rows with equal scores."""
        self._hashes_2N = mapped(folder / files.HASHES)
        documents = folder / files.DOCUMENTS
        self._documents_2N = mapped(documents) if documents.exists() else self._hashes_2N
        self._searcher = (
            load_searcher(folder / "scann", self._vectors, self.distance, self.ties)
            if entry.kind == "scann"
            else None
        )
        self.leaves = Leaves.load(folder / files.LEAVES) if self._searcher else None
        self._all_leaves: int = info["leaves"]
        """Number of leaves of ScaNN's tree, empty ones included."""
        self._planner = self._planner_of(folder)
        self.postings = Postings.map(folder / files.WORDS) if (folder / files.WORDS).exists() else None
        """The inverted index of words; None if the segment has none."""
        folder_of_documents = folder / files.DOCUMENT_WORDS
        self._document_postings = (
            map_document_postings(self.postings, folder_of_documents)
            if self.postings is not None and folder_of_documents.exists()
            else None  # unpacked by an earlier release, or each row is a document
        )
        self.sparse = SparsePostings.map(folder / files.SPARSE) if (folder / files.SPARSE).exists() else None
        """The inverted index of sparse vectors; None if the segment has none."""
        self.named: Mapping[str, NamedVectors] = {}
        """The named vectors of the rows; a name that no row has is left out."""
        self.hold: Hold | None = None
        """Keeps the files in the local cache; copies of this segment share it."""
        with COMPILING:
            self._warm_up()

    def _map_vectors(self, folder: Path) -> None:
        rows = self.entry.rows
        self.searched_ND = mapped_vectors(folder / files.VECTORS) if self.entry.vectors else no_vectors(rows)
        """The vectors as they are searched (length 1 for cosine), float32 (N, D), memory-mapped; (N, 0) without any."""
        path = folder / files.UNSCALED
        self.given_ND = mapped_vectors(path) if path.exists() else self.searched_ND
        """The vectors as they were given, float32 (N, D), memory-mapped."""
        path = folder / files.QUANTIZED
        if path.exists():  # folders of earlier releases lack it, and those of vectors with few dimensions
            self._quantized_NB = mapped_vectors(path)

    def _open_attributes(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Note which attributes have postings in the folder of the local cache, to be mapped when first read."""
        parts: Mapping[str, str] = info.get("attributes", {})  # folders of earlier releases do not tell
        self._attributes = {name: folder / files.ATTRIBUTES / part for name, part in parts.items()}

    def with_named(self, named: Mapping[str, NamedVectors]) -> Segment:
        """Return this segment with named vectors."""
        changed = copy.copy(self)
        changed.named = named
        return changed

    def with_entry(self, entry: SegmentEntry) -> Segment:
        """Return this segment with the curves of another manifest, which may have been measured since it was opened.

        Args:
            entry: of the same files.

        """
        named = {name: vectors.with_entry(entry.named[name]) for name, vectors in self.named.items()}
        same = all(vectors is self.named[name] for name, vectors in named.items())
        current = self.entry
        if same and (current.curve, current.depth_curves) == (entry.curve, entry.depth_curves):
            return self
        changed = copy.copy(self)
        changed.entry, changed.named = entry, named
        return changed

    @property
    def table(self) -> pa.Table:
        """All columns but the vectors, memory-mapped, in row order; see `with_columns`."""
        return self._table

    def with_columns(self, columns: Mapping[str, pa.DataType]) -> Segment:
        """Return this segment with these columns, by name and type; those that its file lacks are null.

        An index can get attributes after a segment was written (versions/altering.py). `records` stays as it is.
        """
        stored = self.records.table
        table = stored
        for name, kind in columns.items():
            if name not in stored.column_names:
                table = table.append_column(name, pa.nulls(self.rows, kind))
        if table.schema == self._table.schema:
            return self
        changed = copy.copy(self)
        changed._table = table
        changed.__dict__.pop("column_types", None)
        return changed

    @cached_property
    def column_types(self) -> Mapping[str, str]:
        """Type of each column by its name, as Arrow writes it."""
        return {field.name: str(field.type) for field in self.table.schema}

    @property
    def has_only_documents(self) -> bool:
        """Whether each row is a document of its own, with the id of this document."""
        return self._documents_2N is self._hashes_2N

    @property
    def rows(self) -> int:
        """Number of rows, deleted ones included."""
        return self.entry.rows

    @property
    def shard(self) -> int | None:
        """Shard of all its rows; None: they are in memory, and of any shard."""
        return self.entry.shard

    @property
    def has_vectors(self) -> bool:
        """Whether all rows have a vector; else none has, and no search by vector finds one."""
        return self.entry.vectors

    @property
    def dimensions(self) -> int:
        """Components of a vector; 0 without vectors."""
        return int(self.searched_ND.shape[1])

    @cached_property
    def ids(self) -> pa.ChunkedArray:
        """The ids, in row order."""
        return self.table.column("id")

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column (text, title, an attribute, …) in row order; KeyError if there is none."""
        return self.table.column(name)

    def value_postings(self, name: str) -> ValuePostings:
        """Return the values of a column with their rows: mapped from the local cache, or else made now.

        KeyError if there is no such column; of places and objects there are no postings.
        """
        folder, column = self._attributes.get(name), self.column(name)
        # An attribute may have been dropped, and added again with another type.
        if folder is None or self.records.table.schema.field(name).type != column.type:
            return ValuePostings.of_column(column)
        return ValuePostings.map(folder, self.rows, column.type)

    def take(self, rows: Sequence[int] | np.ndarray, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the given rows of some or all columns, in the order given."""
        table = self.table if columns is None else self.table.select(list(columns))
        return taken(table, np.asarray(rows, np.int64))

    def ranks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for each of some rows, int64, which is greater where the id is."""
        ranks: np.ndarray = self.ties.ranks_N[rows]
        return ranks

    def ids_of(self, rows: np.ndarray) -> list[str]:
        """Return the ids of some rows."""
        ids: list[str] = self.take(rows, ["id"]).column(0).to_pylist()
        return ids

    def searched_fields(self, rows: Sequence[int] | np.ndarray) -> list[list[str]]:
        """Return the title and the text of each row, those that it has; of transcripts only the spoken text."""
        columns = [name for name in SEARCHED_COLUMNS if name in self.table.column_names]
        titles, texts = (column.to_pylist() for column in searched_text(self.take(rows, columns)).columns)
        return [[field for field in fields if field] for fields in zip(titles, texts, strict=True)]

    def titles(self, rows_R: np.ndarray, max_characters: int) -> list[str | None]:
        """Return at most `max_characters` of the title of each row; None: it has none."""
        if "title" not in self.column_types:
            return [None] * len(rows_R)
        # Cut before they become strings of Python.
        titles: list[str | None] = pc.utf8_slice_codeunits(
            self.take(rows_R, ["title"]).column(0), 0, max_characters
        ).to_pylist()
        return titles

    @cached_property
    def text_starts(self) -> np.ndarray:
        """How many characters of its document are before each row, int64; 0 where that is not known."""
        if "text_start" not in self.column_types:
            return np.zeros(self.rows, np.int64)
        # A view of the column where all rows have one, as those of texts that were cut.
        starts_N: np.ndarray = self.column("text_start").fill_null(0).to_numpy()
        return starts_N

    def searched_texts(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return title and text of each row, for transcripts only the spoken text; "" if a row has neither."""
        return list(map("\n".join, self.searched_fields(rows)))

    def vectors(self, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the vectors of some rows as they were given, float32 `(len(rows), D)`."""
        return np.asarray(self.given_ND[np.asarray(rows, np.int64)])

    def searched(self, rows_R: np.ndarray) -> np.ndarray:
        """Return the vectors of some rows as they are searched, float32 (R, D)."""
        return self._vectors.take(rows_R)

    @property
    def _vectors(self) -> ScoredVectors:
        return ScoredVectors(self.searched_ND, self._quantized_NB)

    def scores_of(self, rows_R: np.ndarray, query_D: np.ndarray) -> np.ndarray:
        """Return the exact scores of some rows, float32 (R,); the query as `search_ready` returns it."""
        return row_scores(self._vectors, rows_R, query_D, self.distance)

    @property
    def is_cold(self) -> bool:
        """Whether vectors are in the store, and are read when they are needed (cold/): `searched_ND` is empty."""
        return False

    @property
    def reads_given(self) -> bool:
        """Whether the vectors as they were given are read from the store when they are needed: `given_ND` is empty."""
        return False

    def row_of(self, identifier: str, alive: AllowedRows | None = None) -> int | None:
        """Return the row of an id; None if the segment does not have it, or not among some rows, which takes as long.

        Args:
            identifier: the id.
            alive: the rows; None: all, also deleted ones.

        """
        return next(self._rows_with(self._hashes_2N, self.ids, identifier, alive), None)

    def rows_of(self, identifiers: Sequence[str], hashes_I: np.ndarray) -> np.ndarray:
        """Return the row of each id, int64, NO_ROW if the segment does not have it; far faster than `row_of` for many.

        Args:
            identifiers: the ids.
            hashes_I: their `id_hashes`, which callers compute once for all segments.

        """
        hashes_N, rows_N = self._hashes_2N
        rows_I = np.full(len(identifiers), NO_ROW, np.int64)
        if not len(hashes_N):
            return rows_I
        positions_I = np.minimum(np.searchsorted(hashes_N, hashes_I), len(hashes_N) - 1)
        near_I = np.flatnonzero(hashes_N[positions_I] == hashes_I)
        if not len(near_I):
            return rows_I
        rows_I[near_I] = rows_N[positions_I[near_I]]
        names = self.ids.take(pa.array(rows_I[near_I])).to_pylist()
        for number, name in zip(near_I.tolist(), names, strict=True):
            if name != identifiers[number]:  # two ids with one hash
                rows_I[number] = next(self._rows_with(self._hashes_2N, self.ids, identifiers[number]), NO_ROW)
        return rows_I

    def rows_of_document(self, document_id: str) -> np.ndarray:
        """Return the rows of a document, int64, ascending, deleted ones included."""
        rows = self._rows_with(self._documents_2N, self.column("document_id"), document_id)
        return np.fromiter(rows, np.int64)

    def documents_without(self, rows: Sequence[int] | np.ndarray) -> int:
        """Return the number of documents that have a row other than the given ones."""
        left_N = np.ones(self.rows, bool)
        left_N[np.asarray(rows, np.int64)] = False
        return int(pc.count_distinct(self.column("document_id").filter(pa.array(left_N))).as_py())

    @staticmethod
    def _rows_with(
        hashes_2N: np.ndarray, column: pa.ChunkedArray, text: str, alive: AllowedRows | None = None
    ) -> Iterator[int]:
        hashes_N, rows_N = hashes_2N
        digest = text_hash(text)
        first = int(np.searchsorted(hashes_N, digest))
        end = first
        while end < len(hashes_N) and hashes_N[end] == digest:
            end += 1
        # One row is looked at also if none has the text, and none is compared that is not alive: the time must not tell
        # callers that there is one which they do not see.
        are_alive = None if alive is None else alive.holds(rows_N[first : max(end, first + 1)])
        for number, row in enumerate(rows_N[first:end].tolist()):  # of equal hashes, the rows ascend
            if (are_alive is None or are_alive[number]) and column[row].as_py() == text:
                yield row

    @cached_property
    def document_words(self) -> DocumentWords | None:
        """The inverted index of documents; None if the segment has no words."""
        if self.postings is None:
            return None
        numbers = DocumentNumbers(self._documents_2N)
        if len(numbers) == self.rows:
            return DocumentWords(numbers, self.postings)
        return DocumentWords(
            numbers, self._document_postings or of_documents(self.postings, numbers.of_rows_N)
        )

    def settings_for(self, target_recall: float) -> SearchSettings | None:
        """Return the cheapest measured settings that meet a target recall.

        None if the search must be exact: the segment has no ScaNN data, or no setting meets the target.
        """
        return pick_settings(self.entry, target_recall)

    def closest_settings(self, target_recall: float) -> SearchSettings | None:
        """Return `settings_for`, or the settings of best recall if none meets the target; None without ScaNN data."""
        return pick_settings(self.entry, target_recall, anyway=True)

    def allow(self, allowed: np.ndarray | RowsBetween) -> AllowedRows:
        """Return allowed rows for `find` from a mask (bool (N,), read-only), row numbers, or a range of values.

        Callers should reuse it.
        """
        return AllowedRows(allowed, self.leaves, self.rows)

    def find(
        self,
        queries_QD: np.ndarray,
        k: int,
        *,
        settings: SearchSettings | None = None,
        allowed: AllowedRows | None = None,
        target_recall: float = 0.95,
        ready: bool = False,
        timed: bool = False,
    ) -> SegmentHits:
        """Return the best k rows of each query as `search` does, with the work that found them.

        The search is exact without settings, or with a target recall of 1. With `allowed`, the cheapest plan is used.

        Args:
            queries_QD: float32, finite, of any length.
            k: hits per query.
            settings: ScaNN's settings for a search without a filter; None: exact search.
            allowed: rows to search; None: all.
            target_recall: of a search among allowed rows, 0 to 1.
            ready: whether the queries are as `search_ready` returns them.
            timed: whether the predicted and the measured time are told, too.

        """
        if not self.has_vectors:
            return nothing_found(len(queries_QD), k)
        queries_QD = queries_QD if ready else search_ready(queries_QD, self.distance)
        if not timed:
            return self._find(queries_QD, k, settings, allowed, target_recall)
        predicted_us = 0.0
        if self._is_planned(k, settings, allowed, target_recall) and allowed and self._planner and settings:
            predicted_us = self._planner.predicted_us(len(queries_QD), k, allowed, settings)
        started_ns = time.thread_time_ns()
        hits = self._find(queries_QD, k, settings, allowed, target_recall)
        took_us = (time.thread_time_ns() - started_ns) / 1000
        return dataclasses.replace(hits, predicted_us=predicted_us, measured_us=took_us)

    def _find(
        self,
        queries_QD: np.ndarray,
        k: int,
        settings: SearchSettings | None,
        allowed: AllowedRows | None,
        target_recall: float,
    ) -> SegmentHits:
        searcher = self._searcher
        if searcher is None or self._planner is None or settings is None or target_recall >= 1:
            return self._exact_found(queries_QD, k, allowed)
        if not settings.reaches(k):
            return self._exact_found(queries_QD, k, allowed)
        if allowed is None:
            return self._searched_all(searcher, queries_QD, k, settings)
        if allowed.count < MOST_ROWS * self.rows or not settings.reaches(self._depth(k, allowed)):
            return self._planner.search(queries_QD, k, allowed, settings, target_recall)
        hits, short_Q = self._most_allowed(searcher, queries_QD, k, allowed, settings)
        if len(short_Q):
            replace(
                hits, short_Q, self._planner.search(queries_QD[short_Q], k, allowed, settings, target_recall)
            )
        return hits

    def _is_planned(
        self, k: int, settings: SearchSettings | None, allowed: AllowedRows | None, target_recall: float
    ) -> bool:
        """Return whether the planner answers a search among allowed rows from the beginning."""
        if settings is None or allowed is None or target_recall >= 1 or not settings.reaches(k):
            return False
        return allowed.count < MOST_ROWS * self.rows or not settings.reaches(self._depth(k, allowed))

    def _most_allowed(
        self,
        searcher: ScannSearcher,
        queries_QD: np.ndarray,
        k: int,
        allowed: AllowedRows,
        settings: SearchSettings,
    ) -> tuple[SegmentHits, np.ndarray]:
        """Search all rows for a few more hits, and drop those that are not allowed; also return queries with too few.

        If few rows are deleted, a search should cost hardly more. The settings for k suffice if the k-th allowed hit is
        among the first few beyond k of all rows. Near a document that was deleted as a whole it is not, and the planner
        answers the query.
        """
        all_rows = self._searched_all(searcher, queries_QD, self._depth(k, allowed), settings)
        rows_QA, scores_QA = all_rows.rows_QK, all_rows.scores_QK
        kept_QA = (rows_QA != NO_ROW) & allowed.holds(rows_QA)
        if not kept_QA[:, :k].all():
            first_QA = np.argsort(~kept_QA, axis=1, kind="stable")
            rows_QA, scores_QA = (
                np.take_along_axis(values, first_QA, axis=1) for values in (rows_QA, scores_QA)
            )
        plans = ["exact_allowed" if plan == "exact" else "scann_allowed" for plan in all_rows.plans]
        hits = dataclasses.replace(all_rows, rows_QK=rows_QA[:, :k], scores_QK=scores_QA[:, :k], plans=plans)
        return hits, np.flatnonzero(np.count_nonzero(kept_QA, axis=1) < k)

    def _depth(self, k: int, allowed: AllowedRows) -> int:
        """Return the number of hits to search among all rows for k allowed ones, if most rows are allowed."""
        return max(k, min(math.ceil(k * self.rows / max(allowed.count, 1)) + SPARE_HITS, self.rows))

    def _searched_all(
        self, searcher: ScannSearcher, queries_QD: np.ndarray, k: int, settings: SearchSettings
    ) -> SegmentHits:
        """Search as `_proposed` does, and return the work too."""
        depth = settings.at(k)
        leaves = min(depth.leaves, self._all_leaves)
        rows_QK, scores_QK, scored_Q, _, _ = searcher.search_allowed(
            queries_QD, k, rescore=depth.rescore, leaves=leaves
        )
        hits = SegmentHits(
            rows_QK,
            scores_QK,
            ["scann"] * len(queries_QD),
            np.full(len(queries_QD), leaves),
            scored_Q,
            np.full(len(queries_QD), depth.recall or self._measured_recall(depth)),
        )
        short_Q = self._short(rows_QK)
        if len(short_Q):
            replace(hits, short_Q, self._exact_found(queries_QD[short_Q], k, None))
        return hits

    def search(
        self,
        queries_QD: np.ndarray,
        k: int,
        *,
        settings: SearchSettings | None = None,
        allowed: np.ndarray | None = None,
        ready: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best k rows of each query: rows_QK int64 and scores_QK float32, best first, equal scores by id.

        Bigger scores are better: inner products, or minus squared distances. After the last hit, the row is -1 and the
        score minus infinity; there are fewer than k hits only if fewer rows are allowed.

        Args:
            queries_QD: float32, finite, of any length.
            k: hits per query.
            settings: ScaNN's settings; None: exact search.
            allowed: bool (N,): rows to search, exactly; None: all.
            ready: whether the queries are as `search_ready` returns them.

        """
        if self.has_vectors and not ready:
            queries_QD = search_ready(queries_QD, self.distance)
        if self.has_vectors and allowed is not None:
            return self._exact(queries_QD, k, allowed)
        return self.searching(k, settings)(queries_QD)

    @property
    def tree_leaves(self) -> int:
        """Number of leaves of ScaNN's tree; 0: the segment has none."""
        return self._all_leaves

    @property
    def is_scaled(self) -> bool:
        """Whether vectors were scaled to length 1 for the search: some were given with another length."""
        return self.given_ND is not self.searched_ND

    def search_given(
        self, queries_QD: np.ndarray, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the best k rows by inner product with the vectors as they were given, exactly, as `search` does.

        Args:
            queries_QD: float32, contiguous.
            k: hits per query.
            allowed: bool (N,): rows to search; None: all.

        """
        return exact_search(self.given_ND, queries_QD, k, "dot", allowed, self.ties.ranks_N)

    def searching(self, k: int, settings: SearchSettings | None) -> Search:
        """Return what `search` does with these arguments and ready queries, for callers that search again and again."""
        if not self.has_vectors:
            return partial(_no_hits, k)
        if self._searcher is None or settings is None or not settings.reaches(k):
            return partial(self._exact, k=k)
        depth = settings.at(k)
        leaves = min(depth.leaves, self._all_leaves)
        return partial(
            self._proposed, partial(self._searcher.search, k=k, rescore=depth.rescore, leaves=leaves)
        )

    def _proposed(self, search: Search, queries_QD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rows_QK, scores_QK = search(queries_QD)
        # For one query, without the fixed cost of NumPy's `min`.
        if (rows_QK[0, -1] if len(rows_QK) == 1 else rows_QK[:, -1].min()) >= 0:
            return rows_QK, scores_QK
        short_Q = self._short(rows_QK)
        if len(short_Q):
            rows_QK[short_Q], scores_QK[short_Q] = self._exact(queries_QD[short_Q], rows_QK.shape[1])
        return rows_QK, scores_QK

    def _short(self, rows_QK: np.ndarray) -> np.ndarray:
        """Return the numbers of queries whose leaves have fewer rows than hits are possible; they need exact search."""
        return np.flatnonzero(rows_QK[:, min(rows_QK.shape[1], self.rows) - 1] == NO_ROW)

    def _exact(
        self, queries_QD: np.ndarray, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        return exact_search(self._vectors, queries_QD, k, self.distance, allowed, self.ties.ranks_N)

    def _exact_found(self, queries_QD: np.ndarray, k: int, allowed: AllowedRows | None) -> SegmentHits:
        return exact_found(self._vectors, queries_QD, k, self.distance, allowed, self.ties.ranks_N)

    def _measured_recall(self, depth: Depth) -> float:
        """Return the best recall measured for settings with no more leaves and candidates than `depth`; 0 if none."""
        curves = [(TUNED_K, self.entry.curve), *((each.k, each.curve) for each in self.entry.depth_curves)]
        enough = [(k, curve) for k, curve in curves if k >= depth.k] or curves
        _, curve = min(enough, key=lambda each: abs(each[0] - depth.k))
        recalls = [
            point.recall for point in curve if point.leaves <= depth.leaves and point.rescore <= depth.rescore
        ]
        return max(recalls, default=0.0)

    def _planner_of(self, folder: Path) -> Planner | None:
        if self._searcher is None or self.leaves is None:
            return None
        return Planner(
            self._vectors,
            self.distance,
            self._searcher,
            self.leaves,
            PlanBook(CostFile(folder)),
            self.ties.ranks_N,
            all_leaves=self._all_leaves,
        )

    @property
    def planner(self) -> Planner | None:
        """The planner of filtered searches; None if there is only one plan."""
        return self._planner

    def time_plans(self, stopped: Callable[[], bool] = lambda: False) -> Costs | None:
        """Return the costs of the plans of a filtered search on this machine; None if there is only one plan.

        Args:
            stopped: asked again and again; if it returns True, timing ends, and None is returned.

        """
        settings = self.settings_for(_TIMED_TARGET)
        if self._planner is None or self.leaves is None or settings is None:
            return None
        return measure_costs(self._planner, self._vectors, self.leaves, settings, stopped=stopped)

    def time_plans_again(self, stopped: Callable[[], bool] = lambda: False) -> bool:
        """Time the plans and use the costs, also in other processes, unless these are worse; return whether they are.

        Costs that other processes disturbed more than those before are worse, unless the latter have drifted.

        Args:
            stopped: as `time_plans`.

        """
        if self._planner is None:
            return False
        book = self._planner.book
        plan_times, drifted = book.timed, book.drifted
        costs = self.time_plans(stopped)
        if costs is None or (
            plan_times is not None and not drifted and costs.pressure >= plan_times.pressure
        ):
            return False
        book.replace(costs)
        return True

    def _warm_up(self) -> None:
        """Compile the kernels, or load them from numba's cache, so that no query waits a third of a second for it.

        Uses the arrays of the segment, since kernels for read-only arrays are compiled separately.
        """
        if self.rows and self.has_vectors:
            first = ScoredVectors(self.searched_ND[:1], self._quantized_NB[:1])
            query_1D = search_ready(first.take(np.zeros(1, np.int64)), self.distance)
            for queries, hits in ((1, 1), (1, FEW_HITS + 1), (FEW_QUERIES, 1)):
                asked_QD = np.repeat(query_1D, queries, axis=0)
                exact_search(first, asked_QD, hits, self.distance, ranks_N=self.ties.ranks_N)
            if self._searcher is not None and self._planner is not None:
                mask_N = np.zeros(self.rows, bool)
                mask_N[0] = True
                mask_N.setflags(write=False)
                self._planner.warm_up(query_1D, self.allow(mask_N))
        if self.leaves is not None:
            ValueOrder(np.zeros(1, np.int32), 1).per_leaf(0, 1, self.leaves)
        if self._attributes:
            ValuePostings.of_column(pa.chunked_array([[""]])).find_texts([""])
        if self.postings is not None:
            word_index.warm_up()
        if self.sparse is not None:
            score_sparse(self.sparse, self.rows, np.zeros(0, np.uint32), np.zeros(0, np.float32))


def _no_hits(k: int, queries_QD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    hits = nothing_found(len(queries_QD), k)
    return hits.rows_QK, hits.scores_QK
