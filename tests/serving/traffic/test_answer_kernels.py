"""Kernels make ids of serialised answers as their messages say."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer.traffic.keys import TrafficKey
from scannery.serving.traffic.answer_kernels import MAX_HITS, _sip_hash, identified, list_bounds
from scannery.serving.traffic.query_ids import verified_id
from scannery.v1 import search_pb2 as pb

KEY = TrafficKey(1, b"k" * 32)
AT_MS = 1_000_000_000_123
IDS = st.lists(st.text(max_size=100), max_size=12)


def answer_of(ids: list[str], version: int = 3) -> pb.SearchResponse:
    answer = pb.SearchResponse(version=version, mode=pb.MODE_HYBRID, sequence=2**40, unseen_bound=0.5)
    answer.explanation.stages.add(stage="search", duration_us=300)
    for number, hit_id in enumerate(ids):
        hit = answer.hits.add(score=0.5 - number / 100, dense_score=1.0)
        hit.datapoint.id, hit.datapoint.text = hit_id, "x" * 40 * number
    return answer


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, 0x726FDB47DD0E0E31), (8, 0x93F5F5799A932462), (15, 0xA129CA6149BE45E5)],
)
def test_the_hash_is_that_of_its_authors(size: int, expected: int) -> None:
    key_2 = np.frombuffer(bytes(range(16)), np.uint64)
    assert int(_sip_hash(np.frombuffer(bytes(range(64)), np.uint8), size, key_2)) == expected


@given(
    ids=IDS,
    version=st.integers(0, 2**32 - 1),
    index=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,62}", fullmatch=True),
)
def test_an_id_says_what_the_message_says(ids: list[str], version: int, index: str) -> None:
    answer = answer_of(ids, version)
    made = identified(answer.SerializeToString(), KEY, index, "one", AT_MS)
    assert (made.hits, made.version, made.mode) == (len(ids), version, pb.MODE_HYBRID)
    assert made.score == (0.5 if ids else 0.0)
    whole = pb.SearchResponse.FromString(answer.SerializeToString() + made.field)
    assert whole.query_id == made.query_id
    answered = verified_id(
        whole.query_id,
        key_of=lambda number: KEY,
        index_id_of=lambda name: "one",
        seen_of=lambda index: None,
        clock=lambda: AT_MS / 1000,
    )
    assert (answered.index, answered.version) == (index, version)
    assert answered.at.timestamp() == AT_MS / 1000
    assert [answered.ordinal_of(each) for each in ids] == [ids.index(each) + 1 for each in ids]


@given(lists=st.lists(IDS, max_size=5))
def test_lists_have_ids_of_their_own(lists: list[list[str]]) -> None:
    answer = pb.SearchManyResponse(version=3, modes=[pb.MODE_DENSE])
    for ids in lists:
        answer.results.add().hits.extend(answer_of(ids).hits)
    data = answer.SerializeToString()
    *bounds, (_, end) = list_bounds(data, 10).tolist()
    assert len(bounds) == len(lists)
    made = [identified(data[start:stop], KEY, "a", "one", AT_MS, version=3) for start, stop in bounds]
    assert [each.hits for each in made] == list(map(len, lists))
    whole = pb.SearchManyResponse.FromString(data + b"".join(each.field for each in made))
    assert list(whole.query_ids) == [each.query_id for each in made]
    assert len({*whole.query_ids}) == len(lists)
    assert pb.SearchManyResponse.FromString(data[end:]).version == 3


def test_hits_without_ids_and_more_than_fit() -> None:
    answer = pb.SearchResponse(hits=[pb.Hit(score=2.0), *[pb.Hit()] * MAX_HITS])
    made = identified(answer.SerializeToString(), KEY, "i" * 63, "one", AT_MS)
    assert made.hits == MAX_HITS + 1
    assert len(made.query_id) <= 1000


def test_processes_make_different_ids() -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, identified(b"", KEY, "a", "b", AT_MS).query_id.encode())
        os._exit(0)
    os.waitpid(child, 0)
    ids = {
        os.read(reading, 1000).decode(),
        *(identified(b"", KEY, "a", "b", AT_MS).query_id for _ in range(100)),
    }
    assert len(ids) == 101
