"""Statistics, counts and datapoints of leaves, put together, against a server of the whole index."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from scannery.indexer import Store, corpus_statistics
from scannery.runtime.retry import Deadline
from scannery.serving.engine.value_counts import FieldCounts, decoded, merged
from scannery.serving.services.counting import count_values
from scannery.v1 import leaf_pb2 as pb
from scannery.v1 import search_pb2
from scannery.v1.search_pb2 import Hit
from tests.serving.services.leaf.leaves import ROWS, SHARDS, SIZES, WORDS, Cluster, Root, cluster_of
from tests.serving.services.leaf.test_search import FILTERS, options, query, same, whole, words


@pytest.mark.system
def test_status(cluster: Cluster) -> None:
    found: list[pb.LeafStatus] = cluster.ask("GetStatus", pb.LeafStatusRequest())
    groups = len(cluster.groups)
    assert [(each.group, each.groups) for each in found] == [(number, groups) for number in range(groups)]
    assert all((each.in_flight, each.in_flight_limit) == (1, 16) for each in found)
    indexes = [index for each in found for index in each.indexes]
    assert [index.at for index in indexes] == [cluster.at] * groups
    assert sum(index.rows for index in indexes) == cluster.snapshot.rows == ROWS - ROWS // 9
    assert sum(index.shards for index in indexes) == SHARDS


@pytest.mark.system
def test_statistics_are_those_of_the_whole_index(cluster: Cluster) -> None:
    snapshot, terms = cluster.snapshot, ["volcano", "unknown", "tax", "volcano", "meadow"]
    postings = [segment.postings for segment in snapshot.segments if segment.postings is not None]
    expected = corpus_statistics(postings, terms, snapshot.alive)
    found = cluster.statistics(list(dict.fromkeys(terms)))
    assert found == expected
    assert set(expected.frequencies) == {"volcano", "tax", "meadow"}
    # Words that are asked for twice have a number each.
    [first, *_] = cluster.ask("GetStatistics", pb.LeafStatisticsRequest(at=cluster.at, terms=terms))
    assert len(first.frequencies) == 5
    assert first.frequencies[0] == first.frequencies[3] > 0
    assert cluster.statistics([]).rows == ROWS - ROWS // 9


@pytest.mark.parametrize("name", FILTERS)
def test_counts(cluster: Cluster, name: str) -> None:
    request = search_pb2.CountRequest(index="notes", where=FILTERS[name])
    whole = cluster.service.call("/scannery.v1.SearchService/Count", request, Deadline.after(60))
    parts = cluster.ask("Count", pb.LeafCountRequest(at=cluster.at, where=FILTERS[name]))
    assert isinstance(whole, search_pb2.CountResponse)
    assert sum(part.rows for part in parts) == whole.count > 0


def by_value(counts: FieldCounts) -> dict[tuple[str, object], int]:
    return {
        (each.kind, value): int(rows)
        for each in counts.kinds
        for value, rows in zip(each.values.to_pylist(), each.counts_V, strict=True)
    }


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("attribute", ["year", "topic", "live", "rating", "document_id", "dynamic.x"])
def test_values_of_an_attribute(cluster: Cluster, attribute: str, name: str) -> None:
    request = pb.LeafCountRequest(at=cluster.at, where=FILTERS[name], attribute=attribute)
    found = merged([decoded(part) for part in cluster.ask("Count", request)])
    snapshot = cluster.snapshot
    where = snapshot.parsed(search_pb2.SearchOptions(where=FILTERS[name])).where
    expected = count_values(snapshot, attribute, where, Deadline.after(60))
    assert (found.rows, found.missing, by_value(found)) == (
        expected.rows,
        expected.missing,
        by_value(expected),
    )
    assert bool(found.rows) == (attribute != "dynamic.x")


def test_counts_that_do_not_fit_are_refused() -> None:
    message = pb.LeafCounts(rows=1)
    message.values.add(kind="colour")
    with pytest.raises(ValueError, match="unknown type of values 'colour'"):
        decoded(message)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("value", pa.int64())])) as writer:
        writer.write_table(pa.table({"value": [1, 2]}))
    message.values[0].CopyFrom(
        pb.LeafValues(kind="int", values=sink.getvalue().to_pybytes(), counts=bytes(8))
    )
    with pytest.raises(ValueError, match="2 values of type int have 1 counts"):
        decoded(message)


def test_fetched_datapoints(cluster: Cluster) -> None:
    ids = ["d0010", "nowhere", "d0000", "d0899", "d0001", "d0010"]  # the third was deleted
    request = pb.LeafFetchRequest(
        at=cluster.at,
        ids=ids,
        datapoint=True,
        return_fields=["text", "year"],
        return_vector=True,
        searched_text=True,
        searched_vectors=list(SIZES),
    )
    found = {each.place: each for answer in cluster.ask("Fetch", request) for each in answer.found}
    asked = search_pb2.GetRequest(
        index="notes", ids=ids, return_fields=request.return_fields, return_vector=True
    )
    got = cluster.service.call("/scannery.v1.SearchService/Get", asked, Deadline.after(60))
    assert isinstance(got, search_pb2.GetResponse)
    assert sorted(found) == [0, 3, 4, 5]
    assert [found[place].datapoint for place in sorted(found)] == list(got.datapoints)
    for place, each in found.items():
        assert each.searched_text == each.datapoint.text
        at = cluster.snapshot.require(ids[place], path="ids")
        for name in SIZES:
            vector_D = cluster.snapshot.space(name).vector_of(*at)
            assert (name in each.searched_vectors) == (vector_D is not None)
            if vector_D is not None:
                assert each.searched_vectors[name].packed == vector_D.tobytes()


def test_only_what_is_asked_for_is_fetched(cluster: Cluster) -> None:
    answers = cluster.ask("Fetch", pb.LeafFetchRequest(at=cluster.at, ids=["d0010", "d0001"]))
    found = [each for answer in answers for each in answer.found]
    assert sorted(each.place for each in found) == [0, 1]
    assert not any(
        each.HasField("datapoint") or each.searched_text or each.searched_vectors for each in found
    )


@pytest.mark.system
def test_rows_come_with_groups_and_datapoints(cluster: Cluster) -> None:
    queries = [query(words=words()) for _ in range(3)]
    asked = options("hybrid", "half", [""], return_fields=["topic", "year"])
    for column in ("year", "topic", "live", "rating", "document_id"):
        root = Root(cluster, queries, asked, wanted=30, group_by=column, datapoints=True)
        for found in (each for answer in root.answers for each in answer.results):
            assert found.ids
            points = [Hit.FromString(each).datapoint for each in found.datapoints]
            assert [each.id for each in points] == list(found.ids)
            assert {each.attributes["topic"].string_value for each in points} == {"b"}
            assert not any(each.HasField("text") for each in points)
            if column in ("year", "topic"):
                own = [each.attributes.get(column) for each in points]
                assert [each.WhichOneof("kind") and each for each in found.groups] == own
    missing = [
        each.WhichOneof("kind") is None for answer in root.answers for each in answer.results[0].groups
    ]
    assert not any(missing)


def test_a_root_sends_vectors_of_some_queries(cluster: Cluster) -> None:
    queries = [query(), query(size=SIZES["title"]), query(), query(size=SIZES["title"])]
    asked = search_pb2.SearchOptions(mode=search_pb2.MODE_DENSE, k=20, exact=True)
    asked.vectors.extend(search_pb2.VectorChoice(name=name) for name in SIZES)
    request = pb.LeafSearchRequest(at=cluster.at, options=asked, queries=4, wanted=15)
    for size, numbers in ((SIZES[""], [0, 2]), (SIZES["title"], [1, 3])):
        own = request.vectors.add(queries=numbers)
        own.vectors.dimensions = size
        own.vectors.packed = b"".join(queries[number].vector.packed for number in numbers)
    for answer in cluster.ask("Search", request):
        for number, found in enumerate(answer.results):
            sizes = [len(ranking.places) for ranking in found.by_vector]
            assert [bool(size) for size in sizes] == [number % 2 == 0, number % 2 == 1]
            scores_US = np.frombuffer(found.scores, "<f4").reshape(-1, 2)
            assert np.isnan(scores_US).all(axis=0).tolist() == [number % 2 == 1, number % 2 == 0]


@pytest.mark.system
def test_more_groups_than_shards(notes: Store) -> None:
    with cluster_of(notes, SHARDS + 3) as cluster:
        queries = [query(words=words()) for _ in range(3)]
        asked = options("hybrid", "half", [""])
        root = Root(cluster, queries, asked, wanted=200, scales=True, group_by="year", datapoints=True)
        for number, expected in enumerate(whole(cluster, queries, asked).best(np.arange(3), 20)):
            same(root.fused(number, 200), expected)
        assert not root.answers[-1].results[0].ids
        assert cluster.statistics(WORDS[:2]).rows == ROWS - ROWS // 9
        counts = cluster.ask("Count", pb.LeafCountRequest(at=cluster.at, attribute="topic"))
        assert merged([decoded(each) for each in counts]).rows == ROWS - ROWS // 9
