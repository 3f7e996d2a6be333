"""The rows of one state of an index on the leaves of a cluster.

What the leaves told of a row is kept for the batch, so that each row is read at most once. Rows are read where they are
needed: those that queries name before the search, the texts of candidates before a reranking, hits at the end.

Shapes: H hits.

The rows of one group of leaves that the queries of a batch find or name.

Shapes: R rows.

Hits in the wire format, of datapoints that leaves returned.

Shapes: H hits of one query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count, islice

import numpy as np
import pyarrow as pa

from scannery.indexer import CorpusCounts, CorpusStatistics
from scannery.runtime.errors import ServingError, UnknownDatapointError
from scannery.serving.contract import LEAF_FETCH, LEAF_STATISTICS
from scannery.serving.engine.hydrator import WrittenHits
from scannery.serving.engine.lexical import Words
from scannery.serving.engine.passages import PASSAGE_SCHEMA, Passages, joined_passages
from scannery.serving.engine.query_vectors import members_of
from scannery.serving.engine.remote.leaf_candidates import KeptCounts, LeafCandidates
from scannery.serving.engine.remote.leaf_signals import LeafSignalRows
from scannery.serving.engine.remote.state_reader import StateReader
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.segment_search import PreparedSearch, QueryBatch
from scannery.serving.engine.top_k import Ranking
from scannery.serving.engine.wire_fields import framed, read_table, varint
from scannery.serving.limits import MAX_LEAF_IDS
from scannery.serving.request.filter import Node
from scannery.serving.request.query import ById, Vectors
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.leaf_pb2 import LeafFetchRequest, LeafFetchResponse, LeafFound
from scannery.v1.search_pb2 import Hit, SearchOptions, SearchResponse
from scannery.v1.types_pb2 import Datapoint, Filter, Value, Vector

__all__ = ["LeafRows"]


_DATAPOINT = Hit.DATAPOINT_FIELD_NUMBER


class LeafTable:
    """Rows by number, in the order in which they came, and what the leaves told of them."""

    def __init__(self) -> None:
        # Counts new ids without a step of the interpreter for each.
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._listed: list[str] = []
        self._ranks = np.empty(0, np.int64)
        """The place of each row in the order of ids, of the rows that were known when it was last asked for."""
        self.values: dict[int, Value] = {}
        """The values of the column that groups are made of, of the rows that have one."""
        self.datapoints: dict[int, bytes] = {}
        """Datapoints with the fields of the request, each as the field `datapoint` of a Hit."""
        self.texts: dict[int, str] = {}
        """The texts that are searched by words, and reranked."""
        self.signals: dict[int, np.ndarray] = {}
        """The signals of the ranking expression, float32 (C,)."""
        self._vectors: dict[tuple[str, int], np.ndarray] = {}

    def numbers_of(self, ids: Iterable[str]) -> np.ndarray:
        """Return the number of each row, int64 (R,); new rows get one."""
        return np.fromiter(map(self._numbers.__getitem__, ids), np.int64)

    def number_of(self, identifier: str) -> int | None:
        """Return the number of a row; None: it is not known."""
        return self._numbers.get(identifier)

    def take_in(self, result: LeafFound) -> np.ndarray:
        """Return the number of each row that a leaf found, int64 (R,), and keep what it returned with them."""
        numbers_R = self.numbers_of(result.ids)
        numbers = numbers_R.tolist() if result.groups or result.datapoints or result.signals else []
        if result.signals:
            signals_RC = np.frombuffer(result.signals, "<f4").reshape(len(numbers), -1)
            self.signals.update(zip(numbers, signals_RC, strict=True))
        if result.groups:
            pairs = zip(numbers, result.groups, strict=True)
            self.values.update((number, value) for number, value in pairs if value.WhichOneof("kind"))
        if result.datapoints:
            self.datapoints.update(zip(numbers, result.datapoints, strict=True))
        return numbers_R

    def add(self, request: LeafFetchRequest, response: LeafFetchResponse) -> None:
        """Keep what a leaf returned."""
        numbers_R = self.numbers_of(request.ids[each.place] for each in response.found)
        for number, each in zip(numbers_R.tolist(), response.found, strict=True):
            if request.datapoint:
                self.datapoints[number] = framed(_DATAPOINT, each.datapoint.SerializeToString())
            if request.searched_text:
                self.texts[number] = each.searched_text
            for name, vector in each.searched_vectors.items():
                self._vectors[name, number] = _components(vector)

    def vector_of(self, name: str, row: int) -> np.ndarray | None:
        """Return the vector of a name of a row, float32 (D,); None if it has none."""
        return self._vectors.get((name, row))

    def rows_with_vector(self, name: str) -> set[int]:
        """Return the rows whose vector of a name is known."""
        return {row for other_name, row in self._vectors if other_name == name}

    def ranks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for each of some rows, int64 (R,), which is greater where the id is."""
        ids = self._ids()
        if len(self._ranks) < len(ids):
            self._ranks = np.empty(len(ids), np.int64)
            self._ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
        ranks_R: np.ndarray = self._ranks[rows]
        return ranks_R

    def ids_of(self, rows: np.ndarray) -> list[str]:
        """Return the ids of some rows."""
        ids = self._ids()
        return [ids[row] for row in rows.tolist()]

    def _ids(self) -> list[str]:
        if len(self._listed) < len(self._numbers):
            self._listed = list(self._numbers)
        return self._listed


