"""Ids of answers: what they prove, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer.traffic.keys import TrafficKey
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.traffic.answer_kernels import MAX_HITS, identified
from scannery.serving.traffic.query_ids import AnsweredQuery, verified_id
from scannery.v1 import search_pb2 as pb

KEY = TrafficKey(3, b"k" * 32)
HITS = [f"episode-{number}" for number in range(10)]


def checked(query_id: str, *, keys: Any = (KEY,), index_id: str = "one", at_s: float = 1e9) -> AnsweredQuery:
    by_number = {key.number: key for key in keys}
    return verified_id(
        query_id,
        key_of=by_number.get,
        index_id_of=lambda index: index_id,
        seen_of=lambda index: None,
        clock=lambda: at_s + 1,
    )


def issued(hits: list[str] = HITS, index: str = "podcasts", version: int = 7) -> str:
    answer = pb.SearchResponse(version=version)
    for hit in hits:
        answer.hits.add().datapoint.id = hit
    return identified(answer.SerializeToString(), KEY, index, "one", 10**12).query_id


def test_an_id_says_what_was_answered() -> None:
    answered = checked(issued())
    assert (answered.index, answered.version, answered.at.timestamp()) == ("podcasts", 7, 1e9)
    assert [answered.ordinal_of(hit) for hit in HITS] == list(range(1, 11))
    assert answered.ordinal_of("episode-10") is None


def test_an_id_of_ten_hits_is_a_valid_id_of_user_behavior_insights() -> None:
    query_id = issued()
    assert len(query_id) <= 100
    assert checked(query_id).log_id == query_id.partition(".")[0]


def test_equal_answers_have_different_ids() -> None:
    assert issued() != issued()


def test_only_the_first_hits_are_in_an_id() -> None:
    hits = [f"{number}" for number in range(MAX_HITS + 5)]
    query_id = issued(hits, "i" * 63, 2**32 - 1)
    answered = checked(query_id)
    assert answered.ordinal_of(hits[MAX_HITS - 1]) == MAX_HITS
    assert answered.ordinal_of(hits[MAX_HITS]) is None
    assert len(query_id) <= 1000


def test_an_answer_without_hits_has_an_id() -> None:
    assert checked(issued([])).ordinal_of("a") is None


@given(position=st.integers(0, 87), bit=st.integers(0, 5))
def test_a_changed_id_is_refused(position: int, bit: int) -> None:
    query_id, alphabet = issued(), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    character = query_id[position]
    changed = "A" if character == "." else alphabet[alphabet.index(character) ^ (1 << bit)]
    with pytest.raises(InvalidRequestError) as caught:
        checked(query_id[:position] + changed + query_id[position + 1 :])
    assert caught.value.field == "query_id"


@pytest.mark.parametrize(
    "text", ["", ".", "a.b", "é.é", "A" * 16, "A" * 16 + ".", "A" * 2000, "A" * 16 + "." + "A" * 70]
)
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="not the id of an answer"):
        checked(text)


def test_an_id_of_another_index_or_key_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="not the id of an answer"):
        checked(issued(), index_id="two")
    with pytest.raises(InvalidRequestError, match="not the id of an answer"):
        checked(issued(), keys=[TrafficKey(3, b"x" * 32)])
    with pytest.raises(InvalidRequestError, match="not the id of an answer"):
        checked(issued(), keys=[])


def test_hits_of_two_answers_cannot_be_exchanged() -> None:
    first, second = issued(["a"]), issued(["b"])
    with pytest.raises(InvalidRequestError):
        checked(first.partition(".")[0] + "." + second.partition(".")[2])


def test_an_old_id_is_refused() -> None:
    query_id = issued()
    assert checked(query_id, at_s=1e9 + 86_390).version == 7
    with pytest.raises(InvalidRequestError, match="at most 24 hours old, is 25.0"):
        checked(query_id, at_s=1e9 + 90_000)
    with pytest.raises(InvalidRequestError, match="at most 24 hours old"):
        checked(query_id, at_s=1e9 - 400)


def test_the_number_of_a_key_is_in_the_id() -> None:
    proof = base64.urlsafe_b64decode(issued([]).partition(".")[2] + "==")
    assert int.from_bytes(proof[:2]) == KEY.number