def _components(vector: Vector) -> np.ndarray:
    if vector.packed:
        return np.frombuffer(vector.packed, "<f4").astype(np.float32)
    return np.array(vector.values, np.float32)


_HITS = SearchResponse.HITS_FIELD_NUMBER
_FIXED32 = 5
"""The wire type of a float."""


def written_hits(
    rankings: Sequence[Ranking], tables: Sequence[LeafTable], names: Sequence[str], *, grouped: bool
) -> WrittenHits:
    """Return the hits of each query.

    Args:
        rankings: the hits, as groups of leaves and rows of their tables.
        tables: of each group; they have the datapoints.
        names: of the vectors of `Hit.vector_scores`; none leaves it out.
        grouped: whether `Hit.group` is set.

    """
    return WrittenHits.of([b"".join(_hits(ranking, tables, names, grouped=grouped)) for ranking in rankings])


def _hits(
    ranking: Ranking, tables: Sequence[LeafTable], names: Sequence[str], *, grouped: bool
) -> list[bytes]:
    """Return each hit as a field; datapoints are copied as the leaves wrote them."""
    scores = _scores(ranking)
    locations = zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
    serialized = []
    for rank, (number, row) in enumerate(locations):
        parts = [tables[number].datapoints[row], *(values[rank] for values in scores)]
        if grouped or ranking.by_vector is not None:
            value = tables[number].values.get(row) if grouped else None
            parts.append(_hit_scores(value, ranking, names, rank).SerializeToString())
        serialized.append(framed(_HITS, b"".join(parts)))
    return serialized


def _scores(ranking: Ranking) -> list[list[bytes]]:
    """Return the scores and the relevance of all hits, a list for each, as fields; without those that are not there."""
    arrays = (
        (Hit.SCORE_FIELD_NUMBER, ranking.scores),
        (Hit.DENSE_SCORE_FIELD_NUMBER, ranking.dense),
        (Hit.LEXICAL_SCORE_FIELD_NUMBER, ranking.lexical),
        (Hit.RERANK_SCORE_FIELD_NUMBER, ranking.rerank),
        (Hit.RELEVANCE_FIELD_NUMBER, ranking.relevance),
        (Hit.BASE_SCORE_FIELD_NUMBER, ranking.base),
    )
    return [_fields(field, scores_H) for field, scores_H in arrays if scores_H is not None]


def _fields(number: int, scores_H: np.ndarray) -> list[bytes]:
    """Return each score as a field; empty where it is not a number."""
    tag, data = varint(number << 3 | _FIXED32), scores_H.astype("<f4").tobytes()
    missing = np.isnan(scores_H).tolist()
    return [b"" if none else tag + data[4 * at : 4 * at + 4] for at, none in enumerate(missing)]


def _hit_scores(value: Value | None, ranking: Ranking, names: Sequence[str], rank: int) -> Hit:
    """Return what few hits have besides the datapoint and the scores."""
    hit = Hit()
    if value is not None:
        hit.group.CopyFrom(value)
    if ranking.by_vector is not None:
        scores = zip(names, ranking.by_vector[rank].tolist(), strict=True)
        hit.vector_scores.update({name: score for name, score in scores if score == score})  # noqa: PLR0124  not NaN
    return hit


class LeafRows(RowSource):
    """The rows that the queries of a batch find or name on leaves."""

    def __init__(
        self,
        reader: StateReader,
        snapshot: Snapshot,
        options: SearchOptions,
        filters: Mapping[Node, Filter] | None = None,
        *,
        kept: KeptCounts,
    ) -> None:
        """Read nothing yet.

        Args:
            reader: of the state.
            snapshot: of the same state, without segments: spec, encoders and options.
            options: of the request.
            filters: the messages of the filters of single queries, by what they were parsed to.
            kept: the counts of words that are known.

        """
        self.reader, self.options, self._kept = reader, options, kept
        self.filters = filters or {}
        self._snapshot = snapshot
        self._group_by = options.crowding.group_by or "document_id" if options.HasField("crowding") else None
        self.segments: Sequence[LeafTable] = [LeafTable() for _ in range(reader.groups)]
        self._named = _NamedRows(self.segments, snapshot)
        self.lookup = self._named

    def candidates(
        self, prepared: PreparedSearch, batch: QueryBatch, *, words: Sequence[Words] | None = None
    ) -> LeafCandidates:
        """As `RowSource.candidates`."""
        self._read_named(prepared, batch)
        return LeafCandidates(self, prepared, batch, words=words)

    def signal_rows(
        self, prepared: PreparedSearch, batch: QueryBatch, candidates: LeafCandidates
    ) -> LeafSignalRows:
        """As `RowSource.signal_rows`."""
        return LeafSignalRows(self, prepared, candidates)

    def readable(self, rankings: list[Ranking]) -> list[Ranking]:
        """As `RowSource.readable`; datapoints that the leaves did not return with the candidates are read here."""
        self._read_datapoints(rankings)
        return [
            ranking.at(
                np.array(
                    [row in self.segments[number].datapoints for number, row in _locations(ranking)], bool
                )
            )
            for ranking in rankings
        ]

    def hits(self, prepared: PreparedSearch, rankings: Sequence[Ranking]) -> WrittenHits:
        """As `RowSource.hits`."""
        options = prepared.options
        names = options.vectors.names if options.mode != "lexical" else ()
        return written_hits(rankings, self.segments, names, grouped=options.group_by is not None)

    def searched_texts(self, ranking: Ranking) -> list[str | None]:
        """As `RowSource.searched_texts`."""
        request = pb.LeafFetchRequest(at=self.reader.at, searched_text=True)
        self._read(request, self._unknown([ranking], lambda table: table.texts))
        return [self.segments[number].texts.get(row) or None for number, row in _locations(ranking)]

    def texts(self, ranking: Ranking, max_characters: int) -> list[str]:
        """As `RowSource.texts`."""
        return [
            "" if point is None else point.text[:max_characters] for point in self._points(ranking, "text")
        ]

    def vectors(self, ranking: Ranking, name: str) -> np.ndarray:
        """As `RowSource.vectors`."""
        request = pb.LeafFetchRequest(at=self.reader.at, searched_vectors=[name])
        self._read(request, self._unknown([ranking], lambda table: table.rows_with_vector(name)))
        vectors_HD = np.zeros((len(ranking), self._snapshot.manifest.of_vectors(name).dimensions), np.float32)
        for position, (number, row) in enumerate(_locations(ranking)):
            vector_D = self.segments[number].vector_of(name, row)
            if vector_D is not None:
                vectors_HD[position] = vector_D
        return vectors_HD

    def groups(self, ranking: Ranking, column: str) -> list[Hashable]:
        """As `RowSource.groups`: of the first column of the search, what the leaves returned with the candidates."""
        # A tuple equals no value, so a row without one is alone in its group.
        if column == "document_id" and column != self._group_by:
            points = self._points(ranking, "id")
            return [(at,) if point is None else point.document_id for at, point in enumerate(points)]
        if column == self._group_by:
            values = [self.segments[number].values.get(row) for number, row in _locations(ranking)]
        else:
            points = self._points(ranking, column)
            values = [None if point is None else point.attributes.get(column) for point in points]
        return [(at,) if value is None else _hashable(value) for at, value in enumerate(values)]

    def _points(self, ranking: Ranking, field: str) -> list[Datapoint | None]:
        """Return each hit with one of its fields; None where its group does not answer, which the caller allows."""
        # The fields of the answer may be others, so it is read apart.
        tables = [LeafTable() for _ in self.segments]
        request = pb.LeafFetchRequest(at=self.reader.at, datapoint=True, return_fields=[field])
        self._read(request, self._unknown([ranking], lambda table: ()), tables)
        points: list[Datapoint | None] = []
        for number, row in _locations(ranking):
            [identifier] = self.segments[number].ids_of(np.array([row]))
            number_in_table = tables[number].number_of(identifier)
            points.append(
                None
                if number_in_table is None
                else Hit.FromString(tables[number].datapoints[number_in_table]).datapoint
            )
        return points

    def passages(self, ranking: Ranking, document_ids: Sequence[Hashable]) -> Passages:
        """As `RowSource.passages`: a document has all of its passages in one group."""
        # All groups are asked: each says whether it has documents of several passages.
        names: list[dict[str, None]] = [{} for _ in self.segments]
        for number, name in zip(ranking.segments.tolist(), document_ids, strict=True):
            if isinstance(name, str):  # else its group stopped to answer, which the caller allows
                names[number][name] = None
        parts: list[tuple[int, np.ndarray, pa.Table]] = []
        only_documents = set[bool]()
        for start in range(0, max(map(len, names), default=0), MAX_LEAF_IDS):
            requests = {
                number: pb.LeafFetchRequest(
                    at=self.reader.at, document_ids=list(islice(each, start, start + MAX_LEAF_IDS))
                )
                for number, each in enumerate(names)
            }
            for number, answer in self.reader.each(LEAF_FETCH, requests, pb.LeafFetchResponse).items():
                only_documents.add(answer.has_only_documents)
                if answer.passages:
                    table = read_table(answer.passages)
                    if table.schema != PASSAGE_SCHEMA:
                        raise ServingError("a leaf returned passages with other columns")
                    rows_P = self.segments[number].numbers_of(table.column("id").to_pylist())
                    parts.append((number, rows_P, table))
        return joined_passages(parts, has_only_documents=only_documents == {True})

    def corpus(self, terms: Sequence[str]) -> CorpusStatistics | None:
        """As `RowSource.corpus`."""
        return None if self._snapshot.manifest.spec.lexical is None else self.counted(terms)

    def counted(self, terms: Sequence[str]) -> CorpusStatistics:
        """Return the statistics of all live rows for some terms; the index has words."""
        distinct = list(dict.fromkeys(terms))
        counts = None if self.reader.allow_partial else self._kept.find(self.reader.at, distinct)
        if counts is None or len(counts.frequencies) < len(distinct):
            counts = self._read_counts(distinct, counts)
        # In the order of the question.
        frequencies = {term: counts.frequencies[term] for term in distinct}
        return CorpusStatistics.of(replace(counts, frequencies=frequencies))

    def _read_counts(self, terms: Sequence[str], kept: CorpusCounts | None) -> CorpusCounts:
        """Return the counts of some terms, of which some may be known, and keep them."""
        frequencies = {} if kept is None else dict(kept.frequencies)
        new = [term for term in terms if term not in frequencies]
        counts = CorpusCounts(0, 0, {})  # each part says the size of the whole corpus
        for start in range(0, max(len(new), 1), MAX_LEAF_IDS):
            counts = self._counts(new[start : start + MAX_LEAF_IDS])
            frequencies |= counts.frequencies
            if not self.reader.allow_partial:
                self._kept.keep(self.reader.at, counts)
        return replace(counts, frequencies=frequencies)

    def _counts(self, terms: Sequence[str]) -> CorpusCounts:
        """Return the sums of all groups for some terms."""
        request = pb.LeafStatisticsRequest(at=self.reader.at, terms=terms)
        total = CorpusCounts(0, 0, dict.fromkeys(terms, 0))
        for each in self.reader.all(LEAF_STATISTICS, request, pb.LeafStatistics).values():
            frequencies = dict(zip(terms, each.frequencies, strict=True))
            total += CorpusCounts(each.rows, each.length, frequencies, each.documents)
        return total

    def _read_named(self, prepared: PreparedSearch, batch: QueryBatch) -> None:
        """Read the datapoints that queries name by id, with all that a query of any mode needs of them."""
        if isinstance(batch.queries, Vectors):
            return
        members = chain.from_iterable(map(members_of, batch.queries, batch.paths))
        named = dict.fromkeys(member.id for member, _, _ in members if isinstance(member, ById))
        ids = [each for each in named if each not in self._named.locations]
        if not ids:
            return
        request = pb.LeafFetchRequest(
            at=self.reader.at,
            ids=ids,
            searched_text=self._snapshot.manifest.spec.lexical is not None,
            searched_vectors=[choice.name for choice in prepared.options.vectors],
        )
        for number, response in self.reader.all(LEAF_FETCH, request, pb.LeafFetchResponse).items():
            table = self.segments[number]
            table.add(request, response)
            rows = table.numbers_of(ids[each.place] for each in response.found).tolist()
            self._named.locations.update(
                (ids[each.place], (number, row)) for each, row in zip(response.found, rows, strict=True)
            )

    def _read_datapoints(self, rankings: Sequence[Ranking]) -> None:
        request = pb.LeafFetchRequest(
            at=self.reader.at,
            datapoint=True,
            return_fields=self.options.return_fields,
            return_vector=self.options.return_vector,
        )
        self._read(request, self._unknown(rankings, lambda table: table.datapoints))

    def _unknown(
        self, rankings: Sequence[Ranking], rows_of: Callable[[LeafTable], Container[int]]
    ) -> dict[int, list[str]]:
        """Return by group the ids of the rows of which something is not known yet."""
        missing: dict[int, dict[int, None]] = {}
        for ranking in rankings:
            for number, row in _locations(ranking):
                if row not in rows_of(self.segments[number]):
                    missing.setdefault(number, {})[row] = None
        return {number: self.segments[number].ids_of(np.array([*rows])) for number, rows in missing.items()}

    def _read(
        self,
        request: pb.LeafFetchRequest,
        ids: Mapping[int, Sequence[str]],
        tables: Sequence[LeafTable] | None = None,
    ) -> None:
        """Send a request with ids of its own to each group, and keep the answers."""
        tables = self.segments if tables is None else tables
        longest = max(map(len, ids.values()), default=0)
        for start in range(0, longest, MAX_LEAF_IDS):
            requests = {}
            for number, group_ids in ids.items():
                if part := group_ids[start : start + MAX_LEAF_IDS]:
                    requests[number] = pb.LeafFetchRequest(ids=part)
                    requests[number].MergeFrom(request)
            for number, response in self.reader.each(LEAF_FETCH, requests, pb.LeafFetchResponse).items():
                tables[number].add(requests[number], response)


class _NamedRows:
    """Finds the datapoints that queries name; they were read before."""

    def __init__(self, tables: Sequence[LeafTable], snapshot: Snapshot) -> None:
        self._tables, self._snapshot = tables, snapshot
        self.encoder = snapshot.encoder
        self.locations: dict[str, tuple[int, int]] = {}
        """The group and the row of each datapoint that was read by its id."""

    def require(self, identifier: str, *, path: str) -> tuple[int, int]:
        """As `Lookup.require`."""
        location = self.locations.get(identifier)
        if location is None:
            raise UnknownDatapointError.named(identifier, self._snapshot.manifest.index, path)
        return location

    def vector_of(self, name: str, number: int, row: int) -> np.ndarray | None:
        """As `Lookup.vector_of`."""
        return self._tables[number].vector_of(name, row)

    def searched_text(self, number: int, row: int) -> str:
        """As `Lookup.searched_text`."""
        return self._tables[number].texts.get(row, "")


def _locations(ranking: Ranking) -> Iterator[tuple[int, int]]:
    return zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)


def _hashable(value: Value) -> Hashable:
    """Return a value as one that equals those, and only those, that are the same group."""
    kind = value.WhichOneof("kind")
    if kind == "timestamp_value":
        return value.timestamp_value.ToNanoseconds(), kind
    scalar: Hashable = getattr(value, str(kind))
    return scalar
